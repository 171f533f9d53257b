"""The rate at which items were processed in the last minute; pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW_S: Final = 60.0
_MAX_SAMPLES: Final = 1_000


class RateMeter:
    """Items per second over the last minute. `now` is in seconds of one clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)

    def start(self, now: float) -> None:
        """Forget everything: work begins, or continues after a stop."""
        self._samples.clear()
        self._samples.append((now, 0))

    def reset(self) -> None:
        """Forget everything, and count from the next items on.

        The time until these items says nothing about the rate.
        """
        self._samples.clear()

    def add(self, now: float, count: int) -> None:
        """Record `count` processed items."""
        self._samples.append((now, count))
        self._drop_old(now)

    def rate(self, now: float) -> float | None:
        """Return items per second; None without items in the last minute."""
        self._drop_old(now)
        if len(self._samples) < 2:
            return None
        started_at, first_count = self._samples[0]
        # The first sample was processed before the window begins.
        count = sum(count for _, count in self._samples) - first_count
        return count / (now - started_at) if now > started_at and count else None

    def _drop_old(self, now: float) -> None:
        """Drop samples before the window but the last, at which the first one in it began."""
        while len(self._samples) > 1 and now - self._samples[1][0] > _WINDOW_S:
            self._samples.popleft()
        if len(self._samples) == 1 and now - self._samples[0][0] > _WINDOW_S:
            self.start(now - _WINDOW_S)
