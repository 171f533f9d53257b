"""Which heights are traced: all up to a height, but for gaps that no node could trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.evm.schema import TRACE_GAPS

_TRACED_HEIGHT: Final = "SELECT first - 1 FROM trace_gaps ORDER BY first LIMIT 1"


def traced_height(connection: Connection, traced: int) -> int:
    """Return the height below the first gap. traced: the last height that was traced or skipped."""
    rows = bulk.fetch(connection, _TRACED_HEIGHT)
    return rows[0][0] if rows else traced


def blocks_behind(connection: Connection, traced: int, limit: int) -> Sequence[tuple[int, bool]]:
    """Return the next heights, and whether each needs a trace."""
    text = "SELECT number, needs_trace FROM blocks WHERE number > ? ORDER BY number LIMIT ?"
    return [(number, bool(needs_trace)) for number, needs_trace in bulk.fetch(connection, text, traced, limit)]


def read_gaps(connection: Connection, limit: int) -> Sequence[tuple[int, int]]:
    """Return gaps, lowest first."""
    text = 'SELECT first, "last" FROM trace_gaps ORDER BY first LIMIT ?'
    return [(first, last) for first, last in bulk.fetch(connection, text, limit)]


def mark(connection: Connection, first: int, last: int, gaps: Sequence[int]) -> None:
    """Mark the heights from `first` to `last` as traced, but for some of them. gaps: sorted."""
    text = 'SELECT first, "last" FROM trace_gaps WHERE first <= ? AND "last" >= ? ORDER BY first'
    # Neighbours are merged with new gaps.
    touched = [(low, high) for low, high in bulk.fetch(connection, text, last + 1, first - 1)]
    ranges = [(low, min(high, first - 1)) for low, high in touched if low < first]
    ranges += [(height, height) for height in gaps if first <= height <= last]
    ranges += [(max(low, last + 1), high) for low, high in touched if high > last]
    merged: list[tuple[int, int]] = []
    for low, high in ranges:
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    if merged != touched:
        bulk.delete(connection, TRACE_GAPS, [low for low, _ in touched])
        bulk.insert(connection, TRACE_GAPS, merged)
