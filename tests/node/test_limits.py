"""Upstream limits: calls of callers are queued in order, and calls of the daemon are not queued."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpseal.node.limits import CallOrigin, CallQueue, QueueFull, UpstreamLimit


def test_waiters_start_in_order_up_to_the_concurrency_limit() -> None:
    queue = CallQueue(max_concurrency=2, per_s=100)
    for ticket in "abcd":
        queue.join(ticket)
    assert queue.start_ready(0.0) == ["a", "b"]
    assert queue.start_ready(0.0) == []
    queue.finish()
    assert queue.start_ready(0.1) == ["c"]


def test_starts_per_second_are_limited() -> None:
    queue = CallQueue(max_concurrency=100, per_s=3)
    for ticket in range(5):
        queue.join(ticket)
    assert queue.start_ready(10.0) == [0, 1, 2]
    assert queue.next_start_at() == 11.0
    assert queue.start_ready(10.99) == []
    assert queue.start_ready(11.0) == [3, 4]


def test_a_cancelled_ticket_is_dropped() -> None:
    queue = CallQueue(max_concurrency=1, per_s=100)
    for ticket in "abc":
        queue.join(ticket)
    assert queue.start_ready(0.0) == ["a"]
    queue.leave("b")
    queue.finish()
    assert queue.start_ready(0.0) == ["c"]
    assert queue.waiting == 0


def test_the_queue_is_bounded() -> None:
    queue = CallQueue(max_concurrency=1, per_s=1, max_waiting=2)
    queue.join("a")
    queue.join("b")
    with pytest.raises(QueueFull):
        queue.join("c")


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 8), st.randoms(use_true_random=False))
def test_both_limits_hold_and_all_tickets_start_in_order(at_once: int, per_s: int, rnd: random.Random) -> None:
    queue = CallQueue(at_once, per_s)
    now, running, starts, started = 0.0, 0, list[float](), list[object]()
    for ticket in range(40):
        queue.join(ticket)
        now += rnd.choice((0.0, 0.01, 0.2))
        if running and rnd.random() < 0.6:
            queue.finish()
            running -= 1
        ready = queue.start_ready(now)
        running += len(ready)
        starts += [now] * len(ready)
        started += ready
        assert running <= at_once
        assert sum(1 for at in starts if now < at + 1.0) <= per_s
    while running or queue.waiting:
        for _ in range(running):
            queue.finish()
        now += 1.0
        ready = queue.start_ready(now)
        running = len(ready)
        started += ready
    assert started == list(range(40))


async def test_callers_wait_for_a_slot_and_daemon_calls_do_not() -> None:
    limit = UpstreamLimit(max_concurrency=1, per_s=1_000)
    order: list[str] = []
    release = asyncio.Event()

    async def hold(name: str, origin: CallOrigin) -> None:
        async with limit.slot(origin):
            order.append(name)
            await release.wait()

    async with asyncio.TaskGroup() as tasks:
        for name, origin in (("first", CallOrigin.CALLER), ("second", CallOrigin.CALLER), ("poll", CallOrigin.DAEMON)):
            tasks.create_task(hold(name, origin))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["first", "poll"]
        release.set()
    assert order == ["first", "poll", "second"]


async def test_the_next_call_starts_as_soon_as_time_allows_it() -> None:
    limit = UpstreamLimit(max_concurrency=10, per_s=1)
    started_at = asyncio.get_running_loop().time()
    for _ in range(2):
        async with limit.slot(CallOrigin.CALLER):
            pass
    assert asyncio.get_running_loop().time() - started_at >= 0.99


async def test_cancelled_waiters_leave_no_state() -> None:
    limit = UpstreamLimit(max_concurrency=1, per_s=1_000)
    release = asyncio.Event()

    async def hold() -> None:
        async with limit.slot(CallOrigin.CALLER):
            await release.wait()

    tasks = [asyncio.create_task(hold()) for _ in range(4)]
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    # Freed and cancelled in one tick: the slot that was just given must come back.
    release.set()
    tasks[2].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [False, True, True, False]
    async with asyncio.timeout(1), limit.slot(CallOrigin.CALLER):
        pass


async def test_a_slot_granted_during_a_cancellation_is_released() -> None:
    limit = UpstreamLimit(max_concurrency=1, per_s=1_000)
    for _ in range(20):
        first = asyncio.Event()

        async def hold(until: asyncio.Event = first) -> None:
            async with limit.slot(CallOrigin.CALLER):
                await until.wait()

        holder = asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiter = asyncio.create_task(hold())
        await asyncio.sleep(0)
        first.set()
        await holder
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(1), limit.slot(CallOrigin.CALLER):
        pass
