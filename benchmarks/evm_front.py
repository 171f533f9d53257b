"""(q) Calls of an EVM chain: to the node itself, through a bare aiohttp proxy, and through the
daemon, in turns.

A client calls an EVM chain (`eth_getBalance`) at a node that answers from memory, at a bare aiohttp
proxy in front of it, and at the daemon, in turns of a second. The proxy and the daemon have one
core, the node and the client the other. Added p50 is a side's p50 less the node's in the turn
before. There are four loads: one connection; 32 connections that send evenly, in all 40 % of what
the daemon can answer; 32 connections that never wait; batches of 100 over one connection.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.evm_sides import BARE, FRONT, NODE, EvmSides, Side, fronted
from benchmarks.evm_sides import NOTES as SHARED_NOTES
from benchmarks.load import Load, post_again_and_again, post_at_a_rate
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure

TURNS = 6
QUICK_TURNS = 2
TURN_S = 1.0
QUICK_TURN_S = 0.3
CLIENTS = 32
ENTRIES = 100
# Of what the daemon answers when 32 connections never wait: neither idle nor a queue.
PACE = 0.4
_PARAMS = b'["0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266","latest"]'
_CALLS = [
    b'{"jsonrpc":"2.0","id":%d,"method":"eth_getBalance","params":%s}' % (n, _PARAMS)
    for n in range(ENTRIES)
]
CALL = _CALLS[1]
BATCH = b"[" + b",".join(_CALLS) + b"]"
LATENCY_AIM = Aim(1.0)
CPU_AIM = Aim(2.0)
NOTES = (
    *SHARED_NOTES,
    "turns of a second: node, proxy, daemon, again and again; figures are medians of the turns",
    (
        f"evenly paced: {PACE:.0%} of the requests that the daemon answers when {CLIENTS}"
        " connections never wait"
    ),
    (
        f"never waiting: {CLIENTS} requests are in the queue of one busy core at all times; the"
        " time is the queue's"
    ),
)


@dataclass(slots=True)
class Turns:
    """The results of one kind of load at one side, turn by turn.

    cpu_s: CPU time of one request.
    """

    p50_s: list[float] = field(default_factory=list)
    p99_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)

    def note(self, load: Load, cpu_s: float) -> None:
        """Add one turn."""
        self.p50_s.append(quantile(load.latencies_s, 0.5))
        self.p99_s.append(quantile(load.latencies_s, 0.99))
        self.cpu_s.append(cpu_s / load.requests)
        self.rate.append(load.requests / load.took_s)


Drive = Callable[[Side], Load]
Measured = Mapping[str, Turns]
OpenSides = Callable[[Path], AbstractAsyncContextManager[EvmSides]]


def run(quick: bool) -> Report:
    """Ask the three in turns: by one connection, by 32, by 32 at a rate, and in batches."""
    return measure("evm_front", quick, fronted, CALL, BATCH)


def measure(
    name: str, quick: bool, open_sides: OpenSides, call: bytes, batch: bytes | None = None
) -> Report:
    """Ask the sides that `open_sides` runs in a folder: one call, and a batch if there is one."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(name, quick, open_sides(Path(folder)), call, batch))


async def _measure(
    name: str,
    quick: bool,
    sides: AbstractAsyncContextManager[EvmSides],
    call: bytes,
    batch: bytes | None,
) -> Report:
    seconds = QUICK_TURN_S if quick else TURN_S
    turns = QUICK_TURNS if quick else TURNS
    async with sides as started:
        measured = partial(_in_turns, started.sides, turns)
        one = await measured(partial(_again, call, 1, seconds))
        many = await measured(partial(_again, call, CLIENTS, seconds))
        rate = PACE * quantile(many[FRONT].rate, 0.5)
        paced = await measured(partial(_at_a_rate, call, rate, seconds))
        batches: Sequence[Figure] = ()
        if batch is not None:
            replies = await measured(partial(_again, batch, 1, seconds))
            batches = _figures(f"a batch of {ENTRIES}", replies)
        violations = started.violations()
    kinds = {
        "1 connection": one,
        f"{CLIENTS} connections, evenly paced": paced,
        f"{CLIENTS} connections, never waiting": many,
    }
    figures = (
        *(
            figure
            for kind, turns in kinds.items()
            for figure in _figures(kind, turns, LATENCY_AIM, CPU_AIM)
        ),
        *batches,
        Figure(
            f"requests per second, {CLIENTS} connections, never waiting",
            quantile(many[FRONT].rate, 0.5),
            "/s",
        ),
        Figure(f"requests per second, {CLIENTS} connections, evenly paced", rate, "/s"),
        violations_figure(violations),
    )
    return Report(name, quick, figures, NOTES)


def _again(body: bytes, clients: int, seconds: float, side: Side) -> Load:
    return post_again_and_again(side.url, side.path, body, clients=clients, seconds=seconds)


def _at_a_rate(call: bytes, rate: float, seconds: float, side: Side) -> Load:
    return post_at_a_rate(side.url, side.path, call, clients=CLIENTS, rate=rate, seconds=seconds)


async def _in_turns(sides: Sequence[Side], turns: int, drive: Drive) -> Measured:
    """Return the results of one kind of load at each side, without the first turn of each."""
    measured = {side.name: Turns() for side in sides}
    for turn in range(turns + 1):
        for side in sides:
            before_s = side.process.cpu_s()
            load = await asyncio.to_thread(_on_first_core, drive, side)
            if turn:
                measured[side.name].note(load, side.process.cpu_s() - before_s)
    return measured


def _on_first_core(drive: Drive, side: Side) -> Load:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Pins this thread only.
    return drive(side)


def _figures(
    kind: str, turns: Measured, latency_aim: Aim | None = None, cpu_aim: Aim | None = None
) -> tuple[Figure, ...]:
    added = [
        front - node for front, node in zip(turns[FRONT].p50_s, turns[NODE].p50_s, strict=True)
    ]
    bare = [proxy - node for proxy, node in zip(turns[BARE].p50_s, turns[NODE].p50_s, strict=True)]
    ratios = [
        front / proxy for front, proxy in zip(turns[FRONT].cpu_s, turns[BARE].cpu_s, strict=True)
    ]
    return (
        Figure(f"{kind}: added p50", quantile(added, 0.5) * 1e3, "ms", latency_aim),
        Figure(f"{kind}: added p50 of the bare proxy", quantile(bare, 0.5) * 1e3, "ms"),
        Figure(f"{kind}: p99", quantile(turns[FRONT].p99_s, 0.5) * 1e3, "ms"),
        Figure(f"{kind}: p50 of the node itself", quantile(turns[NODE].p50_s, 0.5) * 1e3, "ms"),
        Figure(f"{kind}: daemon CPU / bare proxy CPU", quantile(ratios, 0.5), "", cpu_aim),
        Figure(f"{kind}: daemon CPU", quantile(turns[FRONT].cpu_s, 0.5) * 1e6, "us"),
    )
