"""Logs of an EVM chain, from nodes that refuse, return wrong logs or are down."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from tests import paths
from tests.eventually import TIMEOUT_S
from tests.forwarding.evm.evm import HALTS, HANGS, SETTINGS, Node, Refusal, open_chain, serve_node
from tests.indexer.evm_chains import recorded_chain
from tests.node.recorded_node import refusing_uri
from warpseal.forwarding.evm.log_filter import SEND_WARP_MESSAGE, LogFilter, LogsRefused
from warpseal.forwarding.evm.logs import EvmLogClient
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.message import WARP_PRECOMPILE

ALL = LogFilter(0, 0x36, WARP_PRECOMPILE, (SEND_WARP_MESSAGE,))
TOO_LONG = Refusal(-32000, "requested too many blocks from 0 to 54, maximum is set to 10")


@cache
def every_recorded_log() -> list[dict[str, Any]]:
    lines = map(json.loads, (paths.LOCALNET / "l1.jsonl").read_text().splitlines())
    logs: list[dict[str, Any]] = next(
        line["result"] for line in lines if line["method"] == "eth_getLogs"
    )
    return logs


def recorded_logs(method: str, params: list[Any]) -> Any:
    if method == "eth_chainId":
        return "0x7a69"
    if method == "eth_getBlockByNumber":
        return {"hash": "0x" + "11" * 32}
    if method == "eth_blockNumber":
        return "0x36"
    log_filter = params[0]
    low, high = int(log_filter["fromBlock"], 16), int(log_filter["toBlock"], 16)
    return [
        log
        for log in every_recorded_log()
        if low <= int(log["blockNumber"], 16) <= high
        and log["topics"][: len(log_filter["topics"])] == log_filter["topics"]
    ]


def node_with(**replies: Any) -> Node:
    return Node(replies=replies, rule=recorded_logs)


@asynccontextmanager
async def log_client(
    *nodes: Node, dead: tuple[str, ...] = (), timeout_s: float = 5.0
) -> AsyncIterator[EvmLogClient]:
    async with AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(serve_node(node))).url for node in nodes]
        chain = await stack.enter_async_context(open_chain(*dead, *urls))
        yield EvmLogClient(chain.forwarder, timeout_s)


async def test_logs_of_the_c_chain_after_acp_194_are_read_though_the_blooms_lack_them() -> None:
    chain = recorded_chain("helicon", "c-chain")
    logs = [
        log
        for receipts in chain.receipts
        for receipt in json.loads(receipts)
        for log in receipt["logs"]
    ]
    sends = [log for log in logs if log["topics"][0] == "0x" + SEND_WARP_MESSAGE.hex()]
    empty = {
        height
        for height, header in enumerate(chain.headers)
        if not int(json.loads(header)["logsBloom"], 16)
    }
    assert {int(log["blockNumber"], 16) for log in sends} & empty
    replies = {"eth_getLogs": sends, "eth_getBlockByNumber": json.loads(chain.headers[0])}
    async with log_client(node_with(**replies)) as client:
        read = await client.logs(LogFilter(0, chain.tip, WARP_PRECOMPILE, (SEND_WARP_MESSAGE,)))
    assert [(log.block, "0x" + log.data.hex()) for log in read] == [
        (int(log["blockNumber"], 16), log["data"]) for log in sends
    ]


async def test_recorded_logs_are_read() -> None:
    async with log_client(node_with()) as client:
        assert await client.block_number() == 0x36
        logs = await client.logs(ALL)
        assert len(logs) == 8
        assert [log.block for log in logs] == sorted(log.block for log in logs)
        assert await client.logs(LogFilter(0, 3, WARP_PRECOMPILE, (SEND_WARP_MESSAGE,))) == ()


async def test_the_next_node_is_called_if_one_is_down_or_refuses() -> None:
    async with log_client(node_with(), dead=(refusing_uri(),)) as client:
        assert await client.block_number() == 0x36
        assert len(await client.logs(ALL)) == 8
    for refusal in (TOO_LONG, "nonsense"):
        async with log_client(
            node_with(eth_getLogs=refusal, eth_blockNumber=refusal), node_with()
        ) as client:
            assert await client.block_number() == 0x36
            assert len(await client.logs(ALL)) == 8


async def test_a_range_that_is_too_long_is_distinguished_from_nodes_that_are_down() -> None:
    async with log_client(node_with(eth_getLogs=TOO_LONG)) as client:
        with pytest.raises(LogsRefused):
            await client.logs(ALL)
    async with log_client(node_with(eth_getLogs=HALTS)) as client:
        with pytest.raises(NodeUnavailable):
            await client.logs(ALL)
    async with log_client(dead=(refusing_uri(),)) as client:
        with pytest.raises(NodeUnavailable):
            await client.logs(ALL)
        with pytest.raises(NodeUnavailable):
            await client.block_number()


async def test_a_range_that_takes_too_long_is_refused() -> None:
    node = node_with(eth_getLogs=HANGS)
    async with log_client(node, timeout_s=0.1) as client:
        with pytest.raises(LogsRefused):
            await client.logs(ALL)


@pytest.mark.parametrize("blocks", [1, 2_000])
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
async def test_logs_that_do_not_match_the_filter_are_refused(
    change: dict[str, Any], blocks: int
) -> None:
    log = every_recorded_log()[0]
    async with log_client(
        node_with(eth_getLogs=[*[log] * (blocks - 1), {**log, **change}])
    ) as client:
        with pytest.raises(LogsRefused):
            await client.logs(ALL)


async def test_malformed_heights_are_a_bad_response() -> None:
    for number in ("0x", "0xfffffffffffffffff", "-0x1", 5, None):
        async with log_client(node_with(eth_blockNumber=number)) as client:
            with pytest.raises(NodeUnavailable):
                await client.block_number()


async def test_logs_and_forwarded_calls_share_the_state_of_the_nodes() -> None:
    first, second = node_with(eth_getLogs=HALTS), node_with()
    settings = replace(SETTINGS, retry_after_s=TIMEOUT_S)
    async with (
        serve_node(first),
        serve_node(second),
        open_chain(first.url, second.url, settings=settings) as chain,
    ):
        client = EvmLogClient(chain.forwarder, 5.0)
        assert len(await client.logs(ALL)) == 8
        assert len(await client.logs(ALL)) == 8
        assert (first.count("eth_getLogs"), second.count("eth_getLogs")) == (1, 2)
        assert list(chain.pool.failures()) == [0]
