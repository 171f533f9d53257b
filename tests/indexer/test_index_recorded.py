"""The index of the recorded network: complete, and equal to the state of the replaying node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chains.exchanges import LOCALNET
from tests.indexer.indexed import index_all, indexing, only, until_caught_up
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import query, rows
from tests.ledger.recorded import c_blocks, p_blocks, params, replayed, x_blocks
from warpseal.index.keys import prefix_of
from warpseal.index.schema import ALL_UNSPENT
from warpseal.resources.chains import PrimaryChain
from warpseal.warp.ids import parse_id

STORY: dict[str, Any] = json.loads((LOCALNET / "story.json").read_text())


async def build_index(folder: Path, node: ReplayNode | None = None) -> Path:
    """Index all blocks and return the folder of the index."""
    async with serving(node or ReplayNode()) as served:
        await index_all(folder, served)
    return folder


async def test_every_block_is_indexed_with_its_time_and_its_number_of_transactions(
    tmp_path: Path,
) -> None:
    folder = await build_index(tmp_path)
    rows = {row[0]: row[1:] for row in query(folder, "SELECT key, block_id, time, txs FROM blocks")}
    expected: dict[int, tuple[bytes, int | None, int]] = {}
    expected |= {block.height: (block.id, block.time, len(block.txs)) for block in p_blocks()}
    expected |= {
        1 << 40 | block.height: (block.id, block.time, len(block.txs)) for block in x_blocks()
    }
    expected |= {
        2 << 40 | header.number: (header.hash, header.time_s, len(txs))
        for header, txs in c_blocks()
    }
    genesis = rows.pop(0)
    assert rows == expected
    assert genesis[0] == replayed().p[0].block.id


async def test_every_transaction_of_the_wallet_is_indexed_at_its_height_and_time(
    tmp_path: Path,
) -> None:
    folder = await build_index(tmp_path)
    rows = {row[0]: row[1:] for row in query(folder, "SELECT tx_id, height, time FROM txs")}
    times: dict[bytes, tuple[int, int | None]] = {}
    times |= {tx.id: (block.height, block.time) for block in p_blocks() for tx in block.txs}
    times |= {tx.id: (block.height, block.time) for block in x_blocks() for tx in block.txs}
    times |= {tx.id: (header.number, header.time_s) for header, txs in c_blocks() for tx in txs}
    assert len(STORY["transactions"]) == 26
    for text in STORY["transactions"].values():
        tx_id = parse_id(text)
        assert rows[tx_id] == times[tx_id]


async def test_the_unspent_outputs_equal_those_of_a_replay_of_all_chains_by_time(
    tmp_path: Path,
) -> None:
    folder = await build_index(tmp_path)
    chains = {
        chain_id: number
        for number, chain_id in enumerate((bytes(32), params().x_chain_id, params().c_chain_id))
    }
    text = (
        "SELECT u.prefix, u.rest, u.amount, a.id, u.held_on"
        f" FROM {ALL_UNSPENT} AS u"
        " JOIN ids a ON a.key = u.asset"
    )
    expected = {
        (prefix_of(out.id), out.id[8:], out.amount, out.asset_id, chains[out.held_on])
        for out in replayed().outputs.unspent.values()
    }
    assert set(query(folder, text)) == expected
    assert query(folder, "SELECT * FROM early_spends") == []


async def test_each_block_has_the_proposer_of_its_container(tmp_path: Path) -> None:
    folder = await build_index(tmp_path / "one")
    assert query(folder, "SELECT count(*) FROM blocks WHERE proposer IS NULL AND chain = 0") == [
        (1,)
    ]
    apart = await build_index(tmp_path / "other", ReplayNode(has_index=False))
    assert query(apart, "SELECT count(*) FROM blocks WHERE proposer IS NOT NULL") == [(0,)]
    one, other = rows(folder), rows(apart)
    for part in (one, other):
        part["blocks"] = [row[:-1] for row in part["blocks"]]
    assert one == other


async def test_each_block_is_requested_once(tmp_path: Path) -> None:
    node = ReplayNode(has_index=False)
    await build_index(tmp_path, node)
    call_counts = dict(node.heights)
    # The indexer requests the first block once more, to check that the node has it.
    for chain in "PXC":
        assert call_counts.pop((chain, 0)) <= 2
    assert set(call_counts.values()) == {1}
    assert len(call_counts) == 19 + 13 + 10


@pytest.mark.parametrize("chain", list(PrimaryChain))
async def test_each_chain_can_be_indexed_without_the_others(
    tmp_path: Path, chain: PrimaryChain
) -> None:
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node, settings=only(chain))
    heights = {PrimaryChain.P: 19, PrimaryChain.X: 13, PrimaryChain.C: 10}
    assert [row[0] for row in query(tmp_path, "SELECT height FROM chains")] == [heights[chain]]


async def test_a_chain_with_a_later_first_height_reports_it(tmp_path: Path) -> None:
    begun_late = replace(
        only(*PrimaryChain), first_heights={PrimaryChain.P: 7, PrimaryChain.X: 5, PrimaryChain.C: 4}
    )
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node, settings=begun_late)
    rows = query(
        tmp_path, "SELECT chain, first_height, height, is_complete FROM chains ORDER BY chain"
    )
    assert rows == [(0, 7, 19, 0), (1, 5, 13, 0), (2, 4, 10, 0)]


async def test_the_first_height_is_that_of_the_first_block_of_the_node(tmp_path: Path) -> None:
    async with serving(ReplayNode(first={"C": 6, "X": 3})) as node:
        await index_all(tmp_path, node, settings=only(PrimaryChain.X, PrimaryChain.C))
    rows = query(tmp_path, "SELECT chain, first_height, height FROM chains ORDER BY chain")
    assert rows == [(1, 3, 13), (2, 6, 10)]


async def test_without_a_genesis_the_chain_is_marked_incomplete(tmp_path: Path) -> None:
    async with serving(ReplayNode()) as node, indexing(tmp_path, node, genesis=None) as indexer:
        await until_caught_up(indexer)
    rows = query(
        tmp_path, "SELECT chain, first_height, height, is_complete FROM chains WHERE chain < 2"
    )
    assert rows == [(0, 1, 19, 0), (1, 0, 13, 0)]
