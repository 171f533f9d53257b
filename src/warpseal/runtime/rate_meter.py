"""How many items a second were processed lately; pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW_S: Final = 60.0
_MAX_SAMPLES: Final = 1_000


class RateMeter:
    """Items per second over the last minute; `now` in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)

    def start(self, now: float) -> None:
        """Forget everything: work begins, or continues after a stop."""
        self._samples.clear()
        self._samples.append((now, 0))

    def reset(self) -> None:
        """Forget everything, and count from the next items on: the time until those is no measure
        of the rate.
        """
        self._samples.clear()

    def add(self, now: float, count: int) -> None:
        """Record `count` processed items."""
        self._samples.append((now, count))
        self._drop_old(now)

    def rate(self, now: float) -> float | None:
        """Return items per second, None if there were none in the last minute."""
        self._drop_old(now)
        if len(self._samples) < 2:
            return None
        started_at, first_count = self._samples[0]
        # The first sample was processed before the window begins.
        count = sum(count for _, count in self._samples) - first_count
        return count / (now - started_at) if now > started_at and count else None

    def _drop_old(self, now: float) -> None:
        """Keep the last sample before the window: it says when the first one in the window began."""
        while len(self._samples) > 1 and now - self._samples[1][0] > _WINDOW_S:
            self._samples.popleft()
        if len(self._samples) == 1 and now - self._samples[0][0] > _WINDOW_S:
            self.start(now - _WINDOW_S)
