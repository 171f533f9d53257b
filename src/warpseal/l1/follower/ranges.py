"""Which blocks are known and which are read next: new ones, then gaps, then what lies behind; all of it pure.

Blocks above the newest range are read upwards where they are few. Where they are more than a batch, because nobody
followed for a while, a new range begins at the tip and grows downwards until it meets the older one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from warpseal.store.values import BlockRange


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Heights to read, both ends included, and what their ends have to fit to.

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
        for one in ranges:
            self.add(one)

    def __iter__(self) -> Iterator[BlockRange]:
        return iter(self._ranges)

    @property
    def newest(self) -> BlockRange | None:
        """The range that reaches highest."""
        return self._ranges[0] if self._ranges else None

    @property
    def oldest(self) -> BlockRange | None:
        """The range that reaches lowest."""
        return self._ranges[-1] if self._ranges else None

    def add(self, read: BlockRange) -> None:
        """Add blocks that were read, merging them with the ranges that they touch."""
        low, high = read, read
        kept = []
        for one in self._ranges:
            if one.high + 1 < read.low or one.low > read.high + 1:
                kept.append(one)
                continue
            low = one if one.low < low.low else low
            high = one if one.high > high.high else high
        kept.append(BlockRange(low.low, high.high, low.low_parent_id, high.high_block_id))
        self._ranges = sorted(kept, key=lambda one: -one.high)

    def count(self, low: int, high: int) -> int:
        """Return how many blocks of low..high are known."""
        return sum(max(0, min(high, one.high) - max(low, one.low) + 1) for one in self._ranges)


def newer_batch(known: KnownRanges, tip: int, size: int) -> BlockBatch | None:
    """Return what to read next of what is above the oldest range, newest first; None: nothing, or nothing is known."""
    top = known.newest
    if top is None:
        return None
    if tip - top.high > size:
        return BlockBatch(tip - size + 1, tip)
    if tip > top.high:
        return BlockBatch(top.high + 1, tip, below_id=top.high_block_id)
    _, *older = known
    return _batch_below(top, older[0].high + 1, size, older[0].high_block_id) if older else None


def older_batch(known: KnownRanges, tip: int, first: int, size: int) -> BlockBatch | None:
    """Return what to read next of what is below the oldest range, from `first` on; None where that is known."""
    oldest = known.oldest
    if oldest is None:
        return BlockBatch(max(first, tip - size + 1), tip) if tip >= first else None
    return _batch_below(oldest, first, size, None) if oldest.low > first else None


def _batch_below(upper: BlockRange, lowest: int, size: int, below_id: bytes | None) -> BlockBatch:
    low = max(lowest, upper.low - size)
    return BlockBatch(low, upper.low - 1, below_id if low == lowest else None, upper.low_parent_id)
