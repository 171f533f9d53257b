"""An indexer that is killed at any moment loses nothing, and writes nothing twice."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.indexer.evm.indexing import INDEX
from tests.indexer.evm.killed import served_chain
from tests.indexer.evm.nft_state import NftState
from tests.indexer.evm.test_verify import facts_of, verify
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.paths import ROOT
from warpseal.index.evm import consistency
from warpseal.index.evm.database import evm_index_url, reading_evm_index

KILLS = 100


async def test_after_100_kills_every_block_is_in_the_index_once(tmp_path: Path) -> None:
    chain = served_chain()
    node = EvmReplayNode(chain, most_in_batch=3, first_trace=0, call=NftState(chain).call)
    async with serving_evm(node):
        arguments = ("-m", "tests.indexer.evm.killed", str(tmp_path), node.url, str(KILLS), "5")
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
    heights = json.loads(output)
    assert heights == sorted(heights)
    assert heights[-1] == chain.tip
    # Most kills hit a process that was still indexing, and many of them left new blocks.
    assert sum(height < chain.tip for height in heights) > 0.9 * KILLS
    assert len(set(heights)) > 0.3 * KILLS
    found = await verify(tmp_path, EvmReplayNode(chain, call=NftState(chain).call), count=60)
    assert [finding for finding in found.values() if finding.fault or not finding.is_compared] == []
    engine = reading_evm_index(evm_index_url(INDEX, tmp_path, chain.blockchain_id), INDEX)
    with engine.connect() as connection:
        for facts in facts_of(chain):
            stored = consistency.stored_block(connection, facts.number)
            assert stored is not None
            assert (stored.hash, stored.transfers, stored.tx_hashes) == (facts.hash, facts.transfers, facts.tx_hashes)
    engine.dispose()
