"""Logs of an EVM chain, from nodes that refuse, return wrong logs or are down."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from tests.node.recorded_node import L1_CHAIN, RECORDED, RecordedNode, RpcFault, refusing_uri, serving, settings_for
from warpseal.errors import NodeUnavailable
from warpseal.node.endpoint import EvmChain, NodeEndpoint
from warpseal.node.evm import SEND_WARP_MESSAGE, WARP_PRECOMPILE, EvmClient, LogFilter, LogsRefused
from warpseal.node.rpc import open_session
from warpseal.node.upstream import connect_upstream
from warpseal.warp.ids import id_text

ALL = LogFilter(0, 0x36, WARP_PRECOMPILE, (SEND_WARP_MESSAGE,))
PATH = f"/ext/bc/{id_text(L1_CHAIN)}/rpc"


def recorded_logs(params: Any) -> Any:
    logs = next(e["result"] for e in RECORDED if e["method"] == "eth_getLogs")
    wanted = params[0]
    low, high = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
    return [
        log
        for log in logs
        if low <= int(log["blockNumber"], 16) <= high and log["topics"][: len(wanted["topics"])] == wanted["topics"]
    ]


def evm_node(logs: Any = recorded_logs) -> RecordedNode:
    return RecordedNode({"eth_getLogs": logs})


class Clients:
    """EVM clients over loopback nodes."""

    def __init__(self, *nodes: RecordedNode, extra: tuple[str, ...] = ()) -> None:
        self._nodes = nodes
        self._extra = extra

    async def __aenter__(self) -> EvmClient:
        self._stack = AsyncExitStack()
        uris = await self._stack.enter_async_context(serving(*self._nodes))
        session = await self._stack.enter_async_context(open_session())
        endpoints = tuple(NodeEndpoint(uri) for uri in (*self._extra, *(uri + PATH for uri in uris)))
        chains = (EvmChain(L1_CHAIN, endpoints),)
        return connect_upstream(settings_for("http://127.0.0.1:9", evm_chains=chains), session).evm[L1_CHAIN]

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


async def test_recorded_logs_are_read() -> None:
    async with Clients(evm_node()) as evm:
        assert await evm.block_number() == 0x36
        logs = await evm.logs(ALL)
        assert len(logs) == 8
        assert [log.block for log in logs] == sorted(log.block for log in logs)
        assert await evm.logs(LogFilter(0, 3, WARP_PRECOMPILE, (SEND_WARP_MESSAGE,))) == ()


async def test_the_next_node_is_called_if_one_is_down() -> None:
    async with Clients(evm_node(), extra=(refusing_uri() + PATH,)) as evm:
        assert await evm.block_number() == 0x36
        assert len(await evm.logs(ALL)) == 8


async def test_a_range_that_is_too_long_is_distinguished_from_nodes_that_are_down() -> None:
    def too_long(params: Any) -> Any:
        raise RpcFault("requested too many blocks from 0 to 54, maximum is set to 10")

    async with Clients(evm_node(too_long)) as evm:
        with pytest.raises(LogsRefused):
            await evm.logs(ALL)
    async with Clients(extra=(refusing_uri() + PATH,)) as evm:
        with pytest.raises(NodeUnavailable):
            await evm.logs(ALL)
        with pytest.raises(NodeUnavailable):
            await evm.block_number()


@pytest.mark.parametrize(
    "change",
    [
        {"address": "0x" + "11" * 20},
        {"topics": ["0x" + "11" * 32]},
        {"topics": []},
        {"blockNumber": "0xffff"},
        {"blockNumber": "nonsense"},
        {"data": "0xzz"},
    ],
)
async def test_logs_that_do_not_match_the_filter_are_refused(change: dict[str, Any]) -> None:
    async with Clients(evm_node(lambda params: [{**recorded_logs(params)[0], **change}])) as evm:
        with pytest.raises(LogsRefused):
            await evm.logs(ALL)


async def test_malformed_heights_are_a_bad_response() -> None:
    for number in ("0x", "0xfffffffffffffffff", "-0x1", 5, None):
        node = RecordedNode({"eth_blockNumber": web.json_response({"jsonrpc": "2.0", "result": number, "id": 1})})
        async with Clients(node) as evm:
            with pytest.raises(NodeUnavailable):
                await evm.block_number()
