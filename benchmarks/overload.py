"""(s) Bursts of new messages: how many are answered, how early the rest is refused, and what that
costs.

The L1 has 100 validators, and requests have a timeout of 15 s. The client sends a burst of 200 new
messages, then one of 2,000, each message in a request and on a connection of its own, from eight
addresses; `max-requests-in-flight` is 8,000, so that nothing else refuses a request. A request is
late if it got neither a signed message nor the refusal. The validators and the client share the two
cores with the daemon; the figures are from a machine with other work (four processes for each
core), so the shares say more than the seconds.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import aiohttp

from benchmarks.daemon import REQUEST_PATH, Daemon, Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.process import allow_many_sockets
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure

VALIDATORS = 100
QUICK_VALIDATORS = 10
SMALL, LARGE = 200, 2_000
QUICK_SMALL, QUICK_LARGE = 20, 200
WARM_UPS = 10
TIMEOUT_S = 15.0
# The messages are spread over the chains of the L1, because each chain of the network has the same
# number of them.
CHAINS = 40
CLIENTS = 8
SETTLE_S = 3.0
KEYS = {"max-requests-in-flight": 8_000, "request-timeout-seconds": TIMEOUT_S}
ALL_AIM = Aim(100, at_least=True)
LATE_AIM = Aim(1)
EARLY_AIM = Aim(TIMEOUT_S / 2)


@dataclass(frozen=True, slots=True)
class Response:
    """One response of a burst.

    code: code of an error; "" for a signed message.
    retry_after_s: seconds of Retry-After, 0 without the header.
    """

    status: int
    code: str
    retry_after_s: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Burst:
    """The outcome of many requests for new messages at once."""

    responses: Sequence[Response]
    took_s: float
    cpu_s: float

    def latencies_s(self, *statuses: int) -> list[float]:
        """Return the latencies of the responses with one of these statuses."""
        return [response.took_s for response in self.responses if response.status in statuses]

    def percent(self, *statuses: int) -> float:
        """Return how many responses have one of these statuses."""
        return 100 * len(self.latencies_s(*statuses)) / len(self.responses)


def run(quick: bool) -> Report:
    """Post a burst that fits into the timeout of its requests, then one that does not."""
    allow_many_sockets()
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    validators = QUICK_VALIDATORS if quick else VALIDATORS
    sizes = (QUICK_SMALL, QUICK_LARGE) if quick else (SMALL, LARGE)
    each = -(-(sum(sizes) + WARM_UPS) // CHAINS)
    # Each validator signs for the primary network's chains as well.
    plan = NetworkPlan(
        validators, (), each, ("--l1", f"validators={validators},shared,chains={CHAINS}")
    )
    figures: list[Figure] = []
    samples: dict[str, Sequence[float]] = {}
    with simulated_network(plan, folder) as network:
        messages = iter(network.messages(network.subnet_of_size(validators)))
        async with daemon(network, Start(folder / "daemon", keys=KEYS)) as subject:
            await subject.connected()
            for _ in range(WARM_UPS):
                await subject.sign(next(messages))
            for size in sizes:
                burst = await _post(subject, [next(messages) for _ in range(size)])
                figures += _figures(f"{size:,} messages: ", burst, fits=size == sizes[0])
                samples[f"answered_s_{size}"] = burst.latencies_s(200)
                samples[f"refused_s_{size}"] = burst.latencies_s(503)
                await asyncio.sleep(SETTLE_S)
        figures.append(violations_figure(network.violations()))
    notes = (
        (
            f"{validators} validators on the same cores; timeout of {TIMEOUT_S:g} s; one connection"
            " for each request"
        ),
        "late: 504, or another error than the refusal",
    )
    return Report("overload", quick, tuple(figures), notes, samples)


async def _post(subject: Daemon, messages: Sequence[str]) -> Burst:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(_client(number)) for number in range(CLIENTS)]
        started, cpu_s = time.perf_counter(), subject.process.cpu_s()
        posts = [
            _request(client, subject, message)
            for client, message in zip(cycle(clients), messages, strict=False)
        ]
        responses = await asyncio.gather(*posts)
        return Burst(responses, time.perf_counter() - started, subject.process.cpu_s() - cpu_s)


def _client(number: int) -> aiohttp.ClientSession:
    """Return a client with an address of its own, because an address may have only so many
    connections.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, local_addr=(f"127.0.0.{2 + number}", 0))
    )


async def _request(client: aiohttp.ClientSession, subject: Daemon, message: str) -> Response:
    started = time.perf_counter()
    async with client.post(subject.api + REQUEST_PATH, json={"message": message}) as response:
        body = json.loads(await response.read())
        took_s = time.perf_counter() - started
        return Response(
            response.status,
            body.get("code", ""),
            int(response.headers.get("retry-after", 0)),
            took_s,
        )


def _figures(at: str, burst: Burst, *, fits: bool) -> list[Figure]:
    success_s, refused_s = burst.latencies_s(200), burst.latencies_s(503)
    others = {response.status for response in burst.responses} - {200, 503}
    waits_s = [response.retry_after_s for response in burst.responses if response.status == 503]
    all_aim = ALL_AIM if fits else None
    figures = [
        Figure(at + "answered", burst.percent(200), "%", all_aim),
        Figure(at + "late", burst.percent(*others), "%", LATE_AIM),
        Figure(at + "answered: latency p50", quantile(success_s, 0.5), "s"),
        Figure(at + "answered: latency p99", quantile(success_s, 0.99), "s"),
        Figure(at + "all answered or refused after", burst.took_s, "s"),
        Figure(at + "daemon CPU", burst.cpu_s, "s"),
        Figure(
            at + "daemon CPU per answered message", burst.cpu_s / max(1, len(success_s)) * 1e3, "ms"
        ),
    ]
    if refused_s:
        figures += [
            Figure(at + "refused with 503", burst.percent(503), "%"),
            Figure(at + "refused: latency p99", quantile(refused_s, 0.99), "s", EARLY_AIM),
            Figure(at + "refused: shortest Retry-After", min(waits_s), "s"),
            Figure(at + "refused: longest Retry-After", max(waits_s), "s"),
        ]
    return figures
