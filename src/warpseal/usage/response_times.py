"""Times of calls as counts by bucket of a DDSketch, which merge exactly and in any order. Pure.

Source of truth: the DDSketch paper (Masson, Rim, Lee, 2019); its logarithmic mapping with an accuracy of 1 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ddsketch.mapping import LogarithmicMapping

ACCURACY: Final = 0.01
MIN_MS: Final = 0.001
MAX_MS: Final = 1e9
"""Times are cut to these bounds, so that a sketch has at most 1,400 buckets."""

_MAPPING: Final = LogarithmicMapping(ACCURACY)


def bucket_of(time_ms: float) -> int:
    """Return the bucket of a time."""
    key: int = _MAPPING.key(min(MAX_MS, max(MIN_MS, time_ms)))
    return key


def time_of(bucket: int) -> float:
    """Return the time that stands for a bucket, within 1 % of each time in it, milliseconds."""
    time_ms: float = _MAPPING.value(bucket)
    return time_ms


def median_ms(times: Mapping[int, int]) -> float:
    """Return the median of counts by bucket, the lower one of an even number, within 1 %; 0 without any."""
    left = (sum(times.values()) + 1) // 2
    for bucket in sorted(times):
        left -= times[bucket]
        if left <= 0:
            return time_of(bucket) if times[bucket] else 0.0
    return 0.0
