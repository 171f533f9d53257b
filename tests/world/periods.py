"""Times at which something was wrong: they excuse the requests that meet them, and no others."""

from __future__ import annotations

import math
from typing import Final

from warpseal.runtime.retry import Backoff

_BACKOFF: Final = Backoff()
# A dial that goes on, its handshake, and the list of addresses that peers send every two seconds.
CONNECT_S: Final = 5.0
# The process that indexes waits half a minute for the reply of a node, and then up to ten seconds.
INDEX_RETRY_S: Final = 45.0
# A job of a slow thread hardly takes more than ten times the mean.
SLOW_JOBS: Final = 10


class Periods:
    """Times from a beginning to an end; the end is infinite while it is not known.

    A period has one or several causes, and ends with the last of them.
    """

    def __init__(self) -> None:
        self._periods: list[tuple[float, float]] = []
        self._causes: set[str] = set()
        self._effects_until = -math.inf

    def begin(self, cause: str, now: float) -> None:
        """Note that something is wrong from now on."""
        if not self._causes:
            self._periods.append((now, math.inf))
        self._causes.add(cause)

    def end(self, cause: str, now: float, after_s: float = 0.0) -> None:
        """Note that a cause ends, and that its effect ends some seconds later."""
        if cause in self._causes:
            self._causes.discard(cause)
            self._effects_until = max(self._effects_until, now + after_s)
            if not self._causes:
                begin, _ = self._periods[-1]
                self._periods[-1] = begin, self._effects_until

    def meet(self, start: float, end: float) -> bool:
        """Return whether something was wrong at some time from a start to an end."""
        return any(begin <= end and start <= until for begin, until in self._periods)


class Disturbances(Periods):
    """Times at which a node could not be reached, until a daemon is connected to it again.

    The longer no dial has succeeded, the longer the daemon waits for the next one. A disturbance
    that begins before that dial prolongs the one before.
    """

    def begin(self, cause: str, now: float) -> None:
        """Note that the node cannot be reached from now on."""
        if not self._causes and self._periods and now <= self._periods[-1][1]:
            self._causes.add(cause)
            self._periods[-1] = self._periods[-1][0], math.inf
        super().begin(cause, now)

    def end(self, cause: str, now: float, after_s: float = 0.0) -> None:
        """Note that a cause ends, and that the daemon learns of it some seconds later."""
        if self._periods:
            failing_s = now + after_s - self._periods[-1][0]
            after_s += min(_BACKOFF.cap_s, 2 * max(_BACKOFF.first_s, failing_s)) + CONNECT_S
        super().end(cause, now, after_s)

    def end_at_once(self, cause: str, now: float) -> None:
        """Note that the daemon is connected to the node again, as far as this cause goes."""
        super().end(cause, now)


class Delays:
    """A delay that changes."""

    def __init__(self, delay_s: float) -> None:
        self._delays: list[tuple[float, float]] = [(-math.inf, delay_s)]

    def change(self, delay_s: float, now: float) -> None:
        """Note the delay from now on."""
        self._delays.append((now, delay_s))

    def longest(self, start: float, end: float) -> float:
        """Return the longest delay from a start to an end, in seconds."""
        ends = [since for since, _ in self._delays[1:]] + [math.inf]
        return max(
            delay_s
            for (since, delay_s), until in zip(self._delays, ends, strict=True)
            if since <= end and start <= until
        )
