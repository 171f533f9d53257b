"""Reads the buckets of a query of usage. Imported by the first query: numpy costs time and memory."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray
from sqlalchemy import Connection, select, text

from warpseal.runtime.throttle import Throttle
from warpseal.usage.calls import OTHER
from warpseal.usage.errors import UsageQueryTooLong
from warpseal.usage.periods import bucket_end, bucket_start
from warpseal.usage.queries import MAX_GROUPS, UsageBucket, UsageGroup, UsageQuery, UsageSums
from warpseal.usage.schema import BUCKETS, MINUTES, UNMERGED
from warpseal.usage.sum_arrays import Numbers, Sketches, SumArrays, medians
from warpseal.usage.sum_table import COUNTERS, LABELS, Dimension

# Rows whose tables stay in memory for the second pass over a range.
_MAX_KEPT_ROWS: Final = 500_000
# Buckets whose tables one statement reads.
_BUCKETS_AT_ONCE: Final = 16

# As an expression it would be compiled each time.
_TABLES: Final = text(
    "SELECT start, dimension, sums FROM buckets"
    " WHERE level = :level AND start BETWEEN :oldest AND :newest AND dimension IN (:first, :second)"
)


class _Piece(NamedTuple):
    """Rows of a bucket that the filters accept.

    groups: the number of each row's group. total: of all rows of the bucket, see BucketReader; None: it is not needed.
    """

    table: SumArrays
    rows: Numbers
    groups: Numbers
    total: SumArrays | None


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
        self._decompressor = zstandard.ZstdDecompressor()
        self._pieces_by_start: dict[int, list[_Piece]] = {}
        self._kept_rows = 0
        self._unmerged: dict[int, list[bytes]] = {}
        self._has_totals = query.group_by is not None and not query.filters
        # Numbers of groups in the order in which they are found.
        self._groups = defaultdict[str, int](count().__next__)

    def read(self) -> list[UsageBucket]:
        """Return the buckets that have calls, newest first. Raises UsageQueryTooLong."""
        starts = self._starts()
        slots, names = self._slots(starts)
        buckets = (UsageBucket(start, self._bucket(pieces, slots, names)) for start, pieces in self._pieces(starts))
        return [bucket for bucket in buckets if bucket.groups]

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

    def _slots(self, starts: Sequence[int]) -> tuple[Numbers, list[str | None]]:
        """Return the slot of each group, and the groups of the slots: the busiest of the range, then the rest."""
        if self._query.group_by is None:
            return np.zeros(1, np.int64), [None]
        requests = np.zeros(0)
        for _, pieces in self._pieces(starts):
            for piece in pieces:
                if len(requests) < len(self._groups):
                    requests = np.pad(requests, (0, len(self._groups) - len(requests)))
                requests += np.bincount(piece.groups, piece.table.counters[0, piece.rows], len(requests))
        by_requests = sorted(self._groups, key=lambda group: (-requests[self._groups[group]], group))
        busiest = [group for group in by_requests if group != OTHER][:MAX_GROUPS]
        # Later passes may find no other groups: all tables are of one snapshot.
        slots = np.full(max(1, len(self._groups)), len(busiest), np.int64)
        slots[[self._groups[group] for group in busiest]] = np.arange(len(busiest))
        return slots, [*busiest, OTHER]

    def _pieces(self, starts: Sequence[int]) -> Iterator[tuple[int, list[_Piece]]]:
        """Yield the buckets and their tables. Raises UsageQueryTooLong."""
        for position in range(0, len(starts), _BUCKETS_AT_ONCE):
            some = starts[position : position + _BUCKETS_AT_ONCE]
            stored = {} if all(start in self._pieces_by_start for start in some) else self._stored_tables(some)
            for start in some:
                self._step()
                pieces = self._pieces_by_start.get(start)
                if pieces is None:
                    tables = stored.pop(start, {})
                    pieces = [*self._merged_pieces(tables), *self._unmerged_pieces(start)]
                    rows = sum(len(piece.table) for piece in pieces)
                    if self._kept_rows + rows <= _MAX_KEPT_ROWS:
                        self._kept_rows += rows
                        self._pieces_by_start[start] = pieces
                yield start, pieces

    def _step(self) -> None:
        self._throttle.step()
        if time.monotonic() > self._give_up_at:
            raise UsageQueryTooLong(self._limit_s)

    def _stored_tables(self, starts: Sequence[int]) -> dict[int, dict[Dimension, bytes]]:
        """Return the stored tables of buckets that follow one another. starts: newest first."""
        dimension = self._query.stored_dimension
        also = Dimension.NONE if self._has_totals else dimension
        values = {
            "level": int(self._query.level),
            "oldest": starts[-1],
            "newest": starts[0],
            "first": int(dimension),
            "second": int(also),
        }
        tables: dict[int, dict[Dimension, bytes]] = {}
        for start, number, sums in self._connection.execute(_TABLES, values):
            tables.setdefault(start, {})[Dimension(number)] = bytes(sums)
        return tables

    def _merged_pieces(self, stored: Mapping[Dimension, bytes]) -> Iterator[_Piece]:
        dimension = self._query.stored_dimension
        if dimension not in stored:
            return
        tables = {number: SumArrays.decode(sums, self._decompressor) for number, sums in stored.items()}
        table, total = tables[dimension], tables.get(Dimension.NONE) if self._has_totals else None
        if total is not None and total.counters[0].sum() < table.counters[0].sum():
            total = None  # It was damaged and began again.
        yield self._piece(table, None if dimension is Dimension.ALL else 0, total)

    def _unmerged_pieces(self, start: int) -> Iterator[_Piece]:
        for raw in self._unmerged.get(start, ()):
            self._step()
            yield self._piece(SumArrays.decode(raw, self._decompressor))

    def _piece(self, table: SumArrays, only_column: int | None = None, total: SumArrays | None = None) -> _Piece:
        """Return the accepted rows of a table. only_column: of a table with one label."""

        def label(dimension: Dimension) -> tuple[list[str], NDArray[np.uint32]]:
            return table.columns[LABELS.index(dimension) if only_column is None else only_column]

        is_accepted = np.ones(len(table), np.bool_)
        for dimension, accepted in self._query.filters.items():
            values, column = label(dimension)
            is_accepted &= np.array([value in accepted for value in values], np.bool_)[column]
        rows = np.flatnonzero(is_accepted)
        if self._query.group_by is None:
            return _Piece(table, rows, np.zeros(len(rows), np.int64), total)
        values, column = label(self._query.group_by)
        names = values if self._query.group_of is str else map(self._query.group_of, values)
        numbers = np.fromiter(map(self._groups.__getitem__, names), np.int64, len(values))
        return _Piece(table, rows, numbers[column[rows]], total)

    def _bucket(self, pieces: Sequence[_Piece], slots: Numbers, names: Sequence[str | None]) -> list[UsageGroup]:
        counters, rest = np.zeros((COUNTERS, len(names)), np.int64), len(names) - 1
        busy, others = list[Sketches](), list[Sketches]()
        for piece in pieces:
            rows, slot_of_row = piece.rows, slots[piece.groups]
            if piece.total is None:
                piece.table.add_counters(counters, rows, slot_of_row)
                others.extend(piece.table.sketches(rows, slot_of_row))
                continue
            is_busy = slot_of_row < rest
            rows, slot_of_row = rows[is_busy], slot_of_row[is_busy]
            sums = np.zeros_like(counters)
            piece.table.add_counters(sums, rows, slot_of_row)
            sums[:, rest] = piece.total.counters.sum(axis=1) - sums.sum(axis=1)
            counters += sums
            busy.extend(piece.table.sketches(rows, slot_of_row))
            only = np.arange(len(piece.total))
            others.extend(piece.total.sketches(only, np.full(len(only), rest)))
        median_times = self._medians(busy, others, len(names))
        groups = [
            UsageGroup(name, UsageSums(requests, invalid, failed, credits, wasted, median_ms))
            for name, requests, invalid, failed, credits, wasted, median_ms in zip(
                names, *counters.tolist(), median_times, strict=True
            )
            if requests
        ]
        return sorted(groups, key=lambda group: (group.value == OTHER, -group.sums.requests, group.value))

    def _medians(self, busy: Sequence[Sketches], others: Sequence[Sketches], count: int) -> list[float]:
        """Return the medians of so many slots. busy: sketches that are subtracted from those of the last slot."""
        sketches_of_all = (*busy, *others)
        if not sketches_of_all:
            return [0.0] * count
        first, end = (
            min(sketches.first for sketches in sketches_of_all),
            max(sketches.end for sketches in sketches_of_all),
        )
        times = np.zeros((count, end - first), np.int64)
        for sketches in busy:
            sketches.add_to(times, first)
        times[-1] -= times.sum(axis=0)
        for sketches in others:
            sketches.add_to(times, first)
        return medians(times, first)
