"""The proposed height is polled; its age counts from the last successful poll."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.eventually import until
from tests.node.recorded_node import RecordedNode
from tests.validators.world import HEIGHT, Clock, world
from warpseal.errors import NodeAttempt, NodeFailure, NodeUnavailable
from warpseal.validators.heights import ProposedHeight


def failing(_: object) -> web.Response:
    return web.Response(status=500)


async def test_a_poll_makes_the_height_known() -> None:
    async with world() as here:
        with pytest.raises(NodeUnavailable):
            here.heights.current()
        await here.heights.poll()
        assert here.heights.current() == 19
        assert here.heights.is_fresh


async def test_an_unchanged_height_stays_fresh_while_polls_succeed() -> None:
    async with world() as here:
        for _ in range(5):
            await here.heights.poll()
            here.clock.now += 59.0
            assert here.heights.current() == 19


async def test_after_sixty_seconds_without_a_successful_poll_there_is_no_height() -> None:
    async with world() as here:
        await here.heights.poll()
        here.node.answers[HEIGHT] = failing
        here.clock.now += 60.0
        await here.heights.poll()
        assert here.heights.current() == 19
        here.clock.now += 0.1
        assert not here.heights.is_fresh
        with pytest.raises(NodeUnavailable) as caught:
            here.heights.current()
        assert caught.value.attempts == (NodeAttempt(0, NodeFailure.HTTP_STATUS),)
        assert await here.heights.latest() == 19
        del here.node.answers[HEIGHT]
        await here.heights.poll()
        assert here.heights.current() == 19


async def test_early_requests_wait_for_the_first_poll() -> None:
    release = asyncio.Event()

    async def slow(_: object) -> dict[str, str]:
        await release.wait()
        return {"height": "21"}

    async with world(RecordedNode({HEIGHT: slow})) as here, asyncio.TaskGroup() as tasks:
        early = [tasks.create_task(here.heights.first()) for _ in range(3)]
        poll = tasks.create_task(here.heights.poll())
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in early)
        release.set()
        assert await asyncio.gather(*early) == [21, 21, 21]
        await poll


async def test_early_requests_fail_with_the_error_of_the_first_poll() -> None:
    async with world(RecordedNode({HEIGHT: failing})) as here, asyncio.TaskGroup() as tasks:
        tasks.create_task(here.heights.poll())
        with pytest.raises(NodeUnavailable):
            await here.heights.first()


async def test_a_lagging_node_does_not_move_the_height_back() -> None:
    async with world() as here:
        await here.heights.poll()
        here.node.answers[HEIGHT] = {"height": "12"}
        await here.heights.poll()
        here.clock.now += 59.0
        await here.heights.poll()
        assert here.heights.current() == 19
        here.node.answers[HEIGHT] = {"height": "20"}
        await here.heights.poll()
        assert here.heights.current() == 20


async def test_a_height_unconfirmed_for_a_minute_is_stale() -> None:
    async with world() as here:
        here.node.answers[HEIGHT] = {"height": str(10**15)}
        await here.heights.poll()
        here.node.answers[HEIGHT] = {"height": "19"}
        await here.heights.poll()
        here.clock.now += 60.0
        await here.heights.poll()
        assert here.heights.current() == 19


async def test_heights_are_polled_while_running() -> None:
    async with world() as here:
        heights = ProposedHeight(here.upstream.platform, poll_s=0.01, now=Clock())
        running = asyncio.create_task(heights.run())
        assert await heights.first() == 19
        here.node.answers[HEIGHT] = {"height": "33"}
        await until(lambda: heights.current() == 33)
        running.cancel()


async def test_watchers_are_called_when_the_height_changes_or_becomes_stale_or_fresh() -> None:
    async with world() as here:
        changes: list[tuple[int | None, bool]] = []
        here.heights.watch(lambda: changes.append((here.heights.last, here.heights.is_fresh)))
        await here.heights.poll()
        await here.heights.poll()
        assert changes == [(19, True)]
        here.node.answers[HEIGHT] = failing
        here.clock.now += 61.0
        await here.heights.poll()
        await here.heights.poll()
        assert changes[1:] == [(19, False)]
        here.node.answers[HEIGHT] = {"height": "20"}
        await here.heights.poll()
        assert changes[2:] == [(20, True)]
