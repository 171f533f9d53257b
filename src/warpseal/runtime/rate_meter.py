"""How many items a second were processed lately; pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW_S: Final = 60.0
_MAX_SAMPLES: Final = 1_000


class RateMeter:
    """Items per second over the last minute of work; `now` in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)

    def start(self, now: float) -> None:
        """Forget everything: work begins, or continues after a stop."""
        self._samples.clear()
        self._samples.append((now, 0))

    def add(self, now: float, count: int) -> None:
        """Record that so many items have been processed."""
        self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()

    def rate(self) -> float | None:
        """Return items per second, None before there were any."""
        if len(self._samples) < 2:
            return None
        (started_at, first_count), (ended_at, _) = self._samples[0], self._samples[-1]
        # The first sample was processed before the window begins.
        count = sum(count for _, count in self._samples) - first_count
        return count / (ended_at - started_at) if ended_at > started_at and count else None
