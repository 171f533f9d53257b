"""Hostile input: large, deep, slow or frequent requests get an error, and the next request is
served.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from tests.api.node.fixtures import ADMIN, HEALTH, SETTINGS, NodeApiSetup, started_node_api
from tests.eventually import finish
from warpseal.api.rpc.jsonrpc_gorilla import MAX_BODY_BYTES

JSON = {"content-type": "application/json"}


async def is_served(node: NodeApiSetup) -> bool:
    return (await node.rpc(HEALTH, "health.liveness")).json["result"]["healthy"] is True


async def test_a_body_of_the_largest_size_is_read_and_one_more_byte_is_refused() -> None:
    async with started_node_api() as node:
        start = b'{"jsonrpc":"2.0","id":1,"method":"health.liveness","params":{"x":"'
        body = start + b"x" * (MAX_BODY_BYTES - len(start) - 3) + b'"}}'
        assert len(body) == MAX_BODY_BYTES
        assert (await node.send("POST", HEALTH, body, JSON)).json["result"]["healthy"]
        reply = await node.send("POST", HEALTH, body + b" ", JSON)
        assert (reply.status, reply.text) == (413, "content length too large (1048577>1048576)")
        assert await is_served(node)


async def test_a_body_without_a_length_is_refused_when_it_is_too_large() -> None:
    async with started_node_api() as node:

        async def chunks() -> object:
            for _ in range(24):
                yield b" " * 65_536

        async with node.session.post(node.url + HEALTH, data=chunks(), headers=JSON) as reply:
            assert (reply.status, reply.content_type) == (413, "text/plain")
            assert (await reply.text()).endswith("are allowed\n")
        assert await is_served(node)


@pytest.mark.parametrize("size", [6_000_068, 9_000_000])
async def test_the_sender_of_a_huge_body_receives_the_error_response(size: int) -> None:
    async with started_node_api() as node:
        reply = await node.send("POST", ADMIN, b" " * size, JSON)
        assert (reply.status, reply.text) == (413, f"content length too large ({size}>1048576)")
        assert await is_served(node)


@pytest.mark.parametrize(
    "body", [b"[" * 1_000_000, b'{"params":' * 90_000, b'{"id":' + b"[" * 70 + b"]" * 70 + b"}"]
)
async def test_deep_nesting_is_a_parse_error(body: bytes) -> None:
    async with started_node_api() as node:
        reply = await node.send("POST", HEALTH, body, JSON)
        assert (reply.status, reply.error[0]) == (200, -32700)
        assert await is_served(node)


async def test_a_slow_body_is_cut_off_with_a_plain_text_error() -> None:
    settings = replace(SETTINGS, receive_timeout_s=0.3)
    async with started_node_api(settings=settings) as node:
        response = await raw(
            node, b"POST /ext/health HTTP/1.1\r\nHost: localhost\r\n" + HEAD + b"{"
        )
        assert b" 400 " in response.split(b"\r\n", 1)[0]
        assert b"text/plain" in response
        assert await is_served(node)


HEAD = b"content-type: application/json\r\ncontent-length: 100\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Host: localhost\r\nHost: evil.example\r\n",
        b"Host: evil.example\r\nX-Forwarded-Host: localhost\r\n",
        b"Host: evil.example\r\nHost: localhost\r\nAvalanche-Api-Route: health\r\n",
    ],
)
async def test_no_second_header_makes_a_foreign_name_pass(head: bytes) -> None:
    async with started_node_api() as node:
        response = await raw(
            node, b"GET /ext/health/liveness HTTP/1.1\r\n" + head + b"Connection: close\r\n\r\n"
        )
        assert response.split(b"\r\n", 1)[0].split(b" ")[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "line",
    [
        b"GET /ext/../ext/admin HTTP/1.1",
        b"GET /ext/./admin HTTP/1.1",
        b"GET /v1/..%2fext/admin HTTP/1.1",
        b"GET //ext/admin HTTP/1.1",
        b"GET /ext/admin%00 HTTP/1.1",
        b"GET /ext/admin;x HTTP/1.1",
        b"GET /ext/admin%2f HTTP/1.1",
    ],
)
async def test_no_spelling_of_a_path_reaches_administration_but_its_own(line: bytes) -> None:
    async with started_node_api() as node:
        response = await raw(node, line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"rpc: POST method required" not in response


async def test_an_absolute_request_target_does_not_override_the_host_header() -> None:
    async with started_node_api() as node:
        line = (
            b"GET http://localhost/ext/health/liveness HTTP/1.1\r\nHost:"
            b" evil.example\r\nConnection: close\r\n\r\n"
        )
        assert b'"healthy":true' not in await raw(node, line)


async def test_the_number_and_length_of_health_tags_are_bounded() -> None:
    async with started_node_api() as node:
        query = "&".join(f"tag={number}" for number in range(3_000))
        assert (await node.send("GET", f"{HEALTH}?{query}")).status == 200
        tags = {"tags": ["x" * 100] * 5_000}
        assert (await node.rpc(HEALTH, "health.health", tags)).json["result"]["healthy"]
        for number in range(600):
            node.registry.health([str(number)])
        assert await is_served(node)


async def test_a_batch_is_refused_by_the_gorilla_dialect() -> None:
    async with started_node_api() as node:
        call = {"jsonrpc": "2.0", "id": 1, "method": "health.liveness"}
        reply = await node.send("POST", HEALTH, json.dumps([call] * 5_000).encode(), JSON)
        assert (reply.status, reply.error[0], reply.json["id"]) == (200, -32700, None)


async def test_an_upgrade_to_another_protocol_is_ignored() -> None:
    async with started_node_api() as node:
        response = await raw(
            node,
            b"GET /ext/health/liveness HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade,"
            b" HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings:"
            b" AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        )
        assert response.startswith(b"HTTP/1.1 200 ")


async def raw(node: NodeApiSetup, request: bytes) -> bytes:
    """Send bytes on a connection of their own and return all that comes back."""
    host, _, port = node.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        return await finish(reader.read())
    finally:
        writer.close()
