"""Flushes and merges: whatever fails in between, each call counts once in its hour, day, week and month."""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, event, func, select

from tests.eventually import until
from tests.usage.test_database import database
from tests.usage.traffic import Call, FakeRecorder, as_plain, make_calls, totals_of
from warpseal.runtime.throttle import Throttle
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl, in_schema
from warpseal.usage.calls import OTHER, UsageLabels, UsageTotals
from warpseal.usage.database import SCHEMA, MetricsDatabase
from warpseal.usage.errors import UsageDamaged
from warpseal.usage.flusher import UsageFlusher
from warpseal.usage.periods import DAY_S, HOUR_S, Level, bucket_end, bucket_start
from warpseal.usage.queries import UsageQuery
from warpseal.usage.response_times import median_ms
from warpseal.usage.rollup import MergedElsewhere, UsageRollup, _read_input, _store, merge, stored_bytes
from warpseal.usage.schema import BUCKETS, MINUTES
from warpseal.usage.settings import UsageSettings
from warpseal.usage.source import UsageSource
from warpseal.usage.sum_arrays import Sketches, SumArrays, medians
from warpseal.usage.sum_table import LABELS, Dimension, Sums, SumTable, as_labels, free

# A Wednesday in a week that has days of two months.
T = TypeVar("T")
_NO_THROTTLE = Throttle(1.0)
NOW = int(datetime(2026, 7, 1, 10, 30, tzinfo=UTC).timestamp())


# Pairs, and dense sketches with counts of one, two and four bytes; a count beyond them is stored in parts.
TIMES = st.one_of(
    st.dictionaries(st.integers(-690, 1400), st.integers(1, 2**34), max_size=8),
    st.builds(
        lambda first, counts: {first + place: count for place, count in enumerate(counts) if count},
        st.integers(-690, 1000),
        st.one_of(*(st.lists(st.integers(0, 2**bits - 1), max_size=60) for bits in (8, 16, 32, 33))),
    ),
)


class Crash(Exception):
    """The daemon ends between two statements."""


def buckets(connection: Connection) -> dict[tuple[Level, int, Dimension], SumTable]:
    """Return all stored tables."""
    query = select(BUCKETS.c.level, BUCKETS.c.start, BUCKETS.c.dimension, BUCKETS.c.sums)
    return {
        (Level(level), start, Dimension(dimension)): SumTable.decode(bytes(sums), _NO_THROTTLE)
        for level, start, dimension, sums in connection.execute(query)
    }


def expected_sums(calls: Iterable[Call], dimension: Dimension) -> dict[tuple[str, ...], Any]:
    """Return the sums of calls by a label, by all labels, or by none."""
    groups: dict[tuple[str, ...], list[Call]] = {}
    for call in calls:
        labels = as_labels(call.labels)
        if dimension is Dimension.NONE:
            labels = ()
        elif dimension is not Dimension.ALL:
            labels = (labels[LABELS.index(dimension)],)
        groups.setdefault(labels, []).append(call)
    return {labels: as_plain(totals_of(same)) for labels, same in groups.items()}


def check(stored: dict[tuple[Level, int, Dimension], SumTable], calls: Sequence[Call]) -> None:
    """Compare all buckets with the calls."""
    expected = {(level, bucket_start(level, call.time)) for level in Level for call in calls}
    assert {key[:2] for key in stored} == expected
    for (level, start, dimension), table in stored.items():
        of_bucket = [call for call in calls if start <= call.time < bucket_end(level, start)]
        found = {labels: as_plain(table.totals(position)) for position, labels in enumerate(table.labels())}
        assert found == expected_sums(of_bucket, dimension)


async def flush(metrics: MetricsDatabase, calls: Sequence[Call]) -> None:
    """Write calls as one flush of a daemon of its own."""
    await UsageFlusher(metrics, FakeRecorder(list(calls)).take, UsageSettings()).flush()


async def test_each_call_counts_in_its_hour_day_week_and_month(any_metrics_url: str) -> None:
    calls = make_calls(random.Random(1), 300, NOW - 3 * DAY_S, NOW)
    async with database(any_metrics_url) as metrics:
        await flush(metrics, calls)
        await UsageRollup(metrics, UsageSettings(), lambda: NOW).merge_due(is_last=True)
        check(await metrics.read(buckets), calls)


class FailingDatabase(MetricsDatabase):
    """A database whose statements fail at random, and whose answer to a commit is lost at random."""

    def __init__(self, url: StoreUrl, rng: random.Random) -> None:
        super().__init__(url, UsageSettings())
        self._rng = rng
        self.failures = 0
        self.is_failing = False
        event.listen(self._engine, "before_cursor_execute", lambda *_: self._fail())
        event.listen(self._engine, "commit", lambda _: self._fail())

    async def write(self, write: Callable[[Connection], T], wait_s: float | None = None) -> T:
        """Write, and perhaps report a failure although the write was made."""
        result = await super().write(write, wait_s)
        self._fail()
        return result

    def _fail(self) -> None:
        if self.is_failing and self._rng.random() < 0.1:
            self.failures += 1
            raise Crash


@pytest.mark.parametrize("seed", range(4))
async def test_no_crash_and_no_clock_step_loses_or_doubles_a_call(any_metrics_url: str, seed: int) -> None:
    """Two daemons flush and merge in any order; calls are late, or of the future."""
    rng = random.Random(seed)
    calls: list[Call] = []
    async with FailingDatabase(in_schema(StoreUrl.parse(any_metrics_url), SCHEMA), rng) as metrics:
        metrics.is_failing = True
        recorders = [FakeRecorder(), FakeRecorder()]
        flushers = [UsageFlusher(metrics, recorder.take, UsageSettings()) for recorder in recorders]
        rollups = [UsageRollup(metrics, UsageSettings(merge_from=rng.choice([1, 50])), lambda: NOW) for _ in range(2)]
        for _ in range(50):
            step = rng.randrange(3)
            with suppress(Crash, MergedElsewhere):
                if step == 0:
                    new = make_calls(rng, rng.randrange(20), NOW - 2 * DAY_S, NOW + HOUR_S)
                    calls += new
                    rng.choice(recorders).calls += new
                elif step == 1:
                    await rng.choice(flushers).flush()
                else:
                    await rng.choice(rollups).merge_due(is_last=rng.random() < 0.5)
        metrics.is_failing = False
        assert metrics.failures > 3
        for flusher in flushers:
            await flusher.flush()
        await rollups[0].merge_due(is_last=True)
        check(await metrics.read(buckets), calls)
        assert await metrics.read(_count_unmerged) == 0


def _count_unmerged(connection: Connection) -> int:
    return connection.execute(select(func.count()).where(MINUTES.c.is_merged == 0)).scalar_one()


async def test_a_merge_is_refused_if_another_daemon_has_merged_meanwhile(any_metrics_url: str) -> None:
    calls = make_calls(random.Random(2), 20, NOW - 60, NOW)
    hour = bucket_start(Level.HOUR, calls[0].time)
    async with database(any_metrics_url) as metrics:
        await flush(metrics, calls)
        given = await metrics.read(partial(_read_input, hour))
        tables = merge(given, 100, _NO_THROTTLE)
        await metrics.write(partial(_store, given, tables))
        with pytest.raises(MergedElsewhere):
            await metrics.write(partial(_store, given, tables))
        check(await metrics.read(buckets), calls)


async def test_an_hour_is_merged_when_it_is_over_or_has_many_rows(tmp_path: Path) -> None:
    clock = [float(NOW)]
    calls = make_calls(random.Random(3), 10, NOW - 60, NOW)
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        await flush(metrics, calls)
        assert await UsageRollup(metrics, UsageSettings(), lambda: clock[0]).merge_due() == 0
        clock[0] = bucket_start(Level.HOUR, NOW) + HOUR_S
        assert await UsageRollup(metrics, UsageSettings(), lambda: clock[0]).merge_due() == 0
        clock[0] += 20
        assert await UsageRollup(metrics, UsageSettings(), lambda: clock[0]).merge_due() == 1
        await flush(metrics, make_calls(random.Random(3), 10, int(clock[0]) - 1, int(clock[0])))
        assert await UsageRollup(metrics, UsageSettings(merge_from=5), lambda: clock[0]).merge_due() == 1


async def test_rows_that_come_during_a_merge_wait_for_the_next_one(any_metrics_url: str) -> None:
    """Else an hour of many calls would be merged again and again, and nothing else be done."""
    calls, late = make_calls(random.Random(3), 20, NOW - 60, NOW), make_calls(random.Random(4), 20, NOW - 60, NOW)

    class BusyDatabase(MetricsDatabase):
        """A database to which another daemon writes a call during each merge, as long as there are any."""

        async def write(self, write: Callable[[Connection], T], wait_s: float | None = None) -> T:
            if getattr(write, "func", None) is _store and late:
                await flush(self, [late.pop()])
            return await super().write(write, wait_s)

    async with BusyDatabase(in_schema(StoreUrl.parse(any_metrics_url), SCHEMA), UsageSettings()) as metrics:
        await flush(metrics, calls)
        rollup = UsageRollup(metrics, UsageSettings(merge_from=15), lambda: NOW)
        assert await rollup.merge_due() == 1
        assert len(late) == 19
        assert await rollup.merge_due() == 0


async def test_buckets_hold_a_bounded_number_of_combinations(tmp_path: Path) -> None:
    calls = make_calls(random.Random(4), 600, NOW - 1_000, NOW, agents=300)
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        for part in (calls[:300], calls[300:]):
            await flush(metrics, part)
            await UsageRollup(metrics, UsageSettings(max_combinations=100), lambda: NOW).merge_due(is_last=True)
        stored = await metrics.read(buckets)
        for (_, _, dimension), table in stored.items():
            assert len(table) <= 100
            if dimension in (Dimension.NONE, Dimension.PATH, Dimension.STATUS):
                found = {labels: as_plain(table.totals(at)) for at, labels in enumerate(table.labels())}
                assert found == expected_sums(calls, dimension)
        agents = stored[Level.MONTH, bucket_start(Level.MONTH, NOW), Dimension.USER_AGENT]
        assert (OTHER,) in set(agents.labels())


async def test_rows_are_removed_after_their_retention(any_metrics_url: str) -> None:
    clock = [float(NOW)]
    settings = UsageSettings(hour_retention_s=DAY_S, day_retention_s=30 * DAY_S, month_retention_s=365 * DAY_S)
    async with database(any_metrics_url) as metrics:
        rollup = UsageRollup(metrics, settings, lambda: clock[0])
        await flush(metrics, make_calls(random.Random(5), 50, NOW - 60, NOW))

        async def levels_after(days: int) -> set[Level]:
            clock[0] = NOW + days * DAY_S
            await rollup.prune()
            return {level for level, _, _ in await metrics.read(buckets)}

        assert await levels_after(10) == set()
        await rollup.merge_due()
        assert await metrics.read(stored_bytes) > 0
        assert await levels_after(0) == set(Level)
        assert await levels_after(2) == {Level.DAY, Level.WEEK, Level.MONTH}
        assert await levels_after(32) == {Level.WEEK, Level.MONTH}
        assert await levels_after(400) == {Level.WEEK}
        assert await metrics.read(lambda connection: connection.execute(select(MINUTES)).all()) == []


async def test_the_oldest_hours_go_first_if_the_database_is_too_big(any_metrics_url: str) -> None:
    calls = make_calls(random.Random(6), 400, NOW - 2 * DAY_S, NOW)
    async with database(any_metrics_url) as metrics:
        rollup = UsageRollup(metrics, UsageSettings(), lambda: NOW)
        await flush(metrics, calls)
        await rollup.merge_due(is_last=True)
        before = await metrics.read(buckets)
        limit = await metrics.read(stored_bytes) - 1
        await UsageRollup(metrics, UsageSettings(max_bytes=limit), lambda: NOW).prune()
        after = await metrics.read(buckets)
        assert await metrics.read(stored_bytes) <= limit
        gone = sorted({key[:2] for key in before.keys() - after.keys()})
        assert gone == sorted({key[:2] for key in before if key[0] is Level.HOUR})[:24]
        await UsageRollup(metrics, UsageSettings(max_bytes=0), lambda: NOW).prune()
        assert await metrics.read(stored_bytes) == 0


async def test_rows_that_are_not_merged_displace_hours_and_no_longer_periods(tmp_path: Path) -> None:
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        await flush(metrics, make_calls(random.Random(6), 200, NOW - 3 * DAY_S, NOW - HOUR_S))
        await UsageRollup(metrics, UsageSettings(), lambda: NOW).merge_due(is_last=True)
        before = await metrics.read(buckets)
        kept = {key for key in before if key[0] is not Level.HOUR}
        of_longer = select(func.sum(BUCKETS.c.size_bytes)).where(BUCKETS.c.level != int(Level.HOUR))
        limit = await metrics.read(lambda connection: connection.execute(of_longer).scalar_one())
        await flush(metrics, make_calls(random.Random(7), 2_000, NOW - 600, NOW))
        await UsageRollup(metrics, UsageSettings(max_bytes=limit), lambda: NOW).prune()
        assert await metrics.read(stored_bytes) > limit
        assert (await metrics.read(buckets)).keys() == kept
        await UsageRollup(metrics, UsageSettings(max_bytes=limit - 1), lambda: NOW).prune()
        after = (await metrics.read(buckets)).keys()
        assert after < kept
        assert {key for key in kept if key[0] in (Level.WEEK, Level.MONTH)} <= after


def test_nothing_is_removed_for_an_hour_after_the_clock_was_set(tmp_path: Path) -> None:
    clock, monotonic = [float(NOW)], [0.0]
    metrics = database(f"sqlite:///{tmp_path}/metrics.db")
    rollup = UsageRollup(metrics, UsageSettings(), lambda: clock[0], lambda: monotonic[0])

    def pass_time(seconds: float) -> None:
        clock[0] += seconds
        monotonic[0] += seconds

    pass_time(61)
    assert rollup.may_prune()
    clock[0] += 10 * 365 * DAY_S
    assert not rollup.may_prune()
    pass_time(3_599)
    assert not rollup.may_prune()
    pass_time(1)
    assert rollup.may_prune()


async def test_sums_wait_in_memory_while_the_database_is_down_and_fold(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    calls = make_calls(random.Random(7), 2_000, NOW - 2 * DAY_S, NOW, agents=500)
    recorder = FakeRecorder()
    async with database(f"sqlite:///{path}") as metrics:
        flusher = UsageFlusher(metrics, recorder.take, replace(UsageSettings(), max_waiting_bytes=400_000))
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
        await UsageRollup(metrics, UsageSettings(), lambda: NOW).merge_due(is_last=True)
        stored = await metrics.read(buckets)
        # Hours may have become days; days, paths and statuses stay exact.
        for (level, start, dimension), table in stored.items():
            if level is Level.DAY and dimension in (Dimension.NONE, Dimension.PATH, Dimension.STATUS):
                of_day = [call for call in calls if start <= call.time < start + DAY_S]
                found = {labels: as_plain(table.totals(at)) for at, labels in enumerate(table.labels())}
                assert found == expected_sums(of_day, dimension)


async def test_a_flush_that_is_cancelled_before_its_thread_begins_loses_nothing(tmp_path: Path) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    class SlowSums(dict[int, Any]):
        def items(self) -> Any:
            has_begun.set()
            may_go_on.wait()
            return super().items()

    calls = make_calls(random.Random(9), 20, NOW - 60, NOW)
    taken = [SlowSums(), FakeRecorder(calls).take(), {}]
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        flusher = UsageFlusher(metrics, lambda: taken.pop(0), UsageSettings())
        flushes = [asyncio.create_task(flusher.flush()) for _ in range(2)]
        await asyncio.to_thread(has_begun.wait)
        for flush_ in flushes:
            flush_.cancel()
        await asyncio.wait(flushes)
        may_go_on.set()
        await flusher.stop()
        found = await UsageSource(metrics, UsageSettings()).read(UsageQuery(Level.DAY, 0, NOW + DAY_S))
    assert sum(group.sums.requests for bucket in found for group in bucket.groups) == len(calls)


async def test_a_table_is_the_same_after_it_was_stored() -> None:
    labels = UsageLabels("/ext/info", "info.peers", 200, "", "DE", "curl")
    table = SumTable(len(LABELS))
    totals = UsageTotals(3, 1, 1, 2**40, 7)
    totals.times.update({-100: 1, 700: 2**33})
    for _ in range(2):
        table.add({as_labels(labels): totals}, throttle=_NO_THROTTLE)
    again = SumTable.decode(table.encode(_NO_THROTTLE), _NO_THROTTLE)
    assert list(again.labels()) == [as_labels(labels)]
    assert as_plain(again.totals(0)) == (6, 2, 2, 2**41, 14, {-100: 2, 700: 2**34})


@given(
    st.lists(TIMES, min_size=1, max_size=12),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    st.sampled_from((1, 60)),
)
def test_sketches_of_any_form_are_added_up_exactly(
    sketches: list[dict[int, int]], groups: list[int], repetitions: int
) -> None:
    sums: Sums = {
        (str(number),): UsageTotals(1, times=Counter(times)) for number, times in enumerate(sketches) if times
    }
    raw = SumTable.of(sums, 1, _NO_THROTTLE).encode(_NO_THROTTLE)
    table = SumTable.decode(raw, _NO_THROTTLE)
    found = table.sums(_NO_THROTTLE)
    assert {labels: dict(totals.times) for labels, totals in found.items()} == {
        labels: dict(totals.times) for labels, totals in sums.items()
    }
    expected: dict[int, Counter[int]] = {group: Counter() for group in range(3)}
    for (number,), totals in sums.items():
        for bucket, count in totals.times.items():
            expected[groups[int(number)]][bucket] += count * repetitions
    slots = np.array([groups[int(number)] for (number,) in table.labels()], np.int64)
    arrays = SumArrays.decode(raw, zstandard.ZstdDecompressor())
    rows, slots = np.tile(np.arange(len(table)), repetitions), np.tile(slots, repetitions)
    assert sum_times(arrays.sketches(rows, slots), 3) == (
        list(map(dict, expected.values())),
        list(map(median_ms, expected.values())),
    )


def sum_times(sketches: Iterable[Sketches], count: int) -> tuple[list[dict[int, int]], list[float]]:
    """Return the counts by bucket of so many slots, and their medians."""
    found = list(sketches)
    first = min((part.first for part in found), default=0)
    times = np.zeros((count, max((part.end for part in found), default=0) - first), np.int64)
    for part in found:
        part.add_to(times, first)
    counts = [{first + place: n for place, n in enumerate(row) if n} for row in times.tolist()]
    return counts, medians(times, first)


def test_a_sketch_whose_counts_have_an_unknown_size_is_damaged() -> None:
    values, indices, counters, _, _ = _decoded(_table_of_two().encode(_NO_THROTTLE))
    times = struct.pack("<hhH", 2**15 - 1, 0, 3) + bytes(6)
    raw = _encoded([values, indices, counters, times, struct.pack("<II", 12, 0)])
    with pytest.raises(ValueError, match="unknown size"):
        SumTable.decode(raw, _NO_THROTTLE).totals(0)
    arrays = SumArrays.decode(raw, zstandard.ZstdDecompressor())
    with pytest.raises(ValueError, match="unknown size"):
        list(arrays.sketches(np.arange(2), np.zeros(2, np.int64)))


def test_a_table_whose_columns_do_not_match_is_damaged() -> None:
    values, indices, counters, times, lengths = _decoded(_table_of_two().encode(_NO_THROTTLE))
    for damaged in (
        [values, indices, counters, times[:-1], lengths],
        [values, indices, counters, times],
        [values, indices, counters, [times]],
        [values, indices, counters[:-1], times, lengths],
        [values, [indices[0][:-4]], counters, times, lengths],
        [values, indices, [column[:8] for column in counters], times, lengths],
    ):
        with pytest.raises(UsageDamaged):
            SumTable.decode(_encoded(damaged), _NO_THROTTLE)


def _table_of_two() -> SumTable:
    sums: Sums = {("a",): UsageTotals(1, times=Counter({3: 1})), ("b",): UsageTotals(2, times=Counter({5: 1, 4: 1}))}
    return SumTable.of(sums, 1, _NO_THROTTLE)


def _decoded(raw: bytes) -> list[Any]:
    decoded: list[Any] = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(raw))
    return decoded


def _encoded(parts: list[Any]) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(parts))


class CountingThrottle(Throttle):
    """A throttle that counts its steps and never pauses."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.count = 0

    def step(self) -> None:
        self.count += 1


def test_large_tables_are_compressed_and_read_in_small_steps() -> None:
    times = {bucket: bucket + 300 for bucket in range(400)}
    sums: Sums = {(str(number),): UsageTotals(1, times=times) for number in range(2_000)}
    table = SumTable.of(sums, 1, _NO_THROTTLE)
    writing, reading = CountingThrottle(), CountingThrottle()
    raw = table.encode(writing)
    again = SumTable.decode(raw, reading)
    pieces = len(zstandard.ZstdDecompressor().decompress(raw)) // 65_536
    assert pieces > 20
    assert writing.count >= len(sums) + pieces
    assert reading.count >= pieces
    assert again.sums(_NO_THROTTLE) == sums


def test_sums_are_freed_in_small_steps() -> None:
    sums: Sums = {(str(number),): UsageTotals(1) for number in range(5)}
    left = list[int]()

    class WatchingThrottle(Throttle):
        def step(self) -> None:
            left.append(len(sums))

    free(sums, WatchingThrottle())
    assert left == [4, 3, 2, 1, 0]


def test_the_garbage_collector_does_not_go_through_sums() -> None:
    """A merge has so many of them that each collection would hold up the calls for 5 to 15 ms."""
    totals = _table_of_two().totals(0)
    totals.add(UsageTotals(1, times={4: 1}))
    assert totals.times == {3: 1, 4: 1}
    assert not gc.is_tracked(totals)
    # Until Python 3.13 the collector does not go through a dict of numbers, but through any subclass.
    assert type(totals.times) is dict


async def test_damaged_rows_are_set_aside_and_the_others_are_merged(
    any_metrics_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = UsageSettings()
    calls = make_calls(random.Random(8), 40, NOW - 2 * DAY_S, NOW)
    async with database(any_metrics_url) as metrics:
        await flush(metrics, calls[:20])
        await UsageRollup(metrics, settings, lambda: NOW).merge_due(is_last=True)
        await flush(metrics, calls[20:])

        def damage(connection: Connection) -> tuple[int, int]:
            unmerged = select(MINUTES.c.key, MINUTES.c.minute).where(MINUTES.c.is_merged == 0)
            key, minute = connection.execute(unmerged.order_by(MINUTES.c.key).limit(1)).one()
            connection.execute(MINUTES.update().where(MINUTES.c.key == key).values(sums=b"damaged"))
            path_of_month = (BUCKETS.c.level == int(Level.MONTH), BUCKETS.c.dimension == int(Dimension.PATH))
            connection.execute(BUCKETS.update().where(*path_of_month).values(sums=b"damaged"))
            return key, minute

        key, minute = await metrics.write(damage)
        rollup = UsageRollup(metrics, settings, lambda: NOW)
        await rollup.merge_due(is_last=True)
        months = len({bucket_start(Level.MONTH, call.time) for call in calls[:20]})
        assert rollup.damaged == 1 + months
        aside = [record.__dict__ for record in caplog.records if "it is set aside" in record.getMessage()]
        assert [fields["key"] for fields in aside if "key" in fields] == [key]
        assert {(fields["level"], fields["dimension"]) for fields in aside if "level" in fields} == {("MONTH", "PATH")}
        kept = calls[:20] + [call for call in calls[20:] if call.time - call.time % 60 != minute]
        found = await UsageSource(metrics, settings).read(UsageQuery(Level.DAY, 0, NOW + DAY_S))
        assert sum(group.sums.requests for bucket in found for group in bucket.groups) == len(kept) < len(calls)
        later = UsageRollup(metrics, settings, lambda: NOW + 5 * DAY_S)
        await later.prune()
        assert later.damaged == months


async def test_a_damaged_row_stops_no_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = UsageSettings(merge_interval_s=0.001)
    async with database(f"sqlite:///{tmp_path}/metrics.db", settings) as metrics:
        await flush(metrics, make_calls(random.Random(8), 5, NOW - 60, NOW))
        await metrics.write(lambda connection: connection.execute(MINUTES.update().values(sums=b"damaged")))
        rollup = asyncio.create_task(UsageRollup(metrics, settings).run())
        await until(lambda: "usage of a minute is damaged, it is set aside" in caplog.text)
        assert not rollup.done()
        rollup.cancel()
        with suppress(asyncio.CancelledError):
            await rollup
