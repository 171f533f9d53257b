"""The clock of all histories, for the simulated network and the daemon alike.

The wall clock stands still until a history lets time pass, and the clock of the event loop then
jumps as well. The module is imported before the program, whose functions hold `time.time` as a
default.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Final

_STARTED_AT: Final = 1_800_000_000.5
_REAL_MONOTONIC: Final = time.monotonic
_IDLE_ROUNDS: Final = 3
_ROUND_S: Final = 0.01
_skipped_s = 0.0
_events = 0


class CountingSelector(selectors.DefaultSelector):
    """The selector of the event loop; it counts events, so that a loop that waits for time is
    known.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events, as every selector does."""
        global _events
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        _events += len(ready)
        return ready


def install() -> None:
    """Replace the clocks of this process, those of event loops included."""
    time.time = lambda: _STARTED_AT + _skipped_s
    time.monotonic = lambda: _REAL_MONOTONIC() + _skipped_s


def skip(seconds: float) -> None:
    """Let time pass at once; timers that are due by then fire next."""
    global _skipped_s
    _skipped_s += seconds


async def is_idle(work: asyncio.Task[object]) -> bool:
    """Return whether unfinished work waits for time to pass, since no event reaches the loop for a
    while.
    """
    for _ in range(_IDLE_ROUNDS):
        events = _events
        await asyncio.wait((work,), timeout=_ROUND_S)
        if work.done() or _events != events:
            return False
    return True
