"""How much CPU each Python thread has used.

On Linux every thread's clock is read by its kernel id, which does no harm once the thread has ended. Elsewhere only
the main thread's own clock can be read, and the other threads count as native.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

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
