"""(h) What the store costs: CPU of aggregations of a daemon that keeps everything and of one that keeps nothing."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, faults_figure, quantile

VALIDATORS = 100
QUICK_VALIDATORS = 10
MESSAGES = 400
QUICK_MESSAGES = 30
WARM_UP = 20
A_TURN = 10
PAUSE_S = 0.03
# Shares are gathered for half a second before they are written; that counts, too.
WRITTEN_S = 1.5
# Following the P-Chain has nothing to do with aggregations, and goes on in between.
ON = ("--follow-p-chain", "false")
OFF = (*ON, "--store-url", "off")
COST_AIM = Aim(1.05)


@dataclass(slots=True)
class Side:
    """One of the two daemons. waits_s: of each request; marks_s: its CPU time as each turn begins, and at the end."""

    subject: Daemon
    waits_s: list[float] = field(default_factory=list)
    marks_s: list[float] = field(default_factory=list)

    def mark(self) -> None:
        """Note the CPU time."""
        self.marks_s.append(self.subject.process.cpu_s())

    @property
    def cpu_ms(self) -> float:
        """CPU of one aggregation: the median of all turns, what is written in between included."""
        return quantile([then - now for now, then in pairwise(self.marks_s)], 0.5) / A_TURN * 1e3


def run(quick: bool) -> Report:
    """Post the same messages to both daemons, in turns of ten."""
    validators, messages = (QUICK_VALIDATORS, QUICK_MESSAGES) if quick else (VALIDATORS, MESSAGES)
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), validators, messages, quick))


async def _measure(folder: Path, validators: int, count: int, quick: bool) -> Report:
    with simulated_network(NetworkPlan(validators, (validators,), WARM_UP + count), folder) as network:
        messages = network.messages(network.subnet_of_size(validators))
        async with (
            daemon(network, Start(folder / "on", flags=ON)) as on,
            daemon(network, Start(folder / "off", flags=OFF)) as off,
        ):
            sides = (Side(on), Side(off))
            for side in sides:
                await side.subject.connected()
            await _post(sides, messages[:WARM_UP])
            await _post(sides, messages[WARM_UP:])
        faults = network.faults()
    return Report("store_cost", quick, _figures(*sides, faults))


async def _post(sides: tuple[Side, Side], messages: Sequence[str]) -> None:
    for side in sides:
        side.marks_s.clear()
        side.waits_s.clear()
    for start in range(0, len(messages), A_TURN):
        for side in sides:
            side.mark()
            for message in messages[start : start + A_TURN]:
                side.waits_s.append(await side.subject.timed(message))
                await asyncio.sleep(PAUSE_S)
    await asyncio.sleep(WRITTEN_S)
    for side in sides:
        side.mark()


def _figures(on: Side, off: Side, faults: int) -> tuple[Figure, ...]:
    return (
        Figure("daemon CPU, store on / off", on.cpu_ms / off.cpu_ms, "x", COST_AIM),
        Figure("CPU per aggregation, store on", on.cpu_ms, "ms"),
        Figure("CPU per aggregation, store off", off.cpu_ms, "ms"),
        Figure("wall p50, store on", quantile(on.waits_s, 0.5) * 1e3, "ms"),
        Figure("wall p50, store off", quantile(off.waits_s, 0.5) * 1e3, "ms"),
        Figure("wall p95, store on", quantile(on.waits_s, 0.95) * 1e3, "ms"),
        Figure("wall p95, store off", quantile(off.waits_s, 0.95) * 1e3, "ms"),
        faults_figure(faults),
    )
