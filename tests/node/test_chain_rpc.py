"""Calls of a chain's own RPC API, from any configured node that runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from tests.node.recorded_node import (
    L1_CHAIN,
    NO_CHAIN,
    RecordedNode,
    RefusedCall,
    build_settings,
    connect,
    open_upstream,
    refusing_uri,
    serve_nodes,
)
from warpseal.errors import CallRefused
from warpseal.node.chain_apis import ChainRpcClient
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import open_session

CONFIG = {"chainId": 12345, "warpConfig": {"blockTimestamp": 0}}
CALL = {"to": "0x" + "05" * 20, "data": "0x01"}


def refuse(text: str, code: int = -32_000) -> Callable[[object], object]:
    def reply_to(params: object) -> object:
        raise RefusedCall(text, code)

    return reply_to


@asynccontextmanager
async def own_node(own: RecordedNode) -> AsyncIterator[ChainRpcClient]:
    """Yield the client of a chain whose one node is in evm-chains; other nodes are down."""
    async with serve_nodes(own) as uris, open_session() as session:
        chains = (EvmChain(L1_CHAIN, (NodeEndpoint(f"{uris[0]}/l1/rpc"),)),)
        yield connect(session, build_settings(refusing_uri(), evm_chains=chains)).chain_rpc


async def test_a_configuration_and_a_block_time_are_read_from_a_node_that_runs_the_chain() -> None:
    replies = {
        "eth_getChainConfig": CONFIG,
        "eth_getBlockByNumber": {"number": "0x1", "timestamp": "0x6b01"},
    }
    bare, full = RecordedNode(paths=("/ext/P", "/ext/info")), RecordedNode(replies)
    async with open_upstream(bare, full) as upstream:
        assert await upstream.chain_rpc.chain_config(L1_CHAIN, msgspec.json.decode) == CONFIG
        assert await upstream.chain_rpc.latest_block_time_s(L1_CHAIN) == 0x6B01
    params: list[object] = [
        params for _, method, params in full.seen if method == "eth_getBlockByNumber"
    ]
    assert params == [["latest", False]]


async def test_the_url_of_evm_chains_is_called_as_it_stands() -> None:
    own = RecordedNode({"eth_getChainConfig": CONFIG}, paths=("/l1/",))
    async with own_node(own) as chain_rpc:
        assert await chain_rpc.chain_config(L1_CHAIN, msgspec.json.decode) == CONFIG
    assert [path for path, _, _ in own.seen] == ["/l1/rpc"]


async def test_a_configuration_that_all_nodes_lack_is_absent_and_fails_no_node() -> None:
    old_node = RecordedNode(
        {"eth_getChainConfig": refuse("the method eth_getChainConfig does not exist", -32_601)}
    )
    async with open_upstream(old_node, RecordedNode(paths=("/ext/P", "/ext/info"))) as upstream:
        assert await upstream.chain_rpc.chain_config(L1_CHAIN, msgspec.json.decode) is None
        assert await upstream.chain_rpc.chain_config(NO_CHAIN, msgspec.json.decode) is None
        await upstream.platform.height()
    assert old_node.calls["platform.getHeight"] == 1


@pytest.mark.parametrize(
    "reply",
    [
        lambda _: web.Response(status=500),
        lambda _: web.Response(status=403),
        refuse("the chain is not done bootstrapping"),
        [],
        "0x",
    ],
)
async def test_a_configuration_is_unavailable_if_a_node_that_may_have_it_fails(
    reply: object,
) -> None:
    bare, failing = (
        RecordedNode(paths=("/ext/P", "/ext/info")),
        RecordedNode({"eth_getChainConfig": reply}),
    )
    decode = msgspec.json.Decoder(dict[str, object]).decode
    async with open_upstream(bare, failing) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.chain_rpc.chain_config(L1_CHAIN, decode)


async def test_the_result_of_a_call_is_bytes_and_a_reverted_call_is_refused_with_its_text() -> None:
    replies = {
        "eth_call": lambda params: (
            "0x0102" if params[0] == CALL else refuse("execution reverted: no", 3)(params)
        )
    }
    async with own_node(RecordedNode(replies, paths=("/l1/",))) as chain_rpc:
        assert await chain_rpc.eth_call(L1_CHAIN, CALL) == b"\1\2"
        with pytest.raises(CallRefused, match="execution reverted: no"):
            await chain_rpc.eth_call(L1_CHAIN, {**CALL, "data": "0x"})
