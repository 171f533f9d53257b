"""The proposed height is polled; its age counts from the last successful poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import until
from tests.node.recorded_node import RecordedNode, open_upstream
from tests.validators.fixtures import HEIGHT, Clock, started_services
from warpseal.upstream.errors import NodeAttempt, NodeUnavailable, PublicFailure
from warpseal.validators.heights import ProposedHeight

TIME = "platform.getTimestamp"


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

    async with (
        started_services(RecordedNode({HEIGHT: slow})) as services,
        asyncio.TaskGroup() as tasks,
    ):
        early = [tasks.create_task(services.heights.first()) for _ in range(3)]
        poll = tasks.create_task(services.heights.poll())
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in early)
        release.set()
        assert await asyncio.gather(*early) == [21, 21, 21]
        await poll


async def test_early_requests_fail_with_the_error_of_the_first_poll() -> None:
    async with (
        started_services(RecordedNode({HEIGHT: failing})) as services,
        asyncio.TaskGroup() as tasks,
    ):
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


@asynccontextmanager
async def polled(*replies: Any) -> AsyncIterator[tuple[ProposedHeight, list[RecordedNode], Clock]]:
    """Yield the proposed height over nodes with these replies."""
    nodes = [
        RecordedNode({HEIGHT: reply, TIME: {"timestamp": "2026-01-01T00:00:00Z"}})
        for reply in replies
    ]
    async with open_upstream(*nodes, call_timeout_s=2.0, retry_failed_after_s=0.0) as upstream:
        clock = Clock()
        yield ProposedHeight(upstream.platform, now=clock), nodes, clock


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ((10**9, 19, 19), 19),
        ((19, 10**9, 19), 19),
        ((10**9, 19), 19),
        ((10**9, 19, None), 19),
        ((24, 19), 24),
        ((10**9, None, None), 10**9),
    ],
)
async def test_the_first_height_is_one_that_a_second_node_has_reached(
    heights: tuple[int | None, ...], expected: int
) -> None:
    replies = [failing if height is None else {"height": str(height)} for height in heights]
    async with polled(*replies) as (proposed, _, _):
        await proposed.poll()
        assert proposed.current() == expected


async def test_a_leap_of_one_node_is_not_followed_and_a_growth_of_all_is() -> None:
    async with polled({"height": "100"}, {"height": "100"}) as (proposed, nodes, clock):
        await proposed.poll()
        nodes[0].replies[HEIGHT] = {"height": str(10**9)}
        for _ in range(50):
            clock.now += 2.0
            await proposed.poll()
            assert proposed.current() == 100
        nodes[0].replies[HEIGHT] = nodes[1].replies[HEIGHT] = {"height": "5000"}
        await proposed.poll()
        assert proposed.current() == 5_000
        # No second node replies: the chain may have grown by a block a second.
        nodes[1].replies[HEIGHT] = failing
        nodes[0].replies[HEIGHT] = {"height": "5010"}
        clock.now += 2.0
        await proposed.poll()
        assert proposed.current() == 5_010
        nodes[0].replies[HEIGHT] = {"height": str(10**9)}
        await proposed.poll()
        assert proposed.current() == 5_010


async def test_a_height_that_no_second_node_confirmed_is_lowered_as_soon_as_one_replies() -> None:
    async with polled({"height": str(10**9)}, failing) as (proposed, nodes, _):
        await proposed.poll()
        assert proposed.current() == 10**9
        nodes[1].replies[HEIGHT] = {"height": "19"}
        await proposed.poll()
        assert proposed.current() == 19


async def test_a_node_that_has_stalled_denies_no_height() -> None:
    async with polled({"height": "5000"}, {"height": "100"}) as (proposed, nodes, _):
        nodes[1].replies[TIME] = {"timestamp": "2025-12-30T00:00:00Z"}
        await proposed.poll()
        assert proposed.current() == 5_000
    async with polled({"height": "5000"}, {"height": "100"}) as (proposed, nodes, _):
        # A chain time of the future proves nothing.
        nodes[0].replies[TIME] = {"timestamp": "9998-01-01T00:00:00Z"}
        await proposed.poll()
        assert proposed.current() == 100


async def test_a_lagging_second_node_does_not_slow_the_height() -> None:
    async with polled({"height": "100"}, {"height": "50"}) as (proposed, nodes, clock):
        for height in range(100, 200, 10):
            nodes[0].replies[HEIGHT] = {"height": str(height)}
            await proposed.poll()
            assert proposed.current() == height
            clock.now += 10.0


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
        services.heights.watch(
            lambda: changes.append((services.heights.last, services.heights.is_fresh))
        )
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
