"""Blocks of chains that are far behind, decoded and checked in a process of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from tests.eventually import until
from tests.indexer.evm.facts import facts_of
from tests.indexer.evm.indexing import RPC, entry
from tests.indexer.evm_chains import ServedChain, dense_blocks
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from warpseal.evm_rpc.node import open_sessions
from warpseal.indexer.blocks import IndexingStopped, StopReason
from warpseal.indexer.evm.backfill_process import BackfillProcess
from warpseal.indexer.evm.block_reader import EvmBlockSource
from warpseal.indexer.evm.nodes import ChainNodes, NodeResource
from warpseal.runtime.retry import Backoff, Retrier


@pytest.fixture(scope="module")
def chain() -> ServedChain:
    """A chain of 300 blocks, each with receipts of 50 kB."""
    return dense_blocks(300, txs=17, logs=3)


@asynccontextmanager
async def reading(
    chain: ServedChain, *nodes: EvmReplayNode, check_s: float = 60.0
) -> AsyncIterator[tuple[EvmBlockSource, BackfillProcess, ChainNodes, ThreadPoolExecutor]]:
    """Read a chain with a process that is needed from the first large answer on."""
    backfill = BackfillProcess(1, check_s)
    async with serving_evm(*nodes), open_sessions(RPC) as sessions:
        served = ChainNodes(entry(chain, *nodes), sessions, RPC)
        with ThreadPoolExecutor(1) as thread:
            source = EvmBlockSource(served, Retrier(Backoff(0.01, 0.05), {}), thread, backfill)
            running = asyncio.create_task(backfill.run())
            try:
                await served.heads()
                yield source, backfill, served, thread
            finally:
                running.cancel()
                await asyncio.wait((running,))


async def test_a_chain_far_behind_is_decoded_in_a_process_that_finds_what_nodes_lack_or_get_wrong(
    chain: ServedChain,
) -> None:
    lacking, foreign, good = (EvmReplayNode(chain) for _ in range(3))
    async with reading(chain, lacking, foreign, good) as (source, backfill, nodes, thread):
        expected = facts_of(chain)
        assert await source.read(1, 20) == tuple(expected[1:21])
        await until(lambda: backfill.is_running)
        # From here on a call on the thread would fail.
        thread.shutdown()
        assert await source.read(21, 20) == tuple(expected[21:41])
        lacking.receipts[41] = b"null"
        foreign.receipts[41] = chain.receipts[42]
        assert await source.read(41, 20) == tuple(expected[41:61])
        assert nodes.nodes[0].lacks(NodeResource.RECEIPTS, 41)
        lacking.receipts[71] = b"null"
        assert await source.read(61, 20) == tuple(expected[61:71])
        for node in (lacking, foreign, good):
            node.receipts[81] = chain.receipts[82]
        with pytest.raises(IndexingStopped) as stop:
            await source.read(81, 20)
        assert (stop.value.reason, stop.value.height) == (StopReason.RECEIPT_OF_ANOTHER_BLOCK, 81)


async def test_a_process_that_is_killed_is_replaced_and_ends_when_little_is_decoded(chain: ServedChain) -> None:
    async with reading(chain, EvmReplayNode(chain), check_s=0.1) as (source, backfill, _, _thread):
        expected = tuple(facts_of(chain))

        async def has_started() -> bool:
            assert await source.read(1, 20) == expected[1:21]
            return backfill.is_running

        await until(has_started)
        (process,) = multiprocessing.active_children()
        process.kill()
        await until(lambda: not process.is_alive())
        assert await source.read(21, 20) == expected[21:41]
        assert not backfill.is_running
        await until(has_started)
        # The last blocks are not far behind, so the process is not needed for them.
        assert await source.read(281, 20) == expected[281:301]
        await until(lambda: not backfill.is_running and not multiprocessing.active_children())
