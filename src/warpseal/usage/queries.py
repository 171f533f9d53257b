"""Queries of usage: the buckets of a range, filtered and grouped by a label.

The sums of one label, or of none, are stored for each bucket. A query that concerns no other label
reads only those; the rest is the total without the busiest groups. Other queries read all label
combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field

from warpseal.usage.calls import OTHER, Dimension
from warpseal.usage.countries import continent_of
from warpseal.usage.periods import Level

MAX_GROUPS: Final = 50
"""Values of a grouped query besides `other`."""

_PERCENT_DIGITS: Final = 4


class UsageQuery(Struct, frozen=True):
    """Buckets of a level that begin in a range; until is not in it.

    filters: accepted values of labels.
    group_by: label of the groups; None puts all calls into one group.
    group_of: function that returns the group of a value.
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
        labels = set(self.filters)
        if self.group_by is not None:
            labels.add(self.group_by)
        if len(labels) > 1:
            return Dimension.ALL
        return next(iter(labels), Dimension.NONE)


class UsageSums(NamedTuple):
    """Sums of calls.

    median_ms: median time within 1 %; 0 without times.
    """

    requests: int
    invalid: int
    failed: int
    credits: int
    credits_wasted: int
    median_ms: float

    @property
    def success_rate_percent(self) -> float:
        """Share of successful requests with 4 decimals; it is 100 only if all of them are."""
        successful = self.requests - self.invalid - self.failed
        if successful == self.requests:
            return 100.0
        highest = 100 - 10**-_PERCENT_DIGITS
        return min(round(100 * successful / self.requests, _PERCENT_DIGITS), highest)


class UsageGroup(NamedTuple):
    """Sums of a group.

    value: label of the group; None if the query has no groups.
    """

    value: str | None
    sums: UsageSums


class UsageBucket(NamedTuple):
    """The groups of one bucket, busiest first, `other` last."""

    start: int
    groups: list[UsageGroup]


def group_by_continent(country: str) -> str:
    """Return the group of a country."""
    return OTHER if country == OTHER else continent_of(country)
