"""Signing blocks hold for the Warp API of nodes: each method, by HTTP, in batches and on
WebSockets, and a daemon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.api.node.fixtures import C_CHAIN
from tests.chains.evm.icm_logs import NETWORK_ID, Message
from tests.eventually import TIMEOUT_S, until
from tests.forwarding.evm.evm import CHAIN, Node, Refusal, serve_node
from tests.forwarding.evm.test_endpoint import PATH, ServedChain, serve_chain, ws_of
from tests.forwarding.primary.serving import GatewayNode
from tests.forwarding.primary.test_daemon import gateway_daemon
from tests.messages.test_signing_blocks import block, hex_of, warp_message, with_blocks
from tests.node.recorded_node import serve_app
from warpseal.messages.warp_api import SigningRules, WarpApiGuard
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.store.values import SigningBlock, SigningBlockKind
from warpseal.warp.ids import ChainID, id_text
from warpseal.warp.message import Hash, UnsignedMessage

OTHER, DESTINATION = ChainID(bytes([8]) * 32), ChainID(bytes([9]) * 32)
SENT = Message(CHAIN, DESTINATION, 7, b"\xaa" * 20, b"\xcc" * 20)
MESSAGE = warp_message(SENT)
BLOCK_ID = bytes([5]) * 32
BLOCK_MESSAGE = UnsignedMessage.build(NETWORK_ID, CHAIN, Hash(BLOCK_ID).encode())
KINDS = SigningBlockKind
OF_MESSAGES: tuple[tuple[str, list[Any]], ...] = (
    ("warp_getMessage", [id_text(MESSAGE.id)]),
    ("warp_getMessageSignature", [id_text(MESSAGE.id)]),
    ("warp_getMessageAggregateSignature", [id_text(MESSAGE.id), 67, id_text(bytes(32))]),
)
OF_BLOCKS: tuple[tuple[str, list[Any]], ...] = (
    ("warp_getBlockSignature", [id_text(BLOCK_ID)]),
    ("warp_getBlockAggregateSignature", [id_text(BLOCK_ID), 67, id_text(bytes(32))]),
)
SIGNING = [name for name, _ in (*OF_MESSAGES, *OF_BLOCKS) if name != "warp_getMessage"]
OF_MESSAGE_BLOCKS = (
    (KINDS.SOURCE_CHAIN, id_text(CHAIN)),
    (KINDS.MESSAGE_ID, hex_of(MESSAGE.id)),
    (KINDS.MESSAGE_ID, hex_of(SENT.id)),
    (KINDS.SENDER, hex_of(SENT.sender)),
    (KINDS.SENDER, hex_of(SENT.messenger)),
    (KINDS.DESTINATION, id_text(DESTINATION)),
)
OF_OTHERS = (
    (KINDS.SOURCE_CHAIN, id_text(OTHER)),
    (KINDS.MESSAGE_ID, hex_of(OTHER)),
    (KINDS.SENDER, hex_of(b"\xdd" * 20)),
    (KINDS.DESTINATION, id_text(OTHER)),
)
Send = Callable[[ServedChain, str, list[Any]], Awaitable[Any]]


def warp_node(**replies: Any) -> Node:
    """Return a node with the Warp API, which has the message."""
    results = {"warp_getMessage": hex_of(MESSAGE.raw), **dict.fromkeys(SIGNING, "0x51")}
    return Node(replies={"eth_gasPrice": "0x2", **results, **replies})


def guard_by(blocks: SigningBlocks | None) -> WarpApiGuard:
    rules = SigningRules()
    if blocks is not None:
        rules.open(NETWORK_ID, blocks)
    return WarpApiGuard(CHAIN, rules)


@asynccontextmanager
async def serve_guarded(
    node: Node, *blocks: SigningBlock, are_read: bool = True
) -> AsyncIterator[ServedChain]:
    rules = await with_blocks(*blocks) if are_read else None
    async with (
        serve_node(node),
        serve_chain(node.url, ws=(ws_of(node),), guard=guard_by(rules)) as chain,
    ):
        yield chain


async def send_single(chain: ServedChain, method: str, params: list[Any]) -> Any:
    return (await chain.rpc((method, params))).json


async def send_in_read_batch(chain: ServedChain, method: str, params: list[Any]) -> Any:
    replies = (await chain.rpc(("eth_gasPrice", []), (method, params))).json
    assert replies[0]["result"] == "0x2"
    return replies[1]


async def send_in_mixed_batch(chain: ServedChain, method: str, params: list[Any]) -> Any:
    replies = (await chain.rpc((method, params), ("debug_x", []), ("eth_newFilter", [{}]))).json
    return replies[0]


async def send_on_socket(chain: ServedChain, method: str, params: list[Any]) -> Any:
    async with chain.socket() as client:
        await client.send_json({"jsonrpc": "2.0", "id": 0, "method": method, "params": params})
        return await client.receive_json(timeout=TIMEOUT_S)


async def send_in_batch_on_socket(chain: ServedChain, method: str, params: list[Any]) -> Any:
    calls = [("eth_gasPrice", []), (method, params)]
    async with chain.socket() as client:
        await client.send_json(
            [
                {"jsonrpc": "2.0", "id": n, "method": m, "params": p}
                for n, (m, p) in enumerate(calls)
            ]
        )
        return (await client.receive_json(timeout=TIMEOUT_S))[1]


CHANNELS: tuple[Send, ...] = (
    send_single,
    send_in_read_batch,
    send_in_mixed_batch,
    send_on_socket,
    send_in_batch_on_socket,
)
every_channel = pytest.mark.parametrize("send", CHANNELS, ids=lambda send: send.__name__)


def assert_refused(reply: Any, kind: str, value: str) -> None:
    assert reply["error"]["code"] == -32000
    assert reply["error"]["data"] == {
        "code": "signing_blocked",
        "kind": kind,
        "value": value,
        "reason": "a bug",
    }
    assert "a bug" in reply["error"]["message"]


@every_channel
async def test_no_call_for_a_blocked_message_reaches_a_node(send: Send) -> None:
    for kind, value in OF_MESSAGE_BLOCKS:
        node = warp_node()
        async with serve_guarded(node, block(kind, value)) as chain:
            for method, params in OF_MESSAGES:
                assert_refused(await send(chain, method, params), kind, value)
            assert not set(SIGNING) & {method for method, _ in node.calls}


@every_channel
async def test_no_call_for_a_blocked_block_reaches_a_node(send: Send) -> None:
    for kind, value in (
        (KINDS.SOURCE_CHAIN, id_text(CHAIN)),
        (KINDS.MESSAGE_ID, hex_of(BLOCK_MESSAGE.id)),
    ):
        node = warp_node()
        async with serve_guarded(node, block(kind, value)) as chain:
            for method, params in OF_BLOCKS:
                assert_refused(await send(chain, method, params), kind, value)
            assert not [method for method, _ in node.calls if method.startswith("warp_")]


@every_channel
async def test_calls_for_other_messages_pass(send: Send) -> None:
    async with serve_guarded(
        warp_node(), *(block(kind, value) for kind, value in OF_OTHERS)
    ) as chain:
        for method, params in (*OF_MESSAGES, *OF_BLOCKS):
            result = hex_of(MESSAGE.raw) if method == "warp_getMessage" else "0x51"
            assert (await send(chain, method, params))["result"] == result


@every_channel
async def test_without_a_block_of_its_messages_a_node_gets_the_calls_of_clients_alone(
    send: Send,
) -> None:
    for blocks in ((), (block(KINDS.SOURCE_CHAIN, id_text(OTHER)),)):
        node = warp_node()
        async with serve_guarded(node, *blocks) as chain:
            for method, params in (*OF_MESSAGES, *OF_BLOCKS, ("warp_new", [])):
                node.replies["warp_new"] = "0x1"
                node.calls.clear()
                assert "result" in await send(chain, method, params)
                assert [call for call in node.calls if call[0].startswith("warp_")] == [
                    (method, params)
                ]


@every_channel
async def test_a_message_that_cannot_be_compared_with_a_block_is_refused(send: Send) -> None:
    other = warp_message(SENT._replace(nonce=8))
    for result in (
        hex_of(other.raw),
        "0x00",
        "zz",
        5,
        None,
        Refusal(-32000, "failed to get message"),
    ):
        node = warp_node(warp_getMessage=result)
        async with serve_guarded(node, block(KINDS.SENDER, hex_of(b"\xdd" * 20))) as chain:
            reply = await send(chain, *OF_MESSAGES[2])
            assert reply["error"]["data"]["code"] == "unchecked_message", result
            assert "cannot be compared with the signing blocks" in reply["error"]["message"]
            assert node.count(OF_MESSAGES[2][0]) == 0


@pytest.mark.parametrize(
    "params", [[], [5], [None], ["x"], [id_text(MESSAGE.id) + "1"], {"messageID": "x"}]
)
async def test_a_call_without_an_id_is_refused_while_there_is_a_block(params: Any) -> None:
    async with serve_guarded(node := warp_node(), block(KINDS.MESSAGE_ID, hex_of(OTHER))) as chain:
        for method, _ in (*OF_MESSAGES, *OF_BLOCKS):
            reply = await send_single(chain, method, params)
            assert (
                reply["error"].get("data", {"code": "unchecked_message"})["code"]
                == "unchecked_message"
            )
        assert not [method for method, _ in node.calls if method.startswith("warp_")]


@pytest.mark.parametrize(
    "method", ["warp_newSignature", "WARP_getMessageSignature", "warp_getmessagesignature"]
)
async def test_an_unknown_method_of_the_warp_api_is_refused_while_there_is_a_block(
    method: str,
) -> None:
    async with serve_guarded(node := warp_node(), block(KINDS.MESSAGE_ID, hex_of(OTHER))) as chain:
        reply = await send_single(chain, method, [id_text(MESSAGE.id)])
        assert reply["error"]["data"]["code"] == "unchecked_message"
        assert not node.count(method)


@every_channel
async def test_nothing_of_the_warp_api_passes_before_the_blocks_were_read(send: Send) -> None:
    async with serve_guarded(node := warp_node(), are_read=False) as chain:
        for method, params in (*OF_MESSAGES, *OF_BLOCKS):
            assert (await send(chain, method, params))["error"]["data"]["code"] == "store_down"
        assert not [method for method, _ in node.calls if method.startswith("warp_")]


async def test_one_batch_asks_a_node_once_for_all_its_messages() -> None:
    messages = [warp_message(SENT._replace(nonce=nonce)) for nonce in range(50)]
    by_id = {id_text(message.id): hex_of(message.raw) for message in messages}

    def respond(method: str, params: list[Any]) -> Any:
        defaults = Node().result
        if not method.startswith("warp_"):
            return defaults(method, params)
        return by_id[params[0]] if method == "warp_getMessage" else "0x51"

    blocked = messages[20]
    node = Node(rule=respond)
    async with serve_guarded(
        node, block(KINDS.MESSAGE_ID, hex_of(SENT._replace(nonce=20).id))
    ) as chain:
        calls = [("warp_getMessageSignature", [message_id]) for message_id in by_id]
        node.bodies.clear()
        replies = (await chain.rpc(*calls)).json
        assert [reply.get("result") for reply in replies] == ["0x51"] * 20 + [None] + ["0x51"] * 29
        assert id_text(blocked.id) not in [
            params[0] for method, params in node.calls if method in SIGNING
        ]
        assert sum(b"warp_" in body for body in node.bodies) == 2


async def test_a_daemon_refuses_blocked_messages_on_its_chains_and_on_those_of_gateway_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", "t" * 20)
    on_c_chain = warp_message(SENT._replace(source=C_CHAIN))
    evm, c_chain = warp_node(), warp_node(warp_getMessage=hex_of(on_c_chain.raw))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serve_node(evm))
        gateway_url = await stack.enter_async_context(serve_with_evm(GatewayNode(), c_chain))
        chain = {"blockchain-id": id_text(CHAIN), "rpc": [evm.url], "ws": [ws_of(evm)]}
        keys: dict[str, Any] = {"evm_chains": [chain], "admin_token": "t" * 20}
        daemon = await stack.enter_async_context(gateway_daemon(tmp_path, gateway_url, **keys))
        await daemon.until_open()
        routes = ((PATH, MESSAGE.id, evm), ("/ext/bc/C", on_c_chain.id, c_chain))

        async def sign(path: str, message_id: bytes) -> Any:
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": SIGNING[1],
                "params": [id_text(message_id), 67],
            }
            over_http = (await daemon.post(f"{path}/rpc", body)).body
            async with daemon.session.ws_connect(f"{daemon.api_url}{path}/ws") as client:
                await client.send_json(body)
                assert await client.receive_json(timeout=TIMEOUT_S) == over_http
            return over_http

        async def is_served() -> bool:
            bodies = [await sign(path, message_id) for path, message_id, _ in routes]
            return all("result" in body for body in bodies)

        await until(is_served)
        headers = {"authorization": "Bearer " + "t" * 20}
        rule = {"kind": "sender", "value": hex_of(SENT.sender), "reason": "a bug"}
        async with daemon.session.post(
            f"{daemon.api_url}/v1/signing-blocks", json=rule, headers=headers
        ) as reply:
            assert reply.status < 300, await reply.text()
        for path, message_id, node in routes:
            count = node.count(SIGNING[1])
            assert_refused(await sign(path, message_id), "sender", hex_of(SENT.sender))
            assert node.count(SIGNING[1]) == count


@asynccontextmanager
async def serve_with_evm(node: GatewayNode, evm: Node) -> AsyncIterator[str]:
    """Serve a node whose C-Chain is this EVM node; yield its URL."""
    app = web.Application()
    app.router.add_post("/ext/bc/C/rpc", evm.serve_http)
    app.router.add_get("/ext/bc/C/ws", evm.serve_socket)
    app.router.add_post("/{path:.*}", node.handle)
    async with serve_app(app) as url:
        yield url
