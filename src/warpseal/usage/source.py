"""Usage in the metrics database, as its readers query it: the buckets of a query."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from warpseal.runtime.throttle import Throttle
from warpseal.store.connection import Connection, marks
from warpseal.usage.calls import LABELS, OTHER, Dimension, UsageLabels
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.errors import UsageQueryTooLong
from warpseal.usage.queries import MAX_GROUPS, UsageBucket, UsageGroup, UsageQuery, UsageSums
from warpseal.usage.response_times import median_ms
from warpseal.usage.settings import UsageSettings
from warpseal.usage.sums import RowSums, decode_times

_NAMES: Final = dict(zip(LABELS, UsageLabels._fields, strict=True))
_PAUSES: Final = (0.002, 0.0001)


class UsageSource(Struct, frozen=True):
    """Usage in the metrics database."""

    database: MetricsDatabase
    settings: UsageSettings

    async def read(self, query: UsageQuery) -> list[UsageBucket]:
        """Return the buckets of a query that have calls, newest first.

        Raises UsageQueryTooLong, StoreDown.
        """
        throttle = Throttle(*_PAUSES)
        limit_s = self.settings.query_timeout_s
        run_query = partial(read_usage, query=query, limit_s=limit_s, throttle=throttle)
        try:
            return await self.database.read(run_query)
        finally:
            # A caller that has left must not hold a reading thread.
            throttle.cancel()


def read_usage(
    connection: Connection, query: UsageQuery, limit_s: float, throttle: Throttle | None = None
) -> list[UsageBucket]:
    """Return the buckets that have calls, newest first.

    Raises UsageQueryTooLong after `limit_s`; see Throttle.step.
    """
    with connection.snapshot():
        return _BucketReader(connection, query, limit_s, throttle or Throttle(*_PAUSES)).read()


class _BucketReader:
    """Reads the buckets of one query.

    If the query has groups and no filters, the sums of all but the busiest groups are the total
    without them.
    """

    def __init__(
        self, connection: Connection, query: UsageQuery, limit_s: float, throttle: Throttle
    ) -> None:
        self._connection = connection
        self._query = query
        self._limit_s = limit_s
        self._give_up_at = time.monotonic() + limit_s
        self._throttle = throttle
        self._label = None if query.group_by is None else _NAMES[query.group_by]

    def read(self) -> list[UsageBucket]:
        """Return the buckets that have calls, newest first. Raises UsageQueryTooLong."""
        groups: dict[int, dict[str | None, RowSums]] = {}
        accepted = self._accepted(self._query.stored_dimension)
        if self._label is None:
            for start, _, sums in self._rows(accepted):
                _add(groups.setdefault(start, {}), None, sums)
        else:
            group_of = self._busiest(accepted, self._label)
            is_total_stored = not self._query.filters
            if is_total_stored:
                for start, _, sums in self._rows(self._accepted(Dimension.NONE)):
                    groups[start] = {OTHER: sums}
                # If the condition names every column of the key, only these rows are read, and not
                # all rows of the range.
                accepted = accepted.within("start", groups)
                for name in _NAMES.values():
                    accepted = accepted.within(name, group_of if name == self._label else ("",))
            for start, value, sums in self._rows(accepted):
                group = group_of.get(value, OTHER)
                of_bucket = groups.setdefault(start, {})
                _add(of_bucket, group, sums)
                if is_total_stored:
                    of_bucket[OTHER].add(sums, -1)
        return [_bucket(start, groups[start]) for start in sorted(groups, reverse=True)]

    def _accepted(self, dimension: Dimension) -> _Condition:
        """Return the condition of the rows of a dimension that the filters accept."""
        query = self._query
        place = (int(query.level), int(dimension), query.since, query.until)
        accepted = _Condition("level = ? AND dimension = ? AND start >= ? AND start < ?", place)
        for label, values in query.filters.items():
            accepted = accepted.within(_NAMES[label], sorted(values))
        return accepted

    def _busiest(self, accepted: _Condition, label: str) -> dict[str, str]:
        """Return the groups of the values that belong to the busiest groups of the range."""
        group_of: dict[str, str] = {}
        requests: Counter[str] = Counter()
        for value, count in self._steps(f"{label}, sum(requests)", accepted, f"GROUP BY {label}"):
            group = group_of[value] = self._query.group_of(value)
            requests[group] += int(count)
        by_requests = sorted(requests, key=lambda group: (-requests[group], group))
        busiest = set([group for group in by_requests if group != OTHER][:MAX_GROUPS])
        return {value: group for value, group in group_of.items() if group in busiest}

    def _rows(self, accepted: _Condition) -> Iterator[_UsageRow]:
        label = self._label or "path"
        columns = f"start, {label}, requests, invalid, failed, credits, credits_wasted, times"
        for row in self._steps(columns, accepted):
            start, text, requests, invalid, failed, credits, wasted, raw = row
            times = decode_times(raw, self._query.level, start)
            yield _UsageRow(start, text, RowSums(requests, invalid, failed, credits, wasted, times))

    def _steps(
        self, columns: str, accepted: _Condition, end: str = ""
    ) -> Iterator[tuple[Any, ...]]:
        """Yield columns of the accepted rows. Raises UsageQueryTooLong."""
        query = f"""\
SELECT {columns}
FROM usage
WHERE {accepted.text}
{end}
"""
        for row in self._connection.stream(query, *accepted.values):
            yield row
            self._throttle.step()
            if time.monotonic() > self._give_up_at:
                raise UsageQueryTooLong(self._limit_s)


class _Condition(NamedTuple):
    """A condition of rows: SQL of constants and marks, and the values."""

    text: str
    values: tuple[Any, ...]

    def within(self, column: str, values: Collection[Any]) -> _Condition:
        """Return this condition, and the one that a column has one of these values."""
        # PostgreSQL has no empty list.
        listed = marks(len(values)) if values else "(NULL)"
        return _Condition(f"{self.text} AND {column} IN {listed}", (*self.values, *values))


class _UsageRow(NamedTuple):
    """A stored row.

    value: text of the label by which the query groups.
    """

    start: int
    value: str
    sums: RowSums


def _add(groups: dict[str | None, RowSums], group: str | None, sums: RowSums) -> None:
    if group in groups:
        groups[group].add(sums)
    else:
        groups[group] = sums


def _bucket(start: int, sums_by_group: Mapping[str | None, RowSums]) -> UsageBucket:
    groups: list[UsageGroup] = []
    for value, sums in sums_by_group.items():
        if sums.requests > 0:
            groups.append(UsageGroup(value, _usage_sums(sums)))
    groups.sort(key=lambda group: (group.value == OTHER, -group.sums.requests, group.value or ""))
    return UsageBucket(start, groups)


def _usage_sums(sums: RowSums) -> UsageSums:
    return UsageSums(
        requests=sums.requests,
        invalid=sums.invalid,
        failed=sums.failed,
        credits=sums.credits,
        credits_wasted=sums.credits_wasted,
        median_ms=median_ms(sums.times),
    )
