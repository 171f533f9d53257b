"""Merging hours of 20,000 label combinations beside the calls of an EVM chain."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from benchmarks.evm_front import CALL, CLIENTS, PACE
from benchmarks.evm_sides import NOTES, Side, fronted
from benchmarks.load import Load, post_again_and_again, post_at_a_rate
from benchmarks.report import Aim, Figure, Report, faults_figure, quantile
from benchmarks.usage_made_up import MadeUpUsage, parts
from warpseal.runtime.throttle import Throttle
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.flusher import MinuteRow, insert_minute_rows
from warpseal.usage.periods import HOUR_S, MINUTE_S, Level, bucket_start
from warpseal.usage.schema import MINUTES
from warpseal.usage.settings import UsageSettings
from warpseal.usage.sum_table import LABELS, SumTable

COMBINATIONS, QUICK_COMBINATIONS = 20_000, 1_000
HOURS, QUICK_HOURS = 4, 1
PIECE_S, QUICK_PIECE_S = 1.0, 0.3
# Before each hour, so that a machine that becomes slower changes both sides.
IDLE_PIECES, QUICK_IDLE_PIECES = 5, 2
# A merge begins within this time.
BEGIN_PIECES = 6
MINUTES_PER_HOUR = 60
CPU_AIM, LATENCY_AIM = Aim(10), Aim(1.5)


def run(quick: bool) -> Report:
    """Measure calls without a merge, then store the minute rows of an hour, and measure until it is merged; again."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    file = folder / "metrics.db"
    keys: dict[str, Any] = {"usage_enabled": True, "metrics_db_url": f"sqlite:///{file}"}
    combinations, hours = (QUICK_COMBINATIONS, QUICK_HOURS) if quick else (COMBINATIONS, HOURS)
    seconds = QUICK_PIECE_S if quick else PIECE_S
    async with (
        fronted(folder, **keys) as started,
        MetricsDatabase(StoreUrl.for_file(file), UsageSettings()) as database,
    ):
        side = started.sides[2]
        most = await asyncio.to_thread(_never_waiting, side, seconds)
        piece = partial(_at_a_rate, side, PACE * most.requests / most.took_s, seconds)
        await asyncio.to_thread(piece)
        idle, beside = list[Load](), list[Load]()
        merge_cpu_s, merge_s = 0.0, 0.0
        for rows in await asyncio.to_thread(_made_up_rows, combinations, hours):
            before_s = side.process.cpu_s()
            pieces = [await asyncio.to_thread(piece) for _ in range(QUICK_IDLE_PIECES if quick else IDLE_PIECES)]
            idle_cpu_s = (side.process.cpu_s() - before_s) / len(pieces)
            idle += pieces
            await database.write(partial(insert_minute_rows, rows=rows))
            before_s, pieces = side.process.cpu_s(), []
            while await database.read(_unmerged_hours):
                pieces.append(await asyncio.to_thread(piece))
            merge_cpu_s += side.process.cpu_s() - before_s - idle_cpu_s * len(pieces)
            merge_s += len(pieces) * seconds
            # The last one ends behind the merge.
            beside += pieces[BEGIN_PIECES:-1] or pieces
        faults = started.faults()
    p99_s = {
        name: quantile([latency for load in loads for latency in load.latencies_s], 0.99)
        for name, loads in (("idle", idle), ("beside", beside))
    }
    figures = (
        Figure(f"CPU of merging an hour of {combinations} combinations", merge_cpu_s / hours, "s", CPU_AIM),
        Figure("p99 of calls, merging / not", p99_s["beside"] / p99_s["idle"], "x", LATENCY_AIM),
        Figure("p99 of calls, not merging", p99_s["idle"] * 1e3, "ms"),
        Figure("p99 of calls, merging", p99_s["beside"] * 1e3, "ms"),
        Figure("time until an hour was merged", merge_s / hours, "s"),
        faults_figure(faults),
    )
    notes = (*NOTES, f"{hours} hours, merged one after another into the same day, week and month")
    return Report("usage_merge", quick, figures, notes)


def _made_up_rows(combinations: int, hours: int) -> list[list[MinuteRow]]:
    """Return the minute rows of each of some hours that are over."""
    usage, throttle = MadeUpUsage(1, combinations), Throttle(1.0)
    this_hour, rows_by_hour = bucket_start(Level.HOUR, int(time.time())), list[list[MinuteRow]]()
    for hour in range(1, hours + 1):
        run, rows = os.urandom(16), list[MinuteRow]()
        for minute, sums in enumerate(parts(usage.sums(combinations), MINUTES_PER_HOUR)):
            start = this_hour - hour * HOUR_S + minute * MINUTE_S
            raw = SumTable.of(sums, len(LABELS), throttle).encode(throttle)
            rows.append(MinuteRow(run, len(rows), start, len(sums), raw))
        rows_by_hour.append(rows)
    return rows_by_hour


def _unmerged_hours(connection: Connection) -> int:
    """Return the number of minute rows of other hours than this one that are not merged."""
    this_hour = bucket_start(Level.HOUR, int(time.time()))
    is_waiting = (MINUTES.c.is_merged == 0, MINUTES.c.minute < this_hour - 1)
    return connection.execute(select(func.count()).where(*is_waiting)).scalar_one()


def _never_waiting(side: Side, seconds: float) -> Load:
    return post_again_and_again(side.url, side.path, CALL, clients=CLIENTS, seconds=seconds)


def _at_a_rate(side: Side, rate: float, seconds: float) -> Load:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Of this thread alone.
    return post_at_a_rate(side.url, side.path, CALL, clients=CLIENTS, rate=rate, seconds=seconds)
