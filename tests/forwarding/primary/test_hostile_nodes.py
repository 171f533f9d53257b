"""A node of the gateway that answers anything: the client gets a response, and memory stays
bounded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from msgspec.structs import replace

from tests.eventually import until
from tests.forwarding.primary import serving
from tests.forwarding.primary.serving import INFO, P, serve_gateway
from warpseal.resources.chains import PrimaryChain

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LOST: Final = (-32000, "the node did not answer; it may have done what it was asked")
RESULT: Final = b'{"jsonrpc":"2.0","result":{"networkID":"88888"},"id":1}'


def sized(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def serve_bytes(reply: bytes, probe_reply: bytes = sized(OK, RESULT)) -> AsyncIterator[str]:
    """Serve a node that is of the right network, and answers every other call with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                is_probe = b"getNetworkID" in await reader.readexactly(length)
                writer.write(probe_reply if is_probe else reply)
                await writer.drain()
                if not is_probe:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def gateway_response(reply: bytes) -> tuple[int, str, bytes]:
    """Return what a client gets for a call that the node answers so."""
    async with serve_bytes(reply) as url, serve_gateway([url]) as served:
        body = b'{"jsonrpc":"2.0","id":1,"method":"platform.getTx"}'
        response = await served.send("POST", P, body, content_type="application/json")
        assert (await served.call(INFO, "info.getNetworkID")) == {"networkID": "88888"}
        return response


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 999 What\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 600 What\r\nContent-Length: 2\r\n\r\n{}",
        sized(OK + b"X: " + b"x" * 100_000 + b"\r\n", b"{}"),
        OK + b"Content-Length: 10\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    ],
    ids=range(7),
)
async def test_a_malformed_reply_is_an_error_of_the_call(reply: bytes) -> None:
    status, content_type, body = await gateway_response(reply)
    error = json.loads(body)["error"]
    assert (status, content_type) == (200, "application/json; charset=utf-8")
    assert (error["code"], error["message"]) == LOST


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            sized(b"HTTP/1.1 200 OK\r\nContent-Type: text/\xe2\x86\x92\r\n", b"a"),
            (200, "application/json", b"a"),
        ),
        (
            sized(b"HTTP/1.1 200 OK\r\nContent-Type: text/\xff\r\n", b"b"),
            (200, "application/json", b"b"),
        ),
        (
            sized(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Type: text/x\r\n", b"c"),
            (302, "text/x", b"c"),
        ),
        (b"HTTP/1.1 204 No Content\r\nContent-Type: text/x\r\n\r\n", (204, "text/x", b"")),
        (
            sized(b"HTTP/1.1 404 Not Found\r\nContent-Type: text/x\r\nSet-Cookie: a=b\r\n", b"d"),
            (404, "text/x", b"d"),
        ),
    ],
    ids=range(5),
)
async def test_a_strange_reply_passes_without_its_other_headers(
    reply: bytes, expected: tuple[int, str, bytes]
) -> None:
    assert await gateway_response(reply) == expected


async def test_a_reply_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        serving, "FORWARDING", replace(serving.FORWARDING, max_answer_bytes=100_000)
    )
    _, _, body = await gateway_response(OK + b"\r\n" + b"x" * 200_000)
    assert json.loads(body)["error"]["code"] == -32003


@pytest.mark.parametrize(
    "result", [b'"\xff"', b'{"height":"\xff"}', b'{"\xff":1}', b'{"height":"-5"}']
)
async def test_an_unreadable_height_is_no_height(result: bytes) -> None:
    reply = b'{"jsonrpc":"2.0","result":' + result + b',"id":1}'
    async with serve_bytes(sized(OK, reply)) as url, serve_gateway([url, url]) as served:
        pool = served.gateway.forwarders[PrimaryChain.P].pool
        assert await pool.identity.read_height(pool.nodes[0].node, 10.0) is None
        body = b'{"jsonrpc":"2.0","id":1,"method":"platform.getHeight"}'
        outcome = await served.send("POST", P, body, content_type="application/json")
        assert outcome == (200, "application/json", reply)
        assert [node.head for node in pool.nodes] == [None, None]


async def test_a_node_without_a_readable_network_id_is_not_used_and_of_no_other_network() -> None:
    reply = sized(OK, b'{"jsonrpc":"2.0","result":{"networkID":"\xff"},"id":1}')
    async with serve_bytes(reply, probe_reply=reply) as url, serve_gateway([url]) as served:
        pool = served.gateway.forwarders[PrimaryChain.P].pool
        await until(lambda: pool.failures()[0] not in ("not asked yet", "returns no network id"))
        assert (pool.is_up, pool.mismatches()) == (False, {})
