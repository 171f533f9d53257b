"""Signing for a destination against signing without one, and messages made again when its epoch
changes.

The L1 has 1,000 validators, and the P-Chain a block each second. New messages are signed with and
without `destinationBlockchainId` in turn, then one message is repeated in slices of a second and a
half that alternate. In another network 100 messages are signed by 80 % of the weight for a
destination; 20 validators leave, the destination's epoch ends, and the messages are signed for the
next one.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.daemon import REQUEST_PATH, Daemon, RequestFailed, Start, daemon
from benchmarks.load import Load, post_again_and_again
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, mean, violations_figure
from warpseal.warp.ids import ChainID, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.report import aggregator_config

VALIDATORS = 1000
QUICK_VALIDATORS = 10
MESSAGES = 60
QUICK_MESSAGES = 12
REISSUED = 100
QUICK_REISSUED = 10
LEAVING = 20
QUICK_LEAVING = 1
WARM_UPS = 4
CLIENTS = 8
SLICES = 6
SLICE_S = 1.5
QUICK_SLICE_S = 0.3
SETTLE_S = 0.05
# A block each second, so that the proposed height moves, and another epoch every five.
HEIGHTS = ("--block-interval", "1")
REISSUED_SERIES = "warpseal_messages_reissued_total"
# The daemon caches an epoch for a second and a quarter.
EPOCH_S = 1.5
# Percent: without shares beyond the quorum those that are left would not suffice.
MORE_THAN_NEEDED = 80
RATIO_AIM = Aim(1.1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run.

    leaving: number of validators that leave before the epoch changes.
    """

    validators: int
    messages: int
    reissued: int
    leaving: int
    slice_s: float


@dataclass(frozen=True, slots=True)
class Reissue:
    """Messages made again.

    requests: signature requests in the meantime.
    counted: messages that the daemon's metric counted.
    """

    messages: int
    took_s: float
    cpu_s: float
    requests: int
    counted: float


@dataclass(frozen=True, slots=True)
class InProcessNetwork:
    """A network in the process of the benchmark, whose sets and blocks the benchmark changes."""

    network: SimulatedNetwork

    @property
    def facts(self) -> Mapping[str, Any]:
        """The description of the network, as far as a daemon needs it."""
        return {"config": aggregator_config(self.network, 0, 0)}

    @property
    def requests(self) -> int:
        """Signature requests that the validators received."""
        return sum(validator.counts.app_requests for validator in self.network.validators)


def run(quick: bool) -> Report:
    """Measure one daemon with and without a destination in turn, and another one over a change of
    the epoch.
    """
    sizes = Sizes(VALIDATORS, MESSAGES, REISSUED, LEAVING, SLICE_S)
    if quick:
        sizes = Sizes(
            QUICK_VALIDATORS, QUICK_MESSAGES, QUICK_REISSUED, QUICK_LEAVING, QUICK_SLICE_S
        )
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        figures = asyncio.run(_compare(sizes, Path(folder)))
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        figures += _reissue_figures(asyncio.run(_reissue(sizes, Path(folder))))
    notes = (
        (
            f"{CLIENTS} keep-alive connections for repeated requests; slices with and without a"
            " destination alternate"
        ),
        (
            f"before the epoch changes, {sizes.leaving} of {sizes.validators} validators leave, so"
            f" that positions move; shares of {MORE_THAN_NEEDED} % are stored"
        ),
    )
    return Report("delivery", quick, tuple(figures), notes)


# With and without a destination.


async def _compare(sizes: Sizes, folder: Path) -> list[Figure]:
    plan = NetworkPlan(sizes.validators, (sizes.validators,), sizes.messages + WARM_UPS, HEIGHTS)
    core = max(os.sched_getaffinity(0))
    with simulated_network(plan, folder) as network:
        async with daemon(network, Start(folder / "daemon", core)) as subject:
            await subject.connected()
            destination = await _chain_of(network)
            cold = await _cold(subject, network, destination, sizes)
            warm = await _warm(subject, network, destination, sizes)
        return [*cold, *warm, violations_figure(network.violations())]


async def _chain_of(network: Network) -> str:
    """Return the source chain of the L1's messages: a message to the own chain is signed by the
    same subnet.
    """
    subnet_id = network.subnet_of_size(len(network.facts["subnets"][-1]["validators"]))
    message = bytes.fromhex(network.messages(subnet_id)[0].removeprefix("0x"))
    return id_text(ChainID(message[6:38]))


async def _cold(subject: Daemon, network: Network, destination: str, sizes: Sizes) -> list[Figure]:
    """Sign messages that were never asked for, every second one for a destination."""
    messages = network.messages(network.subnet_of_size(sizes.validators))
    for message in messages[:WARM_UPS]:
        await subject.sign(message, **{"destination-blockchain-id": destination})
    cpu_s: dict[bool, list[float]] = {True: [], False: []}
    for place, message in enumerate(messages[WARM_UPS:]):
        has_destination = place % 2 == 0
        fields = {"destination-blockchain-id": destination} if has_destination else {}
        before = subject.process.cpu_s()
        await subject.sign(message, **fields)
        await asyncio.sleep(SETTLE_S)
        cpu_s[has_destination].append(subject.process.cpu_s() - before)
    with_one, without = mean(cpu_s[True]), mean(cpu_s[False])
    return [
        Figure("new message, CPU with a destination / without", with_one / without, "x", RATIO_AIM),
        Figure("new message, CPU with a destination", with_one * 1e3, "ms"),
        Figure("new message, CPU without", without * 1e3, "ms"),
    ]


async def _warm(subject: Daemon, network: Network, destination: str, sizes: Sizes) -> list[Figure]:
    """Repeat one signed message in slices that alternate."""
    message = network.messages(network.subnet_of_size(sizes.validators))[0]
    bodies = {
        True: {"message": message, "destination-blockchain-id": destination},
        False: {"message": message},
    }
    cpu_s: dict[bool, list[float]] = {True: [], False: []}
    for place in range(2 * SLICES):
        has_destination = place % 2 == 0
        before = subject.process.cpu_s()
        load = await asyncio.to_thread(_post, subject.api, bodies[has_destination], sizes.slice_s)
        cpu_s[has_destination].append((subject.process.cpu_s() - before) / load.requests)
    with_one, without = mean(cpu_s[True]), mean(cpu_s[False])
    return [
        Figure(
            "repeated message, CPU with a destination / without", with_one / without, "x", RATIO_AIM
        ),
        Figure("repeated message, CPU with a destination", with_one * 1e6, "us"),
        Figure("repeated message, CPU without", without * 1e6, "us"),
    ]


def _post(url: str, fields: Mapping[str, str], seconds: float) -> Load:
    return post_again_and_again(
        url, REQUEST_PATH, json.dumps(fields).encode(), clients=CLIENTS, seconds=seconds
    )


# Messages made again.


async def _reissue(sizes: Sizes, folder: Path) -> Reissue:
    l1s = (
        L1Plan(validators=sizes.validators, shared=True),
        L1Plan(validators=1, shared=True, idle=True),
    )
    plan = Plan(validators=sizes.validators, l1s=l1s, messages=sizes.reissued)
    async with SimulatedNetwork(plan) as network:
        subnet_id = network.subnets[1].subnet_id
        source, destination = (
            network.state.chains_of(subnet.subnet_id)[0] for subnet in network.subnets[1:]
        )
        of_source = [
            item.unsigned for item in network.messages if item.unsigned.source_chain_id == source
        ]
        messages = [message.raw.hex() for message in of_source[: sizes.reissued]]
        network.build_block(destination)
        described = InProcessNetwork(network)
        async with daemon(described, Start(folder / "daemon")) as subject:
            await subject.connected()
            for message in messages:
                await _sign_for(subject, message, destination, MORE_THAN_NEEDED)
            for index in range(sizes.leaving):
                network.change_weight(subnet_id, index, 0)
            network.build_block(destination)
            await asyncio.sleep(EPOCH_S)
            requests, cpu_s, started = (
                described.requests,
                subject.process.cpu_s(),
                time.perf_counter(),
            )
            for message in messages:
                await _sign_for(subject, message, destination)
            took_s = time.perf_counter() - started
            counted = await subject.value(REISSUED_SERIES)
            return Reissue(
                len(messages),
                took_s,
                subject.process.cpu_s() - cpu_s,
                described.requests - requests,
                counted,
            )


async def _sign_for(subject: Daemon, message: str, destination: ChainID, quorum: int = 0) -> None:
    fields = {
        "message": message,
        "destination-blockchain-id": id_text(destination),
        "quorum-percentage": quorum,
    }
    async with subject.http.post(subject.api + REQUEST_PATH, json=fields) as response:
        if response.status != 200 or response.headers["X-Warpseal-Verifies-Now"] != "true":
            raise RequestFailed(f"HTTP {response.status}: {(await response.text())[:500]}")


def _reissue_figures(reissue: Reissue) -> list[Figure]:
    return [
        Figure("validators asked for messages made again", reissue.requests, "", Aim(0)),
        Figure(
            "messages made again, as the metric counts",
            reissue.counted,
            "",
            Aim(reissue.messages, at_least=True),
        ),
        Figure("message made again, CPU", reissue.cpu_s / reissue.messages * 1e3, "ms"),
        Figure("message made again, time", reissue.took_s / reissue.messages * 1e3, "ms"),
    ]
