"""Throttles a thread that computes while the event loop runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import TypeVar

T = TypeVar("T")


class Throttle:
    """Pauses a thread for `pause_s` after each `work_s`, so that the event loop gets the interpreter at once.

    Without a pause the loop would wait for the interpreter's switch interval, 5 ms, before each of its steps.
    longest_pause_s: lets a pause last until the process was idle for `pause_s` of it, at most so long. A busy loop then
    has almost the whole core: with a fixed share of it, calls would queue. clock, cpu_clock: seconds of the wall and of
    the process.
    """

    def __init__(
        self,
        work_s: float = 0.0005,
        pause_s: float = 0.0005,
        longest_pause_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._work_s = work_s
        self._pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._began = clock()
        self._is_cancelled = False

    def cancel(self) -> None:
        """Let the next step raise CancelledError; for another thread."""
        self._is_cancelled = True

    def steps(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, each of which is a small step. Raises as `step` does."""
        for item in items:
            yield item
            self.step()

    def step(self) -> None:
        """Pause if it is time to; call it after each small step. Raises CancelledError after `cancel`."""
        if self._is_cancelled:
            raise CancelledError
        if self._clock() - self._began >= self._work_s:
            self._pause()
            self._began = self._clock()

    def _pause(self) -> None:
        began_s, cpu_began_s, sleep_s = self._clock(), self._cpu_clock(), self._pause_s
        while True:
            self._sleep(sleep_s)
            took_s = self._clock() - began_s
            if took_s >= self._longest_pause_s or took_s - (self._cpu_clock() - cpu_began_s) >= self._pause_s:
                return
            # Each look takes the interpreter from the loop, so there are few of them.
            sleep_s = min(2 * sleep_s, self._longest_pause_s - took_s)
