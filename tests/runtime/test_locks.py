"""Waiting for locks, semaphores and worker threads is counted once a profile asks for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from warpseal.runtime import locks
from warpseal.runtime.locks import (
    LOCK,
    SEMAPHORE,
    WORKER_THREAD,
    AsyncLock,
    AsyncSemaphore,
    ContentionProfile,
    ThreadLock,
    ThreadSemaphore,
    WorkerThreads,
    new_thread_condition,
)
from warpseal.runtime.stack_samples import Frame, StackTotal

HELD_S = 0.02
# A busy machine may begin the wait late.
SHORTEST_NS = 1_000


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> ContentionProfile:
    """Count the waits of this test only."""
    fresh = ContentionProfile()
    monkeypatch.setattr(locks, "CONTENTION", fresh)
    fresh.begin()
    return fresh


def only(counted: ContentionProfile, what: str) -> StackTotal:
    (total,) = counted.totals()
    assert total.stack[0] == Frame(what)
    return total


async def hold_briefly(lock: asyncio.Lock | asyncio.Semaphore) -> None:
    async with lock:
        await asyncio.sleep(HELD_S)


@pytest.mark.parametrize(
    ("make", "what"), [(AsyncLock, LOCK), (lambda: AsyncSemaphore(1), SEMAPHORE)]
)
async def test_a_task_that_waits_for_another_is_counted_with_its_stack(
    counted: ContentionProfile, make: Callable[[], Any], what: str
) -> None:
    lock = make()
    await asyncio.gather(hold_briefly(lock), hold_briefly(lock))
    total = only(counted, what)
    assert total.count == 1
    assert total.amount > SHORTEST_NS
    assert "hold_briefly" in [frame.function for frame in total.stack]


async def test_a_wait_that_times_out_is_counted(counted: ContentionProfile) -> None:
    lock = AsyncLock()
    async with lock:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lock.acquire(), HELD_S)
    assert only(counted, LOCK).amount > SHORTEST_NS


async def test_uncontended_locks_are_not_counted(counted: ContentionProfile) -> None:
    lock, semaphore, thread_lock = AsyncLock(), AsyncSemaphore(2), ThreadLock()
    await hold_briefly(lock)
    await asyncio.gather(hold_briefly(semaphore), hold_briefly(semaphore))
    with thread_lock:
        assert not thread_lock.acquire(blocking=False)
    with WorkerThreads(2, "test") as threads:
        assert [
            future.result() for future in (threads.submit(int, "1"), threads.submit(int, "2"))
        ] == [1, 2]
    assert list(counted.totals()) == []


def test_a_thread_that_waits_for_another_is_counted(counted: ContentionProfile) -> None:
    lock = ThreadLock()
    timer = threading.Timer(HELD_S, lock.release)
    lock.acquire()
    timer.start()
    with lock:
        timer.join()
    assert only(counted, LOCK).amount > SHORTEST_NS


def test_a_blocking_semaphore_wait_is_counted_and_a_failed_try_is_not(
    counted: ContentionProfile,
) -> None:
    places = ThreadSemaphore(1)
    timer = threading.Timer(HELD_S, places.release)
    assert places.acquire(blocking=False)
    assert not places.acquire(blocking=False)
    assert not places.acquire(timeout=0.001)
    assert only(counted, SEMAPHORE).count == 1
    timer.start()
    with places:
        timer.join()
    assert sum(total.amount for total in counted.totals()) > SHORTEST_NS
    with pytest.raises(ValueError, match="released"):
        places.release()


def test_a_condition_counts_waits_for_its_lock_but_not_for_its_notification(
    counted: ContentionProfile,
) -> None:
    condition = new_thread_condition()
    with condition:
        assert not condition.wait(HELD_S)
    assert list(counted.totals()) == []

    def notify() -> None:
        with condition:
            condition.notify()

    with condition:
        notifier = threading.Thread(target=notify)
        notifier.start()
        assert condition.wait(30)
    notifier.join()


def test_a_job_that_finds_all_threads_busy_is_counted_where_it_was_submitted(
    counted: ContentionProfile,
) -> None:
    free = threading.Event()
    with WorkerThreads(1, "test") as threads:
        first, second = threads.submit(free.wait), threads.submit(int, "7")
        threading.Timer(HELD_S, free.set).start()
        assert (first.result(), second.result()) == (True, 7)
    total = only(counted, WORKER_THREAD)
    assert total.amount > SHORTEST_NS
    assert any(frame.function.startswith("test_a_job_that_finds") for frame in total.stack)


def test_a_job_that_fails_or_is_cancelled_frees_its_thread(counted: ContentionProfile) -> None:
    with WorkerThreads(1, "test") as threads:
        assert isinstance(threads.submit(int, "x").exception(), ValueError)
        free = threading.Event()
        first, waiting = threads.submit(free.wait), threads.submit(int, "7")
        assert waiting.cancel()
        free.set()
        assert first.result()
        assert threads.submit(int, "8").result() == 8
    assert list(counted.totals()) == []


def test_waits_are_not_counted_before_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = ContentionProfile()
    monkeypatch.setattr(locks, "CONTENTION", fresh)
    lock = ThreadLock()
    lock.acquire()
    threading.Timer(HELD_S, lock.release).start()
    with lock:
        pass
    assert list(fresh.totals()) == []
