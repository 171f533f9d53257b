"""Adding hours of 20,000 label combinations to their buckets during the calls of an EVM chain.

A client calls an EVM chain at an even rate, 40 % of what the daemon can answer on one core, while
the daemon adds four hours of 20,000 label combinations to their buckets, a minute in each
transaction; the benchmark keeps the flushes before the daemon starts. After that the client makes
the same calls without a flush. The CPU of adding is what the daemon used beyond that of the calls.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.evm_front import CALL, CLIENTS, PACE
from benchmarks.evm_sides import NOTES, Side, fronted
from benchmarks.load import Load, post_again_and_again, post_at_a_rate
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure
from benchmarks.usage_made_up import MadeUpUsage, parts
from warpseal.store.connection import Connection
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.periods import HOUR_S, MINUTE_S, Level, bucket_start
from warpseal.usage.settings import UsageSettings
from warpseal.usage.sums import Flush, keep_flush

COMBINATIONS, QUICK_COMBINATIONS = 20_000, 1_000
HOURS, QUICK_HOURS = 4, 1
PIECE_S, QUICK_PIECE_S = 1.0, 0.3
IDLE_PIECES, QUICK_IDLE_PIECES = 20, 2
MINUTES_PER_HOUR = 60
CPU_AIM, LATENCY_AIM = Aim(10), Aim(1.5)


def run(quick: bool) -> Report:
    """Keep the flushes of some hours; measure calls while a daemon adds them, then without."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    file = folder / "metrics.db"
    keys: dict[str, Any] = {"usage_enabled": True, "metrics_db_url": f"sqlite:///{file}"}
    combinations, hours = (QUICK_COMBINATIONS, QUICK_HOURS) if quick else (COMBINATIONS, HOURS)
    seconds = QUICK_PIECE_S if quick else PIECE_S
    async with MetricsDatabase(StoreUrl.for_file(file), UsageSettings()) as database:
        for flush in await asyncio.to_thread(_made_up_flushes, combinations, hours):
            await database.write(partial(keep_flush, flush=flush, now=flush.minute))
        async with fronted(folder, **keys) as started:
            side = started.sides[2]
            most = await asyncio.to_thread(_never_waiting, side, seconds)
            piece = partial(_at_a_rate, side, PACE * most.requests / most.took_s, seconds)
            beside, idle = list[Load](), list[Load]()
            left, before_s = await database.read(_kept_flushes), side.process.cpu_s()
            while await database.read(_kept_flushes):
                beside.append(await asyncio.to_thread(piece))
            flushing_s = side.process.cpu_s() - before_s
            before_s = side.process.cpu_s()
            pieces = QUICK_IDLE_PIECES if quick else IDLE_PIECES
            idle = [await asyncio.to_thread(piece) for _ in range(pieces)]
            idle_cpu_s = (side.process.cpu_s() - before_s) / len(idle)
            violations = started.violations()
    idle_p99_s, beside_p99_s = _p99_s(idle), _p99_s(beside[:-1] or beside or idle)
    added = left * combinations * hours / (hours * MINUTES_PER_HOUR)
    cpu_s = flushing_s - idle_cpu_s * len(beside)
    figures = (
        Figure("CPU of adding 20,000 label combinations", 20_000 * cpu_s / added, "s", CPU_AIM),
        Figure("p99 of calls, flushing / not", beside_p99_s / idle_p99_s, "x", LATENCY_AIM),
        Figure("p99 of calls, not flushing", idle_p99_s * 1e3, "ms"),
        Figure("p99 of calls, flushing", beside_p99_s * 1e3, "ms"),
        Figure(
            "label combinations added a second", added / max(seconds, seconds * len(beside)), ""
        ),
        violations_figure(violations),
    )
    notes = (*NOTES, f"{hours} hours, added minute by minute to the same day, week and month")
    return Report("usage_flush", quick, figures, notes)


def _p99_s(loads: Sequence[Load]) -> float:
    latencies_s: list[float] = []
    for load in loads:
        latencies_s += load.latencies_s
    return quantile(latencies_s, 0.99)


def _made_up_flushes(combinations: int, hours: int) -> list[Flush]:
    """Return the flushes of some hours that are over, one each minute."""
    usage, this_hour, flushes = (
        MadeUpUsage(1, combinations),
        bucket_start(Level.HOUR, int(time.time())),
        list[Flush](),
    )
    for hour in range(1, hours + 1):
        for minute, sums in enumerate(parts(usage.sums(combinations), MINUTES_PER_HOUR)):
            start = this_hour - hour * HOUR_S + minute * MINUTE_S
            flushes.append(Flush.of(b"benchmark", len(flushes), start, sums.items()))
    return flushes


def _kept_flushes(connection: Connection) -> int:
    """Return the number of flushes that are yet to be added."""
    return int(connection.value("SELECT count(*) FROM usage_flushes WHERE sums IS NOT NULL"))


def _never_waiting(side: Side, seconds: float) -> Load:
    return post_again_and_again(side.url, side.path, CALL, clients=CLIENTS, seconds=seconds)


def _at_a_rate(side: Side, rate: float, seconds: float) -> Load:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Pins this thread only.
    return post_at_a_rate(side.url, side.path, CALL, clients=CLIENTS, rate=rate, seconds=seconds)
