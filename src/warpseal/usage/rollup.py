"""Merges minute rows into hours, days, weeks and months, and removes what is too old or too much.

One daemon of a database leads. A merge adds minute rows of one hour to the four buckets that have it, and marks them,
in one transaction. It is refused there if another merge was made since its buckets were read. Rows that are damaged are
set aside, so that the others are merged: minute rows until they are too old, tables of buckets until they are removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, NoReturn

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from warpseal.runtime.throttle import Throttle
from warpseal.store.access import read_snapshot
from warpseal.store.errors import StoreDown
from warpseal.usage.calls import UsageTotals
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.errors import UsageDamaged
from warpseal.usage.fold import fold
from warpseal.usage.page_tokens import remove_expired
from warpseal.usage.periods import HOUR_S, Level, bucket_start
from warpseal.usage.schema import BUCKETS, MINUTES, ROLLUP, UNMERGED
from warpseal.usage.settings import FOREVER, UsageSettings
from warpseal.usage.sum_table import (
    DAMAGE,
    LABELS,
    Dimension,
    Labels,
    Sums,
    SumTable,
    as_labels,
    free,
    marginal_sums,
    of_labels,
)

log = logging.getLogger(__name__)

_ROLLUP_KEY: Final = 1
# An hour is merged this many flushes after its end, so that most of its rows are there.
_FLUSHES_AFTER_HOUR: Final = 3
# Label combinations of minute rows that one merge reads at most, besides those of the last row. A merge into full
# tables takes almost the same time for few rows and for many, so fewer would not keep up with many calls.
_COMBINATIONS_PER_MERGE: Final = 200_000
# Combinations that a merge adds up before it folds them, over the bound of a bucket.
_ADDED_SHARE: Final = 2
_SET_ASIDE: Final = 2
"""`is_merged` of minute rows that are damaged."""
_DAMAGED_LEVELS: Final = 100
"""Added to the level of the tables of buckets that are damaged."""
_PRUNED_ROWS: Final = 1_000
_PRUNED_BUCKETS: Final = 24
# Seconds of work, of the idle time after it, and of the longest pause. A merge has time: it takes a sixth of an idle
# core and a fiftieth of a busy one.
_PAUSES: Final = (0.0002, 0.001, 0.01)
_CLOCK_STEP_S: Final = 60.0
_PATIENCE_AFTER_STEP_S: Final = 3_600.0

BucketKey = tuple[Level, int, Dimension]
"""Level, start and dimension of a stored table."""


class MergedElsewhere(Exception):
    """Another daemon has merged rows since the buckets were read."""


class DamagedSums(NamedTuple):
    """Stored sums that cannot be read: keys of minute rows, and tables of buckets."""

    minutes: tuple[int, ...]
    tables: tuple[BucketKey, ...]


@dataclass(frozen=True, slots=True)
class MergeInput:
    """Rows of one hour, and the tables of the buckets that have it. merges: the number of merges so far.

    has_all: whether no other row of the hour waits.
    """

    hour: int
    merges: int
    keys: tuple[int, ...]
    rows: tuple[bytes, ...]
    tables: Mapping[BucketKey, bytes]
    has_all: bool


class UsageRollup:
    """Merges and removes. now: Unix time; monotonic: seconds that never step.

    damaged: the number of rows of the database that are set aside, as the leader counted them last.
    """

    def __init__(
        self,
        database: MetricsDatabase,
        settings: UsageSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._settings = settings
        self._now = now
        self._monotonic = monotonic
        self._leadership = database.leadership("usage")
        self.damaged = 0
        self._failure = ""
        self._clock_offset_s = now() - monotonic()
        # The clock of a machine that was just started may be wrong.
        self._prune_at = monotonic() + settings.prune_interval_s

    async def run(self) -> None:
        """Take part in the election, and merge and remove while this daemon leads, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leadership.run())
            tasks.create_task(self._lead())

    async def merge_due(self, *, is_last: bool = False) -> int:
        """Merge the hours that are over, and those with many rows; return the number of merges.

        Rows that come during the last merge of an hour wait for the next call. is_last: merge the others as well.
        Raises StoreDown.
        """
        merges = 0
        for hour in await self._database.read(partial(self._due_hours, is_last=is_last)):
            while (batch := await self._database.read(partial(_read_input, hour))).rows:
                throttle = Throttle(*_PAUSES)
                try:
                    tables = await asyncio.to_thread(merge, batch, self._settings.max_combinations, throttle)
                except UsageDamaged:
                    await self._set_aside(await asyncio.to_thread(find_damaged, batch, throttle), hour)
                else:
                    await self._database.write(partial(_store, batch, tables))
                    merges += 1
                    if batch.has_all:
                        break
                finally:
                    throttle.cancel()
        return merges

    async def prune(self) -> None:
        """Remove what is older than its retention, and the oldest hours beyond the size. Raises StoreDown.

        Expired page tokens of the Metrics API are removed as well.
        """
        while await self._database.write(partial(remove_expired, now=int(self._now()))):
            pass
        while await self._database.write(self._prune_old):
            pass
        while await self._database.write(self._prune_beyond_size):
            pass
        self.damaged = await self._database.read(_count_damaged)

    def may_prune(self) -> bool:
        """Return whether it is time to remove rows. For an hour after the clock was set it is not: it may be wrong."""
        offset_s = self._now() - self._monotonic()
        if abs(offset_s - self._clock_offset_s) > _CLOCK_STEP_S:
            log.warning("clock was set, usage is not removed for an hour")
            self._clock_offset_s = offset_s
            self._prune_at = self._monotonic() + _PATIENCE_AFTER_STEP_S
        return self._monotonic() >= self._prune_at

    async def _set_aside(self, damaged: DamagedSums, hour: int) -> None:
        """Set damaged rows aside and name them in the log. Raises UsageDamaged if there are none."""
        if not any(damaged):
            raise UsageDamaged("no row is, but their sums cannot be merged")
        self.damaged = await self._database.write(partial(_mark_damaged, damaged))
        for key in damaged.minutes:
            log.error("usage of a minute is damaged, it is set aside", extra={"key": key, "hour": hour})
        for level, start, dimension in damaged.tables:
            fields = {"level": level.name, "start": start, "dimension": dimension.name}
            log.error("usage of a bucket is damaged, it is set aside", extra=fields)

    async def _lead(self) -> NoReturn:
        is_counted = False
        while True:
            await self._leadership.wait_until_held()
            try:
                if not is_counted:
                    self.damaged = await self._database.read(_count_damaged)
                    is_counted = True
                await self.merge_due()
                if self.may_prune():
                    await self.prune()
                    self._prune_at = self._monotonic() + self._settings.prune_interval_s
            except UsageDamaged as error:
                if error.reason != self._failure:
                    log.error("stored usage is damaged, it is not merged", extra={"reason": error.reason})
                self._failure = error.reason
            except StoreDown:
                pass  # It is logged already.
            except MergedElsewhere:
                log.debug("usage was merged by another daemon")
            await asyncio.sleep(self._settings.merge_interval_s)

    def _due_hours(self, connection: Connection, *, is_last: bool) -> list[int]:
        hour = MINUTES.c.minute - MINUTES.c.minute % HOUR_S
        query = select(hour, func.sum(MINUTES.c.combinations)).where(UNMERGED).group_by(hour).order_by(hour)
        now = self._now()
        current = bucket_start(Level.HOUR, int(now - _FLUSHES_AFTER_HOUR * self._settings.flush_s))
        open_hours = (current, bucket_start(Level.HOUR, int(now)))
        return [
            int(start)
            for start, combinations in connection.execute(query)
            if is_last or int(start) not in open_hours or combinations >= self._settings.merge_from
        ]

    def _prune_old(self, connection: Connection) -> bool:
        """Remove some of what is too old; return whether there may be more."""
        minutes_before = oldest_kept(self._settings, None, self._now())
        for level in Level:
            before = oldest_kept(self._settings, level, self._now())
            connection.execute(delete(BUCKETS).where(BUCKETS.c.level == int(level), BUCKETS.c.start < before))
        old = select(MINUTES.c.key).where(MINUTES.c.minute < minutes_before, MINUTES.c.is_merged != 0)
        removed = connection.execute(delete(MINUTES).where(MINUTES.c.key.in_(old.limit(_PRUNED_ROWS))))
        return removed.rowcount == _PRUNED_ROWS

    def _prune_beyond_size(self, connection: Connection) -> bool:
        """Remove the oldest hours if the database is too big, else the oldest merged minutes, else other buckets.

        Rows that cannot be removed displace no days, weeks and months: they may be too many because no merge succeeds.
        Returns whether there may be more to remove.
        """
        if stored_bytes(connection) <= self._settings.max_bytes:
            return False
        for level in Level:
            if level is Level.DAY and _merged_bytes(connection) <= self._settings.max_bytes:
                return False
            starts = select(BUCKETS.c.start).where(BUCKETS.c.level == int(level)).distinct().order_by(BUCKETS.c.start)
            oldest = connection.execute(starts.limit(_PRUNED_BUCKETS)).scalars().all()
            if oldest:
                old = delete(BUCKETS).where(BUCKETS.c.level == int(level), BUCKETS.c.start.in_(oldest))
                connection.execute(old)
                return True
            if level is Level.HOUR:
                merged = select(MINUTES.c.key).where(MINUTES.c.is_merged == 1).order_by(MINUTES.c.minute)
                rows = delete(MINUTES).where(MINUTES.c.key.in_(merged.limit(_PRUNED_ROWS)))
                if connection.execute(rows).rowcount:
                    return True
        return False


def oldest_kept(settings: UsageSettings, level: Level | None, now: float) -> int:
    """Return the start of the oldest bucket that is kept; 0 for ever. level: None: minutes."""
    kept_s = {
        None: settings.minute_retention_s,
        Level.HOUR: settings.hour_retention_s,
        Level.DAY: settings.day_retention_s,
        Level.WEEK: settings.week_retention_s,
        Level.MONTH: settings.month_retention_s,
    }[level]
    oldest = max(0, int(now - kept_s)) if kept_s != FOREVER else 0
    return bucket_start(level, oldest) if level is not None and oldest else oldest


def stored_bytes(connection: Connection) -> int:
    """Return the bytes of all sums in the database."""
    sizes = (connection.execute(select(func.sum(table.c.size_bytes))).scalar() for table in (MINUTES, BUCKETS))
    return sum(int(size or 0) for size in sizes)


def _merged_bytes(connection: Connection) -> int:
    """Return the bytes of the sums that may be removed."""
    minutes = select(func.sum(MINUTES.c.size_bytes)).where(MINUTES.c.is_merged == 1)
    buckets = select(func.sum(BUCKETS.c.size_bytes)).where(BUCKETS.c.level < _DAMAGED_LEVELS)
    return sum(int(connection.execute(query).scalar() or 0) for query in (minutes, buckets))


def merge(batch: MergeInput, max_combinations: int, throttle: Throttle) -> dict[BucketKey, bytes]:
    """Return the changed tables of the buckets of an hour with its rows added. For a thread: it takes a while.

    Raises UsageDamaged.
    """
    try:
        return _merge(batch, max_combinations, throttle)
    except DAMAGE as error:
        raise UsageDamaged(str(error)) from error


def find_damaged(batch: MergeInput, throttle: Throttle) -> DamagedSums:
    """Return the rows of a merge that cannot be read."""
    minutes = zip(batch.keys, batch.rows, strict=True)
    return DamagedSums(
        tuple(key for key, raw in minutes if _is_damaged(raw, throttle)),
        tuple(key for key, raw in batch.tables.items() if _is_damaged(raw, throttle)),
    )


def _is_damaged(raw: bytes, throttle: Throttle) -> bool:
    try:
        SumTable.decode(raw, throttle).sums(throttle)
    except (UsageDamaged, *DAMAGE):
        return True
    return False


def _merge(batch: MergeInput, max_combinations: int, throttle: Throttle) -> dict[BucketKey, bytes]:
    added: Sums = {}
    for raw in batch.rows:
        _add_rows(added, SumTable.decode(raw, throttle), throttle)
        if len(added) > _ADDED_SHARE * max_combinations:
            # Each bucket would be folded: it has these rows.
            added = _fold(added, max_combinations, throttle)
    marginals = marginal_sums(added.items(), throttle)
    tables: dict[BucketKey, bytes] = {}
    for level in Level:
        start = bucket_start(level, batch.hour)
        merged = _merge_level(batch.tables, level, start, added, marginals, max_combinations, throttle)
        tables.update({(level, start, dimension): table for dimension, table in merged})
    for sums in (added, *marginals.values()):
        free(sums, throttle)
    return tables


def _merge_level(
    tables: Mapping[BucketKey, bytes],
    level: Level,
    start: int,
    added: Sums,
    marginals: Mapping[Dimension, Sums],
    max_combinations: int,
    throttle: Throttle,
) -> Iterator[tuple[Dimension, bytes]]:
    """Yield the tables of one bucket."""
    merged = _stored_table(tables, (level, start, Dimension.ALL), throttle)
    merged.add(added, throttle)
    if len(merged) <= max_combinations:
        yield Dimension.ALL, merged.encode(throttle)
        for dimension, sums in marginals.items():
            table = _stored_table(tables, (level, start, dimension), throttle)
            table.add(sums, throttle)
            yield dimension, table.encode(throttle)
        return
    folded = _fold(merged.sums(throttle), max_combinations, throttle)
    yield Dimension.ALL, SumTable.of(folded, len(LABELS), throttle).encode(throttle)
    for dimension, sums in marginal_sums(folded.items(), throttle).items():
        yield dimension, SumTable.of(sums, _width(dimension), throttle).encode(throttle)
        free(sums, throttle)
    free(folded, throttle)


def _stored_table(tables: Mapping[BucketKey, bytes], key: BucketKey, throttle: Throttle) -> SumTable:
    raw = tables.get(key)
    return SumTable(_width(key[2])) if raw is None else SumTable.decode(raw, throttle)


def _width(dimension: Dimension) -> int:
    return {Dimension.ALL: len(LABELS), Dimension.NONE: 0}.get(dimension, 1)


def _fold(sums: Sums, bound: int, throttle: Throttle) -> Sums:
    """Return folded sums, and remove those that are given."""
    by_call = {of_labels(labels): totals for labels, totals in throttle.steps(sums.items())}
    folded = {as_labels(labels): totals for labels, totals in throttle.steps(fold(by_call, bound, throttle).items())}
    free(sums, throttle)
    free(by_call, throttle)
    return folded


def _add_rows(sums: dict[Labels, UsageTotals], table: SumTable, throttle: Throttle) -> None:
    for position, labels in enumerate(table.labels()):
        totals = sums.get(labels)
        if totals is None:
            sums[labels] = table.totals(position)
        else:
            table.add_to(totals, position)
        throttle.step()


def _read_input(hour: int, connection: Connection) -> MergeInput:
    of_hour = (MINUTES.c.minute >= hour, MINUTES.c.minute < hour + HOUR_S, UNMERGED)
    counts = select(MINUTES.c.key, MINUTES.c.combinations).where(*of_hour).order_by(MINUTES.c.key)
    throttle = Throttle()  # Of short pauses: the wait for the database has an end.
    with read_snapshot(connection):
        keys, combinations, has_all = list[int](), 0, True
        for key, count in connection.execute(counts):
            if combinations >= _COMBINATIONS_PER_MERGE:
                has_all = False
                break
            keys.append(key)
            combinations += count
        rows = select(MINUTES.c.sums).where(*of_hour, MINUTES.c.key <= max(keys, default=0)).order_by(MINUTES.c.key)
        merges = connection.execute(select(ROLLUP.c.merges)).scalar() or 0
        sums = tuple(bytes(row) for row in throttle.steps(connection.execute(rows).scalars()))
        tables = dict(throttle.steps(_read_tables(connection, hour))) if keys else {}
        return MergeInput(hour, merges, tuple(keys), sums, tables, has_all)


def _read_tables(connection: Connection, hour: int) -> Iterator[tuple[BucketKey, bytes]]:
    for level in Level:
        start = bucket_start(level, hour)
        query = select(BUCKETS.c.dimension, BUCKETS.c.sums).where(
            BUCKETS.c.level == int(level), BUCKETS.c.start == start
        )
        for dimension, sums in connection.execute(query):
            yield (level, start, Dimension(dimension)), bytes(sums)


def _mark_damaged(damaged: DamagedSums, connection: Connection) -> int:
    """Set rows aside; return how many are."""
    for key in damaged.minutes:
        connection.execute(update(MINUTES).where(MINUTES.c.key == key).values(is_merged=_SET_ASIDE))
    for level, start, dimension in damaged.tables:
        aside = int(level) + _DAMAGED_LEVELS
        of_bucket = (BUCKETS.c.start == start, BUCKETS.c.dimension == int(dimension))
        connection.execute(delete(BUCKETS).where(BUCKETS.c.level == aside, *of_bucket))
        connection.execute(update(BUCKETS).where(BUCKETS.c.level == int(level), *of_bucket).values(level=aside))
    return _count_damaged(connection)


def _count_damaged(connection: Connection) -> int:
    minutes = select(func.count()).select_from(MINUTES).where(MINUTES.c.is_merged == _SET_ASIDE)
    tables = select(func.count()).select_from(BUCKETS).where(BUCKETS.c.level >= _DAMAGED_LEVELS)
    return sum(int(connection.execute(query).scalar() or 0) for query in (minutes, tables))


def _store(batch: MergeInput, tables: Mapping[BucketKey, bytes], connection: Connection) -> None:
    """Replace the tables and mark the rows. Raises MergedElsewhere."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(insert(ROLLUP).values(key=_ROLLUP_KEY, merges=0).on_conflict_do_nothing())
    counted = update(ROLLUP).where(ROLLUP.c.merges == batch.merges).values(merges=batch.merges + 1)
    if connection.execute(counted).rowcount != 1:
        raise MergedElsewhere
    for level, start in {(level, start) for level, start, _ in tables}:
        connection.execute(delete(BUCKETS).where(BUCKETS.c.level == int(level), BUCKETS.c.start == start))
    for (level, start, dimension), sums in Throttle().steps(tables.items()):
        row = {"level": int(level), "start": start, "dimension": int(dimension), "size_bytes": len(sums), "sums": sums}
        connection.execute(BUCKETS.insert(), row)
    marked = update(MINUTES).where(MINUTES.c.key == bindparam("merged_key")).values(is_merged=1)
    connection.execute(marked, [{"merged_key": key} for key in batch.keys])
