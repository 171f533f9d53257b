"""Queries of usage: the buckets of a range, filtered and grouped by a label.

The sums of one label, or of none, are stored for each bucket. A query that concerns no other label reads only those;
the rest beside the busiest groups is the total without them. Other queries read all label combinations. Minute rows
that are not merged yet are added to their buckets, in the same snapshot.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from sqlalchemy import Connection, select

from warpseal.errors import UsageQueryTooLong
from warpseal.store.access import read_snapshot
from warpseal.usage.calls import OTHER, UsageTotals
from warpseal.usage.countries import continent_of
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.periods import MINUTE_S, Level, bucket_end, bucket_start
from warpseal.usage.schema import BUCKETS, MINUTES, UNMERGED
from warpseal.usage.settings import UsageSettings
from warpseal.usage.sum_table import LABELS, Dimension, SumTable
from warpseal.usage.throttle import Throttle

MAX_GROUPS: Final = 50
"""Values of a grouped query besides `other`."""

# Rows whose tables stay in memory for the second pass over a range.
_MAX_KEPT_ROWS: Final = 500_000
_QUERY_THROTTLE: Final = (0.001, 0.0001)


@dataclass(frozen=True, slots=True)
class UsageSource:
    """Usage in the metrics database."""

    database: MetricsDatabase
    settings: UsageSettings

    async def read(self, query: UsageQuery) -> list[UsageBucket]:
        """Return the buckets of a query that have calls, newest first. Raises UsageQueryTooLong, StoreDown."""
        limit_s = self.settings.query_timeout_s
        return await self.database.read(partial(read_usage, query=query, limit_s=limit_s))


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Buckets of a level that begin in a range; until is not in it.

    filters: the accepted values of labels. group_by: None: all calls in one group. group_of: the group of a value.
    """

    level: Level
    since: int
    until: int
    filters: Mapping[Dimension, frozenset[str]] = field(default_factory=dict)
    group_by: Dimension | None = None
    group_of: Callable[[str], str] = str

    @property
    def stored_dimension(self) -> Dimension:
        """The dimension whose sums answer the query."""
        concerned = set(self.filters) | ({self.group_by} if self.group_by is not None else set())
        if len(concerned) > 1:
            return Dimension.ALL
        return next(iter(concerned), Dimension.NONE)


class UsageGroup(NamedTuple):
    """Sums of a group; value: None if the query has no groups."""

    value: str | None
    totals: UsageTotals


class UsageBucket(NamedTuple):
    """The groups of one bucket, busiest first, `other` last."""

    start: int
    groups: list[UsageGroup]


def group_by_continent(country: str) -> str:
    """Return the group of a country."""
    return OTHER if country == OTHER else continent_of(country)


def read_usage(connection: Connection, query: UsageQuery, limit_s: float) -> list[UsageBucket]:
    """Return the buckets that have calls, newest first. Raises UsageQueryTooLong after `limit_s`."""
    with read_snapshot(connection):
        return _UsageReader(connection, query, limit_s).read()


class _Piece(NamedTuple):
    """A table of a bucket. total: the table with the sums of all its rows, if the rest beside groups follows from it.

    is_single: whether the table has the one dimension that the query concerns, or else all labels.
    """

    table: SumTable
    is_single: bool
    total: SumTable | None = None


class _UsageReader:
    """Reads the buckets of one query."""

    def __init__(self, connection: Connection, query: UsageQuery, limit_s: float) -> None:
        self._connection = connection
        self._query = query
        self._limit_s = limit_s
        self._give_up_at = time.monotonic() + limit_s
        self._throttle = Throttle(*_QUERY_THROTTLE)
        self._kept: dict[int, list[_Piece]] = {}
        self._kept_rows = 0
        self._unmerged: dict[int, list[bytes]] = {}
        dimension = query.stored_dimension
        self._is_single = dimension not in (Dimension.ALL, Dimension.NONE)
        self._has_totals = query.group_by is not None and not query.filters

    def read(self) -> list[UsageBucket]:
        """Return the buckets that have calls, newest first."""
        starts = self._starts()
        if self._query.group_by is None:
            found = (UsageBucket(start, self._ungrouped(start)) for start in starts)
        else:
            busiest = self._busiest(starts)
            found = (UsageBucket(start, self._grouped(start, busiest)) for start in starts)
        return [bucket for bucket in found if bucket.groups]

    def _starts(self) -> list[int]:
        """Return the buckets with rows, newest first, and keep the unmerged rows."""
        query = self._query
        of_level = (BUCKETS.c.level == int(query.level), BUCKETS.c.dimension == int(Dimension.NONE))
        of_range = (BUCKETS.c.start >= query.since, BUCKETS.c.start < query.until)
        starts = set(self._connection.execute(select(BUCKETS.c.start).where(*of_level, *of_range)).scalars())
        last = bucket_end(query.level, bucket_start(query.level, query.until - 1))
        rows = select(MINUTES.c.minute, MINUTES.c.sums).where(
            UNMERGED, MINUTES.c.minute >= query.since, MINUTES.c.minute < last - MINUTE_S + 1
        )
        for minute, sums in self._connection.execute(rows):
            start = bucket_start(query.level, minute)
            starts.add(start)
            self._unmerged.setdefault(start, []).append(bytes(sums))
        return sorted(starts, reverse=True)

    def _pieces(self, start: int) -> list[_Piece]:
        """Return the tables of a bucket. Raises UsageQueryTooLong."""
        if time.monotonic() > self._give_up_at:
            raise UsageQueryTooLong(self._limit_s)
        kept = self._kept.get(start)
        if kept is not None:
            return kept
        pieces = [*self._merged_pieces(start), *self._unmerged_pieces(start)]
        rows = sum(len(piece.table) for piece in pieces)
        if self._kept_rows + rows <= _MAX_KEPT_ROWS:
            self._kept_rows += rows
            self._kept[start] = pieces
        return pieces

    def _merged_pieces(self, start: int) -> Iterator[_Piece]:
        dimension = self._query.stored_dimension
        wanted = (dimension, Dimension.NONE) if self._has_totals else (dimension,)
        query = select(BUCKETS.c.dimension, BUCKETS.c.sums).where(
            BUCKETS.c.level == int(self._query.level),
            BUCKETS.c.start == start,
            BUCKETS.c.dimension.in_(list(map(int, wanted))),
        )
        tables = {Dimension(number): SumTable.decode(bytes(sums)) for number, sums in self._connection.execute(query)}
        if dimension in tables:
            total = tables.get(Dimension.NONE) if self._has_totals else None
            yield _Piece(tables[dimension], self._is_single, total)

    def _unmerged_pieces(self, start: int) -> Iterator[_Piece]:
        for raw in self._unmerged.get(start, ()):
            yield _Piece(SumTable.decode(raw), is_single=False)

    def _ungrouped(self, start: int) -> list[UsageGroup]:
        totals = UsageTotals()
        for piece in self._pieces(start):
            for position in self._positions(piece):
                piece.table.add_to(totals, position)
                self._throttle.step()
        return [UsageGroup(None, totals)] if totals.requests else []

    def _busiest(self, starts: Sequence[int]) -> frozenset[str]:
        """Return the groups with the most requests in the range."""
        requests: Counter[str] = Counter()
        for start in starts:
            for piece in self._pieces(start):
                column, groups = self._groups(piece)
                counts = piece.table.counters[0]
                for position in self._positions(piece):
                    requests[groups[column[position]]] += counts[position]
                self._throttle.step()
        del requests[OTHER]
        return frozenset(sorted(requests, key=lambda group: (-requests[group], group))[:MAX_GROUPS])

    def _grouped(self, start: int, busiest: frozenset[str]) -> list[UsageGroup]:
        found: defaultdict[str, UsageTotals] = defaultdict(UsageTotals)
        for piece in self._pieces(start):
            self._add_groups(found, piece, busiest)
        other = found.pop(OTHER, None)
        by_requests = sorted(found.items(), key=lambda item: (-item[1].requests, item[0]))
        groups = [UsageGroup(value, totals) for value, totals in by_requests]
        return groups if other is None else [*groups, UsageGroup(OTHER, other)]

    def _add_groups(self, found: defaultdict[str, UsageTotals], piece: _Piece, busiest: frozenset[str]) -> None:
        column, groups = self._groups(piece)
        rest = piece.total.totals(0) if piece.total is not None and not busiest.issuperset(groups) else None
        for position in self._positions(piece):
            group = groups[column[position]]
            if group in busiest:
                totals = piece.table.totals(position)
                found[group].add(totals)
                if rest is not None:
                    _subtract(rest, totals)
            elif rest is None:
                piece.table.add_to(found[OTHER], position)
            self._throttle.step()
        if rest is not None:
            found[OTHER].add(rest)

    def _groups(self, piece: _Piece) -> tuple[Sequence[int], list[str]]:
        """Return the column by which rows are grouped, and the groups of its values."""
        assert self._query.group_by is not None
        values, column = piece.table.columns[_column(piece, self._query.group_by)]
        return column, list(map(self._query.group_of, values))

    def _positions(self, piece: _Piece) -> Sequence[int]:
        """Return the rows that the filters accept."""
        positions: Sequence[int] = range(len(piece.table))
        for dimension, accepted in self._query.filters.items():
            values, column = piece.table.columns[_column(piece, dimension)]
            numbers = {number for number, value in enumerate(values) if value in accepted}
            positions = [position for position in positions if column[position] in numbers] if numbers else ()
        return positions


def _column(piece: _Piece, dimension: Dimension) -> int:
    return 0 if piece.is_single else LABELS.index(dimension)


def _subtract(totals: UsageTotals, part: UsageTotals) -> None:
    totals.requests -= part.requests
    totals.invalid -= part.invalid
    totals.failed -= part.failed
    totals.credits -= part.credits
    totals.credits_wasted -= part.credits_wasted
    for bucket, count in part.times.items():
        totals.times[bucket] -= count
