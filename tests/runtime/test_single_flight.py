"""Single flight: a task per key, shared outcomes, a cancellation that affects no other caller."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from warpseal.runtime.single_flight import SingleFlight


class Work:
    """Work that waits to be released, and counts how often it began and was cancelled."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.began = 0
        self.cancelled = 0
        self.release = asyncio.Event()
        self.failure = failure

    async def run(self) -> int:
        self.began += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        return self.began


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_of_one_key_share_one_task() -> None:
    flight = SingleFlight[str, int]()
    work = Work()
    callers = [asyncio.create_task(flight.run("key", work.run)) for _ in range(10)]
    await settle()
    assert flight.in_flight == 1
    work.release.set()
    assert await asyncio.gather(*callers) == [1] * 10
    assert work.began == 1
    assert flight.in_flight == 0


async def test_callers_of_different_keys_share_nothing() -> None:
    flight = SingleFlight[int, int]()

    async def echo(value: int) -> int:
        return value

    def of(value: int) -> Callable[[], Coroutine[Any, Any, int]]:
        return lambda: echo(value)

    outcomes = await asyncio.gather(*(flight.run(key, of(key)) for key in range(5)))
    assert outcomes == list(range(5))


async def test_a_finished_result_is_not_kept() -> None:
    flight = SingleFlight[str, int]()
    work = Work()
    work.release.set()
    assert await flight.run("key", work.run) == 1
    assert await flight.run("key", work.run) == 2


async def test_one_cancelled_caller_does_not_end_the_work_of_the_others() -> None:
    flight = SingleFlight[str, int]()
    work = Work()
    first = asyncio.create_task(flight.run("key", work.run))
    second = asyncio.create_task(flight.run("key", work.run))
    await settle()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.release.set()
    assert await second == 1
    assert (work.began, work.cancelled) == (1, 0)


async def test_a_callers_shorter_deadline_ends_its_wait_only() -> None:
    flight = SingleFlight[str, int]()
    work = Work()
    patient = asyncio.create_task(flight.run("key", work.run))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await flight.run("key", work.run)
    work.release.set()
    assert await patient == 1


async def test_the_last_caller_to_leave_cancels_the_work() -> None:
    flight = SingleFlight[str, int]()
    work = Work()
    callers = [asyncio.create_task(flight.run("key", work.run)) for _ in range(3)]
    await settle()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await settle()
    assert (work.began, work.cancelled, flight.in_flight) == (1, 1, 0)


async def test_a_caller_after_the_last_cancelled_caller_starts_new_work() -> None:
    flight = SingleFlight[str, int]()
    work = Work()
    gone = asyncio.create_task(flight.run("key", work.run))
    await settle()
    gone.cancel()
    late = asyncio.create_task(flight.run("key", work.run))
    await settle()
    later = asyncio.create_task(flight.run("key", work.run))
    await settle()
    work.release.set()
    assert (await late, await later) == (2, 2)
    assert work.cancelled == 1


async def test_a_caller_that_joins_in_the_tick_of_the_end_gets_the_outcome() -> None:
    flight = SingleFlight[str, int]()
    work = Work()
    first = asyncio.create_task(flight.run("key", work.run))
    await settle()
    work.release.set()
    second = asyncio.create_task(flight.run("key", work.run))
    assert (await first, await second) == (1, 1)


async def test_an_exception_goes_to_every_caller() -> None:
    flight = SingleFlight[str, int]()
    work = Work(OSError("no route"))
    callers = [asyncio.create_task(flight.run("key", work.run)) for _ in range(3)]
    await settle()
    work.release.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert outcomes == [work.failure] * 3
    assert flight.in_flight == 0


async def test_no_exception_is_reported_as_never_retrieved() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    flight = SingleFlight[str, int]()
    work = Work(OSError("no route"))
    caller = asyncio.create_task(flight.run("key", work.run))
    await settle()
    work.release.set()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await settle()
    del caller
    gc.collect()
    await settle()
    assert reports == []


async def test_work_that_fails_while_it_is_cancelled_is_not_reported_either() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    flight = SingleFlight[str, int]()

    async def fails_on_cancellation() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("closed badly")

    caller = asyncio.create_task(flight.run("key", fails_on_cancellation))
    await settle()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await settle()
    gc.collect()
    assert reports == []


async def test_work_that_outlives_its_callers_serves_the_next_one() -> None:
    flight = SingleFlight[str, int](outlives_callers=True)
    work = Work()
    caller = asyncio.create_task(flight.run("key", work.run))
    await settle()
    caller.cancel()
    await settle()
    assert (work.cancelled, flight.in_flight) == (0, 1)
    work.release.set()
    assert await flight.run("key", work.run) == 1
    assert flight.in_flight == 0


async def test_callers_in_a_task_group_fail_together_with_the_work() -> None:
    flight = SingleFlight[str, int]()
    work = Work(OSError("no route"))
    work.release.set()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(flight.run("key", work.run))
            group.create_task(flight.run("key", work.run))

    with pytest.raises(ExceptionGroup) as error:
        await both()
    assert error.value.subgroup(OSError) is not None
    assert work.began == 1
