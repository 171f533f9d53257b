"""Stalls of the event loop, with the stacks that caused them; the contention profile counts them."""

from __future__ import annotations

import asyncio
import signal
import time
from types import FrameType
from typing import Final

from warpseal.runtime.locks import CONTENTION
from warpseal.runtime.stack_samples import NO_STACK, Stack, capture_stack

STALL: Final = "[event loop stalled]"

# A late beat reveals a stall; up to one interval of the stall may be missing.
_BEAT_S: Final = 0.01
_STALL_NS: Final = 10_000_000
_BEAT_NS: Final = 10_000_000


class LoopStalls:
    """Beats on the event loop, and an alarm that captures the stack of the loop if a beat is late.

    Both run in the main thread, from start() to stop().
    """

    def __init__(self) -> None:
        self._beat: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due_ns = 0
        self._late_stack: Stack | None = None

    def start(self) -> None:
        """Start on the running loop, unless started. Raises ValueError outside of the main thread."""
        if self._loop is not None:
            return
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.siginterrupt(signal.SIGALRM, False)
        self._loop = asyncio.get_running_loop()
        self._schedule_beat()

    def stop(self) -> None:
        """Stop beats and alarm."""
        if self._beat is None:
            return
        self._beat.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._beat = self._loop = None

    def _schedule_beat(self) -> None:
        assert self._loop is not None
        self._late_stack = None
        self._due_ns = time.monotonic_ns() + _BEAT_NS
        self._beat = self._loop.call_later(_BEAT_S, self._on_beat)
        signal.setitimer(signal.ITIMER_REAL, _BEAT_S + _STALL_NS / 1e9)

    def _on_beat(self) -> None:
        late_ns = time.monotonic_ns() - self._due_ns
        if late_ns > _STALL_NS:
            CONTENTION.add(self._late_stack or NO_STACK, late_ns, STALL)
        self._schedule_beat()

    def _on_alarm(self, _number: int, frame: FrameType | None) -> None:
        # Only the next beat counts the stall: the interrupted code may be counting.
        if self._loop is not None and self._late_stack is None:
            self._late_stack = capture_stack(frame)
