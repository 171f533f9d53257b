"""Where the process spends its CPU: a sample of all threads after every 10 ms of it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from warpseal.runtime.stack_samples import NO_STACK, StackTotal, StackTotals, capture_stack

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
        own.add(NO_STACK, self._own_ns, 0, innermost=PROFILER)
        rest.add(NO_STACK, max(0, self._process_ns - self._accounted_ns - self._own_ns), 0, innermost=NATIVE)
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
                self._totals.add(capture_stack(found), used_ns)
                self._accounted_ns += used_ns
        self._own_ns += self._clocks.leave_out(began_ns)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Take a signal that comes late."""


_IS_LINUX: Final = sys.platform == "linux"
# Linux: clock ids of threads are the complement of the kernel's id, shifted over the kind (per thread, scheduler time).
_SHIFT: Final = 3
_KIND: Final = 6


class ThreadClocks:
    """The clocks of all Python threads, for the main thread to read; each reading tells what came since the last."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}
        self.main = threading.main_thread().ident or 0
        self._known = 0

    def begin(self) -> None:
        """Take all threads as they are now."""
        self._find()
        for thread, clock in self._clocks.items():
            self._last_ns[thread] = _read_ns(clock)
        self._last_ns[self.main] = time.thread_time_ns()

    def used_ns(self, main_ns: int) -> list[tuple[int, int]]:
        """Return nanoseconds by the identity of each thread that has used any since the last reading.

        main_ns: what the main thread's clock shows.
        """
        if threading.active_count() != self._known:
            self._find()
        used = [(self.main, self._since(self.main, main_ns))]
        for thread, clock in list(self._clocks.items()):
            now_ns = _read_ns(clock)
            if now_ns < self._last_ns.get(thread, 0):
                # The thread has ended, and another one may have its identity.
                self._known = 0
                continue
            used.append((thread, self._since(thread, now_ns)))
        return [(thread, used_ns) for thread, used_ns in used if used_ns > 0]

    def leave_out(self, main_ns: int) -> int:
        """Let nothing count that the main thread has used since `main_ns`; return how much that is."""
        now_ns = self._last_ns[self.main] = time.thread_time_ns()
        return now_ns - main_ns

    def _since(self, thread: int, now_ns: int) -> int:
        before_ns = self._last_ns.get(thread, 0)
        self._last_ns[thread] = now_ns
        return now_ns - before_ns

    def _find(self) -> None:
        threads = threading.enumerate()
        self._known = len(threads)
        clocks = {
            thread.ident: (~thread.native_id << _SHIFT) | _KIND
            for thread in threads
            if _IS_LINUX and thread.ident is not None and thread.native_id is not None and thread.ident != self.main
        }
        self._last_ns = {
            thread: last_ns
            for thread, last_ns in self._last_ns.items()
            if thread == self.main or self._clocks.get(thread) == clocks.get(thread, 0)
        }
        self._clocks = clocks


def _read_ns(clock: int) -> int:
    """Return what a clock shows; -1 where its thread has ended."""
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return -1
