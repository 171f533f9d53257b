"""Rate limits in compute units: two token buckets for each caller, one of a minute and one of a
day.

Pure.
"""

from __future__ import annotations

from math import ceil
from operator import itemgetter
from typing import Final

from cachetools import LRUCache
from msgspec import Struct

MINUTE_S: Final = 60
DAY_S: Final = 86_400
MAX_CALLERS: Final = 100_000


class ComputeUnitLimits(Struct, frozen=True):
    """Compute units of a minute and of a day; 0: unlimited."""

    per_minute: int
    per_day: int

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The limits that apply: (units, seconds)."""
        both = ((self.per_minute, MINUTE_S), (self.per_day, DAY_S))
        return tuple((units, window_s) for units, window_s in both if units)


class RateLimitResult(Struct, frozen=True):
    """Whether a request is allowed, and the state of the caller's limits.

    limit, window_s: The units and the length of the window with the smallest fraction left.
    remaining: The units that are left in the window.
    reset_s: The time until the window is full; for a refused request, until it has enough units.
    """

    is_allowed: bool
    limit: int
    window_s: int
    remaining: int
    reset_s: int


class _TokenBucket:
    """Fills evenly to `units` in `window_s`; starts full."""

    __slots__ = ("at", "left", "units", "window_s")

    def __init__(self, units: int, window_s: int, now: float) -> None:
        self.units, self.window_s = units, window_s
        self.left, self.at = float(units), now

    def refill(self, now: float) -> None:
        self.left = min(
            self.units, self.left + max(0.0, now - self.at) * self.units / self.window_s
        )
        self.at = now

    def wait_s(self, units: float) -> int:
        """Return the whole seconds until the bucket has these units."""
        return max(0, ceil((units - self.left) * self.window_s / self.units))


class RateLimiter:
    """The buckets of all callers; the least recently used ones are evicted first."""

    def __init__(self, max_callers: int = MAX_CALLERS) -> None:
        self._callers: LRUCache[tuple[str, ComputeUnitLimits], tuple[_TokenBucket, ...]] = LRUCache(
            max_callers
        )

    def consume(
        self,
        caller: str,
        limits: ComputeUnitLimits,
        units: int,
        now: float,
        *,
        is_trial: bool = False,
    ) -> RateLimitResult | None:
        """Consume units of a caller if both windows have enough; None for a caller without limits.

        A request that costs more than a whole window is allowed when the bucket is full, and
        empties it.
        now: The time in seconds, which never goes back.
        is_trial: Whether the units are only looked at.
        """
        if not limits.windows:
            return None
        buckets = self._buckets(caller, limits, now)
        for bucket in buckets:
            bucket.refill(now)
        short = [bucket for bucket in buckets if bucket.left < min(units, bucket.units)]
        if short:
            reset_s, slowest = max(
                [(bucket.wait_s(min(units, bucket.units)), bucket) for bucket in short],
                key=itemgetter(0),
            )
            return _result(slowest, is_allowed=False, reset_s=reset_s)
        if not is_trial:
            for bucket in buckets:
                bucket.left = max(0.0, bucket.left - units)
        nearest = min(buckets, key=lambda bucket: bucket.left / bucket.units)
        return _result(nearest, is_allowed=True, reset_s=nearest.wait_s(nearest.units))

    def _buckets(
        self, caller: str, limits: ComputeUnitLimits, now: float
    ) -> tuple[_TokenBucket, ...]:
        key = (caller, limits)
        buckets = self._callers.get(key)
        if buckets is None:
            buckets = tuple(
                _TokenBucket(units, window_s, now) for units, window_s in limits.windows
            )
            self._callers[key] = buckets
        return buckets


def _result(bucket: _TokenBucket, *, is_allowed: bool, reset_s: int) -> RateLimitResult:
    return RateLimitResult(is_allowed, bucket.units, bucket.window_s, int(bucket.left), reset_s)
