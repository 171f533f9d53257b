"""Start and stop of a server: ports, requests in flight, and requests that outlive the grace
period.
"""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from msgspec.structs import replace

from tests.api.fixtures import (
    KEBAB,
    SETTINGS,
    V1,
    ApiSetup,
    ScriptedAggregator,
    aggregation,
    exchange,
    serving,
)
from tests.api.raw_http import BODY, post
from tests.eventually import finish
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.http.listener import Listener
from warpseal.api.http.server import HttpServer
from warpseal.errors import StartupError

LONG_S = 1000.0


class HeldAggregation:
    """An aggregation that ends when the test releases it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.released = asyncio.Event()

    async def act(self, request: AggregationRequest) -> Aggregation:
        self.started.set()
        await self.released.wait()
        return aggregation()


async def test_stopping_finishes_what_is_in_flight() -> None:
    held = HeldAggregation()
    settings = replace(SETTINGS, grace_period_s=LONG_S)
    server = HttpServer(
        ApiSetup(aggregator=ScriptedAggregator(held.act)).app(), Listener("127.0.0.1", 0), settings
    )
    running = asyncio.create_task(server.run())
    async with aiohttp.ClientSession(server.url) as client:
        request = asyncio.create_task(client.post(KEBAB, data=BODY))
        idle = await asyncio.open_connection("127.0.0.1", server.port)
        await held.started.wait()
        port = server.port
        server.stop()
        assert await finish(idle[0].read()) == b""
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", port)
        assert not request.done()
        held.released.set()
        assert (await request).status == 200
        await finish(running)
        idle[1].close()


@pytest.mark.parametrize("path", [KEBAB, V1])
async def test_requests_that_outlive_the_grace_period_get_an_error(path: str) -> None:
    held = HeldAggregation()
    settings = replace(SETTINGS, grace_period_s=0.2)
    server = HttpServer(
        ApiSetup(aggregator=ScriptedAggregator(held.act)).app(), Listener("127.0.0.1", 0), settings
    )
    running = asyncio.create_task(server.run())
    async with aiohttp.ClientSession(server.url) as client:
        request = asyncio.create_task(client.post(path, data=BODY))
        await held.started.wait()
        server.stop()
        response = await request
        assert (response.status, (await response.json())["code"]) == (503, "shutting_down")
        assert "Retry-After" in response.headers
    await finish(running)


async def test_cancelling_the_server_ends_everything_at_once() -> None:
    held = HeldAggregation()
    settings = replace(SETTINGS, grace_period_s=LONG_S)
    async with serving(ApiSetup(aggregator=ScriptedAggregator(held.act)).app(), settings) as server:
        request = asyncio.create_task(exchange(server.port, post(), within_s=LONG_S))
        await held.started.wait()
    await finish(asyncio.wait([request]))


async def test_a_taken_port_is_a_startup_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartupError, match=str(port)):
            Listener("127.0.0.1", port)


async def test_port_0_binds_a_free_port_and_reports_it() -> None:
    server = HttpServer(ApiSetup().app(), Listener("0.0.0.0", 0), SETTINGS)
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert server.port > 0
    running = asyncio.create_task(server.run())
    server.stop()
    await running
