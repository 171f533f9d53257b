"""Bodies in many small chunks: what a turn of the event loop parses of them is bounded over all
connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from tests.api.fixtures import KEBAB
from tests.api.raw_http import BODY, QUICK, post, quick_server, replies
from tests.eventually import finish
from warpseal.api.http import chunk_turns
from warpseal.api.http.chunk_turns import MAX_CHUNKS, ChunkTurns
from warpseal.api.http.http_protocol import LimitedHttp

CHUNKED = post(b"", KEBAB, "Connection: close").replace(
    b"Content-Length: 0", b"Transfer-Encoding: chunked"
)
END = b"0\r\n\r\n"


async def test_networks_take_turns_and_so_do_the_reads_of_one() -> None:
    turns, order, turn = ChunkTurns(), list[tuple[int, str]](), 0

    def read(name: str) -> None:
        order.append((turn, name))
        turns.count(MAX_CHUNKS)

    turns.count(MAX_CHUNKS)
    assert turns.is_over
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        turns.wait(name[0], lambda name=name: read(name))  # type: ignore[misc]
    while turn < 7:
        turn += 1
        await asyncio.sleep(0)
    assert order == [(1, "a1"), (2, "b1"), (3, "c1"), (4, "a2"), (5, "c2"), (6, "a3")]
    await asyncio.sleep(0)
    assert not turns.is_over


async def test_all_bodies_of_small_chunks_are_read_whole_a_few_thousand_chunks_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_turns, "MAX_CHUNKS", 2_000)
    by_turn, turn = Counter[int](), 0
    add_body = LimitedHttp._add_body

    def count_chunks(self: LimitedHttp) -> None:
        by_turn[turn] += len(self._body_parts)
        add_body(self)

    monkeypatch.setattr(LimitedHttp, "_add_body", count_chunks)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    settings = replace(QUICK, receive_timeout_s=1_000.0, max_body_bytes=1_000_000)
    body = BODY + b" " * (20_000 - len(BODY))
    request = CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + END
    async with quick_server(settings) as server:
        counting = asyncio.create_task(count_turns())
        clients = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(10)]
        for _, writer in clients:
            writer.write(request)
        for reader, writer in clients:
            (reply,) = replies(await finish(reader.read()))
            assert reply.status == 200
            writer.close()
        counting.cancel()
    assert sum(by_turn.values()) == 10 * len(body)
    # The last piece of a turn may have 683 chunks, and each connection has a piece with its header.
    assert max(by_turn.values()) < 2_000 + 11 * 683


async def test_a_waiting_body_delays_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_turns.ChunkTurns, "is_over", True)
    monkeypatch.setattr(chunk_turns.ChunkTurns, "count", lambda self, chunks: None)
    settings = replace(QUICK, receive_timeout_s=1_000.0, max_body_bytes=1_000_000)
    long = BODY + b" " * 300_000
    async with quick_server(settings) as server:
        _, waiting = await asyncio.open_connection("127.0.0.1", server.port)
        waiting.write(CHUNKED + b"1\r\n{\r\n" * 5_000)
        for request in (
            post(BODY, KEBAB, "Connection: close"),
            post(long, KEBAB, "Connection: close"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            (reply,) = replies(await finish(reader.read()))
            assert reply.status == 200
            writer.close()
        waiting.close()
