"""(r) Heads of an EVM chain, sent to 1,000 WebSocket clients: by the node, a bare aiohttp proxy,
and the daemon.

Each of the 1,000 clients has a connection of its own, through the proxy or the daemon, to the node.
The node sends a head (0.7 KB) to all of them at once, again and again; they reconnect for each
turn. A client's delay counts from the moment at which the node sends its copy.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.evm_sides import BARE, FRONT, NODE, EvmSides, Side, fronted
from benchmarks.evm_sides import NOTES as SHARED_NOTES
from benchmarks.process import allow_many_sockets
from benchmarks.report import Aim, Figure, Report, mean, quantile, violations_figure
from benchmarks.subscribers import subscribed

CLIENTS = 1_000
QUICK_CLIENTS = 50
TURNS = 3
QUICK_TURNS = 1
HEADS = 12
QUICK_HEADS = 3
NOTES = (
    *SHARED_NOTES,
    (
        "each client has one WebSocket, with one to the node behind it; the node sends a head of"
        " 0.7 KB to all at once"
    ),
    (
        "turns: node, proxy, daemon; delays count from the moment at which the node sends a"
        " client's copy"
    ),
)


@dataclass(slots=True)
class SideResult:
    """Results of all turns of one side.

    cpu_s: CPU time of a head for a client.
    connect_cpu_s: CPU time of a connection.
    missed: number of heads that clients did not receive.
    """

    delays_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    connect_cpu_s: list[float] = field(default_factory=list)
    memory_bytes: list[float] = field(default_factory=list)
    missed: int = 0


def run(quick: bool) -> Report:
    """Connect the clients to each side in turn, and send them heads."""
    allow_many_sockets()
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    clients, turns, heads = (
        (QUICK_CLIENTS, QUICK_TURNS, QUICK_HEADS) if quick else (CLIENTS, TURNS, HEADS)
    )
    async with fronted(folder) as started:
        results = await asyncio.to_thread(_turns, started, clients, turns, heads)
        violations = started.violations()
    figures = (*_figures(results), violations_figure(violations))
    return Report(
        "evm_subscribers",
        quick,
        figures,
        (*NOTES, f"{clients} clients, {turns * heads} heads each"),
    )


def _turns(started: EvmSides, clients: int, turns: int, heads: int) -> Mapping[str, SideResult]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Pins this thread only.
    results = {side.name: SideResult() for side in started.sides}
    for _ in range(turns):
        for side in started.sides:
            _turn(side, started.sides[0], results[side.name], (clients, heads))
    return results


def _turn(side: Side, node: Side, result: SideResult, size: tuple[int, int]) -> None:
    clients, heads = size
    cpu_s, memory_bytes = side.process.cpu_s(), side.process.rss_bytes()
    with subscribed(side.ws_url, side.ws_path, node.ws_url, clients) as subscribers:
        result.connect_cpu_s.append((side.process.cpu_s() - cpu_s) / clients)
        subscribers.receive_head()
        cpu_s = side.process.cpu_s()
        for _ in range(heads):
            delays_s = subscribers.receive_head()
            result.delays_s += delays_s
            result.missed += clients - len(delays_s)
        result.cpu_s.append((side.process.cpu_s() - cpu_s) / heads / clients)
        result.memory_bytes.append((side.process.rss_bytes() - memory_bytes) / clients)


def _figures(results: Mapping[str, SideResult]) -> Sequence[Figure]:
    front, bare, node = results[FRONT], results[BARE], results[NODE]
    ratios = [ours / theirs for ours, theirs in zip(front.cpu_s, bare.cpu_s, strict=True)]
    return (
        Figure("heads that a client of the daemon did not receive", front.missed, "", Aim(0)),
        Figure(
            "daemon CPU / bare proxy CPU, of a head for one client",
            quantile(ratios, 0.5),
            "",
            Aim(2.0),
        ),
        Figure("daemon CPU, of a head for one client", mean(front.cpu_s) * 1e6, "us"),
        *(
            Figure(f"delay {name}, {side_name}", quantile(side.delays_s, share) * 1e3, "ms")
            for side_name, side in (
                ("the node itself", node),
                ("bare proxy", bare),
                ("the daemon", front),
            )
            for name, share in (("p50", 0.5), ("p99", 0.99))
        ),
        Figure(
            "daemon CPU of a connection, its own to the node included",
            mean(front.connect_cpu_s) * 1e3,
            "ms",
        ),
        Figure("bare proxy CPU of the same", mean(bare.connect_cpu_s) * 1e3, "ms"),
        Figure("daemon memory of a connection, first turn", front.memory_bytes[0] / 1024, "KiB"),
        Figure("bare proxy memory of the same", bare.memory_bytes[0] / 1024, "KiB"),
    )
