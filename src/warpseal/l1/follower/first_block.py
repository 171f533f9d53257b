"""The first block from a moment on, found by binary search over the times of blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


async def first_block_from(time_s: int, tip: int, time_of: Callable[[int], Awaitable[int | None]]) -> int:
    """Return the lowest height whose block is not before `time_s` (Unix seconds), or tip + 1 where all are.

    time_of: the time of the block at a height, never decreasing; None for a block that has none: those are the oldest.
    """
    low, high = 0, tip + 1
    while low < high:
        middle = (low + high) // 2
        time = await time_of(middle)
        if time is None or time < time_s:
            low = middle + 1
        else:
            high = middle
    return low
