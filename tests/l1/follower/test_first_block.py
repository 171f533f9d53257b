"""The first block of Etna is found by its time."""

from __future__ import annotations

import pytest

from warpseal.l1.consumer import find_first_block


@pytest.mark.parametrize("without_time", [0, 1, 5, 30])
async def test_the_first_block_at_or_after_a_time_is_found(without_time: int) -> None:
    reads = 0

    async def time_of(height: int) -> int | None:
        nonlocal reads
        reads += 1
        return None if height < without_time else 100 + height // 3

    for time_s, first in (
        (0, without_time),
        (104, max(without_time, 12)),
        (105, max(without_time, 15)),
        (111, 31),
    ):
        assert await find_first_block(time_s, 30, time_of) == first
    assert reads <= 4 * 6
