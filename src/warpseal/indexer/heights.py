"""Which heights were had, as few spans; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Heights:
    """A set of heights that mostly stand in rows: it takes as much memory as there are rows."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def __contains__(self, height: int) -> bool:
        place = bisect_right(self._spans, (height, height)) - 1
        # One that begins at this height may end above it.
        near = self._spans[max(0, place) : place + 2]
        return any(low <= height <= high for low, high in near)

    def update(self, heights: Iterable[int]) -> None:
        """Add heights."""
        for height in heights:
            if height not in self:
                self._add(height)

    def discard(self, height: int) -> None:
        """Take one out, if it is there."""
        for place, (low, high) in enumerate(self._spans):
            if low <= height <= high:
                parts = ((low, height - 1), (height + 1, high))
                self._spans[place : place + 1] = [part for part in parts if part[0] <= part[1]]
                return

    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return the rows, lowest first, both ends included."""
        return tuple(self._spans)

    def _add(self, height: int) -> None:
        place = bisect_right(self._spans, (height, height))
        low = high = height
        if place < len(self._spans) and self._spans[place][0] == height + 1:
            high = self._spans.pop(place)[1]
        if place and self._spans[place - 1][1] == height - 1:
            place -= 1
            low = self._spans.pop(place)[0]
        self._spans.insert(place, (low, high))
