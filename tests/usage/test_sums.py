"""Flushes and their removal: whatever fails in between, each call counts once in its hour, day,
week and month.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.usage.test_database import database
from tests.usage.traffic import Call, FakeRecorder, make_calls, minute_sums, totals_of
from warpseal.store.connection import Connection
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl, in_schema
from warpseal.usage.calls import LABELS, OTHER, Dimension
from warpseal.usage.database import SCHEMA, MetricsDatabase
from warpseal.usage.flusher import UsageFlusher
from warpseal.usage.periods import DAY_S, HOUR_S, Level, bucket_end, bucket_start
from warpseal.usage.queries import UsageQuery
from warpseal.usage.retention import UsageRetention, stored_bytes
from warpseal.usage.schema import USAGE
from warpseal.usage.settings import UsageSettings
from warpseal.usage.source import UsageSource
from warpseal.usage.sums import (
    Flush,
    RowKey,
    RowSums,
    add_flush,
    add_kept_flush,
    decode_times,
    keep_flush,
    key_of,
    read_kept_flushes,
    texts_of,
)

T = TypeVar("T")
# A Wednesday in a week that has days of two months.
NOW = int(datetime(2026, 7, 1, 10, 30, tzinfo=UTC).timestamp())
BOUND = UsageSettings().max_combinations

Buckets = dict[tuple[Level, int], dict[RowKey, Any]]
"""The rows of buckets, by level and start."""


class Crash(Exception):
    """The daemon ends between two statements."""


def read_buckets(connection: Connection) -> Buckets:
    """Return all rows."""
    buckets: Buckets = {}
    rows = connection.fetch(f"SELECT {USAGE.names} FROM usage")
    for level, dimension, start, *texts, requests, invalid, failed, credits, wasted, times in rows:
        bucket = Level(level), start
        sums = RowSums(requests, invalid, failed, credits, wasted, decode_times(times, *bucket))
        buckets.setdefault(bucket, {})[RowKey(Dimension(dimension), tuple(texts))] = sums
    stored = connection.fetch("SELECT level, start, combinations FROM usage_buckets")
    sizes = {(Level(level), start): count for level, start, count in stored}
    counts = {
        bucket: sum(key.dimension is Dimension.ALL for key in rows)
        for bucket, rows in buckets.items()
    }
    assert sizes == counts
    return buckets


def expected_rows(
    calls: Iterable[Call], dimensions: Iterable[Dimension] = Dimension
) -> dict[RowKey, Any]:
    """Return the rows of a bucket with these calls."""
    groups: dict[RowKey, list[Call]] = {}
    for call in calls:
        texts = texts_of(call.labels)
        for dimension in dimensions:
            if dimension is Dimension.NONE:
                key = key_of(dimension)
            elif dimension is Dimension.ALL:
                key = key_of(dimension, *texts)
            else:
                key = key_of(dimension, texts[LABELS.index(dimension)])
            groups.setdefault(key, []).append(call)
    return {key: RowSums.of(totals_of(same)) for key, same in groups.items()}


def check(buckets: Buckets, calls: Sequence[Call]) -> None:
    """Compare all buckets with the calls."""
    assert buckets.keys() == {
        (level, bucket_start(level, call.time)) for level in Level for call in calls
    }
    for (level, start), rows in buckets.items():
        assert rows == expected_rows(
            call for call in calls if start <= call.time < bucket_end(level, start)
        )


def adding_flusher(
    metrics: MetricsDatabase, recorder: FakeRecorder, settings: UsageSettings | None = None
) -> UsageFlusher:
    """Return a flusher that adds to the buckets."""
    flusher = UsageFlusher(metrics, recorder.take, settings or UsageSettings())
    flusher.use(metrics)
    return flusher


async def flush(
    metrics: MetricsDatabase, calls: Sequence[Call], settings: UsageSettings | None = None
) -> None:
    """Write calls as one flush of a daemon of its own."""
    await adding_flusher(metrics, FakeRecorder(list(calls)), settings).flush()


async def test_each_call_counts_in_its_hour_day_week_and_month(any_metrics_url: str) -> None:
    calls = make_calls(random.Random(1), 300, NOW - 3 * DAY_S, NOW)
    async with database(any_metrics_url) as metrics:
        for part in (calls[:200], calls[200:]):
            await flush(metrics, part)
        check(await metrics.read(read_buckets), calls)


class FailingConnection:
    """A connection that fails at random before a statement.

    fail: raises Crash at random.
    """

    def __init__(self, connection: Connection, fail: Callable[[], None]) -> None:
        self._connection = connection
        self._fail = fail

    def __getattr__(self, name: str) -> Any:
        self._fail()
        return getattr(self._connection, name)


class FailingDatabase(MetricsDatabase):
    """A database whose statements fail, and whose replies to commits are lost, at random."""

    def __init__(self, url: StoreUrl, rng: random.Random) -> None:
        super().__init__(url, UsageSettings())
        self._rng = rng
        self.failures = 0
        self.is_failing = False

    async def write(self, write: Callable[[Any], T], wait_s: float | None = None) -> T:
        """Write, and perhaps fail before the commit, or report a failure although the write was
        made.
        """

        def failing(connection: Connection) -> T:
            result = write(FailingConnection(connection, self._fail))
            self._fail()
            return result

        result = await super().write(failing, wait_s)
        self._fail()
        return result

    def _fail(self) -> None:
        if self.is_failing and self._rng.random() < 0.1:
            self.failures += 1
            raise Crash


@pytest.mark.parametrize("seed", range(4))
async def test_no_crash_and_no_clock_step_loses_or_doubles_a_call(
    any_metrics_url: str, seed: int
) -> None:
    """Two daemons flush in any order; calls are late, or of the future."""
    rng = random.Random(seed)
    calls: list[Call] = []
    async with FailingDatabase(in_schema(StoreUrl.parse(any_metrics_url), SCHEMA), rng) as metrics:
        metrics.is_failing = True
        recorders = [FakeRecorder(), FakeRecorder()]
        flushers = [adding_flusher(metrics, recorder) for recorder in recorders]
        for _ in range(50):
            with suppress(Crash):
                if rng.randrange(2):
                    new = make_calls(rng, rng.randrange(20), NOW - 2 * DAY_S, NOW + HOUR_S)
                    calls += new
                    rng.choice(recorders).calls += new
                else:
                    await rng.choice(flushers).flush()
        metrics.is_failing = False
        assert metrics.failures > 3
        for flusher in flushers:
            await flusher.flush()
        check(await metrics.read(read_buckets), calls)


async def test_two_daemons_that_add_to_the_same_rows_at_once_lose_nothing(
    any_metrics_url: str,
) -> None:
    parts = [make_calls(random.Random(seed), 60, NOW - 60, NOW) for seed in range(4)]
    async with database(any_metrics_url) as first, database(any_metrics_url) as second:
        await asyncio.gather(
            *(
                flush(metrics, part)
                for metrics, part in zip((first, second) * 2, parts, strict=True)
            )
        )
        check(await first.read(read_buckets), [call for part in parts for call in part])


async def test_a_flush_that_is_kept_counts_once_when_it_is_added(any_metrics_url: str) -> None:
    calls = make_calls(random.Random(2), 20, NOW - 60, NOW)
    sums, *others = minute_sums(calls).items()
    async with database(any_metrics_url) as metrics:
        flush = Flush.of(b"run", 1, sums[0] * 60, sums[1].items())
        for _ in range(2):
            await metrics.write(partial(keep_flush, flush=flush, now=NOW))
        assert await metrics.read(read_kept_flushes) == [flush]
        for number, (minute, more) in enumerate(others, 2):
            await metrics.write(
                partial(
                    add_flush,
                    flush=Flush.of(b"run", number, minute * 60, more.items()),
                    now=NOW,
                    bound=BOUND,
                )
            )
        for add in (add_kept_flush, add_kept_flush, add_flush):
            await metrics.write(partial(add, flush=flush, now=NOW, bound=BOUND))
        assert await metrics.read(read_kept_flushes) == []
        check(await metrics.read(read_buckets), calls)


async def test_buckets_hold_a_bounded_number_of_combinations(tmp_path: Path) -> None:
    calls = make_calls(random.Random(4), 600, NOW - 1_000, NOW, agents=300)
    exact = (Dimension.NONE, Dimension.PATH, Dimension.STATUS)
    paths_and_statuses = {call.labels[:3:2] for call in calls}
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        for part in (calls[:300], calls[300:]):
            await flush(metrics, part, UsageSettings(max_combinations=100))
        for rows in (await metrics.read(read_buckets)).values():
            combinations = [key for key in rows if key.dimension is Dimension.ALL]
            assert 90 <= len(combinations) <= 100 + len(paths_and_statuses)
            assert {
                key: row for key, row in rows.items() if key.dimension in exact
            } == expected_rows(calls, exact)
            assert key_of(Dimension.USER_AGENT, OTHER) in rows


async def test_rows_are_removed_after_their_retention(any_metrics_url: str) -> None:
    clock = [float(NOW)]
    settings = UsageSettings(
        hour_retention_s=DAY_S, day_retention_s=30 * DAY_S, month_retention_s=365 * DAY_S
    )
    async with database(any_metrics_url) as metrics:
        retention = UsageRetention(metrics, settings, lambda: clock[0])
        await flush(metrics, make_calls(random.Random(5), 50, NOW - 60, NOW))

        async def levels_after(days: int) -> set[Level]:
            clock[0] = NOW + days * DAY_S
            await retention.remove()
            return {level for level, _ in await metrics.read(read_buckets)}

        assert await metrics.read(stored_bytes) > 0
        assert await levels_after(0) == set(Level)
        assert await levels_after(2) == {Level.DAY, Level.WEEK, Level.MONTH}
        assert await levels_after(32) == {Level.WEEK, Level.MONTH}
        assert await levels_after(400) == {Level.WEEK}
        clock[0] = 2.0**33
        await retention.remove()
        assert (
            await metrics.read(lambda connection: connection.fetch("SELECT 1 FROM usage_flushes"))
            == []
        )


async def test_the_oldest_hours_go_first_if_the_database_is_too_big(any_metrics_url: str) -> None:
    calls = make_calls(random.Random(6), 400, NOW - 2 * DAY_S, NOW)
    async with database(any_metrics_url) as metrics:
        await flush(metrics, calls)
        before = await metrics.read(read_buckets)
        limit = await metrics.read(stored_bytes) - 1
        await UsageRetention(metrics, UsageSettings(max_bytes=limit), lambda: NOW).remove()
        after = await metrics.read(read_buckets)
        assert 0 < await metrics.read(stored_bytes) <= limit
        removed = sorted(before.keys() - after.keys())
        assert (
            removed
            == sorted(bucket for bucket in before if bucket[0] is Level.HOUR)[: len(removed)]
        )
        await UsageRetention(metrics, UsageSettings(max_bytes=0), lambda: NOW).remove()
        assert await metrics.read(stored_bytes) == 0
        assert await metrics.read(read_buckets) == {}


def test_nothing_is_removed_for_an_hour_after_the_clock_was_set(tmp_path: Path) -> None:
    clock, monotonic = [float(NOW)], [0.0]
    metrics = database(f"sqlite:///{tmp_path}/metrics.db")
    retention = UsageRetention(metrics, UsageSettings(), lambda: clock[0], lambda: monotonic[0])

    def pass_time(seconds: float) -> None:
        clock[0] += seconds
        monotonic[0] += seconds

    pass_time(61)
    assert retention.may_remove()
    clock[0] += 10 * 365 * DAY_S
    assert not retention.may_remove()
    pass_time(3_599)
    assert not retention.may_remove()
    pass_time(1)
    assert retention.may_remove()


async def test_sums_wait_in_memory_while_the_database_is_down_and_fold(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    calls = make_calls(random.Random(7), 2_000, NOW - 2 * DAY_S, NOW, agents=500)
    exact = (Dimension.NONE, Dimension.PATH, Dimension.STATUS)
    recorder = FakeRecorder()
    async with database(f"sqlite:///{path}") as metrics:
        flusher = adding_flusher(metrics, recorder, UsageSettings(max_waiting_bytes=400_000))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for start in range(0, len(calls), 700):
            recorder.calls += calls[start : start + 700]
            with pytest.raises(StoreDown):
                await flusher.flush()
            assert flusher.status().waiting_bytes <= 400_000
        assert flusher.status().reason == "database is locked"
        other.close()
        await flusher.flush()
        assert flusher.status().waiting_bytes == 0
        # Hours may have become days; days, paths and statuses stay exact.
        for (level, start), rows in (await metrics.read(read_buckets)).items():
            if level is Level.DAY:
                of_day = [call for call in calls if start <= call.time < start + DAY_S]
                assert {
                    key: row for key, row in rows.items() if key.dimension in exact
                } == expected_rows(of_day, exact)


async def test_a_flush_that_is_cancelled_before_its_thread_begins_loses_nothing(
    tmp_path: Path,
) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    class SlowSums(dict[int, Any]):
        def items(self) -> Any:
            has_begun.set()
            may_go_on.wait()
            return super().items()

    calls = make_calls(random.Random(9), 20, NOW - 60, NOW)
    batches = [SlowSums(), FakeRecorder(calls).take(), {}]
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        flusher = UsageFlusher(metrics, lambda: batches.pop(0), UsageSettings())
        flusher.use(metrics)
        flushes = [asyncio.create_task(flusher.flush()) for _ in range(2)]
        await asyncio.to_thread(has_begun.wait)
        for flush_ in flushes:
            flush_.cancel()
        await asyncio.wait(flushes)
        may_go_on.set()
        await flusher.stop()
        buckets = await UsageSource(metrics, UsageSettings()).read(
            UsageQuery(Level.DAY, 0, NOW + DAY_S)
        )
    assert sum(group.sums.requests for bucket in buckets for group in bucket.groups) == len(calls)


async def test_damaged_response_times_and_flushes_are_logged_and_stop_nothing(
    any_metrics_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = make_calls(random.Random(8), 40, NOW - 60, NOW)
    async with database(any_metrics_url) as metrics:
        await flush(metrics, calls[:20])
        damage = "UPDATE usage SET times = ? WHERE level = ?"
        await metrics.write(lambda connection: connection.run(damage, b"!", int(Level.MONTH)))
        await metrics.write(
            partial(add_flush, flush=Flush(b"run", 1, NOW, b"damaged"), now=NOW, bound=BOUND)
        )
        assert caplog.messages == ["usage of a minute is damaged, it does not count"]
        await flush(metrics, calls[20:])
        assert "response times of usage are damaged, they do not count" in caplog.messages
        for level in Level:
            (bucket,) = await UsageSource(metrics, UsageSettings()).read(
                UsageQuery(level, 0, NOW + DAY_S)
            )
            assert bucket.groups[0].sums.requests == len(calls)
            assert bucket.groups[0].sums.median_ms > 0
