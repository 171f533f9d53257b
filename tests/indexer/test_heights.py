"""Heights that were had, as spans: the same as a set of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from warpseal.indexer.heights import Heights

HEIGHT = st.integers(0, 40)


@given(st.lists(st.tuples(st.booleans(), HEIGHT), max_size=60))
def test_they_are_a_set(steps: list[tuple[bool, int]]) -> None:
    heights, model = Heights(), set[int]()
    for is_added, height in steps:
        if is_added:
            heights.update([height])
            model.add(height)
        else:
            heights.discard(height)
            model.discard(height)
        assert [each for each in range(42) if each in heights] == sorted(model)
    spans = heights.spans()
    assert all(low <= high for low, high in spans)
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(spans))


def test_rows_take_no_room() -> None:
    heights = Heights()
    heights.update(range(5_000, 0, -1))
    heights.update(range(5_002, 9_000))
    heights.update([5_001])
    assert heights.spans() == ((1, 8_999),)
