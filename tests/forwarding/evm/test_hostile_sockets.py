"""Malformed WebSocket frames of clients and nodes end their connection and no other."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress

import aiohttp
import pytest
from msgspec.structs import replace
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tests.eventually import TIMEOUT_S, finish
from tests.forwarding.evm.evm import SETTINGS as FORWARDING
from tests.forwarding.evm.evm import Node
from tests.forwarding.evm.test_sockets import (
    HANDSHAKE,
    SUBSCRIBE,
    call,
    exchange,
    masked,
    open_endpoint,
)
from warpseal.api.http import chunk_turns

MASK = bytes(4)
LARGE = b"\xfe\xff\xff" + MASK + b"[" * 65_535
"""A fragment without its first byte."""


@pytest.mark.parametrize(
    "frames",
    [
        b"\x83\x80" + MASK,
        b"\x81\x05hello",
        b"\xf1\x80" + MASK,
        b"\x81\x82" + MASK + b"\xff\xfe",
        b"\x81\xff" + b"\x7f" + b"\xff" * 7 + MASK,
        b"\x89\xfe\x01\x00" + MASK + b"p" * 256,
        b"\x80\x80" + MASK,
        b"\x01\x81" + MASK + b"a" + b"\x81\x81" + MASK + b"b",
        b"\x88\x81" + MASK + b"\x03",
        b"\x88\x82" + MASK + b"\x03\xe7",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x01" + LARGE + (b"\x00" + LARGE) * 100,
    ],
    ids=[
        "an opcode that is none",
        "not masked",
        "bits of no extension",
        "not UTF-8",
        "an absurd length",
        "a long ping",
        "a continuation of nothing",
        "two messages in one",
        "half a code",
        "a code that is none",
        "HTTP",
        "fragments without an end",
    ],
)
async def test_frames_that_break_the_rules_end_their_connection(
    frames: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_endpoint(Node()) as endpoint, endpoint.socket() as other:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(endpoint.url.rpartition(":")[2])
        )
        writer.write(HANDSHAKE)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        writer.write(frames)
        with suppress(ConnectionError):
            await finish(reader.read())
        writer.close()
        assert (await exchange(other, call(1, "eth_chainId")))["result"] == "0x7a69"
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_turn_parses_a_few_kilobytes_of_the_frames_of_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_turn, turn, parse = Counter[int](), 0, WebSocketsSansIOProtocol.data_received

    def count_bytes(self: WebSocketsSansIOProtocol, data: bytes) -> None:
        by_turn[turn] += len(data)
        parse(self, data)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(WebSocketsSansIOProtocol, "data_received", count_bytes)
    empty = b"\x80" + MASK
    frames = b"\x01" + empty + (b"\x00" + empty) * 5_000 + b"\x80" + empty
    async with open_endpoint(Node()) as endpoint, endpoint.socket() as other:
        port = int(endpoint.url.rpartition(":")[2])
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for reader, writer in clients:
            writer.write(HANDSHAKE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        counting = asyncio.create_task(count_turns())
        by_turn.clear()
        for _, writer in clients:
            writer.write(frames)
        # Of the same network, and behind no more than the frames that came before it.
        assert (await exchange(other, call(1, "eth_chainId")))["result"] == "0x7a69"
        for reader, writer in clients:
            # The response to the empty message, once all its frames were parsed.
            assert await finish(reader.readexactly(2))
            writer.close()
        counting.cancel()
    assert sum(by_turn.values()) >= 20 * len(frames)
    # A turn ends with the piece that exceeds its bound.
    assert max(by_turn.values()) <= chunk_turns.MAX_CHUNKS


@pytest.mark.parametrize(
    "message",
    [
        "",
        "[",
        "{}",
        "[]",
        "null",
        "[" * 5_000,
        '{"jsonrpc":"2.0","id":{},"method":"x"}',
        "\x00",
        "[1,2]",
    ],
)
async def test_malformed_messages_keep_the_connection_open(message: str) -> None:
    async with open_endpoint(Node()) as endpoint, endpoint.socket() as client:
        await client.send_str(message)
        await client.send_bytes(message.encode())
        await client.send_json(call("last", "eth_chainId"))
        async with asyncio.timeout(TIMEOUT_S):
            while (response := await client.receive_json()) != {
                "jsonrpc": "2.0",
                "id": "last",
                "result": "0x7a69",
            }:
                errors = response if isinstance(response, list) else [response]
                assert {error["error"]["code"] for error in errors} <= {-32700, -32600}


async def test_ids_and_params_that_cannot_be_decoded_keep_the_connection_open() -> None:
    async with open_endpoint(Node()) as endpoint, endpoint.socket() as client:
        for message in (
            b'{"jsonrpc":"2.0","id":"\xff","method":"eth_chainId"}',
            b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":["\xff"]}',
        ):
            await client.send_bytes(message)
            assert (await client.receive_json(timeout=TIMEOUT_S))["result"] == "0x7a69"
        await client.send_str('{"jsonrpc":"2.0","id":1e999,"method":"eth_chainId"}')
        await client.receive(timeout=TIMEOUT_S)
        assert (await exchange(client, call("last", "eth_chainId")))["result"] == "0x7a69"


async def test_a_node_message_that_is_too_large_closes_the_connection_with_1012() -> None:
    node, few = (
        Node(replies={"eth_subscribe": "0x1"}),
        replace(FORWARDING, max_message_bytes=10_000),
    )
    async with open_endpoint(node, settings=few) as endpoint, endpoint.socket() as client:
        await exchange(client, SUBSCRIBE)
        await node.event("0x1", "x" * 20_000)
        assert (await client.receive(timeout=TIMEOUT_S)).type is aiohttp.WSMsgType.CLOSE
        assert client.close_code == 1012


@pytest.mark.parametrize(
    "reply",
    [
        *("nope", "[]", '{"id":0}', '[{"id":0,"result":"0x7a69"}]', "[" * 2_000, "{" * 9),
        '{"id":' + "[" * 5_000 + "]" * 5_000 + "}",
    ],
)
async def test_malformed_messages_of_a_node_are_passed_on_unchanged(reply: str) -> None:
    """answer: sent in place of an event; the client has to check it."""
    node = Node(replies={"eth_subscribe": "0x1"})
    async with open_endpoint(node) as endpoint, endpoint.socket() as client:
        await exchange(client, SUBSCRIBE)
        await client.send_json(call(2, "eth_unsubscribe", "0x1"))
        await node.sockets[-1].send_str(reply)
        texts = [await client.receive_str(timeout=TIMEOUT_S) for _ in range(2)]
        assert reply in texts
        assert (await exchange(client, call(3, "eth_chainId")))["result"] == "0x7a69"


def test_masked_test_frames_have_the_declared_length() -> None:
    frame = masked({"a": 1})
    assert int.from_bytes(frame[2:4], "big") == len(frame) - 8
