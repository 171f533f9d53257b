"""Rate limits in compute units: two token buckets for each caller, one of a minute and one of a
day.

Pure.
"""

from __future__ import annotations

from math import ceil
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

    limit, window_s: of the window with the smallest fraction left.
    remaining: units.
    reset_s: until it is full again; if the request is refused, until there are enough units for it.
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
        """Return whole seconds until the bucket has so many units."""
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
        """Consume units of a caller if both windows have enough; None: the caller is not limited.

        now: seconds.

        A request that costs more than a whole window is allowed when the bucket is full, and
        empties it.
        is_trial: nothing is consumed.
        """
        if not limits.windows:
            return None
        buckets = self._buckets(caller, limits, now)
        for bucket in buckets:
            bucket.refill(now)
        short = [bucket for bucket in buckets if bucket.left < min(units, bucket.units)]
        if short:
            slowest = max(short, key=lambda bucket: bucket.wait_s(min(units, bucket.units)))
            return _result(
                slowest, is_allowed=False, reset_s=slowest.wait_s(min(units, slowest.units))
            )
        for bucket in buckets:
            bucket.left = max(0.0, bucket.left - (0 if is_trial else units))
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
