"""Upstream limits: calls of callers are queued in order, and calls of the daemon are not queued."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.aggregation.virtual_time import now, run
from tests.node.recorded_node import RecordedNode, open_upstream
from warpseal.upstream.errors import CallFailure, NodeFailure
from warpseal.upstream.limits import CallOrigin, UpstreamLimit


async def start_holders(
    limit: UpstreamLimit, count: int, started: list[int], release: asyncio.Event
) -> list[asyncio.Task[None]]:
    """Start calls that note their numbers, and hold their slots until the event."""

    async def hold(number: int) -> None:
        async with limit:
            started.append(number)
            await release.wait()

    holders = [asyncio.create_task(hold(number)) for number in range(count)]
    await asyncio.sleep(0)
    return holders


async def test_waiters_start_in_order_up_to_the_concurrency_limit() -> None:
    limit, started, release = (
        UpstreamLimit(max_concurrency=2, per_s=100),
        list[int](),
        asyncio.Event(),
    )
    holders = await start_holders(limit, 4, started, release)
    assert started == [0, 1]
    holders[1].cancel()
    await asyncio.wait(holders, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    assert started == [0, 1, 2]
    release.set()
    await asyncio.wait(holders)
    assert started == [0, 1, 2, 3]


def test_starts_per_second_are_limited() -> None:
    async def starts() -> list[float]:
        limit, times, first = UpstreamLimit(max_concurrency=100, per_s=3), list[float](), now()

        async def call() -> None:
            async with limit:
                times.append(now() - first)

        await asyncio.gather(*(call() for _ in range(7)))
        return times

    assert run(starts()) == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0]


async def test_a_cancelled_waiter_is_dropped() -> None:
    limit, started, release = (
        UpstreamLimit(max_concurrency=1, per_s=100),
        list[int](),
        asyncio.Event(),
    )
    holders = await start_holders(limit, 3, started, release)
    holders[1].cancel()
    release.set()
    await asyncio.wait(holders)
    assert started == [0, 2]


def test_a_waiter_that_is_cancelled_while_it_waits_for_time_uses_up_no_start() -> None:
    async def starts() -> list[float]:
        limit, times, first = UpstreamLimit(max_concurrency=5, per_s=1), list[float](), now()

        async def call() -> None:
            async with limit:
                times.append(now() - first)

        tasks = [asyncio.create_task(call()) for _ in range(3)]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        return times

    assert run(starts()) == [0.0, 1.0]


async def test_the_queue_is_bounded() -> None:
    limit, started, release = (
        UpstreamLimit(1, per_s=100, max_waiting=2),
        list[int](),
        asyncio.Event(),
    )
    holders = await start_holders(limit, 3, started, release)
    with pytest.raises(CallFailure) as error:
        await limit.__aenter__()
    assert error.value.failure is NodeFailure.BUSY
    assert not error.value.blames_node
    release.set()
    await asyncio.wait(holders)
    async with limit:
        assert started == [0, 1, 2]


@settings(max_examples=60)
@given(
    st.integers(1, 5),
    st.integers(1, 8),
    st.lists(
        st.tuples(st.sampled_from((0.0, 0.01, 0.2)), st.sampled_from((0.0, 0.05, 0.7))), max_size=40
    ),
)
def test_both_limits_hold_and_all_calls_start_in_order(
    max_concurrency: int, per_s: int, calls: list[tuple[float, float]]
) -> None:
    async def main() -> tuple[list[int], list[float], int]:
        limit, started, times, running, most = (
            UpstreamLimit(max_concurrency, per_s),
            list[int](),
            list[float](),
            0,
            0,
        )

        async def call(number: int, length_s: float) -> None:
            nonlocal running, most
            async with limit:
                running += 1
                most = max(most, running)
                started.append(number)
                times.append(now())
                await asyncio.sleep(length_s)
                running -= 1

        async with asyncio.TaskGroup() as tasks:
            for number, (pause_s, length_s) in enumerate(calls):
                tasks.create_task(call(number, length_s))
                await asyncio.sleep(pause_s)
        return started, times, most

    started, times, most = run(main())
    assert started == list(range(len(calls)))
    assert most <= max_concurrency
    assert all(
        later - earlier >= 1.0 - 1e-6 for earlier, later in zip(times, times[per_s:], strict=False)
    )


async def test_callers_wait_for_a_slot_and_daemon_calls_do_not() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def respond(_: object) -> dict[str, str]:
        if node.calls["platform.getHeight"] == 4:
            started.set()
        await release.wait()
        return {"height": "1"}

    node = RecordedNode({"platform.getHeight": respond})
    async with open_upstream(node, calls_in_flight=8) as upstream:
        calls = [asyncio.create_task(upstream.platform.height()) for _ in range(8)]
        await started.wait()
        assert await upstream.platform.proposed_height(origin=CallOrigin.DAEMON) == 19
        assert node.calls["platform.getHeight"] == 4
        release.set()
        assert await asyncio.gather(*calls) == [1] * 8


async def test_cancelled_waiters_leave_no_state() -> None:
    limit, started, release = (
        UpstreamLimit(max_concurrency=1, per_s=1_000),
        list[int](),
        asyncio.Event(),
    )
    holders = await start_holders(limit, 4, started, release)
    holders[1].cancel()
    # Freed and cancelled in one tick: the slot that was just given must come back.
    release.set()
    holders[2].cancel()
    outcomes = await asyncio.gather(*holders, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [
        False,
        True,
        True,
        False,
    ]
    async with asyncio.timeout(60), limit:
        pass


async def test_a_slot_granted_during_a_cancellation_is_released() -> None:
    limit = UpstreamLimit(max_concurrency=1, per_s=1_000)
    for _ in range(20):
        release = asyncio.Event()
        holder, waiter = await start_holders(limit, 2, [], release)
        release.set()
        await holder
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(60), limit:
        pass
