"""Rates of calls to nodes: one budget for all chains of a node, with blocks first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.eventually import StoppedClock, stopped_clock
from tests.indexer.evm.nodes import CHAIN, open_chain_nodes
from tests.indexer.evm_chains import transfer_blocks
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.upstream.batch import ChainNode
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.jsonrpc import rpc_call
from warpseal.upstream.limits import CallRate, CallRates, is_private
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import ChainID

GATEWAY = "http://127.0.0.1:9650"


def rate_of(*chains: tuple[str, int | None]) -> CallRate:
    """Return the rate of the node of the first of some chains: URL, and calls per second."""
    rates = CallRates()
    limiters = [rates.of(NodeEndpoint(url), per_s) for url, per_s in chains]
    assert all(rate is limiters[0] for rate in limiters)
    return limiters[0]


def test_urls_with_the_same_scheme_host_and_port_are_of_one_node() -> None:
    rate_of(
        (f"{GATEWAY}/ext/bc/A/rpc", 5), ("http://user:key@127.0.0.1:9650/ext/bc/B/rpc?token=x", 5)
    )
    rate_of(("https://Gateway.example/a", 5), ("https://gateway.example:443/b", 5))
    rates = CallRates()
    urls = (GATEWAY, "http://127.0.0.1:9651", "https://127.0.0.1:9650", "http://127.0.0.2:9650")
    assert len({rates.of(NodeEndpoint(url), 5) for url in urls}) == len(urls)


def test_the_smallest_named_rate_of_a_node_counts() -> None:
    assert rate_of((GATEWAY, 50), (GATEWAY, 20), (GATEWAY, None), (GATEWAY, 30)).per_s == 20


@pytest.mark.parametrize(
    ("url", "limit", "expected"), [("http://8.8.8.8", None, 200), ("http://8.8.8.8", 500, 500)]
)
async def test_without_a_named_rate_a_public_node_gets_200_calls_per_second(
    url: str, limit: int | None, expected: int
) -> None:
    rate = rate_of((url, None), (url, limit))
    await rate.take(1)
    assert rate.per_s == expected


@asynccontextmanager
async def chains_at_one_node(
    per_s: int,
) -> AsyncIterator[tuple[StoppedClock, ChainNode, ChainNode]]:
    """Yield a stopped clock, and the node as two chains see it."""
    settings, rates = EvmRpcSettings(), CallRates()
    async with open_sessions() as sessions:
        nodes: list[ChainNode] = []
        for number in (1, 2):
            rpc = (NodeEndpoint(f"{GATEWAY}/{number}"),)
            chain = EvmChain(
                ChainID(bytes([number]) * 32), rpc, index=EvmIndexing(calls_per_s=per_s)
            )
            nodes += ChainNodes(chain, sessions, settings, rates).nodes
        with stopped_clock() as clock:
            yield clock, nodes[0], nodes[1]


async def run_callbacks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_chains_at_one_node_share_its_rate_and_take_turns() -> None:
    order: list[str] = []

    async def call(name: str, node: ChainNode, *, is_background: bool = False) -> None:
        await node.acquire(10, is_background=is_background)
        order.append(name)

    async with (
        chains_at_one_node(per_s=10) as (clock, backfilling, idle),
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(3):
            tasks.create_task(call(f"backfill {number}", backfilling))
        tasks.create_task(call("new block", idle))
        await run_callbacks()
        tasks.create_task(call("traces", idle, is_background=True))
        counts = []
        for _ in range(7):
            await run_callbacks()
            counts.append(len(order))
            clock.advance(1.0)
    # One batch of ten calls a second.
    assert counts[:4] == [1, 2, 3, 4]
    assert order == ["backfill 0", "new block", "backfill 1", "backfill 2", "traces"]


@pytest.mark.parametrize(
    ("retry_after", "wait_s"),
    [("20", 20), ("3600", 60), ("Fri, 31 Dec 2100 23:59:59 GMT", 60), ("soon", 0)],
)
async def test_a_node_gets_no_request_of_any_chain_before_the_end_of_its_retry_after(
    retry_after: str, wait_s: int
) -> None:
    node = EvmReplayNode(transfer_blocks(3, has_roots=False), retry_after=retry_after)
    settings, rates = EvmRpcSettings(), CallRates()
    async with serving_evm(node), open_sessions() as sessions:
        chains: list[ChainNodes] = []
        for number in (1, 2):
            endpoint = NodeEndpoint(f"{node.url}/{number}")
            chain = EvmChain(CHAIN, (endpoint,), index=EvmIndexing())
            chains.append(ChainNodes(chain, sessions, settings, rates))
        with stopped_clock() as clock:
            for nodes in chains:
                assert await nodes.heads() == (3,)
            node.busy = 1
            with pytest.raises(NodeUnavailable):
                await chains[0].heads()
            requests = node.requests
            if wait_s:
                clock.advance(wait_s - 0.1)
                for nodes in chains:
                    await nodes.check()
                    with pytest.raises(NodeUnavailable):
                        await nodes.heads()
                assert (node.busy, node.requests) == (0, requests)
                clock.advance(0.2)
            for nodes in chains:
                assert await nodes.heads() == (3,)


async def test_another_node_is_called_while_the_first_one_is_paused() -> None:
    first, second = (
        EvmReplayNode(transfer_blocks(3, has_roots=False), retry_after="30") for _ in range(2)
    )
    async with serving_evm(first, second), open_chain_nodes(first.url, second.url) as nodes:
        assert await nodes.heads() == (3, 3)
        first.busy = 1
        assert await nodes.heads() == (3,)
        requests = first.requests
        assert [node.position for node in await nodes.candidates()] == [1, 0]
        with pytest.raises(CallFailure):
            await nodes.nodes[0].call_batch([rpc_call("eth_blockNumber")])
        assert first.requests == requests


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:9650", True),
        ("http://[::1]:9650", True),
        ("http://10.1.2.3", True),
        ("http://192.168.0.1", True),
        ("https://8.8.8.8", False),
        ("https://[2606:4700::1111]", False),
    ],
)
async def test_only_nodes_at_private_addresses_have_no_rate_of_their_own(
    url: str, expected: bool
) -> None:
    assert await is_private(NodeEndpoint(url)) is expected
