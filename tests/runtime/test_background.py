"""Work that signing does not need starts again after each error, and an error never hides a
cancellation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from tests.eventually import until
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.retry import Backoff

AT_ONCE = Backoff(first_s=0.001, cap_s=0.001)


class Waiting(Exception):
    """A part waits for something."""


async def test_a_part_that_fails_starts_again_until_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts, errors = Counter[str](), [OverflowError("too large"), Waiting(), ValueError("wrong")]
    work = BackgroundWork(lambda part: counts.update([part]), AT_ONCE)

    async def run() -> None:
        if errors:
            raise errors.pop()

    await work.keep_running("a part", run, waits_for=(Waiting,))
    assert counts == {"a part": 2}
    assert list(work.failing()) == [
        "a part failed 2 times since the start, and starts again by itself: see the log"
    ]
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [vars(record)["part"] for record in logged] == ["a part"] * 2
    errors_logged = [str(record.exc_info and record.exc_info[1]) for record in logged]
    assert errors_logged == ["wrong", "too large"]


async def test_a_part_that_fails_while_it_is_cancelled_ends() -> None:
    started = asyncio.Event()

    async def fail_at_the_end() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            raise ValueError("at the end")

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail_at_the_end())

    task = asyncio.create_task(BackgroundWork(backoff=AT_ONCE).keep_running("a part", run))
    await started.wait()
    task.cancel()
    await until(task.done)
    assert task.cancelled()


async def test_a_part_whose_task_group_fails_starts_again() -> None:
    counts, errors = Counter[str](), [ValueError("one"), ValueError("two")]

    async def fail() -> None:
        if errors:
            raise errors.pop()

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    work = BackgroundWork(lambda part: counts.update([part]), AT_ONCE)
    await asyncio.create_task(work.keep_running("a part", run))
    assert counts == {"a part": 2}
