"""What a base URL answers, and what that usually means, against servers that are no nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from aiohttp import web

from tests.node.recorded_node import RecordedNode, refusing_uri, serve_app, serve_nodes
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.identity import INFO_PATHS
from warpseal.upstream.node import open_session
from warpseal.upstream.probe import EndpointResponse, probe_endpoint

METHOD = "info.getNetworkID"


@asynccontextmanager
async def serving(
    status: int, body: str = "", path: str = "/{path:.*}", headers: dict[str, str] | None = None
) -> AsyncIterator[str]:
    """Serve one reply to every call on a free port of loopback."""

    async def respond(request: web.Request) -> web.Response:
        raw = body.encode("utf-8", "surrogateescape")
        return web.Response(
            status=status, body=raw, headers={"Location": "http://127.0.0.1:1/", **(headers or {})}
        )

    app = web.Application()
    app.router.add_post(path, respond)
    async with serve_app(app) as url:
        yield url


async def probe(
    uri: str, paths: tuple[str, ...] = INFO_PATHS, timeout_s: float = 10.0
) -> EndpointResponse:
    async with open_session() as session:
        return await probe_endpoint(session, NodeEndpoint(uri), paths, METHOD, timeout_s)


@pytest.mark.parametrize(
    ("status", "body", "summary", "meaning"),
    [
        (
            200,
            '{"jsonrpc":"2.0","result":{"networkID":"5"},"id":1}',
            "HTTP 200, JSON-RPC result",
            "",
        ),
        (
            200,
            '{"jsonrpc":"2.0","error":{"code":-32000},"id":1}',
            "HTTP 200, JSON-RPC error",
            "API disabled",
        ),
        (200, "<!DOCTYPE html><title>Welcome</title>", "HTTP 200, HTML", "a web page"),
        (200, '{"hello":1}', "HTTP 200, JSON", "something else"),
        (200, "", "HTTP 200, an empty body", "something else"),
        (200, '{"result":"\udcff"}', "HTTP 200, text", "something else"),
        (200, "[" * 60_000, "HTTP 200, text", "something else"),
        (200, "x" * 70_000, "HTTP 200, a large body", "something else"),
        (301, "", "HTTP 301, an empty body", "redirected"),
        (401, "no", "HTTP 401, text", "wants a key"),
        (403, "no", "HTTP 403, text", "the key is refused"),
        (201, '{"jsonrpc":"2.0","id":1,"result":1}', "HTTP 201, JSON-RPC result", ""),
        (200, '\ufeff{"jsonrpc":"2.0","id":1,"result":1}', "HTTP 200, JSON-RPC result", ""),
        (404, "404 page not found", "HTTP 404, text", "a path too many"),
        (405, "<html>", "HTTP 405, HTML", "a web server"),
        (429, "", "HTTP 429, an empty body", "limits the calls"),
        (503, "<html>", "HTTP 503, HTML", "does not reach the node"),
        (418, "", "HTTP 418, an empty body", "something else"),
    ],
)
async def test_a_reply_has_status_kind_of_body_and_meaning(
    status: int, body: str, summary: str, meaning: str
) -> None:
    async with serving(status, body) as uri:
        reply = await probe(uri)
    assert str(reply) == summary
    assert meaning in reply.meaning
    assert bool(meaning) == bool(reply.meaning)


async def test_a_node_answers_with_a_result() -> None:
    async with serve_nodes(RecordedNode()) as (uri,):
        assert str(await probe(uri)) == "HTTP 200, JSON-RPC result"


async def test_the_next_path_is_tried_if_the_first_does_not_exist() -> None:
    async with serving(200, '{"result":1}', "/second") as uri:
        assert (await probe(uri, ("/first", "/second"))).status == 200


async def test_a_port_without_a_process_refuses_the_connection() -> None:
    reply = await probe(refusing_uri())
    assert (reply.status, str(reply)) == (None, "connection refused")
    assert "no process listens" in reply.meaning


async def test_a_port_that_speaks_another_protocol_gives_no_http_response() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x15\x03\x03\x00\x02\x02\x0a")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        plain = await probe(f"http://127.0.0.1:{port}")
        over_tls = await probe(f"https://127.0.0.1:{port}")
    assert (plain.status, str(plain)) == (None, "no HTTP response")
    assert (over_tls.status, str(over_tls)) == (None, "TLS failed")


async def test_a_node_that_hangs_does_not_answer_in_time() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reply = await probe(f"http://127.0.0.1:{port}", timeout_s=0.05)
    assert (reply.status, str(reply)) == (None, "no answer in time")


@pytest.mark.parametrize("offset_s", [-90, 0, 3_600])
async def test_the_clock_of_a_server_is_read_from_the_date_of_its_response(offset_s: int) -> None:
    date = format_datetime(datetime.fromtimestamp(int(time.time()) + offset_s, UTC), usegmt=True)
    async with serving(200, headers={"Date": date}) as uri:
        reply = await probe(uri)
    assert reply.clock_offset_s is not None
    assert abs(reply.clock_offset_s - offset_s) < 30


@pytest.mark.parametrize(
    "date",
    ["", "soon", "Mon, 99 Foo 2026 00:00:00 GMT", "x" * 10_000, "Sun, 06 Nov 1994 08:49:37 +9999"],
)
async def test_a_malformed_date_says_nothing_about_the_clock(date: str) -> None:
    async with serving(200, headers={"Date": date}) as uri:
        assert (await probe(uri)).clock_offset_s is None
