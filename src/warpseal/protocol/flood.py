"""How much useless input a peer may send before its connection is given up.

Source of truth: docs/protocol.md (flood rule). Points stand for work: what the cheapest frames cost is one point.
"""

from __future__ import annotations

from typing import Final

FRAME_POINTS: Final = 1
REQUEST_POINTS: Final = 10
ENTRY_POINTS: Final = 1
MALFORMED_POINTS: Final = 100
# One point for each whole KiB, useful or not, counted after inflation.
BULK_SHIFT: Final = 10

WINDOW_S: Final = 10.0
LIMIT_POINTS: Final = 4_000


class NoiseMeter:
    """Counts points in windows of ten seconds."""

    __slots__ = ("_began", "_points")

    def __init__(self, now: float) -> None:
        self._began = now
        self._points = 0

    def charge(self, points: int, now: float) -> bool:
        """Count `points`; False when the peer has sent too much."""
        self._points += points
        if self._points <= LIMIT_POINTS:
            return True
        if now < self._began + WINDOW_S:
            return False
        self._began, self._points = now, points
        return points <= LIMIT_POINTS
