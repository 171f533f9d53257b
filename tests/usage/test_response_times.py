"""Times of calls in sketches of 1 % accuracy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.usage.response_times import (
    bucket_of,
    decode_counts,
    encode_counts,
    median_ms,
    pack_counts,
    percentile_ms,
    time_of,
)

TIMES = st.dictionaries(
    st.integers(bucket_of(0.0), bucket_of(1e300)), st.integers(1, 2**40), max_size=8
)


@given(st.floats(0.001, 1e9))
def test_the_time_of_a_bucket_is_within_one_percent(time_ms: float) -> None:
    assert time_of(bucket_of(time_ms)) == pytest.approx(time_ms, rel=0.0100001)


@given(st.floats(allow_nan=False))
def test_any_time_has_a_bucket_among_few(time_ms: float) -> None:
    assert bucket_of(0.0) <= bucket_of(time_ms) <= bucket_of(1e300)
    assert bucket_of(1e300) - bucket_of(0.0) < 1_400


@given(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=30))
def test_the_median_is_within_one_percent_of_the_lower_exact_one(times_ms: list[float]) -> None:
    exact = sorted(times_ms)[(len(times_ms) - 1) // 2]
    assert median_ms(pack_counts(Counter(map(bucket_of, times_ms)))) == pytest.approx(
        exact, rel=0.0100001
    )


def test_without_calls_the_median_is_zero() -> None:
    assert median_ms(pack_counts({})) == 0.0


@given(st.lists(TIMES, min_size=1, max_size=6))
def test_packed_counts_add_up_exactly_and_are_the_same_after_they_were_stored(
    sketches: list[dict[int, int]],
) -> None:
    total, packed = Counter[int](), 0
    for times in sketches:
        total.update(times)
        packed += pack_counts(times)
    assert packed == pack_counts(total)
    assert decode_counts(encode_counts(packed)) == packed
    assert median_ms(packed) == percentile_ms(total, 50)
