"""When the follower, on its way down, leaves the next blocks to an index that is on its way up to them; pure."""

from __future__ import annotations

from typing import Final

# What an index has in flight: read ahead, and read but not written yet.
NEAR_BLOCKS: Final = 16_384
MOVING_WITHIN_S: Final = 15.0
# Of history only: new blocks never wait.
WAITED_S: Final = 180.0


class Meeting:
    """`now`: seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._height: int | None = None
        self._moved_at = float("-inf")
        self._waited_since: float | None = None

    def note(self, height: int | None, now: float) -> None:
        """Take in how far the index is."""
        if height is not None and self._height is not None and height > self._height:
            self._moved_at = now
        self._height = height

    def is_near(self, low: int, high: int, now: float) -> bool:
        """Tell whether the blocks from `low` to `high` will be indexed in a moment; never for longer than a while."""
        is_moving = now - self._moved_at <= MOVING_WITHIN_S
        if self._height is None or not is_moving or not low - NEAR_BLOCKS <= self._height < high:
            self._waited_since = None
            return False
        if self._waited_since is None:
            self._waited_since = now
        return now - self._waited_since < WAITED_S
