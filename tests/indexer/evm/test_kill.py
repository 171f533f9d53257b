"""An indexer that is killed at any moment loses nothing, and writes nothing twice."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.index.evm.icm_histories import served
from tests.index.evm.icm_rows import assert_as_the_model
from tests.indexer.evm.facts import facts_of
from tests.indexer.evm.indexing import INDEX
from tests.indexer.evm.killed import BLOCKS, icm_history, served_chain
from tests.indexer.evm.nft_state import NftState
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.paths import ROOT
from warpseal.index.database import reading_index
from warpseal.index.evm import consistency
from warpseal.index.evm.database import evm_index_url

KILLS, ICM_KILLS = 100, 50


async def test_after_100_kills_every_block_is_in_the_index_once(tmp_path: Path) -> None:
    chain = served_chain()
    # Few blocks at a time, since all that a killed process has read is lost.
    node = EvmReplayNode(
        chain, tip=BLOCKS, most_in_batch=3, first_trace=0, call=NftState(chain).call
    )
    heights: list[int] = []
    async with serving_evm(node):
        arguments = ("-m", "tests.indexer.evm.killed", str(tmp_path), str(KILLS), "5", node.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async for line in process.stdout:
            heights.append(int(line))
            node.tip = heights[-1] + BLOCKS if len(heights) < KILLS else None
        assert await process.wait() == 0
    assert len(heights) == KILLS + 1
    assert heights == sorted(heights)
    assert (heights[-2] < chain.tip, heights[-1]) == (True, chain.tip)
    # Many processes left new blocks.
    assert len(set(heights)) > 0.4 * KILLS
    engine = reading_index(evm_index_url(INDEX, tmp_path, chain.blockchain_id), INDEX)
    with engine.connect() as connection:
        assert list(consistency.find_inconsistencies(connection)) == []
        for facts in facts_of(chain):
            stored = consistency.stored_block(connection, facts.number)
            assert stored is not None
            assert (stored.hash, stored.transfers, stored.tx_hashes) == (
                facts.hash,
                facts.transfers,
                facts.tx_hashes,
            )
    engine.dispose()


async def test_after_50_kills_messages_and_deliveries_are_those_of_the_model(
    tmp_path: Path,
) -> None:
    history = icm_history()
    nodes = [
        EvmReplayNode(served(chain), tip=BLOCKS, most_in_batch=3)
        for chain in history.chains.values()
    ]
    heights: list[int] = []
    async with serving_evm(nodes[0]), serving_evm(nodes[1]):
        urls = [node.url for node in nodes]
        arguments = ("-m", "tests.indexer.evm.killed", str(tmp_path), str(ICM_KILLS), "7", *urls)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async for line in process.stdout:
            node_heights = list(map(int, line.split()))
            heights.append(sum(node_heights))
            for node, height in zip(nodes, node_heights, strict=True):
                node.tip = height + BLOCKS if len(heights) < ICM_KILLS else None
        assert await process.wait() == 0
    assert len(heights) == ICM_KILLS + 1
    assert heights == sorted(heights)
    assert heights[-2] < heights[-1] == sum(node.chain.tip for node in nodes)
    assert len(set(heights)) > 0.4 * ICM_KILLS
    assert_as_the_model(str(tmp_path), history)
