"""(b) A repeated request while the proposed height advances every second, and one while the set itself changes."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon import LOOKUPS, REQUEST_PATH, Daemon, Start, daemon
from benchmarks.load import Load, post_again_and_again
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile
from warpseal.warp.message import SignedMessage, decode_signers

SIZES = (1000, 100, 5)
QUICK_SIZES = (20, 5)
CLIENTS = 8
SECONDS = 6.0
QUICK_SECONDS = 2.0
HEIGHTS = ("--block-interval", "1")
CHURN = ("--churn", "1")
RATE_AIM = Aim(1500, at_least=True)
# Independent of the signers: what differs is the length of the bit set in the response.
GROWTH_AIM = Aim(1.2)


@dataclass(frozen=True, slots=True)
class Repeats:
    """What repeating one request gave. lookups: (hits, misses) of the finished responses."""

    load: Load
    cpu_s: float
    signers: int
    lookups: tuple[float, float]

    @property
    def rate(self) -> float:
        """Requests answered per second, on one core."""
        return self.load.requests / self.load.took_s

    @property
    def cpu_us(self) -> float:
        """CPU of one request, microseconds."""
        return self.cpu_s / self.load.requests * 1e6

    @property
    def hit_percent(self) -> float:
        """How many of the lookups found a finished response."""
        return 100 * self.lookups[0] / sum(self.lookups)


def run(quick: bool) -> Report:
    """Measure repeats of one message on a daemon that has one core."""
    sizes, seconds = (QUICK_SIZES, QUICK_SECONDS) if quick else (SIZES, SECONDS)
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        still = asyncio.run(_repeats(Path(folder), sizes, seconds, HEIGHTS))
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        churning = asyncio.run(_repeats(Path(folder), sizes[:1], seconds, HEIGHTS + CHURN))
    return _report(still, churning, quick)


async def _repeats(folder: Path, sizes: tuple[int, ...], seconds: float, flags: tuple[str, ...]) -> dict[int, Repeats]:
    plan = NetworkPlan(sizes[0], sizes, 2, flags)
    core = max(os.sched_getaffinity(0))
    with simulated_network(plan, folder) as network:
        async with daemon(network, Start(folder / "daemon", core)) as subject:
            await subject.connected()
            return {count: await _repeat(subject, network, count, seconds) for count in sizes}


async def _repeat(subject: Daemon, network: Network, count: int, seconds: float) -> Repeats:
    message = network.messages(network.subnet_of_size(count))[0]
    signed = SignedMessage.parse(await subject.sign(message))
    before = await _lookups(subject)
    cpu_s = subject.process.cpu_s()
    load = await asyncio.to_thread(_post, subject.api, message, seconds)
    cpu_s = subject.process.cpu_s() - cpu_s
    after = await _lookups(subject)
    lookups = (after[0] - before[0], after[1] - before[1])
    return Repeats(load, cpu_s, len(decode_signers(signed.signers)), lookups)


def _post(url: str, message: str, seconds: float) -> Load:
    body = json.dumps({"message": message}).encode()
    return post_again_and_again(url, REQUEST_PATH, body, clients=CLIENTS, seconds=seconds)


async def _lookups(subject: Daemon) -> tuple[float, float]:
    hits = await subject.value(LOOKUPS, cache="answers", result="hit")
    return hits, await subject.value(LOOKUPS, cache="answers", result="miss")


def _report(still: dict[int, Repeats], churning: dict[int, Repeats], quick: bool) -> Report:
    most, fewest = max(still), min(still)
    growth = still[most].cpu_us / still[fewest].cpu_us
    name = f"CPU per request, {still[most].signers} signers / {still[fewest].signers} signers"
    figures = [Figure(name, growth, "x", GROWTH_AIM)]
    for count, repeats in still.items():
        figures += _figures(f"{count} validators: ", repeats)
    for count, repeats in churning.items():
        figures += _figures(f"{count} validators, another set each second: ", repeats)
    notes = (f"{CLIENTS} keep-alive connections from another process; the daemon is pinned to one core",)
    return Report("cached", quick, tuple(figures), notes)


def _figures(at: str, repeats: Repeats) -> list[Figure]:
    latencies_s = repeats.load.latencies_s
    return [
        Figure(at + "requests per second", repeats.rate, "/s", RATE_AIM),
        Figure(at + "CPU per request", repeats.cpu_us, "us"),
        Figure(at + "answers found in the cache", repeats.hit_percent, "%"),
        Figure(at + "latency p50", quantile(latencies_s, 0.5) * 1e3, "ms"),
        Figure(at + "latency p99", quantile(latencies_s, 0.99) * 1e3, "ms"),
        Figure(at + "distinct answers", len(repeats.load.bodies), ""),
    ]
