"""(z) Metered calls of an EVM chain: CPU of a call with and without usage-enabled, two daemons in
turns.

Two daemons stand before the same node; one of them has `usage-enabled`. They take turns of a
quarter of a second, in alternating order, with calls on one and on 32 connections, and with batches
of 100. The ratio of the CPU of a request is the median of 40 turns.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.evm_front import BATCH, CALL, CLIENTS, ENTRIES
from benchmarks.evm_sides import CHAIN, FRONT_PATH, VALIDATORS
from benchmarks.load import post_again_and_again
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.process import running
from benchmarks.report import Aim, Figure, Report, quantile

TURNS = 40
QUICK_TURNS = 2
TURN_S = 0.25
QUICK_TURN_S = 0.1
CALL_AIM = Aim(1.05)
BATCH_AIM = Aim(1.1)
KINDS = (
    ("1 connection", CALL, 1, CALL_AIM),
    (f"{CLIENTS} connections", CALL, CLIENTS, CALL_AIM),
    (f"a batch of {ENTRIES}", BATCH, 1, BATCH_AIM),
)
NOTES = (
    (
        "node, load and simulated network share one core; both daemons have the other, and only one"
        " of them has requests"
    ),
    (
        "bursts of a quarter of a second, one of each daemon a turn, in alternating order; the"
        " ratio is the median turn"
    ),
    "the metered daemon flushes its usage into SQLite every five seconds",
)


def run(quick: bool) -> Report:
    """Compare single calls on one and on many connections, and batches."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    cores = sorted(os.sched_getaffinity(0))
    turns, seconds = (QUICK_TURNS, QUICK_TURN_S) if quick else (TURNS, TURN_S)
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        network = stack.enter_context(simulated_network(NetworkPlan(VALIDATORS, (), 1), folder))
        node = stack.enter_context(
            running((), folder / "node.log", module="benchmarks.evm_node", core=cores[0])
        )
        os.sched_setaffinity(network.process.pid, {cores[0]})
        url = dict(word.split("=", 1) for word in node.ready_line.split())["rpc"] + "/rpc"
        chains = [{"blockchain-id": CHAIN, "rpc": [url]}]
        daemons = []
        for name, is_metered in (("plain", False), ("metered", True)):
            keys = {"evm-chains": chains, "usage-enabled": is_metered}
            subject = await stack.enter_async_context(
                daemon(network, Start(folder / name, cores[-1], keys=keys))
            )
            await subject.connected()
            daemons.append(subject)
        for kind, body, clients, aim in KINDS:
            ratios, cpu_s = await _compare(daemons, body, clients, turns, seconds)
            figures.append(
                Figure(f"{kind}: CPU of a request, metered / not", quantile(ratios, 0.5), "", aim)
            )
            figures.append(Figure(f"{kind}: CPU of a request, not metered", cpu_s * 1e6, "us"))
    return Report("usage_metering", quick, tuple(figures), NOTES)


async def _compare(
    daemons: list[Daemon], body: bytes, clients: int, turns: int, seconds: float
) -> tuple[list[float], float]:
    """Return the ratio of each turn, and the CPU of a request that is not metered; the first turn
    is not counted.
    """
    ratios, plain_s = [], []
    for turn in range(turns + 1):
        plain, metered = daemons
        used = {}
        for subject in (plain, metered) if turn % 2 else (metered, plain):
            used[subject.api] = await asyncio.to_thread(_cpu_s, subject, body, clients, seconds)
        if turn:
            ratios.append(used[metered.api] / used[plain.api])
            plain_s.append(used[plain.api])
    return ratios, quantile(plain_s, 0.5)


def _cpu_s(subject: Daemon, body: bytes, clients: int, seconds: float) -> float:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Pins this thread only.
    before_s = subject.process.cpu_s()
    load = post_again_and_again(
        subject.api, FRONT_PATH + "/rpc", body, clients=clients, seconds=seconds
    )
    return (subject.process.cpu_s() - before_s) / load.requests
