"""Connections over real sockets: no client can hold one open, fill it up or crash it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
import pytest
from msgspec.structs import replace

from tests.api.fixtures import (
    KEBAB,
    V1,
    ApiSetup,
    EndlessAggregation,
    ScriptedAggregator,
    aggregation,
    exchange,
)
from tests.api.raw_http import BODY, QUICK, post, quick_server, replies, trickle
from tests.eventually import finish, until
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.http import http_protocol


async def test_a_header_that_trickles_in_is_cut_off_at_the_absolute_deadline() -> None:
    async with quick_server() as server:
        pieces = [bytes([byte]) for byte in post() * 20]
        output, pieces_sent = await trickle(server.port, pieces, 0.02)
    (reply,) = replies(output)
    assert (reply.status, reply.json["code"]) == (400, "receive_timeout")
    assert reply.headers["connection"] == "close"
    assert 1 < pieces_sent < len(pieces)


@pytest.mark.parametrize(("path", "key"), [(KEBAB, "error"), (V1, "message")])
async def test_a_body_that_trickles_in_is_cut_off_at_the_absolute_deadline(
    path: str, key: str
) -> None:
    async with quick_server() as server:
        whole = post(bytes(2000), path)
        head = whole[: whole.index(b"\r\n\r\n") + 4]
        pieces = [head, *[b" "] * 1000]
        output, pieces_sent = await trickle(server.port, pieces, 0.02)
    (reply,) = replies(output)
    assert (reply.status, reply.json["code"]) == (400, "receive_timeout")
    assert "did not arrive" in reply.json[key]
    assert 1 < pieces_sent < len(pieces)


async def test_a_silent_connection_is_closed_at_the_deadline() -> None:
    async with quick_server() as server:
        output, _ = await trickle(server.port, [], 0)
        assert output == b""
        output, pieces_sent = await trickle(server.port, [b"\r\n"] * 500, 0.02)
        assert output == b""
        assert pieces_sent < 500


async def test_slow_clients_do_not_delay_a_fast_client() -> None:
    async with quick_server(replace(QUICK, receive_timeout_s=3600.0)) as server:
        slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
        for _, writer in slow:
            writer.write(post()[:-1])
        async with aiohttp.ClientSession(server.url) as client:
            response = await finish(client.post(KEBAB, data=BODY))
            assert response.status == 200
        for _, writer in slow:
            writer.write(post()[-1:] + post(BODY, KEBAB, "Connection: close"))
        output = [await finish(reader.read()) for reader, _ in slow]
        for _, writer in slow:
            writer.close()
    assert [reply.status for raw in output for reply in replies(raw)] == [200] * 100


async def test_an_idle_keep_alive_connection_is_closed() -> None:
    async with quick_server() as server:
        output, _ = await trickle(server.port, [post()], 0)
        assert [reply.status for reply in replies(output)] == [200]
        output, pieces_sent = await trickle(server.port, [post(), *[b"\r\n"] * 500], 0.02)
        assert [reply.status for reply in replies(output)] == [200]
        assert pieces_sent < 501


async def test_a_response_may_take_longer_than_the_receive_deadline() -> None:
    async def slowly(request: AggregationRequest) -> Aggregation:
        await asyncio.sleep(1.0)
        return aggregation()

    setup = ApiSetup(QUICK, aggregator=ScriptedAggregator(slowly))
    async with quick_server(setup=setup) as server:
        output = await exchange(server.port, post() + post(BODY, KEBAB, "Connection: close"))
    assert [reply.status for reply in replies(output)] == [200, 200]


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        (
            b"POST /aggregate-signatures HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:"
            b" chunked\r\n\r\nzz\r\n"
        ),
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    ],
)
async def test_malformed_http_is_answered_in_json(raw: bytes) -> None:
    async with quick_server() as server:
        (reply,) = replies(await exchange(server.port, raw))
    assert (reply.status, reply.json["code"]) == (400, "malformed_http")
    assert reply.headers["x-request-id"]
    assert set(reply.json) == {"error", "code", "detail"}


async def test_malformed_http_on_a_v1_path_is_answered_in_its_dialect() -> None:
    raw = b"POST " + V1.encode() + b" HTTP/1.1\r\nbad header\r\n\r\n"
    async with quick_server() as server:
        (reply,) = replies(await exchange(server.port, raw))
    assert (reply.json["statusCode"], reply.json["error"]) == (400, "Bad Request")


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 5000,
    ],
)
async def test_a_large_header_is_refused(raw: bytes) -> None:
    async with quick_server() as server:
        (reply,) = replies(await exchange(server.port, raw))
    assert (reply.status, reply.json["code"]) == (400, "header_too_large")


async def test_trailers_count_as_header() -> None:
    raw = (
        b"POST /aggregate-signatures HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        + b"a: b\r\n" * 1000
    )
    async with quick_server() as server:
        (reply,) = replies(await exchange(server.port, raw))
    assert (reply.status, reply.json["code"]) == (400, "header_too_large")


@pytest.mark.parametrize(("path", "status"), [(KEBAB, 413), (V1, 400)])
async def test_a_large_body_is_refused_and_its_sender_sees_the_response(
    path: str, status: int
) -> None:
    async with quick_server() as server, aiohttp.ClientSession(server.url) as client:
        for body in (bytes(4097), bytes(30_000)):
            response = await client.post(path, data=body)
            assert (response.status, (await response.json())["code"]) == (status, "body_too_large")
        response = await client.post(path, data=BODY)
        assert response.status in (200, 201)


async def _chunks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(1000)


async def test_a_large_body_is_refused_while_it_comes_in_chunks() -> None:
    async with quick_server() as server, aiohttp.ClientSession(server.url) as client:
        response = await client.post(KEBAB, data=_chunks(20))
        assert (response.status, (await response.json())["code"]) == (413, "body_too_large")
        async with client.post(KEBAB, data=_chunks(4)) as response:
            assert (await response.json())["code"] == "undecodable_body"


async def test_an_endless_body_is_cut_off() -> None:
    async with quick_server(replace(QUICK, receive_timeout_s=5.0)) as server:
        head = b"POST /aggregate-signatures HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"1000\r\n" + bytes(4096) + b"\r\n"
        output, pieces_sent = await trickle(server.port, [head, *[chunk * 4] * 1000], 0.001)
    assert replies(output)[0].json["code"] == "body_too_large"
    assert pieces_sent < 1001


async def test_the_body_of_a_refused_request_is_discarded() -> None:
    async with quick_server() as server:
        output = await exchange(
            server.port, post(bytes(4000), "/nope") + post(BODY, KEBAB, "Connection: close")
        )
    assert [reply.status for reply in replies(output)] == [404, 200]


async def test_a_client_that_expects_100_continue_gets_it_before_it_sends_its_body() -> None:
    async with quick_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(BODY, KEBAB, "Expect: 100-continue")[: -len(BODY)])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_client_that_expects_100_continue_is_refused_before_it_sends_a_large_body() -> None:
    async with quick_server(replace(QUICK, receive_timeout_s=1000.0)) as server:
        head = post(bytes(5000), KEBAB, "Expect: 100-continue")[:-5000]
        (reply,) = replies(await exchange(server.port, head))
    assert (reply.status, reply.json["code"], reply.headers["connection"]) == (
        413,
        "body_too_large",
        "close",
    )


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")


@pytest.mark.parametrize("pause_s", [None, 0.001])
async def test_an_upgrade_header_is_ignored_and_the_request_is_answered(
    pause_s: float | None,
) -> None:
    head = "\r\n".join([f"POST {KEBAB} HTTP/1.1", *UPGRADE, "Transfer-Encoding: chunked"]).encode()
    chunked = head + b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    get = "\r\n".join(["GET /health HTTP/1.1", *UPGRADE]).encode() + b"\r\n\r\n"
    raw = post(BODY, KEBAB, *UPGRADE) + chunked + get + post(BODY, KEBAB, "Connection: close")
    async with quick_server(replace(QUICK, receive_timeout_s=8)) as server:
        pieces = [raw] if pause_s is None else [bytes([byte]) for byte in raw]
        output, _ = await trickle(server.port, pieces, pause_s or 0)
    assert [reply.status for reply in replies(output)] == [200, 200, 200, 200]


async def test_pipelined_requests_are_answered_in_order_and_a_bad_one_ends_the_connection() -> None:
    async with quick_server() as server:
        output = await exchange(server.port, post() + post(b"{}") + b"nonsense\r\n\r\n" + post())
    assert [reply.status for reply in replies(output)][:1] == [200]
    assert len(replies(output)) < 4


async def test_a_flood_of_pipelined_requests_is_bounded() -> None:
    async with quick_server() as server:
        output = await exchange(server.port, b"GET /health HTTP/1.1\r\n\r\n" * 5000)
    assert len(replies(output)) < 100


async def test_connections_are_limited() -> None:
    async with quick_server(replace(QUICK, max_connections=3, receive_timeout_s=1000.0)) as server:
        connections = server._state.connections
        clients = [
            await asyncio.open_connection(
                "127.0.0.1", server.port, local_addr=(f"127.0.0.{number}", 0)
            )
            for number in (2, 3, 4)
        ]
        await until(lambda: len(connections) == 3)
        (reply,) = replies(await exchange(server.port, b""))
        assert (reply.status, reply.json["code"]) == (429, "too_many_connections")
        clients[0][1].close()
        await until(lambda: len(connections) == 2)
        (reply,) = replies(await exchange(server.port, post(BODY, KEBAB, "Connection: close")))
        assert reply.status == 200
        for _, writer in clients[1:]:
            writer.close()


async def test_one_client_address_may_hold_a_quarter_of_the_connections_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "_PATIENCE_S", 0.01)
    settings = replace(QUICK, max_connections=8, receive_timeout_s=1000.0, keep_alive_s=1000.0)
    async with quick_server(settings) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        assert await finish(idle[0][0].read()) == b""
        assert len(server._state.connections) == 2
        # A probe from the same address is served.
        probe = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        (reply,) = replies(await exchange(server.port, probe))
        assert reply.status in (200, 503)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(post())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        idle[1][1].write(post())
        assert (await idle[1][0].readline()).startswith(b"HTTP/1.1 200")
        for _, client in (*idle, (reader, writer)):
            client.close()


async def test_many_new_connections_of_one_address_all_get_their_responses() -> None:
    settings = replace(QUICK, max_connections=40, receive_timeout_s=1000.0, keep_alive_s=1000.0)
    async with quick_server(settings) as server:
        clients = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
        await until(lambda: len(server._state.connections) == 30)
        for _, writer in clients:
            writer.write(post(BODY, KEBAB, "Connection: close"))
        for reader, writer in clients:
            (reply,) = replies(await finish(reader.read()))
            assert reply.status == 200
            writer.close()


async def test_requests_that_have_not_arrived_hold_no_place_and_the_oldest_of_too_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "_PATIENCE_S", 0.01)
    settings = replace(
        QUICK, max_requests_in_flight=2, max_connections=16, receive_timeout_s=1000.0
    )
    paths = (KEBAB, V1, f"{V1.rpartition('/')[0]}/verify", KEBAB, V1)
    async with quick_server(settings) as server:
        slow = []
        for number, path in enumerate((*paths, *paths)):
            address = ("127.0.0.2", "127.0.0.3")[number // len(paths)]
            slow.append(
                await asyncio.open_connection("127.0.0.1", server.port, local_addr=(address, 0))
            )
            slow[-1][1].write(post(BODY, path)[:-1])
        # Both addresses have a connection more than a quarter of all.
        for reader, _ in (slow[0], slow[5]):
            (reply,) = replies(await finish(reader.read()))
            assert (reply.status, reply.json["code"]) == (429, "too_many_connections")
        for _ in range(3):
            (reply,) = replies(await exchange(server.port, post(BODY, KEBAB, "Connection: close")))
            assert reply.status == 200
        # What they have not sent may still come.
        for reader, writer in (slow[1], slow[6]):
            writer.write(BODY[-1:])
            assert (await finish(reader.readline())).startswith(b"HTTP/1.1 201")
        for _, writer in slow:
            writer.close()


async def test_a_slow_request_of_a_pipeline_counts_as_idle_once_it_is_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "_PATIENCE_S", 0.01)
    settings = replace(QUICK, max_connections=4, receive_timeout_s=1000.0, keep_alive_s=1000.0)
    async with quick_server(settings) as server:
        slow, outputs = [], []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(post() + post()[:-1])
            output = b""
            # The turn of the slow request comes with this reply, so the first one waits longest.
            while not replies(output):
                output += await finish(reader.read(65_536))
            slow.append((reader, writer))
            outputs.append(output)
        first, second = replies(outputs[0] + await finish(slow[0][0].read()))
        assert (first.status, second.status) == (200, 429)
        assert second.json["code"] == "too_many_connections"
        slow[1][1].write(BODY[-1:] + post())
        while len(replies(outputs[1])) < 3:
            outputs[1] += await finish(slow[1][0].read(65_536))
        assert [reply.status for reply in replies(outputs[1])] == [200, 200, 200]
        for _, writer in slow:
            writer.close()


@pytest.mark.parametrize(
    ("coding", "status"),
    # RFC 9112, 6.3: without chunked at the end the length of the body is not known, which is 400.
    [
        ("xchunked", 501),
        ("gzip", 501),
        ("gzip, chunked", 501),
        ("identity", 501),
        ("chunked, gzip", 400),
    ],
)
async def test_a_transfer_coding_that_is_not_chunked_is_refused_and_ends_the_connection(
    coding: str, status: int
) -> None:
    head = f"POST {KEBAB} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
    async with quick_server() as server:
        (reply,) = replies(await exchange(server.port, head + b"2\r\n{}\r\n0\r\n\r\n"))
        code = {501: "unknown_transfer_coding", 400: "malformed_http"}[status]
        assert (reply.status, reply.json["code"]) == (status, code)
        assert reply.headers["connection"] == "close"


def has_requests(setup: ApiSetup, count: int) -> bool:
    return len(setup.aggregator.requests) == count


async def test_connections_with_a_request_do_not_count_as_idle() -> None:
    setup, is_responding = (
        ApiSetup(replace(QUICK, max_connections=8, keep_alive_s=1000.0)),
        asyncio.Event(),
    )

    async def act(_: object) -> Aggregation:
        await is_responding.wait()
        return aggregation()

    setup.aggregator.act = act
    async with quick_server(setup.settings, setup) as server:
        clients = []
        for number in range(1, 4):
            clients.append(await asyncio.open_connection("127.0.0.1", server.port))
            clients[-1][1].write(post())
            await until(partial(has_requests, setup, number))
        is_responding.set()
        for reader, _ in clients:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        # Each has its response; the first of them may not stay open without a request.
        await until(lambda: len(server._state.connections) == 2)
        for _, writer in clients:
            writer.close()


async def test_a_disconnected_pipelining_client_cancels_its_requests() -> None:
    endless = EndlessAggregation()
    setup = ApiSetup(QUICK, aggregator=ScriptedAggregator(endless.aggregate))
    async with quick_server(setup=setup) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post() * 3)
        await finish(endless.started.wait())
        writer.close()
        await finish(endless.cancelled.wait())


def _mutated(rnd: random.Random) -> bytes:
    whole = rnd.choice(
        [post(), post(b"{}", V1), post(bytes(5000)), b"GET /health HTTP/1.1\r\n\r\n"]
    )
    raw = bytearray(whole * rnd.randint(1, 3))
    for _ in range(rnd.randint(1, 5)):
        at = rnd.randrange(len(raw))
        if rnd.random() < 0.5:
            raw[at] = rnd.randrange(256)
        else:
            raw[at:at] = rnd.choice(
                [b"\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"\x00"]
            )
    return bytes(raw)


async def _send_and_leave(port: int, rnd: random.Random) -> None:
    raw, stays = _mutated(rnd), rnd.random() < 0.7
    try:
        output = await exchange(port, raw, until_closed=stays)
    except ConnectionError:
        return
    assert output == b"" or output.startswith(b"HTTP/1.1 ")


async def test_mutated_requests_neither_crash_the_server_nor_stay_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with quick_server() as server:
        for seed in range(0, 300, 50):
            await asyncio.gather(
                *(_send_and_leave(server.port, random.Random(seed + n)) for n in range(50))
            )
        output = await exchange(server.port, post(BODY, KEBAB, "Connection: close"))
    assert replies(output)[0].status == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
