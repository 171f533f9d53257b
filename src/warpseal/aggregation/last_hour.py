"""Counts of the aggregations of the last hour, by minute. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from warpseal.usage.response_times import bucket_of

MINUTES: Final = 60
_MINUTE_S: Final = 60


class MinuteCounts(Struct):
    """The aggregations that ended in one minute.

    start_s: beginning of the minute, Unix seconds.
    outcomes: number of aggregations by outcome.
    times: number of successful aggregations by bucket of `usage.response_times`.
    """

    start_s: int
    outcomes: Counter[str] = field(default_factory=Counter)
    times: Counter[int] = field(default_factory=Counter)


class LastHour:
    """Counts aggregations; a minute without any takes no place."""

    def __init__(self) -> None:
        self._minutes: deque[MinuteCounts] = deque(maxlen=MINUTES)

    def add(self, ended_at: float, outcome: str, seconds: float, *, has_succeeded: bool) -> None:
        """Count an aggregation that ended at a Unix time."""
        start_s = int(ended_at) // _MINUTE_S * _MINUTE_S
        # If the clock was set back, later minutes have not been yet.
        while self._minutes and self._minutes[-1].start_s > start_s:
            self._minutes.pop()
        if not self._minutes or self._minutes[-1].start_s != start_s:
            self._minutes.append(MinuteCounts(start_s))
        minute = self._minutes[-1]
        minute.outcomes[outcome] += 1
        if has_succeeded:
            minute.times[bucket_of(1_000 * seconds)] += 1

    def minutes(self, unix_s: float) -> Sequence[MinuteCounts]:
        """Return the minutes with aggregations in the hour before a Unix time, oldest first."""
        hour_start_s = unix_s - MINUTES * _MINUTE_S
        return [minute for minute in self._minutes if hour_start_s < minute.start_s <= unix_s]
