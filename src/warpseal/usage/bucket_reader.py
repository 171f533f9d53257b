"""Reads the buckets of a query of usage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import astuple
from sqlalchemy import ColumnElement, Connection, Row, Select, func, select

from warpseal.runtime.throttle import Throttle
from warpseal.usage.calls import LABELS, OTHER, Dimension, UsageLabels
from warpseal.usage.errors import UsageQueryTooLong
from warpseal.usage.queries import MAX_GROUPS, UsageBucket, UsageGroup, UsageQuery, UsageSums
from warpseal.usage.response_times import median_ms
from warpseal.usage.schema import USAGE
from warpseal.usage.sums import RowSums, decode_times

_NAMES: Final = dict(zip(LABELS, UsageLabels._fields, strict=True))


class BucketReader:
    """Reads the buckets of one query.

    If the query has groups and no filters, the sums of all but the busiest groups are the total without them.
    """

    def __init__(self, connection: Connection, query: UsageQuery, limit_s: float, throttle: Throttle) -> None:
        self._connection = connection
        self._query = query
        self._limit_s = limit_s
        self._give_up_at = time.monotonic() + limit_s
        self._throttle = throttle
        self._label = None if query.group_by is None else USAGE.c[_NAMES[query.group_by]]

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
                # With every column of the key given, only these rows are read, and not all of the range.
                others = (USAGE.c[name] == "" for name in _NAMES.values() if name != self._label.name)
                accepted = (*accepted, USAGE.c.start.in_(list(groups)), *others, self._label.in_(list(group_of)))
            for start, value, sums in self._rows(accepted):
                group = group_of.get(value, OTHER)
                of_bucket = groups.setdefault(start, {})
                _add(of_bucket, group, sums)
                if is_total_stored:
                    of_bucket[OTHER].add(sums, -1)
        return [_bucket(start, groups[start]) for start in sorted(groups, reverse=True)]

    def _accepted(self, dimension: Dimension) -> tuple[ColumnElement[bool], ...]:
        """Return the conditions of the rows of a dimension that the filters accept."""
        query = self._query
        filters = (USAGE.c[_NAMES[label]].in_(sorted(values)) for label, values in query.filters.items())
        of_range = (USAGE.c.start >= query.since, USAGE.c.start < query.until)
        return (USAGE.c.level == int(query.level), USAGE.c.dimension == int(dimension), *of_range, *filters)

    def _busiest(self, accepted: Iterable[ColumnElement[bool]], label: ColumnElement[str]) -> dict[str, str]:
        """Return the groups of the values that belong to the busiest groups of the range."""
        sums = select(label, func.sum(USAGE.c.requests)).where(*accepted).group_by(label)
        group_of: dict[str, str] = {}
        requests: Counter[str] = Counter()
        for value, count in self._steps(sums):
            group = group_of[value] = self._query.group_of(value)
            requests[group] += int(count)
        by_requests = sorted(requests, key=lambda group: (-requests[group], group))
        busiest = set([group for group in by_requests if group != OTHER][:MAX_GROUPS])
        return {value: group for value, group in group_of.items() if group in busiest}

    def _rows(self, accepted: Iterable[ColumnElement[bool]]) -> Iterator[_UsageRow]:
        value = USAGE.c.path if self._label is None else self._label
        columns = (USAGE.c[name] for name in ("requests", "invalid", "failed", "credits", "credits_wasted", "times"))
        query = select(USAGE.c.start, value, *columns).where(*accepted)
        for start, text, requests, invalid, failed, credits, wasted, raw in self._steps(query):
            times = decode_times(bytes(raw), self._query.level, start)
            yield _UsageRow(start, text, RowSums(requests, invalid, failed, credits, wasted, times))

    def _steps(self, query: Select[*tuple[Any, ...]]) -> Iterator[Row[*tuple[Any, ...]]]:
        """Yield rows. Raises UsageQueryTooLong."""
        for row in self._connection.execute(query):
            yield row
            self._throttle.step()
            if time.monotonic() > self._give_up_at:
                raise UsageQueryTooLong(self._limit_s)


class _UsageRow(NamedTuple):
    """A stored row. value: value of the label by which the query groups."""

    start: int
    value: str
    sums: RowSums


def _add(groups: dict[str | None, RowSums], group: str | None, sums: RowSums) -> None:
    if group in groups:
        groups[group].add(sums)
    else:
        groups[group] = sums


def _bucket(start: int, sums_by_group: Mapping[str | None, RowSums]) -> UsageBucket:
    groups = [
        UsageGroup(group, UsageSums._make((*astuple(sums)[:-1], median_ms(sums.times))))
        for group, sums in sums_by_group.items()
        if sums.requests > 0
    ]
    groups.sort(key=lambda group: (group.value == OTHER, -group.sums.requests, group.value or ""))
    return UsageBucket(start, groups)
