"""Server-sent events over sockets: what is sent in silence, how streams end, and what a slow client
costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network

import aiohttp
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.api.fixtures import SETTINGS, serving
from tests.eventually import finish, until
from warpseal.api.http.clients import IpNetwork
from warpseal.api.http.event_stream import EventStreams
from warpseal.api.http.middleware import ErrorMiddleware
from warpseal.api.http.server import HttpServer
from warpseal.store.errors import StoreDown


@dataclass
class Stream:
    """A server with one path, whose events a test puts into a queue; an exception is raised."""

    parts: asyncio.Queue[bytes | Exception] = field(default_factory=asyncio.Queue)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    limit: int = 4
    write_timeout_s: float = 20.0
    heartbeat_s: float = 60.0
    proxies: tuple[IpNetwork, ...] = ()
    next_events: Callable[[], Awaitable[bytes]] | None = None

    async def _next(self) -> bytes:
        part = await self.parts.get()
        if isinstance(part, Exception):
            raise part
        return part

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[HttpServer, aiohttp.ClientSession]]:
        streams = EventStreams(self.stopping, self.limit, 2, self.write_timeout_s, self.heartbeat_s)

        async def endpoint(request: Request) -> Response:
            return streams.respond(request, self.next_events or self._next, lambda: b": quiet\n\n")

        app = Starlette(routes=[Route("/", endpoint)], middleware=[Middleware(ErrorMiddleware)])
        settings = replace(SETTINGS, trusted_proxies=self.proxies)
        async with serving(app, settings) as server, aiohttp.ClientSession(server.url) as client:
            yield server, client


async def test_events_follow_a_first_part_that_opens_the_stream() -> None:
    stream = Stream()
    async with stream.served() as (_, client), client.get("/") as reply:
        assert await finish(reply.content.readexactly(9)) == b": quiet\n\n"
        for part in (b"data: 1\n\n", b"", b"data: 2\n\n"):
            stream.parts.put_nowait(part)
        assert await finish(reply.content.readexactly(18)) == b"data: 1\n\ndata: 2\n\n"
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-accel-buffering"] == "no"


async def test_a_silent_stream_has_heartbeats_also_while_events_are_left_out() -> None:
    stream = Stream(heartbeat_s=0.01)
    async with stream.served() as (_, client), client.get("/") as reply:
        assert await finish(reply.content.readexactly(27)) == b": quiet\n\n" * 3

        async def leave_out() -> None:
            while True:
                stream.parts.put_nowait(b"")
                await asyncio.sleep(0.001)

        leaving_out = asyncio.create_task(leave_out())
        assert await finish(reply.content.readexactly(27)) == b": quiet\n\n" * 3
        leaving_out.cancel()


async def test_a_stream_ends_when_the_daemon_stops() -> None:
    stream = Stream()
    async with stream.served() as (_, client), client.get("/") as reply:
        await reply.content.readexactly(9)
        stream.stopping.set()
        assert await finish(reply.read()) == b""


async def test_a_stream_whose_events_fail_ends_so_that_its_client_asks_again() -> None:
    stream = Stream()
    async with stream.served() as (_, client):
        async with client.get("/") as reply:
            stream.parts.put_nowait(StoreDown("no answer"))
            assert await finish(reply.read()) == b": quiet\n\n"
        async with client.get("/") as reply:
            stream.parts.put_nowait(ValueError("a fault"))
            try:
                await finish(reply.read())
            except aiohttp.ClientPayloadError:
                return
    raise AssertionError("an internal error looks like the end of a stream")


async def test_the_streams_of_all_clients_are_limited_and_a_closed_one_frees_its_place() -> None:
    stream = Stream(limit=2)
    async with stream.served() as (_, client):
        replies = [await client.get("/") for _ in range(2)]
        async with client.get("/") as refused:
            assert refused.status == 429
        replies.pop().close()

        async def is_free() -> bool:
            async with client.get("/") as reply:
                return reply.status == 200

        await until(is_free)
        replies.pop().close()


async def test_the_addresses_of_one_ipv6_network_share_their_places() -> None:
    stream = Stream(proxies=(ip_network("127.0.0.1"),))
    async with stream.served() as (_, client):

        async def open_from(address: str) -> aiohttp.ClientResponse:
            return await client.get("/", headers={"x-forwarded-for": address})

        replies = [await open_from(f"2001:db8::{number}") for number in (1, 2, 3)]
        replies.append(await open_from("2001:db8:0:1::1"))
        assert [reply.status for reply in replies] == [200, 200, 429, 200]
        for reply in replies:
            reply.close()


async def test_a_client_that_reads_nothing_loses_its_connection_and_delays_no_other() -> None:
    stopped = asyncio.Event()

    async def next_events() -> bytes:
        await asyncio.sleep(0)
        return b"data: %b\n\n" % (b"x" * 100_000)

    stream = Stream(write_timeout_s=0.2, next_events=next_events)
    async with stream.served() as (server, client):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await until(lambda: server._state.tasks)
        (slow,) = server._state.tasks
        async with client.get("/") as reply:

            async def read() -> None:
                while not stopped.is_set():
                    await reply.content.readexactly(100_000)

            reading = asyncio.create_task(read())
            await until(slow.done)
            assert not reading.done()
            stopped.set()
            await finish(reading)
        writer.close()
