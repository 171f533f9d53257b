"""Creations inside of transactions: which blocks are traced, what nodes lack, and gaps that another
node fills.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.eventually import until
from tests.indexer.evm.indexing import INDEX, entry, indexing
from tests.indexer.evm_chains import MadeUpChain, ServedChain, Tx
from tests.indexer.evm_node import EvmReplayNode, Refused, serving_evm
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver
from warpseal.indexer.evm.indexer import BackgroundTask
from warpseal.indexer.evm.nodes import EvmCaller
from warpseal.indexer.evm.tracer import TRACE_METHOD, Tracer
from warpseal.resources.queries import PageRequest

FACTORY: Final = bytes([5]) * 20
SENDER: Final = bytes([6]) * 20
CREATING_GAS: Final = 90_000


def created_at(height: int) -> bytes:
    """Return the contract that the factory creates in a block."""
    return height.to_bytes(20)


def make_chain(heights: int, creating: Sequence[int]) -> ServedChain:
    """Return a chain of blocks with one transaction each; in some of them it creates a contract
    inside.
    """
    chain = MadeUpChain()
    for height in range(1, heights + 1):
        chain.add([Tx(SENDER, FACTORY, gas_used=CREATING_GAS if height in creating else 21_000)])
    traces = {height: trace_of(chain.chain, height) for height in creating}
    return replace(
        chain.chain, traces={height: json.dumps(trace).encode() for height, trace in traces.items()}
    )


def trace_of(chain: ServedChain, height: int) -> list[dict[str, Any]]:
    create = call(FACTORY, created_at(height), type="CREATE2")
    tx_hash = json.loads(chain.headers[height])["transactions"][0]
    return [{"txHash": tx_hash, "result": call(SENDER, FACTORY, calls=[create])}]


def call(sender: bytes, to: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "CALL", "from": "0x" + sender.hex(), "to": "0x" + to.hex(), **fields}


@dataclass
class Traced:
    """An index behind which the tracer runs."""

    index: EvmIndex

    async def traced_height(self) -> int | None:
        freshness = await self.index.progress()
        return None if freshness is None else freshness.traced_height

    async def created(self) -> list[int]:
        """Return the heights of the contracts that the factory created, newest first."""
        page = await self.index.deployments(FACTORY, PageRequest(10_000))
        return [int(item.address, 16) for item in page.items]

    async def until_traced(self, height: int | None) -> None:
        async def is_traced() -> bool:
            return await self.traced_height() == height

        await until(is_traced)


@asynccontextmanager
async def tracing(
    folder: Path, *nodes: EvmReplayNode, gap_retry_s: float = 600.0
) -> AsyncIterator[Traced]:
    """Index the chain of these nodes with traces, up to its tip."""
    chain = nodes[0].chain
    async with (
        serving_evm(*nodes),
        indexing(
            folder,
            [entry(chain, *nodes)],
            build_tasks=lambda context: [Tracer(context, gap_retry_s)],
        ) as running,
    ):
        await running.until_at(chain, chain.tip)
        async with EvmIndex(evm_index_url(INDEX, folder, chain.blockchain_id), INDEX) as index:
            yield Traced(index)


async def test_creations_inside_of_transactions_are_found_with_their_factory(
    tmp_path: Path,
) -> None:
    chain = make_chain(10, [3, 7])
    async with tracing(tmp_path, EvmReplayNode(chain, first_trace=0)) as traced:
        await traced.until_traced(10)
        (newest, oldest) = (await traced.index.deployments(FACTORY, PageRequest(10))).items
        assert (int(newest.address, 16), int(oldest.address, 16)) == (7, 3)
        assert bytes.fromhex(newest.deployment_details.deployer_address[2:]) == SENDER
        assert newest.deployment_details.tx_hash == json.loads(chain.headers[7])["transactions"][0]
        assert int(newest.deployment_details.deployer_contract_address or "", 16) == int.from_bytes(
            FACTORY
        )


async def test_blocks_whose_transactions_used_too_little_gas_are_not_traced(tmp_path: Path) -> None:
    node = EvmReplayNode(make_chain(50, [20]), first_trace=0)
    async with tracing(tmp_path, node) as traced:
        await traced.until_traced(50)
    # One call finds out whether the node traces.
    assert node.call_counts[TRACE_METHOD] == 1 + 1


async def test_without_a_node_that_traces_nothing_counts_as_traced_and_a_later_one_traces_all(
    tmp_path: Path,
) -> None:
    chain = make_chain(10, [3, 7])
    untraced = EvmReplayNode(chain)
    async with tracing(tmp_path, untraced) as traced:
        await until(lambda: untraced.call_counts[TRACE_METHOD] > 0)
        assert await traced.traced_height() is None
        assert await traced.created() == []
    async with tracing(tmp_path, EvmReplayNode(chain, first_trace=0)) as traced:
        await traced.until_traced(10)
        assert await traced.created() == [7, 3]


@pytest.mark.parametrize(
    "error",
    [
        (-32601, "the method debug_traceBlockByNumber does not exist/is not available"),
        (-32601, "not here"),
        (-32004, "Method not supported"),
        (-32000, "debug_traceBlockByNumber method is not available on this plan"),
        (-32600, "unsupported method: debug_traceBlockByNumber"),
    ],
)
async def test_a_gateway_that_serves_no_traces_is_not_asked_for_each_block(
    tmp_path: Path, error: tuple[int, str]
) -> None:
    gateway = EvmReplayNode(make_chain(50, range(1, 51)), replies={TRACE_METHOD: error})
    async with tracing(tmp_path, gateway) as traced:
        await until(lambda: gateway.call_counts[TRACE_METHOD] > 0)
        assert await traced.traced_height() is None
    assert gateway.call_counts[TRACE_METHOD] == 1


async def test_a_node_that_traces_is_found_behind_one_that_does_not(tmp_path: Path) -> None:
    chain = make_chain(10, [3])
    untraced = EvmReplayNode(chain)
    async with tracing(tmp_path, untraced, EvmReplayNode(chain, first_trace=0)) as traced:
        await traced.until_traced(10)
        assert await traced.created() == [3]


async def test_heights_that_no_node_can_trace_are_gaps_until_a_node_can(tmp_path: Path) -> None:
    creating = range(1, 2_001)
    chain = make_chain(2_000, creating)
    pruned = EvmReplayNode(chain, first_trace=1_900)
    async with tracing(tmp_path, pruned) as traced:

        async def is_traced_from_there() -> bool:
            return await traced.created() == list(range(2_000, 1_899, -1))

        await until(is_traced_from_there)
        assert await traced.traced_height() == 0
    # What the node lacks is found by bisection, not block by block.
    assert pruned.call_counts[TRACE_METHOD] < 300
    half = EvmReplayNode(chain, first_trace=1_000)
    async with tracing(tmp_path, half) as traced:

        async def is_traced_from_half() -> bool:
            return await traced.created() == list(range(2_000, 999, -1))

        await until(is_traced_from_half)
        assert await traced.traced_height() == 0
    async with tracing(tmp_path, EvmReplayNode(chain, first_trace=0)) as traced:
        await traced.until_traced(2_000)
        assert await traced.created() == list(reversed(creating))


async def test_two_nodes_trace_together_what_none_traces_alone(tmp_path: Path) -> None:
    chain = make_chain(100, range(1, 101))
    old = EvmReplayNode(chain, replies={})
    old.first_trace = 0
    trace = old._trace

    def trace_old(number: int) -> bytes:
        if number > 40:
            raise Refused(-32603, "no more traces")
        return trace(number)

    old._trace = trace_old  # type: ignore[method-assign]
    async with tracing(tmp_path, EvmReplayNode(chain, first_trace=41), old) as traced:
        await traced.until_traced(100)
        assert len(await traced.created()) == 100


async def test_a_node_that_is_behind_traces_blocks_once_it_has_them(tmp_path: Path) -> None:
    chain = make_chain(60, range(1, 61))
    behind = EvmReplayNode(chain, tip=20, first_trace=0)
    async with tracing(tmp_path, EvmReplayNode(chain), behind) as traced:
        await traced.until_traced(20)
        # The next block was tried, and is no gap.
        call_count = behind.call_counts[TRACE_METHOD]
        await until(lambda: behind.call_counts[TRACE_METHOD] > call_count)
        await behind.add_to_tip(40)
        await traced.until_traced(60)
        assert len(await traced.created()) == 60


async def test_a_malformed_trace_is_a_gap_of_its_own_block(tmp_path: Path) -> None:
    chain = make_chain(10, [3, 5, 7])
    broken = {**chain.traces, 5: b'[{"result":{"type":"CREATE","from":"0x12"}},7]'}
    async with tracing(
        tmp_path, EvmReplayNode(replace(chain, traces=broken), first_trace=0)
    ) as traced:
        await traced.until_traced(4)
        assert await traced.created() == [7, 3]


async def test_a_creation_below_a_thousand_calls_is_found(tmp_path: Path) -> None:
    chain = make_chain(3, [2])
    (traced_tx,) = trace_of(chain, 2)
    create = traced_tx["result"].pop("calls")
    outer, inner = json.dumps(traced_tx["result"])[:-1], json.dumps(create)
    nested = f'{outer},"calls":[' * 1_000 + inner[1:-1] + "]}" * 1_000
    deep = {2: f'[{{"txHash":"{traced_tx["txHash"]}","result":{nested}}}]'.encode()}
    async with tracing(
        tmp_path, EvmReplayNode(replace(chain, traces=deep), first_trace=0)
    ) as traced:
        await traced.until_traced(3)
        assert await traced.created() == [2]


async def test_a_gap_is_tried_again(tmp_path: Path) -> None:
    chain = make_chain(10, [3, 5, 7])
    good = chain.traces[5]
    chain.traces[5] = b"{}"
    async with tracing(tmp_path, EvmReplayNode(chain, first_trace=0), gap_retry_s=0.05) as traced:
        await traced.until_traced(4)
        chain.traces[5] = good
        await traced.until_traced(10)
        assert await traced.created() == [7, 5, 3]


async def test_gaps_are_filled_by_a_node_that_is_busy_now_and_then(tmp_path: Path) -> None:
    chain = make_chain(600, range(1, 601))
    async with tracing(tmp_path, EvmReplayNode(chain, first_trace=590)) as traced:
        await until(lambda: traced.created())
        assert await traced.traced_height() == 0
    busy = EvmReplayNode(chain, first_trace=0)
    trace, calls = busy._trace, count()

    def trace_busily(number: int) -> bytes:
        if next(calls) == 300:
            raise Refused(-32005, "limit exceeded")
        return trace(number)

    busy._trace = trace_busily  # type: ignore[method-assign]
    async with tracing(tmp_path, busy) as traced:
        await traced.until_traced(600)
        assert len(await traced.created()) == 600


async def test_hashes_of_transactions_that_a_trace_lacks_come_from_the_block(
    tmp_path: Path,
) -> None:
    chain = make_chain(5, [3])
    trace = trace_of(chain, 3)
    del trace[0]["txHash"]
    nameless = replace(chain, traces={3: json.dumps(trace).encode()})
    async with tracing(tmp_path, EvmReplayNode(nameless, first_trace=0)) as traced:
        await traced.until_traced(5)
        (item,) = (await traced.index.deployments(FACTORY, PageRequest(10))).items
        assert item.deployment_details.tx_hash == json.loads(chain.headers[3])["transactions"][0]


async def test_a_trace_of_other_transactions_is_not_taken(tmp_path: Path) -> None:
    chain = make_chain(10, [3, 7])
    traces = {**chain.traces, 3: json.dumps([*trace_of(chain, 7)] * 2).encode()}
    async with tracing(
        tmp_path, EvmReplayNode(replace(chain, traces=traces), first_trace=0)
    ) as traced:
        await traced.until_traced(2)
        assert await traced.created() == [7]


async def test_a_node_without_old_blocks_traces_the_others(tmp_path: Path) -> None:
    chain = make_chain(100, range(1, 101))
    synced = EvmReplayNode(chain, first_trace=0)
    trace = synced._trace

    def trace_synced(number: int) -> bytes:
        if number < 60:
            raise Refused(-32000, f"block #{number} not found")
        return trace(number)

    synced._trace = trace_synced  # type: ignore[method-assign]
    async with tracing(tmp_path, synced) as traced:

        async def is_traced_from_there() -> bool:
            return await traced.created() == list(range(100, 59, -1))

        await until(is_traced_from_there)
        assert await traced.traced_height() == 0
    assert synced.call_counts[TRACE_METHOD] < 80


async def test_contracts_that_traces_show_are_called_without_a_new_block(tmp_path: Path) -> None:
    chain = make_chain(10, [3, 7])
    # Slow, so that all other contracts have been called before.
    node = EvmReplayNode(chain, first_trace=0, delay_s=0.05)

    def tasks(context: EvmChainContext) -> list[BackgroundTask]:
        return [ContractResolver(context, EvmCaller(context.nodes)), Tracer(context)]

    async with (
        serving_evm(node),
        indexing(tmp_path, [entry(chain, node)], build_tasks=tasks) as running,
        EvmIndex(evm_index_url(INDEX, tmp_path, chain.blockchain_id), INDEX) as index,
    ):
        await running.until_at(chain, 10)

        async def are_called() -> bool:
            page = await index.deployments(FACTORY, PageRequest(10))
            return len(page.items) == 2 and not page.missing.contracts

        await until(are_called)
    assert node.call_counts["eth_call"] > 0


async def test_new_blocks_are_traced_as_they_come(tmp_path: Path) -> None:
    chain = make_chain(30, range(1, 31))
    node = EvmReplayNode(chain, tip=10, first_trace=0)
    async with (
        serving_evm(node),
        indexing(
            tmp_path, [entry(chain, node)], build_tasks=lambda context: [Tracer(context)]
        ) as running,
        EvmIndex(evm_index_url(INDEX, tmp_path, chain.blockchain_id), INDEX) as index,
    ):
        traced = Traced(index)
        await running.until_at(chain, 10)
        await traced.until_traced(10)
        for height in range(11, 31):
            await node.add_to_tip()
            await traced.until_traced(height)
        assert len(await traced.created()) == 30
