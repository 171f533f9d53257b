"""How long the event loop was kept from its work, and by what: counted with the waits."""

from __future__ import annotations

import asyncio
import signal
import time
from types import FrameType
from typing import Final

from warpseal.runtime.locks import CONTENTION
from warpseal.runtime.stack_samples import NO_STACK, Stack, capture_stack

STALL: Final = "[event loop stalled]"

# A stall is noticed by a beat that comes late; up to one interval of it may be missing.
_BEAT_S: Final = 0.01
_STALL_NS: Final = 10_000_000
_BEAT_NS: Final = 10_000_000


class LoopStalls:
    """Beats on the event loop; an alarm that rings when a beat is late sees what the loop does instead.

    Both happen in the main thread, from start() to stop().
    """

    def __init__(self) -> None:
        self._beat: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due_ns = 0
        self._seen: Stack | None = None

    def start(self) -> None:
        """Begin, on the running loop; once. Raises ValueError outside of the main thread."""
        if self._loop is not None:
            return
        signal.signal(signal.SIGALRM, self._late)
        signal.siginterrupt(signal.SIGALRM, False)
        self._loop = asyncio.get_running_loop()
        self._next()

    def stop(self) -> None:
        """End."""
        if self._beat is None:
            return
        self._beat.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._beat = self._loop = None

    def _next(self) -> None:
        assert self._loop is not None
        self._seen = None
        self._due_ns = time.monotonic_ns() + _BEAT_NS
        self._beat = self._loop.call_later(_BEAT_S, self._on_beat)
        signal.setitimer(signal.ITIMER_REAL, _BEAT_S + _STALL_NS / 1e9)

    def _on_beat(self) -> None:
        late_ns = time.monotonic_ns() - self._due_ns
        if late_ns > _STALL_NS:
            CONTENTION.add(self._seen or NO_STACK, late_ns, STALL)
        self._next()

    def _late(self, _number: int, frame: FrameType | None) -> None:
        # Nothing is counted here: the interrupted code may be counting.
        if self._loop is not None and self._seen is None:
            self._seen = capture_stack(frame)
