"""Times of calls as counts by bucket of a DDSketch, which merge exactly and in any order. Pure.

Source of truth: the DDSketch paper (Masson, Rim, Lee, 2019); its logarithmic mapping with an accuracy of 1 %.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from ddsketch.mapping import LogarithmicMapping

ACCURACY: Final = 0.01
MIN_MS: Final = 0.001
MAX_MS: Final = 1e9
"""Times are cut to these bounds, so that a sketch has at most 1,400 buckets."""

_MAX_CACHED: Final = 1_400
_MAPPING: Final = LogarithmicMapping(ACCURACY)
_FIRST: Final[int] = _MAPPING.key(MIN_MS)
_LAST: Final[int] = _MAPPING.key(MAX_MS)
# A search in them takes a fifth of the time of the mapping's logarithm. The last bucket has no bound.
_UPPER_BOUNDS: Final = [_MAPPING.gamma**bucket for bucket in range(_FIRST, _LAST)]


def bucket_of(time_ms: float) -> int:
    """Return the bucket of a time."""
    return _FIRST + bisect_left(_UPPER_BOUNDS, time_ms)


@lru_cache(_MAX_CACHED)
def time_of(bucket: int) -> float:
    """Return the time that stands for a bucket, within 1 % of each time in it, milliseconds."""
    time_ms: float = _MAPPING.value(bucket)
    return time_ms


def median_ms(times: Mapping[int, int]) -> float:
    """Return the median of counts by bucket, the lower one of an even number, within 1 %; 0 without any."""
    return percentile_ms(times, 50)


def percentile_ms(times: Mapping[int, int], percent: int) -> float:
    """Return the least time that so many percent of counts by bucket do not exceed, within 1 %; 0 without any."""
    left = -(-sum(times.values()) * percent // 100)
    for bucket in sorted(times):
        left -= times[bucket]
        if left <= 0:
            return time_of(bucket) if times[bucket] else 0.0
    return 0.0
