"""The CPU profile: the stacks of all threads after every 10 ms of the process's CPU time.

A tracing profiler would show the same functions, but a cached request would take several times its
CPU while the profile is taken (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from warpseal.ops.profiles.stacks import NATIVE, Frame, StackTotal, StackTotals, capture_stack

PROFILER: Final = "[profiler]"
PERIOD_NS: Final = 10_000_000

_PERIOD_S: Final = PERIOD_NS / 1e9


class CpuSampler:
    """Samples the process from start() to stop(); call both on the event loop of the main thread,
    because signals arrive there.

    A sample attributes to a stack the CPU time of its thread since the last sample. CPU time of no
    Python thread is NATIVE.
    own_cpu_ns: CPU time of the sampling itself.
    """

    def __init__(self) -> None:
        self._totals = StackTotals()
        self._clocks = ThreadClocks()
        self.own_cpu_ns = 0
        self._accounted_ns = 0
        self._process_ns = 0

    def start(self) -> None:
        """Start sampling. Raises ValueError outside of the main thread."""
        # A loop that waits is woken by the signals that it handles only. Its own handler does
        # nothing, and stays: without it the default action of a late signal would end the process.
        asyncio.get_running_loop().add_signal_handler(signal.SIGPROF, _ignore_wake)
        signal.signal(signal.SIGPROF, self._sample)
        # System calls in native code of other threads must not be interrupted.
        signal.siginterrupt(signal.SIGPROF, False)
        self._clocks.begin()
        self._process_ns = time.process_time_ns()
        signal.setitimer(signal.ITIMER_PROF, _PERIOD_S, _PERIOD_S)

    def stop(self) -> None:
        """Stop sampling."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        # A signal may still be pending, and its default action would end the process.
        signal.signal(signal.SIGPROF, _ignore)
        self._process_ns = time.process_time_ns() - self._process_ns

    def totals(self) -> Iterator[StackTotal]:
        """Yield samples and nanoseconds by stack. Call it after stop()."""
        yield from self._totals.totals()
        yield StackTotal((Frame(PROFILER),), 0, self.own_cpu_ns)
        native_ns = self._process_ns - self._accounted_ns - self.own_cpu_ns
        yield StackTotal((Frame(NATIVE),), 0, max(0, native_ns))

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        started_ns = time.thread_time_ns()
        frames: dict[int, FrameType] = {}
        for thread, used_ns in self._clocks.used_ns(started_ns):
            if thread == self._clocks.main:
                stack_frame = frame
            else:
                frames = frames or sys._current_frames()
                stack_frame = frames.get(thread)
            if stack_frame is not None:
                self._totals.add(capture_stack(stack_frame), used_ns)
                self._accounted_ns += used_ns
        self.own_cpu_ns += self._clocks.exclude_since(started_ns)


def _ignore_wake() -> None:
    """Let the event loop wake up."""


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a late signal."""


_IS_LINUX: Final = sys.platform == "linux"
# Linux: the clock id of a thread is the complement of its kernel id, shifted, plus the kind (per
# thread, scheduler).
_SHIFT: Final = 3
_KIND: Final = 6


class ThreadClocks:
    """The CPU clocks of all Python threads, read in the main thread.

    A reading returns the time since the last reading.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}
        self.main = threading.main_thread().ident or 0
        self._thread_count = 0

    def begin(self) -> None:
        """Store the current clock of every thread."""
        self._find_clocks()
        for thread, clock in self._clocks.items():
            self._last_ns[thread] = _read_ns(clock)
        self._last_ns[self.main] = time.thread_time_ns()

    def used_ns(self, main_ns: int) -> list[tuple[int, int]]:
        """Return identity and CPU nanoseconds since the last reading of each thread that ran.

        main_ns: reading of the main thread's clock.
        """
        if threading.active_count() != self._thread_count:
            self._find_clocks()
        used = [(self.main, self._since(self.main, main_ns))]
        for thread, clock in list(self._clocks.items()):
            now_ns = _read_ns(clock)
            if now_ns < self._last_ns.get(thread, 0):
                # The thread has ended, and a new thread may have its identity.
                self._thread_count = 0
                continue
            used.append((thread, self._since(thread, now_ns)))
        return [(thread, used_ns) for thread, used_ns in used if used_ns > 0]

    def exclude_since(self, main_ns: int) -> int:
        """Exclude the main thread's CPU time since `main_ns` from the next reading; return it."""
        now_ns = self._last_ns[self.main] = time.thread_time_ns()
        return now_ns - main_ns

    def _since(self, thread: int, now_ns: int) -> int:
        before_ns = self._last_ns.get(thread, 0)
        self._last_ns[thread] = now_ns
        return now_ns - before_ns

    def _find_clocks(self) -> None:
        threads = threading.enumerate()
        self._thread_count = len(threads)
        clocks = {
            thread.ident: (~thread.native_id << _SHIFT) | _KIND
            for thread in threads
            if _IS_LINUX
            and thread.ident is not None
            and thread.native_id is not None
            and thread.ident != self.main
        }
        self._last_ns = {
            thread: last_ns
            for thread, last_ns in self._last_ns.items()
            if thread == self.main or self._clocks.get(thread) == clocks.get(thread, 0)
        }
        self._clocks = clocks


def _read_ns(clock: int) -> int:
    """Return the time of a clock; -1 if its thread has ended."""
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return -1
