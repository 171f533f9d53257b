"""Times of calls as counts by bucket of a DDSketch, which add up exactly and in any order. Pure.

Source of truth: the DDSketch paper (Masson, Rim, Lee, 2019); its logarithmic mapping with an
accuracy of 1 %.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Final

from ddsketch.mapping import LogarithmicMapping

ACCURACY: Final = 0.01
MIN_MS: Final = 0.001
MAX_MS: Final = 1e9
"""Times are cut to these bounds, so that a sketch has at most 1,400 buckets."""

_MAX_CACHED: Final = 1_400
_COUNT_BYTES: Final = 8
_COUNT_BITS: Final = 8 * _COUNT_BYTES
_HEAD: Final = struct.Struct("<HH")
_MAPPING: Final = LogarithmicMapping(ACCURACY)
_FIRST: Final[int] = _MAPPING.key(MIN_MS)
_LAST: Final[int] = _MAPPING.key(MAX_MS)
# A search in these bounds takes a fifth of the time of the mapping's logarithm. The last bucket has
# no bound.
_UPPER_BOUNDS: Final = [_MAPPING.gamma**bucket for bucket in range(_FIRST, _LAST)]


def bucket_of(time_ms: float) -> int:
    """Return the bucket of a time."""
    return _FIRST + bisect_left(_UPPER_BOUNDS, time_ms)


@lru_cache(_MAX_CACHED)
def time_of(bucket: int) -> float:
    """Return the time that stands for a bucket, within 1 % of each time in it, milliseconds."""
    time_ms: float = _MAPPING.value(bucket)
    return time_ms


def percentile_ms(times: Mapping[int, int], percent: int) -> float:
    """Return the least time that this percentage of calls does not exceed, within 1 %.

    times: number of calls by bucket; without calls the result is 0.
    """
    remaining = -(-sum(times.values()) * percent // 100)
    for bucket in sorted(times):
        remaining -= times[bucket]
        if remaining <= 0:
            return time_of(bucket) if times[bucket] else 0.0
    return 0.0


def pack_counts(times: Mapping[int, int]) -> int:
    """Return counts by bucket as one number, with 64 bits a count from the first bucket on.

    Such numbers can be added and subtracted. Raises ValueError or OverflowError for a bucket or a
    count that no call has.
    """
    if not times:
        return 0
    first = min(times)
    counts = array("Q", bytes(_COUNT_BYTES * (max(times) - first + 1)))
    for bucket, count in times.items():
        counts[bucket - first] = count
    return int.from_bytes(counts.tobytes(), "little") << _COUNT_BITS * (first - _FIRST)


def encode_counts(counts: int) -> bytes:
    """Return packed counts as they are stored: the first place, their number, and their bytes.

    The lowest bytes of all counts come first, then the next ones, up to the highest byte that is
    not 0 in all counts.
    """
    if not counts:
        return b""
    first = _first_place(counts)
    raw = _count_bytes(counts, first)
    planes = [raw[place::_COUNT_BYTES] for place in range(_COUNT_BYTES)]
    while not planes[-1].strip(b"\0"):
        planes.pop()
    return _HEAD.pack(first, len(planes[0])) + b"".join(planes)


def decode_counts(raw: bytes) -> int:
    """Return packed counts. Raises ValueError or struct.error."""
    if not raw:
        return 0
    first, count = _HEAD.unpack_from(raw)
    counts = bytearray(count * _COUNT_BYTES)
    for place, start in enumerate(range(_HEAD.size, len(raw), count)):
        counts[place::_COUNT_BYTES] = raw[start : start + count]
    shift: int = _COUNT_BITS * first
    return int.from_bytes(counts, "little") << shift


def median_ms(counts: int) -> float:
    """Return the median time of packed counts within 1 %; 0 without calls.

    Of an even number of calls it is the lower one of the two times in the middle.
    """
    if counts <= 0:
        return 0.0
    first = _first_place(counts)
    sums = list(accumulate(array("Q", _count_bytes(counts, first))))
    return time_of(_FIRST + first + bisect_left(sums, (sums[-1] + 1) // 2))


def _first_place(counts: int) -> int:
    return max(0, (counts & -counts).bit_length() - 1) // _COUNT_BITS


def _count_bytes(counts: int, first: int) -> bytes:
    counts >>= _COUNT_BITS * first
    return counts.to_bytes(-(-counts.bit_length() // _COUNT_BITS) * _COUNT_BYTES, "little")
