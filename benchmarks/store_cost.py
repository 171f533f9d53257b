"""(h) Cost of the store: CPU of aggregations of a daemon with a store and of a daemon without a
store.

Two daemons run side by side, one with the store in a file, one with `store-url` off; neither
follows the P-Chain. The client posts the same 400 messages of an L1 of 100 validators to them in
turns of ten. A turn's CPU counts until the next one begins, so that later writes count; the figure
is the median of all turns.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure

VALIDATORS = 100
QUICK_VALIDATORS = 10
MESSAGES = 400
QUICK_MESSAGES = 30
WARM_UP = 20
TURN_MESSAGES = 10
PAUSE_S = 0.03
# The writer batches shares for half a second; the measurement includes that write.
FLUSH_S = 1.5
# The P-Chain follower would use CPU between the aggregations.
ON = ("--follow-p-chain", "false")
OFF = (*ON, "--store-url", "off")
COST_AIM = Aim(1.05)


@dataclass(slots=True)
class MeasuredDaemon:
    """One of the two daemons.

    latencies_s: latencies of the requests.
    cpu_marks_s: CPU time before each turn and at the end.
    """

    daemon: Daemon
    latencies_s: list[float] = field(default_factory=list)
    cpu_marks_s: list[float] = field(default_factory=list)

    def mark(self) -> None:
        """Record the CPU time."""
        self.cpu_marks_s.append(self.daemon.process.cpu_s())

    @property
    def cpu_ms(self) -> float:
        """CPU of one aggregation: the median of all turns, including the writes in between."""
        return (
            quantile([after - before for before, after in pairwise(self.cpu_marks_s)], 0.5)
            / TURN_MESSAGES
            * 1e3
        )


def run(quick: bool) -> Report:
    """Post the same messages to both daemons, in turns of ten."""
    validators, messages = (QUICK_VALIDATORS, QUICK_MESSAGES) if quick else (VALIDATORS, MESSAGES)
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), validators, messages, quick))


async def _measure(folder: Path, validators: int, count: int, quick: bool) -> Report:
    with simulated_network(
        NetworkPlan(validators, (validators,), WARM_UP + count), folder
    ) as network:
        messages = network.messages(network.subnet_of_size(validators))
        async with (
            daemon(network, Start(folder / "on", flags=ON)) as on,
            daemon(network, Start(folder / "off", flags=OFF)) as off,
        ):
            daemons = (MeasuredDaemon(on), MeasuredDaemon(off))
            for measured in daemons:
                await measured.daemon.connected()
            await _post(daemons, messages[:WARM_UP])
            await _post(daemons, messages[WARM_UP:])
        violations = network.violations()
    return Report("store_cost", quick, _figures(*daemons, violations))


async def _post(daemons: tuple[MeasuredDaemon, MeasuredDaemon], messages: Sequence[str]) -> None:
    for measured in daemons:
        measured.cpu_marks_s.clear()
        measured.latencies_s.clear()
    for start in range(0, len(messages), TURN_MESSAGES):
        for measured in daemons:
            measured.mark()
            for message in messages[start : start + TURN_MESSAGES]:
                measured.latencies_s.append(await measured.daemon.timed(message))
                await asyncio.sleep(PAUSE_S)
    await asyncio.sleep(FLUSH_S)
    for measured in daemons:
        measured.mark()


def _figures(on: MeasuredDaemon, off: MeasuredDaemon, violations: int) -> tuple[Figure, ...]:
    return (
        Figure("daemon CPU, store on / off", on.cpu_ms / off.cpu_ms, "x", COST_AIM),
        Figure("CPU per aggregation, store on", on.cpu_ms, "ms"),
        Figure("CPU per aggregation, store off", off.cpu_ms, "ms"),
        Figure("wall p50, store on", quantile(on.latencies_s, 0.5) * 1e3, "ms"),
        Figure("wall p50, store off", quantile(off.latencies_s, 0.5) * 1e3, "ms"),
        Figure("wall p95, store on", quantile(on.latencies_s, 0.95) * 1e3, "ms"),
        Figure("wall p95, store off", quantile(off.latencies_s, 0.95) * 1e3, "ms"),
        violations_figure(violations),
    )
