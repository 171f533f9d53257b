"""Locks, semaphores and worker threads of the daemon, whose waiting times can be profiled.

Nothing is counted, at almost no cost, until CONTENTION.begin() is called.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast

from warpseal.runtime.stack_samples import Stack, StackTotal, StackTotals, capture_stack

LOCK: Final = "[waiting for a lock]"
SEMAPHORE: Final = "[waiting for a semaphore]"
WORKER_THREAD: Final = "[waiting for a worker thread]"

P = ParamSpec("P")
T = TypeVar("T")


class ContentionProfile:
    """The number and nanoseconds of waits by stack."""

    def __init__(self) -> None:
        self.is_counting = False
        self._totals = StackTotals()
        self._adding = threading.Lock()

    def begin(self) -> None:
        """Count from now on."""
        self.is_counting = True

    def add(self, stack: Stack, waited_ns: int, target: str) -> None:
        """Count one wait for `target`, in square brackets.

        Not for signal handlers, which may find the lock held.
        """
        if self.is_counting:
            with self._adding:
                self._totals.add(stack, waited_ns, innermost=target)

    def totals(self) -> Iterator[StackTotal]:
        """Yield contentions and nanoseconds by stack."""
        with self._adding:
            samples = list(self._totals.totals())
        yield from samples


CONTENTION: Final = ContentionProfile()
"""The contention of this process."""


@contextmanager
def _counted(target: str) -> Iterator[None]:
    """Count the time inside the block as a wait of the caller's caller."""
    # Between this frame and that of the caller lies the one of contextlib.
    stack, started = capture_stack(sys._getframe(3)), time.monotonic_ns()
    try:
        yield
    finally:
        CONTENTION.add(stack, time.monotonic_ns() - started, target)


class AsyncLock(asyncio.Lock):
    """A lock of tasks."""

    async def acquire(self) -> Literal[True]:
        """Wait until the lock is held."""
        if not (CONTENTION.is_counting and self.locked()):
            return await super().acquire()
        with _counted(LOCK):
            return await super().acquire()


class AsyncSemaphore(asyncio.Semaphore):
    """A semaphore of tasks."""

    async def acquire(self) -> Literal[True]:
        """Wait until a slot is free."""
        if not (CONTENTION.is_counting and self.locked()):
            return await super().acquire()
        with _counted(SEMAPHORE):
            return await super().acquire()


class ThreadLock:
    """A lock of threads."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; return False if that fails within `timeout` seconds, or at once if not
        `blocking`.
        """
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        with _counted(LOCK):
            return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ThreadSemaphore(threading.BoundedSemaphore):
    """A bounded semaphore of threads."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire a slot; return False if none is free within `timeout` seconds, or at once if not
        `blocking`.
        """
        if super().acquire(blocking=False):
            return True
        if not blocking:
            return False
        with _counted(SEMAPHORE):
            return super().acquire(timeout=timeout)

    __enter__ = acquire


def new_thread_condition() -> threading.Condition:
    """Return a condition of threads. Waiting for its lock counts, waiting to be notified does not."""
    return threading.Condition(cast(threading.Lock, ThreadLock()))


class WorkerThreads(ThreadPoolExecutor):
    """A bounded pool of threads for long work; a job waits while all of them are busy."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self._max_threads = threads
        self._jobs = 0
        self._counting_jobs = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in one of the threads, in the order of the calls."""
        with self._counting_jobs:
            is_waiting = self._jobs >= self._max_threads
            self._jobs += 1
        work: Callable[P, T] = (
            _timed(fn, capture_stack(sys._getframe(1)))
            if is_waiting and CONTENTION.is_counting
            else fn
        )
        try:
            future = super().submit(work, *args, **kwargs)
        except BaseException:
            self._done()
            raise
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Any] | None = None) -> None:
        with self._counting_jobs:
            self._jobs -= 1


def _timed(fn: Callable[P, T], stack: Stack) -> Callable[P, T]:
    submitted = time.monotonic_ns()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        CONTENTION.add(stack, time.monotonic_ns() - submitted, WORKER_THREAD)
        return fn(*args, **kwargs)

    return run
