"""How much useless input a peer may send before this side closes the connection.

Source of truth: docs/protocol.md (flood rule). Points stand for work: the cheapest frames cost one point.
"""

from __future__ import annotations

from typing import Final

FRAME_POINTS: Final = 1
REQUEST_POINTS: Final = 10
ENTRY_POINTS: Final = 1
MALFORMED_POINTS: Final = 100
# One point for each whole KiB, useful or not, counted after decompression.
BULK_SHIFT: Final = 10

WINDOW_S: Final = 10.0
LIMIT_POINTS: Final = 4_000


class FloodMeter:
    """Counts points in windows of ten seconds."""

    __slots__ = ("_points", "_window_start")

    def __init__(self, now: float) -> None:
        self._window_start = now
        self._points = 0

    def add_cost(self, points: int, now: float) -> bool:
        """Count `points`. Returns False if the peer has exceeded the limit of this window."""
        self._points += points
        if self._points <= LIMIT_POINTS:
            return True
        if now < self._window_start + WINDOW_S:
            return False
        self._window_start, self._points = now, points
        return points <= LIMIT_POINTS
