"""Known ranges and the next range to read: newest first, every gap filled, and each block read once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpseal.l1.follower.block_reader import BlockBatch, KnownRanges, newer_batch, older_batch
from warpseal.l1.follower.follower import find_first_block
from warpseal.store.values import BlockRange


def block_id(height: int) -> bytes:
    return height.to_bytes(32, "big", signed=True)


def span(low: int, high: int) -> BlockRange:
    return BlockRange(low, high, block_id(low - 1), block_id(high))


def test_adjacent_ranges_are_merged_and_keep_the_block_ids_of_their_ends() -> None:
    ranges = KnownRanges([span(10, 19), span(30, 39)])
    ranges.add(span(20, 29))
    assert list(ranges) == [span(10, 39)]


def test_separate_ranges_are_sorted_newest_first() -> None:
    ranges = KnownRanges([span(0, 4), span(20, 29), span(10, 18)])
    assert list(ranges) == [span(20, 29), span(10, 18), span(0, 4)]
    assert (ranges.newest, ranges.oldest) == (span(20, 29), span(0, 4))
    assert ranges.count(3, 22) == 2 + 9 + 3


def test_a_few_new_blocks_are_read_upwards() -> None:
    ranges = KnownRanges([span(0, 9)])
    assert newer_batch(ranges, 12, 5) == BlockBatch(10, 12, below_id=block_id(9))
    assert newer_batch(ranges, 9, 5) is None
    assert newer_batch(ranges, 7, 5) is None


def test_many_new_blocks_begin_a_range_at_the_tip() -> None:
    assert newer_batch(KnownRanges([span(0, 9)]), 100, 5) == BlockBatch(96, 100)


def test_a_gap_is_read_downwards_and_links_at_both_ends() -> None:
    ranges = KnownRanges([span(20, 29), span(0, 9)])
    assert newer_batch(ranges, 29, 6) == BlockBatch(14, 19, above_id=block_id(19))
    ranges.add(span(14, 19))
    assert newer_batch(ranges, 29, 6) == BlockBatch(10, 13, below_id=block_id(9), above_id=block_id(13))


def test_new_blocks_come_before_gaps_and_gaps_before_the_backfill() -> None:
    ranges = KnownRanges([span(20, 29), span(10, 14)])
    assert newer_batch(ranges, 30, 5) == BlockBatch(30, 30, below_id=block_id(29))
    assert newer_batch(ranges, 29, 5) == BlockBatch(15, 19, below_id=block_id(14), above_id=block_id(19))
    assert older_batch(KnownRanges([span(10, 29)]), 29, 3, 5) == BlockBatch(5, 9, above_id=block_id(9))
    assert older_batch(KnownRanges([span(5, 29)]), 29, 3, 5) == BlockBatch(3, 4, above_id=block_id(4))
    assert older_batch(KnownRanges([span(3, 29)]), 29, 3, 5) is None


def test_the_first_range_begins_at_the_tip_unless_it_is_below_the_first_height() -> None:
    assert older_batch(KnownRanges(), 100, 0, 5) == BlockBatch(96, 100)
    assert older_batch(KnownRanges(), 3, 2, 5) == BlockBatch(2, 3)
    assert older_batch(KnownRanges(), 3, 4, 5) is None
    assert newer_batch(KnownRanges(), 3, 5) is None


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(0, 60), st.integers(1, 9), st.randoms(use_true_random=False))
def test_each_block_is_read_once_however_the_tip_moves(first: int, tip: int, size: int, rnd: random.Random) -> None:
    ranges, read = KnownRanges(), list[int]()
    while True:
        tip += rnd.choice((0, 0, 0, 1, 3, 15)) if len(read) < 120 else 0
        batch = newer_batch(ranges, tip, size) or older_batch(ranges, tip, first, size)
        if batch is None:
            break
        assert 1 <= batch.high - batch.low + 1 <= size
        assert batch.below_id in (None, block_id(batch.low - 1))
        assert batch.above_id in (None, block_id(batch.high))
        read += range(batch.low, batch.high + 1)
        # A batch that fails half-way leaves the part that links to a known range.
        ranges.add(span(batch.low, batch.high))
    assert sorted(read) == list(range(first, tip + 1))
    assert list(ranges) == ([span(first, tip)] if tip >= first else [])


@pytest.mark.parametrize("without_time", [0, 1, 5, 30])
async def test_the_first_block_at_or_after_a_time_is_found(without_time: int) -> None:
    reads = 0

    async def time_of(height: int) -> int | None:
        nonlocal reads
        reads += 1
        return None if height < without_time else 100 + height // 3

    for time_s, first in ((0, without_time), (104, max(without_time, 12)), (105, max(without_time, 15)), (111, 31)):
        assert await find_first_block(time_s, 30, time_of) == first
    assert reads <= 4 * 6
