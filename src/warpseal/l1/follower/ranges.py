"""The ranges of known blocks, and the batch to read next: new blocks first, then gaps, then the backfill. Pure.

A few blocks above the newest range are read upwards. If there are more than one batch, because no daemon followed for a
while, a new range begins at the tip and grows downwards until it meets the older one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from warpseal.store.values import BlockRange


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Heights to read, both ends included, and the ids at their ends.

    below_id: the id of block low - 1; above_id: the id that block high + 1 names as its parent; None: not known.
    """

    low: int
    high: int
    below_id: bytes | None = None
    above_id: bytes | None = None


class KnownRanges:
    """Disjoint ranges of one chain that do not touch each other, newest first."""

    def __init__(self, ranges: Iterable[BlockRange] = ()) -> None:
        self._ranges: list[BlockRange] = []
        for item in ranges:
            self.add(item)

    def __iter__(self) -> Iterator[BlockRange]:
        return iter(self._ranges)

    @property
    def newest(self) -> BlockRange | None:
        """The highest range."""
        return self._ranges[0] if self._ranges else None

    @property
    def oldest(self) -> BlockRange | None:
        """The lowest range."""
        return self._ranges[-1] if self._ranges else None

    def add(self, read: BlockRange) -> None:
        """Add a range, merged with the ranges that it touches."""
        low, high = read, read
        ranges = []
        for item in self._ranges:
            if item.high + 1 < read.low or item.low > read.high + 1:
                ranges.append(item)
                continue
            low = item if item.low < low.low else low
            high = item if item.high > high.high else high
        ranges.append(BlockRange(low.low, high.high, low.low_parent_id, high.high_block_id))
        self._ranges = sorted(ranges, key=lambda item: -item.high)

    def count(self, low: int, high: int) -> int:
        """Return the number of known blocks in low..high."""
        return sum(max(0, min(high, item.high) - max(low, item.low) + 1) for item in self._ranges)


def newer_batch(ranges: KnownRanges, tip: int, size: int) -> BlockBatch | None:
    """Return the next batch above the oldest range, newest first; None: no block is missing there, or none is known."""
    top = ranges.newest
    if top is None:
        return None
    if tip - top.high > size:
        return BlockBatch(tip - size + 1, tip)
    if tip > top.high:
        return BlockBatch(top.high + 1, tip, below_id=top.high_block_id)
    _, *older = ranges
    return _batch_below(top, older[0].high + 1, size, older[0].high_block_id) if older else None


def older_batch(ranges: KnownRanges, tip: int, first: int, size: int) -> BlockBatch | None:
    """Return the next batch below the oldest range, down to `first`; None: no block is missing there."""
    oldest = ranges.oldest
    if oldest is None:
        return BlockBatch(max(first, tip - size + 1), tip) if tip >= first else None
    return _batch_below(oldest, first, size, None) if oldest.low > first else None


def _batch_below(upper: BlockRange, lowest: int, size: int, below_id: bytes | None) -> BlockBatch:
    low = max(lowest, upper.low - size)
    return BlockBatch(low, upper.low - 1, below_id if low == lowest else None, upper.low_parent_id)
