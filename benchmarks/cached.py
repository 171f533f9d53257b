"""(b) A repeated request while the proposed height advances every second, by HTTP and by gRPC.

Eight keep-alive connections of another process post one message again and again while the proposed
height advances every second, and then eight tasks call `AggregateSignatures` by gRPC on one
connection. The daemon is pinned to one core. A second part changes one weight of the set at every
height: the finished result no longer fits, the cached shares do.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from benchmarks.daemon import LOOKUPS, REQUEST_PATH, Daemon, Start, daemon
from benchmarks.load import Load, post_again_and_again
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile
from warpseal.pb import warpseal_pb2 as pb
from warpseal.pb.warpseal_pb2_grpc import WarpsealStub
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
GRPC_AIM = Aim(1.5)


@dataclass(frozen=True, slots=True)
class Repeats:
    """The results of repeating a request.

    lookups: (hits, misses) of the finished responses.
    grpc_cpu_us: CPU of a gRPC call, microseconds; 0 if it was not measured.
    """

    load: Load
    cpu_s: float
    signers: int
    lookups: tuple[float, float]
    grpc_cpu_us: float

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
        """The share of the lookups that found a finished response."""
        return 100 * self.lookups[0] / sum(self.lookups)


def run(quick: bool) -> Report:
    """Measure repeats of one message on a daemon that has one core."""
    sizes, seconds = (QUICK_SIZES, QUICK_SECONDS) if quick else (SIZES, SECONDS)
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        still = asyncio.run(_repeats(Path(folder), sizes, seconds, HEIGHTS))
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        churning = asyncio.run(_repeats(Path(folder), sizes[:1], seconds, HEIGHTS + CHURN))
    return _report(still, churning, quick)


async def _repeats(
    folder: Path, sizes: tuple[int, ...], seconds: float, flags: tuple[str, ...]
) -> dict[int, Repeats]:
    plan = NetworkPlan(sizes[0], sizes, 2, flags)
    core = max(os.sched_getaffinity(0))
    with simulated_network(plan, folder) as network:
        port = _free_port()
        async with (
            daemon(network, Start(folder / "daemon", core, keys={"grpc-port": port})) as subject,
            aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            await subject.connected()
            has_grpc = CHURN[0] not in flags
            return {
                count: await _repeat(subject, network, channel, count, seconds, has_grpc)
                for count in sizes
            }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


async def _repeat(
    subject: Daemon,
    network: Network,
    channel: aio.Channel,
    count: int,
    seconds: float,
    has_grpc: bool,
) -> Repeats:
    message = network.messages(network.subnet_of_size(count))[0]
    signed = SignedMessage.parse(await subject.sign(message))
    before = await _lookups(subject)
    cpu_s = subject.process.cpu_s()
    load = await asyncio.to_thread(_post, subject.api, message, seconds)
    cpu_s = subject.process.cpu_s() - cpu_s
    after = await _lookups(subject)
    lookups = (after[0] - before[0], after[1] - before[1])
    grpc_cpu_us = await _call(subject, channel, message, seconds) if has_grpc else 0.0
    return Repeats(load, cpu_s, len(decode_signers(signed.signers)), lookups, grpc_cpu_us)


async def _call(subject: Daemon, channel: aio.Channel, message: str, seconds: float) -> float:
    """Repeat the request by gRPC, as many at a time; return the CPU of one call, microseconds."""
    stub = WarpsealStub(channel)  # type: ignore[no-untyped-call]
    request, ends_at = (
        pb.AggregateSignaturesRequest(message=bytes.fromhex(message)),
        time.perf_counter() + seconds,
    )

    async def repeat() -> int:
        calls = 0
        while time.perf_counter() < ends_at:
            await stub.AggregateSignatures(request)
            calls += 1
        return calls

    cpu_s = subject.process.cpu_s()
    calls = sum(await asyncio.gather(*(repeat() for _ in range(CLIENTS))))
    return (subject.process.cpu_s() - cpu_s) / calls * 1e6


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
    notes = (
        f"{CLIENTS} keep-alive connections from another process; the daemon is pinned to one core",
    )
    return Report("cached", quick, tuple(figures), notes)


def _figures(at: str, repeats: Repeats) -> list[Figure]:
    latencies_s = repeats.load.latencies_s
    calls = [
        Figure(at + "CPU per gRPC call", repeats.grpc_cpu_us, "us"),
        Figure(
            at + "CPU per gRPC call / per request",
            repeats.grpc_cpu_us / repeats.cpu_us,
            "x",
            GRPC_AIM,
        ),
    ]
    return [
        Figure(at + "requests per second", repeats.rate, "/s", RATE_AIM),
        Figure(at + "CPU per request", repeats.cpu_us, "us"),
        *(calls if repeats.grpc_cpu_us else ()),
        Figure(at + "answers found in the cache", repeats.hit_percent, "%"),
        Figure(at + "latency p50", quantile(latencies_s, 0.5) * 1e3, "ms"),
        Figure(at + "latency p99", quantile(latencies_s, 0.99) * 1e3, "ms"),
        Figure(at + "distinct answers", len(repeats.load.bodies), ""),
    ]
