"""Stored tables of sums as numpy arrays: they add up the counters and sketches of thousands of rows at once.

Sums are 64-bit integers. Imported by the first query: numpy costs time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from warpseal.usage.response_times import time_of
from warpseal.usage.sum_table import DENSE_BYTES, DENSE_CODES, DENSE_MARK, StoredTable

Numbers = NDArray[np.int64]

_PAIR: Final = np.dtype([("bucket", "<i2"), ("count", "<u4")])
# The mark of a dense sketch, its first bucket and the bytes of a count. A pair has as many bytes.
_HEAD: Final = np.arange(DENSE_BYTES)
# Dense sketches that are added at once: few enough for the cache of a processor.
_SKETCHES_AT_ONCE: Final = 256


class SumArrays:
    """A stored table. columns: of each label the values, and the number of its value by row. counters: by row."""

    __slots__ = ("_ends", "_lengths", "_times", "columns", "counters")

    def __init__(self, stored: StoredTable) -> None:
        indices = (np.frombuffer(column, "<u4") for column in stored.indices)
        self.columns: list[tuple[list[str], NDArray[np.uint32]]] = list(zip(stored.values, indices, strict=True))
        self.counters: Numbers = np.frombuffer(b"".join(stored.counters), "<i8").reshape(len(stored.counters), -1)
        self._times = stored.times
        self._lengths: Numbers = np.frombuffer(stored.lengths, "<u4").astype(np.int64)
        self._ends: Numbers = np.cumsum(self._lengths)

    @classmethod
    def decode(cls, raw: bytes, decompressor: zstandard.ZstdDecompressor) -> SumArrays:
        """Return a stored table. decompressor: not shared by threads. Raises UsageDamaged."""
        return cls(StoredTable.decode(raw, decompressor))

    def __len__(self) -> int:
        return len(self._ends)

    def add_counters(self, counters: Numbers, rows: Numbers, slots: Numbers) -> None:
        """Add the counters of rows to the columns of their slots."""
        for sums, column in zip(counters, self.counters, strict=True):
            np.add.at(sums, slots, column[rows])

    def sketches(self, rows: Numbers, slots: Numbers) -> Iterator[Sketches]:
        """Yield the sketches of rows, by their form. Raises ValueError."""
        lengths = self._lengths[rows]
        if not lengths.all():
            # Calls whose client left have no times.
            has_times = lengths > 0
            rows, slots, lengths = rows[has_times], slots[has_times], lengths[has_times]
        if not len(rows):
            return
        if lengths.min() < DENSE_BYTES:
            raise ValueError("a sketch is too short")
        starts = self._ends[rows] - lengths
        heads = np.frombuffer(self._times, np.uint8)[starts[:, None] + _HEAD].view("<i2").astype(np.int64)
        is_dense = heads[:, 0] == DENSE_MARK
        if not is_dense.all():
            is_sparse = ~is_dense
            spans = zip(starts[is_sparse].tolist(), lengths[is_sparse].tolist(), strict=True)
            yield _Pairs([self._times[start : start + length] for start, length in spans], slots[is_sparse])
            starts, lengths, slots, heads = starts[is_dense], lengths[is_dense], slots[is_dense], heads[is_dense]
        for size in np.unique(heads[:, 2]).tolist():
            chosen = np.flatnonzero(heads[:, 2] == size)
            chosen = chosen[np.argsort(slots[chosen], kind="stable")]
            counts = starts[chosen] + DENSE_BYTES, lengths[chosen] - DENSE_BYTES
            yield _DenseCounts(self._times, size, slots[chosen], heads[chosen, 1], *counts)


class Sketches(Protocol):
    """Encoded sketches of slots. first, end: the range of their buckets."""

    first: int
    end: int

    def add_to(self, times: Numbers, first: int) -> None:
        """Add the counts to the rows of their slots. first: the bucket of the first column."""


class _DenseCounts:
    """Counts of `size` bytes of all buckets from the first to the last of each sketch, by ascending slots."""

    def __init__(
        self, source: memoryview, size: int, slots: Numbers, firsts: Numbers, starts: Numbers, lengths: Numbers
    ) -> None:
        if size not in DENSE_CODES or (lengths % size).any():
            raise ValueError("the counts of a sketch have an unknown size")
        self.first, self.end = int(firsts.min()), int((firsts + lengths // size).max())
        self._source, self._size, self._slots = source, size, slots
        self._firsts, self._starts, self._lengths = firsts, starts, lengths

    def add_to(self, times: Numbers, first: int) -> None:
        """Add the counts to the rows of their slots; see Sketches."""
        for begin in range(0, len(self._slots), _SKETCHES_AT_ONCE):
            chosen = slice(begin, begin + _SKETCHES_AT_ONCE)
            slots, counts = self._slots[chosen], self._copy_counts(chosen, first, times.shape[1])
            begins = np.flatnonzero(np.diff(slots, prepend=-1))
            if len(begins) == len(slots):
                times[slots] += counts
                continue
            wide, bounds = counts.astype(np.int64), [*begins.tolist(), len(slots)]
            for slot, (start, end) in zip(slots[begins].tolist(), pairwise(bounds), strict=True):
                times[slot] += np.add.reduce(wide[start:end], axis=0)

    def _copy_counts(self, chosen: slice, first: int, width: int) -> NDArray[Any]:
        """Return the counts of some sketches, a row for each. Slices of bytes are the fastest way to copy them."""
        firsts, starts, lengths = self._firsts[chosen], self._starts[chosen], self._lengths[chosen]
        counts = np.zeros((len(firsts), width), f"<u{self._size}")
        target, source = counts.reshape(-1).view(np.uint8).data, self._source
        places = (np.arange(len(firsts)) * width + firsts - first) * self._size
        for place, start, length in zip(places.tolist(), starts.tolist(), lengths.tolist(), strict=True):
            target[place : place + length] = source[start : start + length]
        return counts


class _Pairs:
    """Pairs of a bucket and its count; a sketch may have several of a bucket."""

    def __init__(self, sketches: Sequence[memoryview], slots: Numbers) -> None:
        self._pairs = np.frombuffer(b"".join(sketches), _PAIR)
        self._slots = np.repeat(slots, np.fromiter(map(len, sketches), np.int64, len(sketches)) // _PAIR.itemsize)
        self._buckets = self._pairs["bucket"].astype(np.int64)
        self.first, self.end = int(self._buckets.min()), int(self._buckets.max()) + 1

    def add_to(self, times: Numbers, first: int) -> None:
        """Add the counts to the rows of their slots; see Sketches."""
        places = self._slots * times.shape[1] + self._buckets - first
        np.add.at(times.reshape(-1), places, self._pairs["count"].astype(np.int64))


def medians(times: Numbers, first: int) -> list[float]:
    """Return the median of the counts of each row, the lower one of an even number; 0 without any.

    first: the bucket of the first column.
    """
    rows, width = times.shape
    if not width:
        return [0.0] * rows
    # The counts of all rows, one after another.
    sums = np.cumsum(times)
    ends = sums[width - 1 :: width]
    totals = np.diff(ends, prepend=0)
    places = sums.searchsorted(ends - totals + (totals + 1) // 2) % width + first
    return [time_of(bucket) if total else 0.0 for bucket, total in zip(places.tolist(), totals.tolist(), strict=True)]
