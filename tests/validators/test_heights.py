"""The proposed height is polled; its age counts from the last successful poll."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.eventually import until
from tests.node.recorded_node import RecordedNode
from tests.validators.fixtures import HEIGHT, Clock, started_services
from warpseal.upstream.errors import NodeAttempt, NodeUnavailable, PublicFailure
from warpseal.validators.heights import ProposedHeight


def failing(_: object) -> web.Response:
    return web.Response(status=500)


async def test_a_poll_makes_the_height_known() -> None:
    async with started_services() as services:
        with pytest.raises(NodeUnavailable):
            services.heights.current()
        await services.heights.poll()
        assert services.heights.current() == 19
        assert services.heights.is_fresh


async def test_an_unchanged_height_stays_fresh_while_polls_succeed() -> None:
    async with started_services() as services:
        for _ in range(5):
            await services.heights.poll()
            services.clock.now += 59.0
            assert services.heights.current() == 19


async def test_after_sixty_seconds_without_a_successful_poll_there_is_no_height() -> None:
    async with started_services() as services:
        await services.heights.poll()
        services.node.replies[HEIGHT] = failing
        services.clock.now += 60.0
        await services.heights.poll()
        assert services.heights.current() == 19
        services.clock.now += 0.1
        assert not services.heights.is_fresh
        with pytest.raises(NodeUnavailable) as error:
            services.heights.current()
        assert error.value.attempts == (NodeAttempt(0, PublicFailure.HTTP_STATUS),)
        assert await services.heights.latest() == 19
        del services.node.replies[HEIGHT]
        await services.heights.poll()
        assert services.heights.current() == 19


async def test_early_requests_wait_for_the_first_poll() -> None:
    release = asyncio.Event()

    async def slow(_: object) -> dict[str, str]:
        await release.wait()
        return {"height": "21"}

    async with started_services(RecordedNode({HEIGHT: slow})) as services, asyncio.TaskGroup() as tasks:
        early = [tasks.create_task(services.heights.first()) for _ in range(3)]
        poll = tasks.create_task(services.heights.poll())
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in early)
        release.set()
        assert await asyncio.gather(*early) == [21, 21, 21]
        await poll


async def test_early_requests_fail_with_the_error_of_the_first_poll() -> None:
    async with started_services(RecordedNode({HEIGHT: failing})) as services, asyncio.TaskGroup() as tasks:
        tasks.create_task(services.heights.poll())
        with pytest.raises(NodeUnavailable):
            await services.heights.first()


async def test_a_lagging_node_does_not_move_the_height_back() -> None:
    async with started_services() as services:
        await services.heights.poll()
        services.node.replies[HEIGHT] = {"height": "12"}
        await services.heights.poll()
        services.clock.now += 59.0
        await services.heights.poll()
        assert services.heights.current() == 19
        services.node.replies[HEIGHT] = {"height": "20"}
        await services.heights.poll()
        assert services.heights.current() == 20


async def test_a_height_unconfirmed_for_a_minute_is_stale() -> None:
    async with started_services() as services:
        services.node.replies[HEIGHT] = {"height": str(10**15)}
        await services.heights.poll()
        services.node.replies[HEIGHT] = {"height": "19"}
        await services.heights.poll()
        services.clock.now += 60.0
        await services.heights.poll()
        assert services.heights.current() == 19


async def test_heights_are_polled_while_running() -> None:
    async with started_services() as services:
        heights = ProposedHeight(services.upstream.platform, poll_s=0.01, now=Clock())
        running = asyncio.create_task(heights.run())
        assert await heights.first() == 19
        services.node.replies[HEIGHT] = {"height": "33"}
        await until(lambda: heights.current() == 33)
        running.cancel()


async def test_watchers_are_called_when_the_height_changes_or_becomes_stale_or_fresh() -> None:
    async with started_services() as services:
        changes: list[tuple[int | None, bool]] = []
        services.heights.watch(lambda: changes.append((services.heights.last, services.heights.is_fresh)))
        await services.heights.poll()
        await services.heights.poll()
        assert changes == [(19, True)]
        services.node.replies[HEIGHT] = failing
        services.clock.now += 61.0
        await services.heights.poll()
        await services.heights.poll()
        assert changes[1:] == [(19, False)]
        services.node.replies[HEIGHT] = {"height": "20"}
        await services.heights.poll()
        assert changes[2:] == [(20, True)]
