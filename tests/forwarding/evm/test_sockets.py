"""Limits of WebSocket clients: calls over a limit are refused and counted, and slow clients are cut
off.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace
from starlette.requests import Request

from tests.eventually import TIMEOUT_S, finish, until
from tests.forwarding.evm.evm import SETTINGS as FORWARDING
from tests.forwarding.evm.evm import (
    Node,
    Refusal,
    capture_all_logs,
    missing,
    open_chain,
    open_proxy,
    recorded_config,
    replay,
    serve_node,
)
from tests.forwarding.evm.evm import call as rpc
from tests.forwarding.evm.test_endpoint import PATH, Admission, ServedChain, serve_chain, ws_of
from tests.forwarding.evm.test_forwarder import RecordingObserver
from tests.node.recorded_node import closed_port
from warpseal.api.http.errors import ApiKeyRefused
from warpseal.ops.health.chains import evm_check
from warpseal.ops.health.registry import CheckOutcome


class HttpRefusal(NamedTuple):
    """The refusal of a handshake."""

    status: int


SUBSCRIBE = {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}


@asynccontextmanager
async def open_endpoint(node: Node, **more: Any) -> AsyncIterator[ServedChain]:
    async with serve_node(node), serve_chain(node.url, ws=(ws_of(node),), **more) as endpoint:
        yield endpoint


async def exchange(client: aiohttp.ClientWebSocketResponse, message: Any) -> Any:
    """Return what is answered to a message."""
    await client.send_json(message)
    return await client.receive_json(timeout=TIMEOUT_S)


def call(number: Any, method: str, *params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)}


async def refused(
    endpoint: ServedChain, query: str = "", **headers: str
) -> aiohttp.WSServerHandshakeError:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with endpoint.socket(query, **headers):
            pass
    return refusal.value


async def test_a_handshake_without_a_key_is_refused_like_a_call() -> None:
    async with open_endpoint(Node(), admission=Admission(key="k")) as endpoint:
        assert (await refused(endpoint)).status == 401
        async with endpoint.socket("?apikey=k") as client:
            assert (await exchange(client, call(1, "eth_chainId")))["result"] == "0x7a69"


async def test_a_handshake_over_the_limit_gets_a_retry_after() -> None:
    async with open_endpoint(Node(), admission=Admission(units=0)) as endpoint:
        refusal = await refused(endpoint)
        assert refusal.status == 429
        assert refusal.headers is not None
        assert refusal.headers["retry-after"] == "7"


async def test_a_client_address_has_a_quarter_of_the_connections_of_a_chain() -> None:
    few = replace(FORWARDING, max_sockets=8)
    async with open_endpoint(Node(), settings=few) as endpoint, AsyncExitStack() as stack:
        for _ in range(2):
            client = await stack.enter_async_context(endpoint.socket())
            assert (await exchange(client, call(1, "eth_chainId")))["result"] == "0x7a69"
        third = await stack.enter_async_context(endpoint.socket())
        await third.receive(timeout=TIMEOUT_S)
        assert third.close_code == 1013
        await client.close()

        async def is_free() -> bool:
            async with endpoint.socket() as another:
                await another.send_str(json.dumps(call(1, "eth_chainId")))
                return (await another.receive(timeout=TIMEOUT_S)).type is aiohttp.WSMsgType.TEXT

        await until(is_free)


async def test_a_large_message_over_the_limit_is_not_parsed() -> None:
    async with (
        open_endpoint(Node(), admission=Admission(units=1)) as endpoint,
        endpoint.socket() as client,
    ):
        await exchange(client, call(1, "eth_chainId"))
        assert (await exchange(client, call(2, "eth_chainId")))["id"] == 2
        # Neither JSON nor calls: a parser would say so.
        await client.send_str("x" * 60_000)
        response = json.loads((await client.receive(timeout=TIMEOUT_S)).data)
        assert (response["id"], response["error"]["code"]) == (None, -32005)


async def test_every_call_over_the_limit_gets_an_error() -> None:
    async with (
        open_endpoint(Node(), admission=Admission(units=3)) as endpoint,
        endpoint.socket() as client,
    ):
        assert len(await exchange(client, [call(1, "eth_chainId"), call(2, "eth_chainId")])) == 2
        responses = await exchange(client, [call("a", "eth_chainId"), call("b", "eth_chainId")])
        assert [(response["id"], response["error"]["code"]) for response in responses] == [
            ("a", -32005),
            ("b", -32005),
        ]
        assert (await exchange(client, call(3, "eth_chainId")))["error"]["code"] == -32005


@dataclass
class RevokingAdmission(Admission):
    """Revokes the key after the handshake."""

    async def admit(self, request: Request, units: int) -> None:
        self.units -= 1
        if self.units < 0:
            raise ApiKeyRefused


async def test_a_revoked_key_ends_the_connection() -> None:
    async with (
        open_endpoint(Node(), admission=RevokingAdmission(units=1)) as endpoint,
        endpoint.socket() as client,
    ):
        await client.send_json(call(1, "eth_chainId"))
        assert (await client.receive(timeout=TIMEOUT_S)).type is aiohttp.WSMsgType.CLOSE
        assert client.close_code == 1008


async def test_a_key_in_the_query_of_a_handshake_is_not_logged_at_any_level() -> None:
    node = Node()
    with capture_all_logs() as log:
        async with (
            open_endpoint(node, admission=Admission(key="secret-key")) as endpoint,
            endpoint.socket("?apikey=secret-key") as client,
        ):
            assert (await exchange(client, call(1, "eth_chainId")))["result"] == "0x7a69"
    assert "WebSocket ended" in log.getvalue()
    assert "secret-key" not in log.getvalue()
    assert not any("secret-key" in str(headers) for headers in node.headers)


async def test_calls_on_websockets_are_counted_by_class_node_and_outcome() -> None:
    counted, node = (
        RecordingObserver(),
        Node(rule=replay("l1-0", "eth_feeConfig"), replies={"eth_subscribe": "0x1"}),
    )
    node.replies["eth_sendRawTransaction"] = "0xabc"
    async with serve_node(node), AsyncExitStack() as stack:
        ws = ("ws://127.0.0.1:1/ws", ws_of(node))
        chain = serve_chain(node.url, ws=ws, observer=counted, config=recorded_config("l1-0"))
        endpoint = await stack.enter_async_context(chain)
        async with endpoint.socket() as client:
            await exchange(client, call(1, "eth_chainId"))
            await exchange(
                client, [call(1, "eth_chainId"), call("b", "eth_sendRawTransaction", "0x00")]
            )
            await exchange(client, SUBSCRIBE)
            await exchange(client, call(2, "debug_x"))
            assert sorted(counted.seen) == [
                ("read", "ws1", "ok"),
                ("read", "ws1", "ok"),
                ("subscribe", "ws1", "ok"),
                ("write", "", "denied"),
                ("write", "ws1", "ok"),
            ]
            counted.seen.clear()
            assert (await exchange(client, call(3, "eth_feeConfig")))["result"][
                "lastChangedAt"
            ] == 0
            assert ("read", "", "derived") in counted.seen


async def test_calls_that_a_node_never_answered_are_counted_as_lost() -> None:
    counted, node = RecordingObserver(), Node()
    async with serve_node(node), open_proxy(node.port) as proxy:
        ws = (f"ws://127.0.0.1:{proxy.port}/ws",)
        async with (
            serve_chain(node.url, ws=ws, observer=counted) as endpoint,
            endpoint.socket() as client,
        ):
            await exchange(client, call(1, "eth_chainId"))
            proxy.cuts_replies = True
            await client.send_json(call(2, "eth_chainId"))
            assert (await client.receive(timeout=TIMEOUT_S)).type is aiohttp.WSMsgType.CLOSE
            assert client.close_code == 1012
            await until(lambda: len(counted.seen) == 2)
            assert counted.seen == [("read", "ws0", "ok"), ("read", "ws0", "lost")]


async def test_the_subscription_limit_cannot_be_bypassed() -> None:
    node, few = (
        Node(replies={"eth_subscribe": "0x1", "eth_unsubscribe": True}),
        replace(FORWARDING, max_subscriptions=2),
    )
    async with open_endpoint(node, settings=few) as endpoint, endpoint.socket() as client:
        batch = [call(number, "eth_subscribe", "logs") for number in range(3)]
        assert [response["error"]["code"] for response in await exchange(client, batch)] == [
            -32005
        ] * 3
        for _ in range(4):
            await client.send_json(SUBSCRIBE)
        responses = [await client.receive_json(timeout=TIMEOUT_S) for _ in range(4)]
        assert sorted("error" in response for response in responses) == [False, False, True, True]
        await client.send_json({name: value for name, value in SUBSCRIBE.items() if name != "id"})
        await exchange(client, call(9, "eth_chainId"))
        assert node.count("eth_subscribe") == 2


async def test_an_ended_subscription_makes_room() -> None:
    node, few = (
        Node(replies={"eth_subscribe": "0x1", "eth_unsubscribe": True}),
        replace(FORWARDING, max_subscriptions=1),
    )
    async with open_endpoint(node, settings=few) as endpoint, endpoint.socket() as client:
        for _ in range(3):
            assert (await exchange(client, SUBSCRIBE))["result"] == "0x1"
            assert "error" in await exchange(client, SUBSCRIBE)
            node.replies["eth_unsubscribe"] = False
            await exchange(client, call(2, "eth_unsubscribe", "0x1"))
            assert "error" in await exchange(client, SUBSCRIBE), "the node still has it"
            node.replies["eth_unsubscribe"] = True
            assert (await exchange(client, call(2, "eth_unsubscribe", "0x1")))["result"] is True


async def test_pending_calls_are_bounded() -> None:
    node, few = Node(), replace(FORWARDING, max_in_flight=2)
    async with open_endpoint(node, settings=few) as endpoint, endpoint.socket() as client:
        responses = await exchange(client, [call(number, "eth_chainId") for number in range(3)])
        assert {response["error"]["message"] for response in responses} == {
            "too many calls wait for an answer"
        }
        for number in ("é", 1.5, None, 2):
            assert (await exchange(client, call(number, "eth_chainId")))["result"] == "0x7a69"


async def test_a_message_that_is_too_large_ends_the_connection() -> None:
    async with open_endpoint(Node()) as endpoint, endpoint.socket() as client:
        await client.send_str(json.dumps(call(1, "eth_call", "0" * 9_000_000)))
        assert (await client.receive(timeout=TIMEOUT_S)).type is aiohttp.WSMsgType.CLOSE
        assert client.close_code == 1009


async def test_a_filter_created_by_http_is_found_on_a_websocket() -> None:
    node, other = (
        Node(replies={"eth_newBlockFilter": "0xf1", "eth_getFilterChanges": ["mine"]}),
        Node(),
    )
    async with (
        serve_node(node),
        serve_node(other),
        serve_chain(node.url, ws=(ws_of(other),)) as endpoint,
    ):
        assert (await endpoint.rpc(("eth_newBlockFilter", []))).json["result"] == "0xf1"
        async with endpoint.socket() as client:
            assert (await exchange(client, call(1, "eth_getFilterChanges", "0xf1")))["result"] == [
                "mine"
            ]
        assert other.count("eth_getFilterChanges") == 0


async def test_health_reports_a_websocket_of_another_chain() -> None:
    node, other = Node(), Node(replies={"eth_chainId": "0x5"})
    async with (
        serve_node(node),
        serve_node(other),
        serve_chain(node.url, ws=(ws_of(node), ws_of(other))) as endpoint,
    ):
        await endpoint.chain.pool.check()
        watching = asyncio.create_task(endpoint.chain.sockets.run())
        await until(lambda: 1 in endpoint.chain.sockets.mismatches)
        outcome = evm_check(endpoint.chain).run()
        assert isinstance(outcome, CheckOutcome)
        assert outcome.error is not None
        assert outcome.error.startswith("ws[1] is of another chain: chain id 5")
        assert set(outcome.message["nodes"]) == {"ws1"}
        watching.cancel()


async def test_a_websocket_uses_the_node_with_the_highest_block() -> None:
    behind, ahead = (
        Node(replies={"eth_blockNumber": "0xf"}),
        Node(replies={"eth_blockNumber": "0x11"}),
    )
    async with (
        serve_node(behind),
        serve_node(ahead),
        serve_chain(ahead.url, ws=(ws_of(behind), ws_of(ahead))) as endpoint,
    ):
        async with endpoint.socket() as client:
            assert (await exchange(client, call(1, "eth_blockNumber")))["result"] == "0xf", (
                "no client has seen more yet"
            )
        endpoint.chain.pool.note_head(endpoint.chain.pool.nodes[0], 0x10)
        for head in ("0x11", "0x11"):
            async with endpoint.socket() as client:
                assert (await exchange(client, call(1, "eth_blockNumber")))["result"] == head
        behind.replies["eth_blockNumber"] = "0x11"
        async with endpoint.socket() as client:
            await exchange(client, call(1, "eth_gasPrice"))
        assert behind.count("eth_gasPrice") == 1


async def test_a_node_whose_http_calls_fail_is_the_last_that_a_websocket_is_opened_to() -> None:
    first, second = Node(), Node()
    async with (
        serve_node(first),
        serve_node(second),
        open_chain(first.url, second.url, ws=(ws_of(first), ws_of(second))) as chain,
    ):
        await chain.pool.check()
        first.status = 503
        await chain.forwarder.read(rpc("eth_gasPrice"))
        async with chain.sockets.connect("192.0.2.1") as opened:
            assert opened.upstream == "ws1"


async def test_a_node_that_accepts_no_websocket_is_on_cooldown_for_http_calls() -> None:
    first, second = Node(), Node()
    async with serve_node(first), serve_node(second), AsyncExitStack() as stack:
        ws = (ws_of(first), ws_of(second))
        chain = await stack.enter_async_context(open_chain(first.url, second.url, ws=ws))
        await chain.pool.check()
        assert [node.position for node in await chain.pool.candidates()] == [0, 1]
        refusing = dataclasses.replace(first, port=closed_port())
        other = open_chain(first.url, second.url, ws=(ws_of(refusing), ws_of(second)))
        unpaired = await stack.enter_async_context(other)
        await unpaired.pool.check()
        async with unpaired.sockets.connect("192.0.2.1") as opened:
            assert (opened.upstream, unpaired.pool.failures()) == ("ws1", {}), (
                "another address is another node"
            )
        first.socket_status = 503
        async with chain.sockets.connect("192.0.2.1") as opened:
            assert (opened.upstream, chain.pool.failures()) == ("ws1", {0: "HTTP status 503"})
        assert [node.position for node in await chain.pool.candidates()] == [1, 0]


async def test_only_the_messages_of_a_client_are_sent_to_its_node() -> None:
    node = Node()
    headers = {
        "authorization": "Bearer mine",
        "cookie": "a=b",
        "origin": "https://a.example",
        "x-forwarded-for": "::",
    }
    async with open_endpoint(node) as endpoint, endpoint.socket("?x=y", **headers) as client:
        await exchange(client, call(1, "eth_chainId"))
        names = {name.lower() for name in node.headers[-1]}
        assert not names & set(headers)


async def test_without_a_node_a_client_is_asked_to_try_again_later() -> None:
    node, other = Node(), Node(replies={"eth_getBlockByNumber": None})
    async with (
        serve_node(node),
        serve_node(other),
        serve_chain(node.url, ws=(ws_of(other),)) as endpoint,
        endpoint.socket() as client,
    ):
        assert (await client.receive(timeout=TIMEOUT_S)).type is aiohttp.WSMsgType.CLOSE
        assert client.close_code == 1013
        assert endpoint.chain.sockets.mismatches == {0: "returns no chain id or no block 0"}


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (
            Refusal(-32000, "invalid API key opensesame"),
            "eth_chainId: invalid API key *** (-32000)",
        ),
        (missing("eth_chainId"), "eth_chainId: the method eth_chainId does not exist/is not"),
        (msgspec.Raw(b'"\\ud800"'), "eth_chainId: the reply cannot be read"),
        (msgspec.Raw(b"1e999"), "eth_chainId: the reply cannot be read"),
        (HttpRefusal(401), "HTTP 401: the provider refuses this key or address"),
        (HttpRefusal(403), "HTTP 403: the provider refuses this key or address"),
        (HttpRefusal(429), "busy"),
        (HttpRefusal(404), "HTTP status 404"),
    ],
)
async def test_a_node_that_refuses_a_websocket_or_to_name_its_chain_is_of_no_other_chain(
    reply: object, failure: str
) -> None:
    node, refusing = Node(), Node()
    if isinstance(reply, HttpRefusal):
        refusing.socket_status = reply.status
    else:
        refusing.replies["eth_chainId"] = reply
    async with (
        serve_node(node),
        serve_node(refusing),
        serve_chain(node.url, ws=(f"{ws_of(refusing)}?apikey=opensesame", ws_of(node))) as endpoint,
    ):
        async with endpoint.socket() as client:
            assert (await exchange(client, call(1, "eth_chainId")))["result"] == "0x7a69"
        sockets = endpoint.chain.sockets
        assert sockets.mismatches == {}
        outcome = evm_check(endpoint.chain).run()
        assert isinstance(outcome, CheckOutcome)
        assert outcome.error is None
        assert list(outcome.message["nodes"]) == ["ws0"]
        assert outcome.message["nodes"]["ws0"].startswith(failure)
        refusing.replies.clear()
        refusing.socket_status = None
        async with sockets.connect("192.0.2.1") as opened:
            assert (opened.upstream, sockets.failures) == ("ws0", {})


async def test_a_client_that_leaves_before_it_is_asked_to_try_later_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_left = asyncio.Event()

    async def end_after_the_client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await has_left.wait()
        writer.close()

    async with await asyncio.start_server(end_after_the_client, "127.0.0.1", 0) as node:
        url = f"ws://127.0.0.1:{node.sockets[0].getsockname()[1]}/ws"
        async with serve_chain("http://127.0.0.1:1/rpc", ws=(url,)) as endpoint:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", int(endpoint.url.rpartition(":")[2])
            )
            writer.write(HANDSHAKE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            writer.write(GOODBYE)
            await finish(reader.read())
            writer.close()
            has_left.set()
            await until(lambda: endpoint.chain.sockets.clients == 0)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_text_that_is_not_utf8_after_the_daemon_has_closed_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve_chain("http://127.0.0.1:1/rpc", ws=("ws://127.0.0.1:1/ws",)) as endpoint:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(endpoint.url.rpartition(":")[2])
        )
        writer.write(HANDSHAKE)
        await reader.readuntil(b"no node can be reached now")
        writer.write(b"\x81\x82" + bytes(4) + b"\xff\xfe" + GOODBYE)
        await finish(reader.read())
        writer.close()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


# A masked frame that ends the connection with 1000.
GOODBYE = b"\x88\x82" + bytes(4) + b"\x03\xe8"
HANDSHAKE = (
    f"GET {PATH}/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
).encode()


def masked(message: Any) -> bytes:
    """Return a client's frame of a message of less than 64 KiB; its mask is zero."""
    text = json.dumps(message).encode()
    return bytes([0x81, 0x80 | 126]) + len(text).to_bytes(2, "big") + bytes(4) + text


async def end_of(raw: sockets.socket) -> str:
    """Read until the connection ends, and return how: "reset", "closed", or the close code."""
    read = b""
    try:
        while part := await asyncio.get_running_loop().sock_recv(raw, 65_536):
            read = read[-200:] + part
            if b"messages are not read as fast as they come" in read:
                return (
                    f"closed with {int.from_bytes(read[read.rindex(b'messages') - 2 :][:2], 'big')}"
                )
    except ConnectionError:
        return "reset"
    return "closed"


@pytest.mark.parametrize("floods", [False, True])
async def test_a_client_that_does_not_read_is_cut_off(floods: bool) -> None:
    """floods: it is its own replies that the client does not read."""
    node, few = Node(replies={"eth_subscribe": "0x1"}), replace(FORWARDING, max_queued=8)
    async with open_endpoint(node, settings=few) as endpoint, AsyncExitStack() as stack:
        raw = stack.enter_context(sockets.socket())
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4_096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        host, _, port = endpoint.url.removeprefix("http://").partition(":")
        await loop.sock_connect(raw, (host, int(port)))
        await loop.sock_sendall(raw, HANDSHAKE)
        assert (await loop.sock_recv(raw, 12)).startswith(b"HTTP/1.1 101")
        await loop.sock_sendall(raw, masked(call(1, "eth_subscribe", "logs")))
        await until(lambda: node.count("eth_subscribe") == 1)
        if floods:
            flood = asyncio.create_task(
                loop.sock_sendall(raw, masked(call("x" * 30_000, "debug_x")) * 2_000)
            )
        else:
            flood = asyncio.create_task(node.events("0x1", "x" * 1_000_000, 40))
        stack.callback(flood.cancel)
        await until(lambda: endpoint.chain.sockets.clients == 0)
        assert await finish(end_of(raw)) in ("closed", "reset", "closed with 1008")


async def test_the_log_names_chain_node_and_status_of_a_websocket_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    node = Node(socket_status=503)
    async with open_endpoint(node) as endpoint, endpoint.socket() as client:
        message = await client.receive(timeout=TIMEOUT_S)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1013)
    failed = next(
        record for record in caplog.records if record.getMessage() == "EVM node WebSocket failed"
    )
    fields = vars(failed)
    assert (fields["evm_chain"], fields["reason"]) == (
        endpoint.chain.forwarder.name,
        "HTTP status 503",
    )
    assert fields["node"].endswith(str(node.port))
