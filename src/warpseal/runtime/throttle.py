"""Throttles a thread that computes while the event loop runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from typing import TypeVar

T = TypeVar("T")


class Throttle:
    """Pauses a thread for `pause_s` after each `work_s`, so that the event loop gets the
    interpreter at once.

    Without a pause the loop would wait for the interpreter's switch interval, 5 ms, before each of
    its steps.
    """

    def __init__(self, work_s: float = 0.0005, pause_s: float = 0.0005) -> None:
        self._work_s = work_s
        self._pause_s = pause_s
        self._began = time.perf_counter()
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
        """Pause if the thread has worked for long enough; call this after each small step.

        Raises CancelledError after `cancel`.
        """
        if self._is_cancelled:
            raise CancelledError
        if time.perf_counter() - self._began >= self._work_s:
            time.sleep(self._pause_s)
            self._began = time.perf_counter()
