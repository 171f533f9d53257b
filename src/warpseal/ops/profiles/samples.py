"""What the profiles show: stacks of all threads after every 10 ms of CPU time, and the live objects
by type.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from warpseal.runtime.stack_samples import Frame, StackTotal, StackTotals, capture_stack

NATIVE: Final = "[native]"
PROFILER: Final = "[profiler]"
PERIOD_NS: Final = 10_000_000

_PERIOD_S: Final = PERIOD_NS / 1e9


class CpuSampler:
    """Samples the process from start() to stop(); call both in the main thread, because signals
    arrive there.

    A sample attributes to a stack the CPU time of its thread since the last sample. CPU time of no
    Python thread is NATIVE. own_cpu_ns: CPU time of the sampling itself.
    """

    def __init__(self) -> None:
        self._totals = StackTotals()
        self._clocks = ThreadClocks()
        self.own_cpu_ns = 0
        self._accounted_ns = 0
        self._process_ns = 0

    def start(self) -> None:
        """Start sampling. Raises ValueError outside of the main thread."""
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


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a late signal."""


_IS_LINUX: Final = sys.platform == "linux"
# Linux: the clock id of a thread is the complement of its kernel id, shifted, plus the kind (per
# thread, scheduler).
_SHIFT: Final = 3
_KIND: Final = 6


class ThreadClocks:
    """The CPU clocks of all Python threads, read in the main thread; a reading returns the time
    since the last one.
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
        """Return (thread identity, CPU nanoseconds since the last reading) of each thread that was
        not idle.

        main_ns: the clock of the main thread.
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
        """Exclude the CPU time of the main thread since `main_ns` from the next reading; return it."""
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


_STATM: Final = Path("/proc/self/statm")
# Objects that are visited before the event loop runs again: a few milliseconds.
_OBJECTS_PER_STEP: Final = 2000
_LONGEST_SWITCH_S: Final = 60.0
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_HEAP_TYPE: Final = 1 << 9
_PAGE_BITS: Final = 16
_SLOT_BITS: Final = 4
_SLOTS_PER_PAGE: Final = 1 << (_PAGE_BITS - _SLOT_BITS)


async def memory_by_type() -> list[StackTotal]:
    """Collect garbage, then return count and bytes of live objects by type and the other memory of
    the process.

    The event loop runs in between, so the result is not of a single moment. The work stays in the
    thread of the loop, so that an object is never finalized in another thread.
    """
    gc.collect()
    resident = resident_bytes()
    walk = HeapWalk()
    for _ in walk.visit(_tracked_objects()):
        await asyncio.sleep(0)
    return [*walk.totals(), StackTotal((Frame(NATIVE),), 0, max(0, resident - walk.bytes))]


def resident_bytes() -> int:
    """Return the resident memory of the process; its peak if the system does not report the current
    value.
    """
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class HeapWalk:
    """Objects and bytes by type.

    Tuples, and what the collector does not track, are found through their referrers.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._by_type: dict[type, list[int]] = {}
        # A bit map by page: a set of a million addresses takes 100 MB. Objects are at least 16
        # bytes apart.
        self._seen: dict[int, bytearray] = {}

    def visit(self, objects: list[Any]) -> Iterator[None]:
        """Count the given objects and the tuples and untracked objects that they refer to.

        Empties the list.

        Yields after every _OBJECTS_PER_STEP visited objects.
        """
        visited = 0
        while objects:
            tracked = objects.pop()
            self._add(tracked)
            pending = _contents(tracked)
            while pending:
                inner = pending.pop()
                if (type(inner) is tuple or not gc.is_tracked(inner)) and self._is_new(id(inner)):
                    self._add(inner)
                    pending += _contents(inner)
                visited += 1
                if visited % _OBJECTS_PER_STEP == 0:
                    yield

    def totals(self) -> Iterator[StackTotal]:
        """Yield the counts by type."""
        for kind, (count, size) in self._by_type.items():
            yield StackTotal((Frame(f"{kind.__module__}.{kind.__qualname__}"),), count, size)

    def _add(self, item: Any) -> None:
        size = _size_bytes(item)
        total = self._by_type.setdefault(type(item), [0, 0])
        total[0] += 1
        total[1] += size
        self.bytes += size

    def _is_new(self, address: int) -> bool:
        page = self._seen.get(address >> _PAGE_BITS)
        if page is None:
            page = self._seen[address >> _PAGE_BITS] = bytearray(_SLOTS_PER_PAGE)
        slot = address >> _SLOT_BITS & _SLOTS_PER_PAGE - 1
        is_new = not page[slot]
        page[slot] = 1
        return is_new


def _tracked_objects() -> list[Any]:
    """Return the objects that the collector tracks, without tuples, which are found through their
    referrers.

    Another thread may be filling a tuple, and CPython fails there if anything else refers to the
    tuple then. So no other thread runs while the list has tuples.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_LONGEST_SWITCH_S)
    try:
        return [item for item in gc.get_objects() if type(item) is not tuple]
    finally:
        sys.setswitchinterval(interval_s)


def _contents(item: Any) -> list[Any]:
    """Return the objects that a container or an instance of a class refers to.

    Objects of the interpreter, such as frames and functions, are skipped: with all of them the
    collector of Python 3.12.1 ran for ever.
    """
    is_safe = isinstance(item, _CONTAINERS) or type(item).__flags__ & _HEAP_TYPE
    return gc.get_referents(item) if is_safe else []


def _size_bytes(item: Any) -> int:
    try:
        return sys.getsizeof(item, 0)
    except Exception:  # noqa: BLE001 - a type of some library whose __sizeof__ fails
        return 0
