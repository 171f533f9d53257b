"""Compute units that callers may use: two token buckets each, one of a minute and one of a day. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import Final

MINUTE_S: Final = 60
DAY_S: Final = 86_400
MAX_CALLERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ComputeUnitLimits:
    """Compute units of a minute and of a day; 0: any number."""

    per_minute: int
    per_day: int

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The limits that hold: (units, seconds)."""
        both = ((self.per_minute, MINUTE_S), (self.per_day, DAY_S))
        return tuple((units, window_s) for units, window_s in both if units)


@dataclass(frozen=True, slots=True)
class RateLimitResult:
    """Whether a request may pass, and how the caller stands.

    limit, window_s: of the window that is nearest to being used up. remaining: units. reset_s: until it is full
    again; where it may not pass, until there are enough units for it.
    """

    passes: bool
    limit: int
    window_s: int
    remaining: int
    reset_s: int


class _TokenBucket:
    """Fills evenly to `units` in `window_s`; begins full."""

    __slots__ = ("at", "left", "units", "window_s")

    def __init__(self, units: int, window_s: int, now: float) -> None:
        self.units, self.window_s = units, window_s
        self.left, self.at = float(units), now

    def refill(self, now: float) -> None:
        self.left = min(self.units, self.left + max(0.0, now - self.at) * self.units / self.window_s)
        self.at = now

    def wait_s(self, units: float) -> int:
        """Return whole seconds until so many units are there."""
        return max(0, ceil((units - self.left) * self.window_s / self.units))


class RateLimiter:
    """The buckets of every caller; those that were idle longest are forgotten first."""

    def __init__(self, max_callers: int = MAX_CALLERS) -> None:
        self._max_callers = max_callers
        self._callers: OrderedDict[tuple[str, ComputeUnitLimits], tuple[_TokenBucket, ...]] = OrderedDict()

    def take(self, caller: str, limits: ComputeUnitLimits, units: int, now: float) -> RateLimitResult | None:
        """Take units of a caller where there are enough in both windows; None: nothing limits it. now: seconds.

        What costs more than a whole window holds passes when the bucket is full, and empties it.
        """
        if not limits.windows:
            return None
        buckets = self._of(caller, limits, now)
        for bucket in buckets:
            bucket.refill(now)
        short = [bucket for bucket in buckets if bucket.left < min(units, bucket.units)]
        if short:
            slowest = max(short, key=lambda bucket: bucket.wait_s(min(units, bucket.units)))
            return _result(slowest, passes=False, reset_s=slowest.wait_s(min(units, slowest.units)))
        for bucket in buckets:
            bucket.left = max(0.0, bucket.left - units)
        nearest = min(buckets, key=lambda bucket: bucket.left / bucket.units)
        return _result(nearest, passes=True, reset_s=nearest.wait_s(nearest.units))

    def _of(self, caller: str, limits: ComputeUnitLimits, now: float) -> tuple[_TokenBucket, ...]:
        key = (caller, limits)
        found = self._callers.get(key)
        if found is None:
            found = tuple(_TokenBucket(units, window_s, now) for units, window_s in limits.windows)
            self._callers[key] = found
            if len(self._callers) > self._max_callers:
                self._callers.popitem(last=False)
        self._callers.move_to_end(key)
        return found


def _result(bucket: _TokenBucket, *, passes: bool, reset_s: int) -> RateLimitResult:
    return RateLimitResult(passes, bucket.units, bucket.window_s, int(bucket.left), reset_s)
