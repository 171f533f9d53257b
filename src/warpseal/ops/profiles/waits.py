"""Where tasks and threads wait: their stacks, sampled for a while.

Locks, semaphores and pools are those of the standard library, and nothing is counted at any other
time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from warpseal.ops.profiles.stacks import (
    Frame,
    StackTotal,
    StackTotals,
    capture_stack,
    capture_task,
)

TASK: Final = "[task]"
THREAD: Final = "[thread]"
"""The outermost frame of each stack of a task, and of a thread."""

THREADS_PERIOD_NS: Final = 10_000_000
_THREADS_PERIOD_S: Final = THREADS_PERIOD_NS / 1e9
# A sample of a thousand tasks takes some milliseconds of the event loop.
_TASKS_PERIOD_S: Final = 0.1
_TASKS_PER_STEP: Final = 500


async def sample_waits(duration_s: float) -> list[StackTotal]:
    """Return count and nanoseconds of the stacks of all threads and of the loop's tasks.

    duration_s: the time for which they are sampled.
    """
    threads = ThreadSampler()
    threads.start()
    try:
        tasks = await _sample_tasks(duration_s)
    finally:
        threads.stop()
    return [*_below(TASK, tasks), *_below(THREAD, threads.totals)]


class ThreadSampler:
    """Samples the stacks of all threads but its own, from start() to stop().

    The main thread is one of them: while a callback holds up the event loop, its stack is seen.
    """

    def __init__(self) -> None:
        self.totals = StackTotals()
        self._stopping = threading.Event()
        # The threads of the pool may be what all tasks wait for.
        self._thread = threading.Thread(target=self._run, name="profiler", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling, after the sample that is being taken."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        own_ident = threading.get_ident()
        last_ns = time.monotonic_ns()
        while not self._stopping.wait(_THREADS_PERIOD_S):
            now_ns = time.monotonic_ns()
            for ident, frame in sys._current_frames().items():
                if ident != own_ident:
                    self.totals.add(capture_stack(frame), now_ns - last_ns)
            last_ns = now_ns


async def _sample_tasks(duration_s: float) -> StackTotals:
    totals = StackTotals()
    sampling = asyncio.current_task()
    last_ns = time.monotonic_ns()
    end_ns = last_ns + int(duration_s * 1e9)
    while last_ns < end_ns:
        await asyncio.sleep(_TASKS_PERIOD_S)
        now_ns = time.monotonic_ns()
        for number, task in enumerate(asyncio.all_tasks(), start=1):
            if task is not sampling:
                totals.add(capture_task(task), now_ns - last_ns)
            if number % _TASKS_PER_STEP == 0:
                await asyncio.sleep(0)
        last_ns = now_ns
    return totals


def _below(outermost: str, totals: StackTotals) -> Iterator[StackTotal]:
    """Yield the totals with an outermost frame that names their kind."""
    for total in totals.totals():
        yield StackTotal((*total.stack, Frame(outermost)), total.count, total.amount)
