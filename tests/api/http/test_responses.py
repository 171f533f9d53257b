"""Responses over real sockets: when their bytes leave, and which headers they may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.api.fixtures import exchange, serving
from tests.api.raw_http import replies

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
LAST = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@asynccontextmanager
async def connected(
    app: ASGIApp,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve an app and connect to it."""
    async with serving(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        yield reader, writer
        writer.close()


@pytest.mark.parametrize("size", [0, 65_536, 65_537, 1_000_000])
async def test_bodies_of_every_size_arrive_whole(size: int) -> None:
    async with serving(Response(bytes(size))) as server:
        first, second = replies(await exchange(server.port, GET + LAST))
    assert first.body == second.body == bytes(size)


async def test_the_header_of_a_stream_arrives_before_its_body() -> None:
    seen = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
        )
        await seen.wait()
        await send({"type": "http.response.body", "body": b"bo", "more_body": True})
        await send({"type": "http.response.body", "body": b"dy"})

    async with connected(app) as (reader, writer):
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        seen.set()
        assert await reader.readexactly(4) == b"body"


async def test_a_response_without_a_body_is_followed_by_the_next_one() -> None:
    async with serving(Response("body", headers={"X-Name": "value"})) as server:
        response = await exchange(server.port, HEAD + LAST)
    first, rest = response.split(b"\r\n\r\n", 1)
    assert b"x-name: value" in first
    assert b"content-length: 4" in first
    (reply,) = replies(rest)
    assert (reply.headers["x-name"], reply.body) == ("value", b"body")


async def test_the_last_response_of_a_connection_may_have_no_body() -> None:
    async with serving(Response("body")) as server:
        response = await exchange(server.port, LAST.replace(b"GET", b"HEAD"))
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "header", [(b"x-name", b"a\r\nx-other: b"), (b"x name", b"a"), (b"x-name\r\nx-other", b"b")]
)
async def test_a_header_that_would_end_its_line_is_not_sent(header: tuple[bytes, bytes]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [header]})

    async with serving(app) as server:
        response = await exchange(server.port, GET)
    assert response == b"", "the connection is closed"


async def test_a_header_that_waits_for_the_client_is_not_mixed_with_100_continue() -> None:
    size = 20_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/large":
            await Response(bytes(size))(scope, receive, send)
            return
        responding = asyncio.create_task(
            Response("body", headers={"X-Name": "value"})(scope, receive, send)
        )
        await asyncio.sleep(0)
        await receive()
        await responding

    async with connected(app) as (reader, writer):
        writer.write(
            GET.replace(b"/ ", b"/large ", 1)
            + GET.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
        )
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(size)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        header = await reader.readuntil(b"\r\n\r\n")
        assert header.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"x-name: value\r\n" in header
        assert await reader.readexactly(4) == b"body"
