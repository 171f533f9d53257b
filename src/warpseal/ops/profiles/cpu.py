"""Where the process spends its CPU: a sample of all threads after every 10 ms of it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from warpseal.ops.profiles.thread_cpu import ThreadClocks
from warpseal.runtime.stack_samples import NOWHERE, StackTotal, StackTotals, stack_of

NATIVE: Final = "[native]"
PROFILER: Final = "[profiler]"
PERIOD_NS: Final = 10_000_000

_PERIOD_S: Final = PERIOD_NS / 1e9


class CpuSampler:
    """Samples the process from start() to stop(); both in the main thread, which is where signals arrive.

    A stack counts for what its thread has used since the last sample; what no Python thread has used is NATIVE.
    """

    def __init__(self) -> None:
        self._totals = StackTotals()
        self._clocks = ThreadClocks()
        self._own_ns = 0
        self._accounted_ns = 0
        self._process_ns = 0

    def start(self) -> None:
        """Begin. Raises ValueError outside of the main thread."""
        signal.signal(signal.SIGPROF, self._sample)
        # Native code of other threads should not see its system calls interrupted.
        signal.siginterrupt(signal.SIGPROF, False)
        self._clocks.begin()
        self._process_ns = time.process_time_ns()
        signal.setitimer(signal.ITIMER_PROF, _PERIOD_S, _PERIOD_S)

    def stop(self) -> None:
        """End."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        # One that is on its way must find a function: the default would end the process.
        signal.signal(signal.SIGPROF, _ignore)
        self._process_ns = time.process_time_ns() - self._process_ns

    @property
    def own_cpu_ns(self) -> int:
        """What sampling itself has cost."""
        return self._own_ns

    @property
    def process_cpu_ns(self) -> int:
        """What the process has used between start and stop."""
        return self._process_ns

    def totals(self) -> Iterator[StackTotal]:
        """Yield samples and nanoseconds by stack; after stop()."""
        own, rest = StackTotals(), StackTotals()
        own.add(NOWHERE, self._own_ns, 0, innermost=PROFILER)
        rest.add(NOWHERE, max(0, self._process_ns - self._accounted_ns - self._own_ns), 0, innermost=NATIVE)
        yield from self._totals.totals()
        yield from own.totals()
        yield from rest.totals()

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        began_ns = time.thread_time_ns()
        frames: dict[int, FrameType] = {}
        for thread, used_ns in self._clocks.used_ns(began_ns):
            if thread == self._clocks.main:
                found = frame
            else:
                frames = frames or sys._current_frames()
                found = frames.get(thread)
            if found is not None:
                self._totals.add(stack_of(found), used_ns)
                self._accounted_ns += used_ns
        self._own_ns += self._clocks.leave_out(began_ns)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Take a signal that comes late."""
