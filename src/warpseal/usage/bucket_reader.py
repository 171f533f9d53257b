"""Reads the buckets of a query of usage, with numpy: sums and sketches of thousands of rows at once.

Counts are added as floats, which are exact up to 2^53. Imported by the first query: numpy costs time and memory.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select, text

from warpseal.errors import UsageQueryTooLong
from warpseal.runtime.throttle import Throttle
from warpseal.usage.calls import OTHER
from warpseal.usage.periods import bucket_end, bucket_start
from warpseal.usage.queries import MAX_GROUPS, UsageBucket, UsageGroup, UsageQuery, UsageSums
from warpseal.usage.response_times import time_of
from warpseal.usage.schema import BUCKETS, MINUTES, UNMERGED
from warpseal.usage.sum_table import DENSE_BYTES, LABELS, Dimension, SumTable, dense_times

# Rows whose tables stay in memory for the second pass over a range.
_MAX_KEPT_ROWS: Final = 500_000
_PAIR: Final = np.dtype([("bucket", "<i2"), ("count", "<u4")])
_DENSE_COUNTS: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4)}
_LOWEST, _HIGHEST = -(2**15), 2**15

# Run for each bucket: as an expression it would be compiled each time.
_TABLES: Final = text(
    "SELECT dimension, sums FROM buckets WHERE level = :level AND start = :start AND dimension IN (:first, :second)"
)

_Numbers = NDArray[np.int64]
_Counts = NDArray[Any]


class _Piece(NamedTuple):
    """Rows of a bucket that the filters accept.

    groups: the number of each row's group. total: of all rows of the bucket, see BucketReader; None: it is not needed.
    """

    table: SumTable
    positions: _Numbers
    groups: _Numbers
    total: SumTable | None


class BucketReader:
    """Reads the buckets of one query. Minute rows that are not merged are added to their buckets.

    If the query has groups and no filters, the sums of the rest beside the busiest groups are the total without them.
    """

    def __init__(self, connection: Connection, query: UsageQuery, limit_s: float, throttle: Throttle) -> None:
        self._connection = connection
        self._query = query
        self._limit_s = limit_s
        self._give_up_at = time.monotonic() + limit_s
        self._throttle = throttle
        self._kept: dict[int, list[_Piece]] = {}
        self._kept_rows = 0
        self._unmerged: dict[int, list[bytes]] = {}
        self._has_totals = query.group_by is not None and not query.filters
        # Numbers of groups in the order in which they are found.
        self._groups = defaultdict[str, int](count().__next__)

    def read(self) -> list[UsageBucket]:
        """Return the buckets that have calls, newest first. Raises UsageQueryTooLong."""
        starts = self._starts()
        slots, names = self._slots(starts)
        found = (UsageBucket(start, self._bucket(start, slots, names)) for start in starts)
        return [bucket for bucket in found if bucket.groups]

    def _starts(self) -> list[int]:
        """Return the buckets with rows, newest first, and keep the unmerged rows."""
        query = self._query
        of_level = (BUCKETS.c.level == int(query.level), BUCKETS.c.dimension == int(Dimension.NONE))
        of_range = (BUCKETS.c.start >= query.since, BUCKETS.c.start < query.until)
        starts = set(self._connection.execute(select(BUCKETS.c.start).where(*of_level, *of_range)).scalars())
        end = bucket_end(query.level, bucket_start(query.level, query.until - 1))
        rows = select(MINUTES.c.minute, MINUTES.c.sums).where(
            UNMERGED, MINUTES.c.minute >= query.since, MINUTES.c.minute < end
        )
        for minute, sums in self._connection.execute(rows):
            start = bucket_start(query.level, minute)
            starts.add(start)
            self._unmerged.setdefault(start, []).append(bytes(sums))
        return sorted(starts, reverse=True)

    def _slots(self, starts: Sequence[int]) -> tuple[_Numbers, list[str | None]]:
        """Return the slot of each group, and the groups of the slots: the busiest of the range, then the rest."""
        if self._query.group_by is None:
            return np.zeros(1, np.int64), [None]
        requests = np.zeros(0)
        for start in starts:
            for piece in self._pieces(start):
                counts = _column(piece.table, 0)[piece.positions]
                if len(requests) < len(self._groups):
                    requests = np.pad(requests, (0, len(self._groups) - len(requests)))
                requests += np.bincount(piece.groups, counts, len(requests))
        by_requests = sorted(self._groups, key=lambda group: (-requests[self._groups[group]], group))
        busiest = [group for group in by_requests if group != OTHER][:MAX_GROUPS]
        # Later passes may find no other groups: all tables are of one snapshot.
        slots = np.full(max(1, len(self._groups)), len(busiest), np.int64)
        slots[[self._groups[group] for group in busiest]] = np.arange(len(busiest))
        return slots, [*busiest, OTHER]

    def _pieces(self, start: int) -> list[_Piece]:
        """Return the tables of a bucket. Raises UsageQueryTooLong."""
        self._step()
        kept = self._kept.get(start)
        if kept is not None:
            return kept
        pieces = [*self._merged_pieces(start), *self._unmerged_pieces(start)]
        rows = sum(len(piece.table) for piece in pieces)
        if self._kept_rows + rows <= _MAX_KEPT_ROWS:
            self._kept_rows += rows
            self._kept[start] = pieces
        return pieces

    def _step(self) -> None:
        self._throttle.step()
        if time.monotonic() > self._give_up_at:
            raise UsageQueryTooLong(self._limit_s)

    def _merged_pieces(self, start: int) -> Iterator[_Piece]:
        dimension = self._query.stored_dimension
        also = Dimension.NONE if self._has_totals else dimension
        values = {"level": int(self._query.level), "start": start, "first": int(dimension), "second": int(also)}
        rows = self._connection.execute(_TABLES, values)
        tables = {Dimension(number): SumTable.decode(bytes(sums)) for number, sums in rows}
        if dimension in tables:
            total = tables.get(Dimension.NONE) if self._has_totals else None
            if total is not None and sum(total.counters[0]) < sum(tables[dimension].counters[0]):
                total = None  # It was damaged and began again.
            yield self._piece(tables[dimension], None if dimension is Dimension.ALL else 0, total)

    def _unmerged_pieces(self, start: int) -> Iterator[_Piece]:
        for raw in self._unmerged.get(start, ()):
            self._step()
            yield self._piece(SumTable.decode(raw))

    def _piece(self, table: SumTable, only_column: int | None = None, total: SumTable | None = None) -> _Piece:
        """Return the accepted rows of a table. only_column: of a table with one label."""

        def label(dimension: Dimension) -> tuple[list[str], NDArray[np.uint32]]:
            values, column = table.columns[LABELS.index(dimension) if only_column is None else only_column]
            return values, np.frombuffer(column, np.uint32)

        is_accepted = np.ones(len(table), np.bool_)
        for dimension, accepted in self._query.filters.items():
            values, column = label(dimension)
            is_accepted &= np.array([value in accepted for value in values], np.bool_)[column]
        positions = np.flatnonzero(is_accepted)
        if self._query.group_by is None:
            return _Piece(table, positions, np.zeros(len(positions), np.int64), total)
        values, column = label(self._query.group_by)
        names = map(self._query.group_of, values)
        numbers = np.fromiter(map(self._groups.__getitem__, names), np.int64, len(values))
        return _Piece(table, positions, numbers[column[positions]], total)

    def _bucket(self, start: int, slots: _Numbers, names: Sequence[str | None]) -> list[UsageGroup]:
        counters, sketches = np.zeros((len(names), 5)), list[tuple[int, _Counts]]()
        rest = len(names) - 1
        for piece in self._pieces(start):
            rows, slot_of_row = piece.positions, slots[piece.groups]
            if piece.total is not None:
                is_busy = slot_of_row < rest
                rows, slot_of_row = rows[is_busy], slot_of_row[is_busy]
            added = _sum_counters(piece.table, rows, slot_of_row, len(names))
            first, times = _sum_times(piece.table, rows, slot_of_row, len(names))
            if piece.total is not None:
                only, slot = np.arange(len(piece.total)), np.full(len(piece.total), rest)
                added[rest] = _sum_counters(piece.total, only, slot, len(names))[rest] - added.sum(0)
                times[rest] = -times.sum(0)
                sketches.append(_sum_times(piece.total, only, slot, len(names)))
            counters += added
            sketches.append((first, times))
        sums = counters.astype(np.int64).tolist()
        groups = [
            UsageGroup(name, UsageSums(requests, invalid, failed, credits, wasted, median_ms))
            for name, (requests, invalid, failed, credits, wasted), median_ms in zip(
                names, sums, _medians(sketches, len(names)), strict=True
            )
            if requests
        ]
        return sorted(groups, key=lambda group: (group.value == OTHER, -group.sums.requests, group.value))


def _column(table: SumTable, counter: int) -> NDArray[np.uint64]:
    return np.frombuffer(table.counters[counter], np.uint64)


def _sum_counters(table: SumTable, rows: _Numbers, slots: _Numbers, count: int) -> _Counts:
    """Return the counters of so many slots."""
    columns = [np.bincount(slots, _column(table, number)[rows], count) for number in range(5)]
    return np.stack(columns, axis=1)


def _sum_times(table: SumTable, rows: _Numbers, slots: _Numbers, count: int) -> tuple[int, _Counts]:
    """Return the counts of sketches of so many slots, and their first bucket."""
    sparse: list[bytes] = []
    sparse_slots: list[int] = []
    dense: list[tuple[int, int, _Counts]] = []
    for slot, row in zip(slots.tolist(), rows.tolist(), strict=True):
        raw = table.times(row)
        found = dense_times(raw)
        if found is not None:
            first, size = found
            dense.append((slot, first, np.frombuffer(raw, _DENSE_COUNTS[size], offset=DENSE_BYTES)))
        elif raw:
            sparse.append(raw)
            sparse_slots.append(slot)
    pairs = np.frombuffer(b"".join(sparse), _PAIR)
    if not (sparse or dense):
        return 0, np.zeros((count, 0))
    low = min((first for _, first, _ in dense), default=_HIGHEST)
    high = max((first + len(counts) for _, first, counts in dense), default=_LOWEST)
    if sparse:
        low, high = min(low, int(pairs["bucket"].min())), max(high, int(pairs["bucket"].max()) + 1)
    width = high - low
    lengths = np.fromiter(map(len, sparse), np.int64, len(sparse)) // _PAIR.itemsize
    places = np.repeat(np.array(sparse_slots, np.int64) * width - low, lengths) + pairs["bucket"]
    summed = np.bincount(places, pairs["count"], count * width)
    for slot, first, counts in dense:
        place = slot * width + first - low
        summed[place : place + len(counts)] += counts
    return low, summed.reshape(count, width)


def _medians(sketches: Sequence[tuple[int, _Counts]], count: int) -> list[float]:
    """Return the median of each of so many slots, the lower one of an even number; 0 without any.

    sketches: first bucket and counts, which are added up.
    """
    used = [(first, times) for first, times in sketches if times.size]
    if not used:
        return [0.0] * count
    low, high = min(first for first, _ in used), max(first + times.shape[1] for first, times in used)
    summed = np.zeros((count, high - low))
    for first, times in used:
        summed[:, first - low : first - low + times.shape[1]] += times
    np.cumsum(summed, axis=1, out=summed)
    totals = summed[:, -1]
    middles = low + (summed >= ((totals + 1) // 2)[:, None]).argmax(axis=1)
    return [time_of(middle) if total else 0.0 for middle, total in zip(middles.tolist(), totals.tolist(), strict=True)]
