"""(d) Bad shares among good ones: what finding and dropping them costs the whole daemon.

In three networks 0, 1 and 100 of 1,000 validators sign another message. The benchmark measures the
first request of a fresh daemon that meets them, averaged over three daemons (a message that no
validator signs loads sets and keys before), and then later requests, when the daemon knows the bad
keys.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon import BAD_SHARES, SETTLE_S, Daemon, RequestFailed, Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, mean
from warpseal.warp.message import AddressedCall, UnsignedMessage

AIMS = {1: Aim(1.5), 100: Aim(4)}
# Of two thirds of the weight about two thirds of the bad shares stand in the way; those found are
# counted.
QUORUM = 67
WARM_UP_TIMEOUT_S = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    bad: number of validators that sign wrongly, network by network.
    later: number of requests per start.
    """

    validators: int
    bad: tuple[int, ...]
    starts: int
    later: int


SIZES = Sizes(validators=1000, bad=(0, 1, 100), starts=3, later=8)
QUICK_SIZES = Sizes(validators=20, bad=(0, 1, 2), starts=1, later=2)


@dataclass(frozen=True, slots=True)
class Cost:
    """Daemon CPU seconds of the first request that meets the bad shares, and of one after it."""

    first_s: float
    later_s: float
    bad_share_count: float


def run(quick: bool) -> Report:
    """Measure the same request on networks that differ in how many validators sign wrongly."""
    sizes = QUICK_SIZES if quick else SIZES
    costs = {}
    for bad in sizes.bad:
        with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
            costs[bad] = asyncio.run(_measure(sizes, bad, Path(folder)))
    return _report(costs, sizes.validators, quick)


async def _measure(sizes: Sizes, bad: int, folder: Path) -> Cost:
    costs = []
    count = sizes.validators
    plan = NetworkPlan(count, (count,), 1 + sizes.later, _rules(count, bad))
    with simulated_network(plan, folder) as network:
        messages = network.messages(network.subnet_of_size(count))
        for start in range(sizes.starts):
            async with daemon(network, Start(folder / f"daemon-{start}")) as subject:
                await subject.connected()
                costs.append(await _cost(subject, messages))
    return Cost(
        mean([cost.first_s for cost in costs]),
        mean([cost.later_s for cost in costs]),
        mean([cost.bad_share_count for cost in costs]),
    )


def _rules(validators: int, bad: int) -> tuple[str, ...]:
    """Return the flags that make `bad` validators, evenly spread, sign another message."""
    places = (
        ",".join(str(place) for place in range(0, validators, validators // bad)) if bad else ""
    )
    return ("--behave", f"{places}:wrong") if bad else ()


async def _cost(subject: Daemon, messages: list[str]) -> Cost:
    await _warm_up(subject, bytes.fromhex(messages[0]))
    first_s = await _spent(subject, messages[:1])
    bad_shares = await subject.value(BAD_SHARES)
    return Cost(first_s, await _spent(subject, messages[1:]), bad_shares)


async def _spent(subject: Daemon, messages: list[str]) -> float:
    """Return the CPU seconds of one request, late responses included."""
    await asyncio.sleep(SETTLE_S)
    cpu_s = subject.process.cpu_s()
    for message in messages:
        await subject.sign(message, **{"quorum-percentage": QUORUM})
        await asyncio.sleep(SETTLE_S)
    return (subject.process.cpu_s() - cpu_s) / len(messages)


async def _warm_up(subject: Daemon, signed_here: bytes) -> None:
    """Ask for a message of the same chain that no validator signs: the set and its keys are loaded
    afterwards.
    """
    message = UnsignedMessage.parse(signed_here)
    payload = AddressedCall(b"", os.urandom(32)).encode()
    unknown = UnsignedMessage.build(message.network_id, message.source_chain_id, payload)
    try:
        await subject.sign(unknown.raw.hex(), **{"timeout-seconds": WARM_UP_TIMEOUT_S})
    except RequestFailed:
        return
    raise AssertionError("the simulated network signed what it does not know")


def _report(costs: dict[int, Cost], validators: int, quick: bool) -> Report:
    clean = costs[0]
    figures = []
    for bad, cost in costs.items():
        at = f"{bad} bad of {validators}: "
        if bad:
            name = at + "daemon CPU / clean request"
            figures.append(Figure(name, cost.first_s / clean.first_s, "x", AIMS.get(bad)))
            figures.append(Figure(name + ", met before", cost.later_s / clean.later_s, "x"))
            figures.append(
                Figure(at + "bad shares found by the first request", cost.bad_share_count, "")
            )
        figures.append(Figure(at + "daemon CPU of the first request", cost.first_s * 1e3, "ms"))
        figures.append(Figure(at + "daemon CPU of a later request", cost.later_s * 1e3, "ms"))
    return Report("bad_shares", quick, tuple(figures))
