"""Usage since the last flush: sums by labels in the minutes of the calls, in bounded memory.

Source of truth: docs/usage-metrics.md. For the event loop only: no method awaits, locks or does
I/O.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from warpseal.usage.calls import OTHER, CallOutcome, UsageLabels, UsageTotals
from warpseal.usage.fold import admit
from warpseal.usage.response_times import bucket_of

NO_AGENT: Final = "none"
"""User agent of calls without one; it counts for no bound."""

_MINUTE_S: Final = 60
_MINUTES_PER_HOUR: Final = 60
_MINUTES_PER_DAY: Final = 1_440
_MOST_DEFERRED: Final = 1_024
# The bound of one minute holds, on average, for each of this number of minutes that were not taken
# yet.
_UNTAKEN_MINUTES: Final = 4


class UsageBounds(Struct, frozen=True):
    """Bounds of one daemon.

    agents: new user agents in a UTC day.
    agents_per_client: new user agents of one client in an hour.
    combinations: combinations of labels in a minute.
    """

    agents: int = 500
    agents_per_client: int = 10
    combinations: int = 20_000


class MethodUsage(Struct):
    """Sums of one method on one path since the start.

    time_ms: total time of the calls whose times count.
    """

    requests: int = 0
    invalid: int = 0
    failed: int = 0
    credits: int = 0
    credits_wasted: int = 0
    time_ms: float = 0.0

    def by_outcome(self) -> dict[CallOutcome, int]:
        """Return the number of calls with each outcome."""
        return {
            CallOutcome.SUCCESSFUL: self.requests - self.invalid - self.failed,
            CallOutcome.INVALID: self.invalid,
            CallOutcome.FAILED: self.failed,
        }


class UsageRecorder:
    """Sums calls.

    The clock at the end of a call gives the minute, so that a clock that steps loses and doubles
    nothing.

    agents: user agents that were admitted today.
    now: clock of Unix time.
    """

    def __init__(
        self, bounds: UsageBounds | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.agents: set[str] = {NO_AGENT}
        self._bounds = bounds or UsageBounds()
        self._now = now
        self._minute = -1
        self._seen: set[UsageLabels] = set()
        self._minutes: dict[int, dict[UsageLabels, UsageTotals]] = {}
        self._current: dict[UsageLabels, UsageTotals] = {}
        self._untaken = 0
        self._agents_day = -1
        self._added_by: Counter[str] = Counter()
        self._added_hour = -1
        self._since_start: dict[tuple[str, str], MethodUsage] = {}
        # Times of calls that ended in the current minute, by `record` and labels.
        self._deferred: dict[tuple[Callable[..., None], tuple[str | int, ...]], list[float]] = {}
        self._deferred_calls = 0
        self._records_deferred = False

    @property
    def since_start(self) -> Mapping[tuple[str, str], MethodUsage]:
        """The sums since the start by path and method."""
        self._record_deferred()
        return self._since_start

    def record(
        self,
        labels: UsageLabels,
        outcome: CallOutcome,
        credits: int,
        time_ms: float | None = None,
        calls: int = 1,
    ) -> None:
        """Add calls with the same labels, outcome and time.

        credits: credits of one call.
        time_ms: time of each call; None does not count.
        """
        self._update_minute()
        totals, method = self._add_calls(labels, outcome, credits, calls)
        if time_ms is not None:
            bucket = bucket_of(time_ms)
            totals.times[bucket] = totals.times.get(bucket, 0) + calls
            method.time_ms += time_ms * calls

    def record_times(
        self, labels: UsageLabels, outcome: CallOutcome, credits: int, times: Sequence[float]
    ) -> None:
        """Add calls with the same labels and outcome.

        credits: credits of one call.
        times: times of the calls, milliseconds.
        """
        self._update_minute()
        totals, method = self._add_calls(labels, outcome, credits, len(times))
        counts = totals.times
        for bucket in map(bucket_of, times):
            counts[bucket] = counts.get(bucket, 0) + 1
        method.time_ms += sum(times)

    def defer(self, record: Callable[..., None], *labels: str | int, time_ms: float) -> None:
        """Record a call that has ended before the sums are read next: `record(*labels, times)`.

        Calls with equal labels are recorded together, which takes less time.
        """
        self._update_minute()
        key = (record, labels)
        times = self._deferred.get(key)
        if times is None:
            times = self._deferred[key] = []
        times.append(time_ms)
        self._deferred_calls += 1
        if self._deferred_calls == _MOST_DEFERRED:
            self._record_deferred()

    def admit_agent(self, agent: str, client: str) -> str:
        """Return a user agent as a label: `other` if the day or the client has too many new ones.

        client: network of the client's address, kept to the end of the hour if it added an agent.
        """
        self._update_minute()
        if agent in self.agents or agent == OTHER:
            return agent
        # One client must not use up the bound of the day.
        is_day_full = len(self.agents) > self._bounds.agents
        if is_day_full or self._added_by[client] >= self._bounds.agents_per_client:
            return OTHER
        self.agents.add(agent)
        self._added_by[client] += 1
        return agent

    def take(self) -> Mapping[int, Mapping[UsageLabels, UsageTotals]]:
        """Return the sums since the last call by Unix minute, and begin new ones."""
        self._record_deferred()
        minute_totals = {minute: totals for minute, totals in self._minutes.items() if totals}
        self._current = {}
        self._minutes = {self._minute: self._current}
        self._untaken = 0
        return minute_totals

    def _record_deferred(self) -> None:
        """Record the deferred calls in the minute in which they ended."""
        deferred, self._deferred = self._deferred, {}
        self._deferred_calls = 0
        self._records_deferred = True
        try:
            for (record, labels), times in deferred.items():
                record(*labels, times)
        finally:
            self._records_deferred = False

    def _update_minute(self) -> None:
        """Begin the minute of the clock if it is another one."""
        minute = int(self._now()) // _MINUTE_S
        if minute != self._minute and not self._records_deferred:
            self._record_deferred()
            self._begin_minute(minute)

    def _begin_minute(self, minute: int) -> None:
        self._minute = minute
        self._current = self._minutes.setdefault(minute, {})
        self._seen = set(self._current)
        if minute // _MINUTES_PER_DAY != self._agents_day:
            self._agents_day = minute // _MINUTES_PER_DAY
            self.agents = {NO_AGENT}
        if minute // _MINUTES_PER_HOUR != self._added_hour:
            self._added_hour = minute // _MINUTES_PER_HOUR
            self._added_by = Counter()

    def _add_calls(
        self, labels: UsageLabels, outcome: CallOutcome, credits: int, calls: int
    ) -> tuple[UsageTotals, MethodUsage]:
        """Add calls without their times, and return the sums that they belong to."""
        totals = self._current.get(labels)
        if totals is None:
            totals = self._add(labels)
        method = self._since_start.get(labels[:2])
        if method is None:
            method = self._since_start[labels[:2]] = MethodUsage()
        credits *= calls
        totals.requests += calls
        totals.credits += credits
        method.requests += calls
        method.credits += credits
        if outcome is CallOutcome.INVALID:
            totals.invalid += calls
            totals.credits_wasted += credits
            method.invalid += calls
            method.credits_wasted += credits
        elif outcome is CallOutcome.FAILED:
            totals.failed += calls
            method.failed += calls
        return totals, method

    def _add(self, labels: UsageLabels) -> UsageTotals:
        """Return the sums for labels that are new in the minute, folded if it has no room."""
        labels = self._admit(labels)
        totals = self._current.get(labels)
        if totals is None:
            totals = self._current[labels] = UsageTotals()
            self._untaken += 1
        return totals

    def _admit(self, labels: UsageLabels) -> UsageLabels:
        used = max(len(self._seen), self._untaken // _UNTAKEN_MINUTES)
        labels = admit(labels, self._seen, used, self._bounds.combinations)
        self._seen.add(labels)
        return labels
