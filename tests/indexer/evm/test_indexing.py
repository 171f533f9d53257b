"""Indexing of EVM chains from real HTTP nodes: recorded chains, and what nodes lack, refuse or get
wrong.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from eth_hash.auto import keccak
from msgspec.structs import replace

from tests.eventually import until
from tests.indexer.evm.indexing import INDEX, RPC, SETTINGS, entry, indexing, rows, written_hashes
from tests.indexer.evm.nodes import open_chain_nodes
from tests.indexer.evm_chains import (
    Log,
    MadeUpChain,
    ServedChain,
    Tx,
    nft_blocks,
    recorded_chain,
    transfer_blocks,
    word,
)
from tests.indexer.evm_node import LENGTH_MISMATCH, BatchLimit, EvmReplayNode, serving_evm
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import IcmOptions
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm.block_reader import EvmBlockSource
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver
from warpseal.indexer.evm.indexer import BackgroundTask
from warpseal.indexer.evm.nodes import ChainNodes, EvmCaller
from warpseal.indexer.evm.prover import BlockProver
from warpseal.indexer.evm.tracer import Tracer
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.batch import MAX_BATCH, BatchSize
from warpseal.upstream.endpoint import EvmIndexing, TraceMode
from warpseal.upstream.jsonrpc import rpc_call
from warpseal.upstream.node import open_sessions

CONSECUTIVE_TRANSFER = keccak(b"ConsecutiveTransfer(uint256,uint256,address,address)")

RECIPIENTS = (
    "SELECT transfers.key, ids.id"
    " FROM transfers"
    " JOIN ids ON ids.key = transfers.recipient"
    " ORDER BY transfers.key"
)


def changed(chain: ServedChain, height: int, change: dict[str, object]) -> bytes:
    """Return the header of a block with other fields."""
    return json.dumps({**json.loads(chain.headers[height]), **change}).encode()


def sparse_chain(blocks: int, every: int = 4, seed: int = 3) -> ServedChain:
    """Return a chain of which every fourth block has a transaction."""
    chain = MadeUpChain(seed, has_roots=False)
    for number in range(1, blocks + 1):
        chain.add([] if number % every else [Tx(chain.address("a"), chain.address("b"))])
    return chain.chain


@pytest.mark.parametrize("name", ["c-chain", "l1-0", "l1-1"])
@pytest.mark.parametrize("network", ["localnet", "helicon"])
async def test_a_recorded_chain_is_indexed_to_its_head(
    tmp_path: Path, network: str, name: str
) -> None:
    chain = recorded_chain(network, name)
    helicon = 0 if (network, name) == ("helicon", "c-chain") else None
    node = EvmReplayNode(chain)
    async with (
        serving_evm(node),
        indexing(tmp_path, [entry(chain, node)], helicon=helicon) as index,
    ):
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))
    counts = [len(json.loads(header)["transactions"]) for header in chain.headers]
    assert [
        row[0] for row in rows(tmp_path, chain, "SELECT tx_count FROM blocks ORDER BY number")
    ] == counts


def with_blooms(chain: ServedChain, bloom: str) -> ServedChain:
    """Return the chain with another bloom in all headers and receipts."""
    headers = [changed(chain, height, {"logsBloom": bloom}) for height in range(chain.tip + 1)]
    receipts = [
        json.dumps([{**receipt, "logsBloom": bloom} for receipt in json.loads(raw)]).encode()
        for raw in chain.receipts
    ]
    return dataclasses.replace(chain, headers=headers, receipts=receipts)


def traces_of(chain: ServedChain, height: int) -> bytes:
    """Return traces in which the contract of each call creates another one."""
    created = {"type": "CREATE", "from": "0x" + "05" * 20, "to": f"0x{height:040x}"}
    outer = {"type": "CALL", "from": "0x" + "06" * 20, "to": "0x" + "05" * 20, "calls": [created]}
    hashes = json.loads(chain.headers[height])["transactions"]
    return json.dumps([{"txHash": tx_hash, "result": outer} for tx_hash in hashes]).encode()


AFTER_HELICON: dict[str, Any] = {"helicon": 0, "icm": IcmOptions(88_888)}
# By address, since ids are numbered by batches.
FACTS = (
    "SELECT * FROM blocks ORDER BY number",
    "SELECT c.tx, c.position, i.id, s.id, f.id"
    " FROM creations c"
    " JOIN ids i ON i.key = c.contract"
    " JOIN ids s ON s.key = c.sender"
    " LEFT JOIN ids f ON f.key = c.factory"
    " ORDER BY c.tx, c.position",
    "SELECT i.id, c.erc_type, c.name, c.symbol"
    " FROM contracts c"
    " JOIN ids i ON i.key = c.contract"
    " ORDER BY i.id",
    "SELECT w.key, w.tx_index, i.id, w.kind, w.message"
    " FROM warp_sends w"
    " JOIN ids i ON i.key = w.sender"
    " ORDER BY w.key",
)
UNFINISHED = "SELECT (SELECT count(*) FROM contracts WHERE due_from IS NOT NULL), traced FROM chain"


def background_tasks(context: EvmChainContext) -> list[BackgroundTask]:
    return [Tracer(context, 600.0), ContractResolver(context, EvmCaller(context.nodes))]


async def test_after_acp_194_rows_do_not_depend_on_blooms_nor_on_pending_state(
    tmp_path: Path,
) -> None:
    """Blocks, events, messages, creations, also inside of transactions, and the kinds of contracts
    are the same.
    """
    chain = recorded_chain("helicon", "c-chain")
    chain = dataclasses.replace(
        chain, traces={height: traces_of(chain, height) for height in range(chain.tip + 1)}
    )
    contents = []
    for bloom in (None, "0x" + "ff" * 256, "no bloom"):
        served = chain if bloom is None else with_blooms(chain, bloom)
        node, folder = (
            EvmReplayNode(served, first_trace=0, is_async=True),
            tmp_path / str(bloom)[:6],
        )
        async with serving_evm(node):
            entries = [entry(served, node, index=EvmIndexing())]
            async with indexing(
                folder, entries, build_tasks=background_tasks, **AFTER_HELICON
            ) as index:
                await index.until_at(chain, chain.tip)

                def is_finished(folder: Path = folder) -> bool:
                    return rows(folder, chain, UNFINISHED) == [(0, chain.tip)]

                await until(is_finished)
        assert not any(method.startswith("warp_") for method in node.call_counts)
        contents.append([rows(folder, chain, query) for query in FACTS])
    assert contents[1:] == contents[:1] * 2
    blocks, creations, contracts, _ = contents[0]
    assert (len(blocks), len(creations) > 2, len(contracts) > 2) == (chain.tip + 1, True, True)


async def test_chains_have_a_schema_each_in_one_postgresql_database(
    tmp_path: Path, postgres_url: str
) -> None:
    chains = [recorded_chain("localnet", name) for name in ("c-chain", "l1-0", "l1-1")]
    nodes, store = [EvmReplayNode(chain, tip=4) for chain in chains], IndexSettings(postgres_url)
    async with serving_evm(*nodes):
        entries = [entry(node.chain, node) for node in nodes]
        for tip in (4, None):
            for node in nodes:
                node.tip = tip
            async with indexing(tmp_path, entries, store=store) as index:
                for node in nodes:
                    await index.until_at(node.chain, node.height)
    for chain in chains:
        assert written_hashes(tmp_path, chain, store) == dict(enumerate(chain.hashes))


@pytest.mark.parametrize("limit", list(BatchLimit))
async def test_batches_shrink_to_what_a_node_accepts(tmp_path: Path, limit: BatchLimit) -> None:
    chain = transfer_blocks(60, has_roots=False)
    node = EvmReplayNode(chain, most_in_batch=5, batch_limit=limit)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))
    # A batch is halved until it fits, and the node is not asked for more again and again.
    assert sum(size > 5 for size in node.batch_sizes) < 24


def test_a_batch_follows_the_size_and_the_time_of_the_replies() -> None:
    size = BatchSize()
    assert size.value == 32
    for _ in range(10):
        size.learn(size.value, 1_000 * size.value, 0.01)
    assert size.value == MAX_BATCH
    size.learn(MAX_BATCH, 40 * 1024 * 1024, 0.5)
    assert size.value == 100
    size.learn(100, 1_000, 4.0)
    assert size.value == 25
    size.halve(25)
    assert size.value == 12
    size.refuse(8)
    assert size.value == 4
    size.learn(4, 100, 0.001)
    assert size.value == 7


async def test_receipts_are_read_one_by_one_from_a_node_without_block_receipts(
    tmp_path: Path,
) -> None:
    chain = nft_blocks(6, txs=3)
    node = EvmReplayNode(chain, has_block_receipts=False)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))
    # The first ones are read twice: to see whether the node has them.
    assert node.call_counts["eth_getTransactionReceipt"] == 36
    assert node.call_counts["eth_getBlockReceipts"] == 6


async def test_an_index_begins_later_if_no_node_has_the_beginning(tmp_path: Path) -> None:
    chain = sparse_chain(400)
    nodes = (
        EvmReplayNode(chain, first=150, first_receipts=290),
        EvmReplayNode(chain, first=150, first_receipts=210),
    )
    async with serving_evm(*nodes), indexing(tmp_path, [entry(chain, *nodes)]) as index:
        await index.until_at(chain, chain.tip)
    # The receipts of block 208 are gone; the blocks from 209 to 211 have no transactions.
    assert written_hashes(tmp_path, chain) == dict(list(enumerate(chain.hashes))[209:])
    assert rows(tmp_path, chain, "SELECT first_height FROM chain") == [(209,)]


async def test_a_first_start_waits_for_a_node_that_is_down_if_the_others_lack_the_beginning(
    tmp_path: Path,
) -> None:
    chain = transfer_blocks(100, has_roots=False)
    pruned, archive = EvmReplayNode(chain, first_receipts=60), EvmReplayNode(chain, is_down=True)
    async with (
        serving_evm(pruned, archive),
        indexing(tmp_path, [entry(chain, pruned, archive)]) as index,
    ):
        await until(lambda: pruned.call_counts["eth_getBlockReceipts"] > 50)
        assert index.height(chain) is None
        archive.is_down = False
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


async def test_a_first_height_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    chain = transfer_blocks(30, has_roots=False)
    node = EvmReplayNode(chain, tip=20)
    later = EvmIndexing(first_height=25, traces=TraceMode.OFF)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node, index=later)]) as index:
        await index.until_status(
            chain, lambda status: status.waiting == "block 25 is not there yet"
        )
        node.tip = None
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(list(enumerate(chain.hashes))[25:])


async def test_a_state_synced_nodes_blocks_without_receipts_are_left_out(tmp_path: Path) -> None:
    chain = sparse_chain(600, every=100)
    node = EvmReplayNode(chain, first=150, first_receipts=401)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(list(enumerate(chain.hashes))[401:])


async def test_a_node_that_has_receipts_serves_where_another_one_lacks_them(tmp_path: Path) -> None:
    chain = transfer_blocks(300, has_roots=False)
    pruned, archive = EvmReplayNode(chain, first_receipts=250), EvmReplayNode(chain, tip=200)
    async with (
        serving_evm(pruned, archive),
        indexing(tmp_path, [entry(chain, pruned, archive)]) as index,
    ):
        await until(lambda: index.height(chain) == 200)
        archive.tip = 260
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


async def test_receipts_that_are_not_there_yet_are_waited_for(tmp_path: Path) -> None:
    chain = transfer_blocks(20, has_roots=False)
    node = EvmReplayNode(chain, tip_receipts=12)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        status = await index.until_status(
            chain, lambda status: "no node has the next block" in status.waiting
        )
        assert (index.height(chain), status.stopped) == (12, "")
        node.replies |= {"eth_getBlockReceipts": LENGTH_MISMATCH, "eth_getTransactionReceipt": None}
        node.tip_receipts = None
        call_count = node.call_counts["eth_getTransactionReceipt"]
        await until(lambda: node.call_counts["eth_getTransactionReceipt"] > call_count + 5)
        assert index.height(chain) == 12
        node.replies.clear()
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


@pytest.mark.parametrize(
    ("height", "receipts", "reason"),
    [
        (7, b"[]", "wrong_receipt_count"),
        (7, 8, "receipt_of_another_block"),
        (7, b'{"a":1}', "undecodable_block"),
    ],
)
async def test_a_chain_stops_with_the_reason_if_no_node_has_right_receipts(
    tmp_path: Path, height: int, receipts: bytes | int, reason: str
) -> None:
    chain = transfer_blocks(20, has_roots=False)
    node = EvmReplayNode(chain)
    node.receipts[height] = chain.receipts[receipts] if isinstance(receipts, int) else receipts
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        status = await index.until_stopped(chain)
        assert (status.stopped, status.stopped_at, index.height(chain)) == (
            reason,
            height,
            height - 1,
        )
        node.receipts.clear()
        await index.until_at(chain, chain.tip)
        await index.until_status(chain, lambda status: not status.stopped)


async def test_gas_and_bloom_are_compared_unless_the_chain_executes_behind_acceptance(
    tmp_path: Path,
) -> None:
    chain = transfer_blocks(10, has_roots=False)
    headers = {
        4: changed(chain, 4, {"gasUsed": "0x1"}),
        6: changed(chain, 6, {"logsBloom": "0x" + "0" * 512}),
    }
    for height, reason in ((4, "wrong_gas"), (6, "wrong_bloom")):
        node = EvmReplayNode(chain, headers={height: headers[height]})
        async with serving_evm(node), indexing(tmp_path / reason, [entry(chain, node)]) as index:
            status = await index.until_stopped(chain)
            assert (status.stopped, status.stopped_at) == (reason, height)
    node = EvmReplayNode(chain, headers=headers)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)], helicon=0) as index:
        await index.until_at(chain, chain.tip)


def with_other_recipient(chain: ServedChain, height: int) -> dict[int, bytes]:
    """Return the receipts of a block with another recipient in its first log."""
    receipts = json.loads(chain.receipts[height])
    log = receipts[0]["logs"][0]
    log["topics"][2] = "0x" + word(b"thief").hex()
    return {height: json.dumps(receipts).encode()}


def without_nft_topic(chain: ServedChain, height: int) -> dict[int, bytes]:
    """Return the receipts of a block whose first log is of no event."""
    receipts = json.loads(chain.receipts[height])
    receipts[0]["logs"][0]["topics"][0] = "0x" + word(7).hex()
    return {height: json.dumps(receipts).encode()}


@pytest.mark.parametrize("lie", [with_other_recipient, without_nft_topic])
async def test_a_changed_log_is_refused_by_the_receipts_root_and_another_node_is_asked(
    tmp_path: Path, lie: Callable[[ServedChain, int], dict[int, bytes]]
) -> None:
    chain = nft_blocks(12, seed=4, txs=1)
    liar, good = EvmReplayNode(chain, receipts=lie(chain, 7)), EvmReplayNode(chain)
    async with serving_evm(liar, good):
        async with indexing(tmp_path / "alone", [entry(chain, liar)]) as index:
            status = await index.until_stopped(chain)
            assert (status.stopped, status.stopped_at, index.height(chain)) == (
                "wrong_receipts_root",
                7,
                6,
            )
        async with indexing(tmp_path / "two", [entry(chain, liar, good)]) as index:
            await index.until_at(chain, chain.tip)
        async with indexing(tmp_path / "honest", [entry(chain, good)]) as index:
            await index.until_at(chain, chain.tip)
    assert rows(tmp_path / "two", chain, RECIPIENTS) == rows(tmp_path / "honest", chain, RECIPIENTS)


async def test_a_changed_erc20_log_is_refused_with_holders(tmp_path: Path) -> None:
    chain = transfer_blocks(12)
    node = EvmReplayNode(chain, receipts=with_other_recipient(chain, 7))
    holders = EvmIndexing(traces=TraceMode.OFF, has_holders=True)
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node, index=holders)]) as index:
        status = await index.until_stopped(chain)
        assert (status.stopped, status.stopped_at) == ("wrong_receipts_root", 7)


async def test_another_node_is_asked_if_no_database_holds_the_index_of_a_log(
    tmp_path: Path,
) -> None:
    # The receiptsRoot of the header does not commit to it.
    chain = nft_blocks(12, seed=4, txs=1)
    receipts = json.loads(chain.receipts[7])
    receipts[-1]["logs"][-1]["logIndex"] = hex(1 << 63)
    liar = EvmReplayNode(chain, receipts={7: json.dumps(receipts).encode()})
    good = EvmReplayNode(chain)
    async with serving_evm(liar, good):
        async with indexing(tmp_path / "alone", [entry(chain, liar)]) as index:
            status = await index.until_stopped(chain)
            assert (status.stopped, status.stopped_at) == ("undecodable_block", 7)
        async with indexing(tmp_path / "both", [entry(chain, liar, good)]) as index:
            await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path / "both", chain) == dict(enumerate(chain.hashes))


async def test_after_helicon_events_are_compared_with_a_second_node(tmp_path: Path) -> None:
    chain = nft_blocks(12, seed=4, txs=1)
    lie = with_other_recipient(chain, 7)
    liar, good, other = (
        EvmReplayNode(chain, receipts=lie),
        EvmReplayNode(chain),
        EvmReplayNode(chain),
    )
    async with serving_evm(liar, good, other):
        async with indexing(tmp_path / "two", [entry(chain, liar, good)], helicon=0) as index:
            status = await index.until_stopped(chain)
            assert status.stopped == "nodes_disagree"
            assert "other events of block 7" in status.detail
        async with indexing(
            tmp_path / "three", [entry(chain, liar, good, other)], helicon=0
        ) as index:
            await index.until_at(chain, chain.tip)
        async with indexing(tmp_path / "honest", [entry(chain, good)], helicon=0) as index:
            await index.until_at(chain, chain.tip)
    assert rows(tmp_path / "three", chain, RECIPIENTS) == rows(
        tmp_path / "honest", chain, RECIPIENTS
    )


async def test_another_node_is_asked_if_a_nodes_blocks_cannot_be_right(tmp_path: Path) -> None:
    chain = transfer_blocks(40, has_roots=False)
    nodes = EvmReplayNode(chain, receipts=dict.fromkeys(range(10, 41), b"[]")), EvmReplayNode(chain)
    async with serving_evm(*nodes), indexing(tmp_path, [entry(chain, *nodes)]) as index:
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


@pytest.mark.parametrize("heights", [range(10, 41), (25,), range(1, 41, 3)])
@pytest.mark.parametrize(
    "lie",
    [
        {"parentHash": "0x" + "ee" * 32},
        {"timestamp": "0x0"},
        {"timestamp": "0x1"},
        {"timestamp": hex(2**62)},
    ],
    ids=["parent", "zero", "before parent", "far future"],
)
async def test_an_honest_node_is_used_where_another_one_lies_about_a_part_of_a_header(
    tmp_path: Path, heights: Iterable[int], lie: dict[str, object]
) -> None:
    chain = transfer_blocks(40, has_roots=False)
    liar = EvmReplayNode(chain, headers={height: changed(chain, height, lie) for height in heights})
    nodes = liar, EvmReplayNode(chain)
    async with serving_evm(*nodes), indexing(tmp_path, [entry(chain, *nodes)]) as index:
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))
    times = rows(tmp_path, chain, "SELECT time FROM blocks ORDER BY number")
    assert times == sorted(times)
    assert times[1] > (0,)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"parentHash": "0x" + "ee" * 32}, "wrong_parent"),
        ({"timestamp": "0x0"}, "wrong_time"),
        ({"timestamp": hex(2**62)}, "undecodable_block"),
    ],
)
async def test_a_chain_stops_with_the_reason_if_its_only_node_lies_about_a_header(
    tmp_path: Path, lie: dict[str, object], reason: str
) -> None:
    chain = transfer_blocks(40, has_roots=False)
    node = EvmReplayNode(chain, headers={25: changed(chain, 25, lie)})
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node)]) as index:
        status = await index.until_stopped(chain)
        assert (status.stopped, status.stopped_at, index.height(chain)) == (reason, 25, 24)
        node.headers.clear()
        await index.until_at(chain, chain.tip)


def forked(chain: ServedChain, height: int, seed: int) -> ServedChain:
    """Return a chain with other blocks from a height on."""
    other = transfer_blocks(chain.tip, seed, has_roots=False)
    joined = changed(other, height, {"parentHash": chain.hashes[height - 1]})
    return dataclasses.replace(
        chain,
        headers=[*chain.headers[:height], joined, *other.headers[height + 1 :]],
        receipts=[*chain.receipts[:height], *other.receipts[height:]],
        hashes=[*chain.hashes[:height], *other.hashes[height:]],
    )


async def test_blocks_are_read_from_the_node_that_has_them(tmp_path: Path) -> None:
    chain = transfer_blocks(40, has_roots=False)
    lagging, good = EvmReplayNode(chain, tip=10), EvmReplayNode(chain, tip=30)
    boasting = EvmReplayNode(chain, tip=20, replies={"eth_blockNumber": hex(10**15)})
    nodes = lagging, boasting, good
    async with serving_evm(*nodes), indexing(tmp_path, [entry(chain, *nodes)]) as index:
        await index.until_at(chain, 30)
        good.tip = None
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


async def test_a_node_that_returns_another_block_than_the_one_asked_for_denies_nothing(
    tmp_path: Path,
) -> None:
    chain = transfer_blocks(20, has_roots=False)
    good, confused = EvmReplayNode(chain), EvmReplayNode(chain)
    confused.headers = dict.fromkeys(range(1, 21), chain.headers[3])
    async with (
        serving_evm(good, confused),
        indexing(tmp_path, [entry(chain, confused, good)]) as index,
    ):
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


async def test_lists_of_denied_methods_do_not_bind_the_indexer(tmp_path: Path) -> None:
    chain = transfer_blocks(5, has_roots=False)
    node = EvmReplayNode(chain)
    async with serving_evm(node):
        denied = replace(entry(chain, node), deny_methods=("eth_*",))
        async with indexing(tmp_path, [denied]) as index:
            await index.until_at(chain, chain.tip)


async def test_a_chain_stops_if_two_nodes_disagree_and_goes_on_with_a_third(tmp_path: Path) -> None:
    chain = transfer_blocks(40, has_roots=False)
    fork = forked(chain, 25, seed=9)
    nodes = EvmReplayNode(fork), EvmReplayNode(chain), EvmReplayNode(chain)
    async with serving_evm(*nodes):
        async with indexing(tmp_path / "two", [entry(chain, *nodes[:2])]) as index:
            status = await index.until_stopped(chain)
            assert status.stopped == "nodes_disagree"
            assert fork.hashes[40][2:] in status.detail
            assert chain.hashes[40][2:] in status.detail
        async with indexing(tmp_path, [entry(chain, *nodes)]) as index:
            await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


async def test_another_hash_at_a_known_height_stops_the_chain(tmp_path: Path) -> None:
    chain = transfer_blocks(40, has_roots=False)
    node = EvmReplayNode(chain, tip=30)
    async with serving_evm(node):
        async with indexing(tmp_path, [entry(chain, node)]) as index:
            await until(lambda: index.height(chain) == 30)
            node.chain = forked(chain, 25, seed=9)
            node.tip = 40
            status = await index.until_stopped(chain)
            assert (status.stopped, status.stopped_at) == ("another_hash", 31)
        # It stays stopped, also if the node has no newer block after a restart.
        node.tip = 30
        async with indexing(tmp_path, [entry(chain, node)]) as index:
            status = await index.until_status(
                chain, lambda status: bool(status.stopped and status.node_height == 0)
            )
            assert status.stopped == "another_hash"
    assert written_hashes(tmp_path, chain) == dict(list(enumerate(chain.hashes))[:31])


async def test_a_chain_with_another_from_is_indexed_again_and_its_status_says_so(
    tmp_path: Path,
) -> None:
    chain = transfer_blocks(30, has_roots=False)
    node = EvmReplayNode(chain)
    async with serving_evm(node):
        async with indexing(tmp_path, [entry(chain, node)]) as index:
            await index.until_at(chain, chain.tip)
        later = EvmIndexing(first_height=12, traces=TraceMode.OFF)
        node.tip_receipts = 20
        async with indexing(tmp_path, [entry(chain, node, index=later)]) as index:
            status = await index.until_status(chain, lambda status: "no node has" in status.waiting)
            assert "the index is being rebuilt: `from` has changed from 0 to 12" in status.waiting
            node.tip_receipts = None
            await until(lambda: rows(tmp_path, chain, "SELECT min(number) FROM blocks") == [(12,)])
            await until(lambda: rows(tmp_path, chain, "SELECT max(number) FROM blocks") == [(30,)])
            await until(
                lambda: (
                    rows(tmp_path, chain, "SELECT counted_to, counted_txs FROM chain") == [(12, 11)]
                )
            )
            await index.until_status(chain, lambda status: not status.waiting)


async def test_holders_that_are_turned_on_rebuild_the_index_and_its_status_says_so(
    tmp_path: Path,
) -> None:
    chain = transfer_blocks(30)
    node = EvmReplayNode(chain)
    balances = "SELECT count(*) > 0 FROM balances"
    async with serving_evm(node):
        async with indexing(tmp_path, [entry(chain, node)]) as index:
            await index.until_at(chain, chain.tip)
            assert rows(tmp_path, chain, balances) == [(0,)]
        with_holders = EvmIndexing(traces=TraceMode.OFF, has_holders=True)
        node.tip_receipts = 20
        async with indexing(tmp_path, [entry(chain, node, index=with_holders)]) as index:
            notice = "the index is being rebuilt: `holders` has changed to true"
            await index.until_status(chain, lambda status: notice in status.waiting)
            node.tip_receipts = None
            await index.until_at(chain, chain.tip)
            await index.until_status(chain, lambda status: not status.waiting)
            assert rows(tmp_path, chain, balances) == [(1,)]
        async with indexing(tmp_path, [entry(chain, node)]) as index:
            await until(lambda: rows(tmp_path, chain, balances) == [(0,)])


async def test_a_file_that_is_deleted_is_made_again_and_readers_follow(tmp_path: Path) -> None:
    chain = transfer_blocks(30, has_roots=False)
    node = EvmReplayNode(chain)
    url = evm_index_url(INDEX, tmp_path, chain.blockchain_id)
    async with (
        serving_evm(node),
        indexing(tmp_path, [entry(chain, node)]) as index,
        EvmIndex(url, INDEX) as reader,
    ):
        await index.until_at(chain, chain.tip)
        before = await reader.progress()
        assert before is not None
        assert before.height == chain.tip
        node.tip = 20
        assert url.path is not None
        url.path.unlink()

        async def is_made_again() -> bool:
            freshness = await reader.progress()
            return freshness is not None and freshness.height == 20

        await until(is_made_again)
        node.tip = None
        await until(lambda: written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes)))


async def test_nodes_of_another_chain_stop_an_index_and_never_replace_it(tmp_path: Path) -> None:
    chain = transfer_blocks(30, has_roots=False)
    node = EvmReplayNode(chain, tip=20)
    other = EvmReplayNode(transfer_blocks(30, 2, has_roots=False))
    async with serving_evm(node, other):
        async with indexing(tmp_path, [entry(chain, node)]) as index:
            await until(lambda: index.height(chain) == 20)
        async with indexing(tmp_path, [entry(chain, other)]) as index:
            status = await index.until_stopped(chain)
            assert (status.stopped, other.chain.hashes[0] in status.detail) == (
                "another_chain",
                True,
            )
        node.tip = None
        async with indexing(tmp_path, [entry(chain, other, node)]) as index:
            await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


async def test_a_batch_that_takes_too_long_is_halved(tmp_path: Path) -> None:
    class SlowNode(EvmReplayNode):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if (await request.read()).count(b"eth_getBlockByNumber") > 8:
                await asyncio.sleep(3_600)
            return await super().handle(request)

    node = SlowNode(transfer_blocks(40, has_roots=False))
    calls = [rpc_call("eth_getBlockByNumber", hex(height), False) for height in range(40)]
    async with serving_evm(node), open_chain_nodes(node.url) as nodes:
        responses = await nodes.nodes[0].call_batch(calls, timeout_s=0.3)
    numbers = [json.loads(bytes(response.result or b"null"))["number"] for response in responses]
    assert numbers == [hex(height) for height in range(40)]
    assert max(node.batch_sizes) == 8


async def test_an_endless_reply_ends_a_call_and_another_node_serves(tmp_path: Path) -> None:
    chain = transfer_blocks(20, has_roots=False)
    endless, good = EvmReplayNode(chain), EvmReplayNode(chain)
    async with (
        serving_evm(endless, good),
        indexing(tmp_path, [entry(chain, endless, good)]) as index,
    ):
        endless.is_endless = True
        await index.until_at(chain, chain.tip)
    assert written_hashes(tmp_path, chain) == dict(enumerate(chain.hashes))


async def test_blocks_with_very_many_transfers_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    chain = MadeUpChain()
    sender, contract = chain.address("sender"), chain.address("contract")
    bomb = Log(contract, (CONSECUTIVE_TRANSFER, word(1), word(sender), word(sender)), word(10_000))
    for _ in range(12):
        chain.add([Tx(sender, contract, [bomb])])
    async with serving_evm(EvmReplayNode(chain.chain)) as (node,), open_sessions() as sessions:
        nodes = ChainNodes(entry(chain.chain, node), sessions, RPC)
        with ThreadPoolExecutor(1) as decoding:
            source = EvmBlockSource(
                nodes, Retrier(Backoff(0.01, 0.05), {}), decoding, BlockProver()
            )
            numbers: list[int] = []
            while len(numbers) < 13:
                blocks = await source.read(len(numbers), 13 - len(numbers))
                assert sum(len(block.transfers) for block in blocks) <= 20_000
                numbers += [block.number for block in blocks]
    assert numbers == list(range(13))


async def test_new_blocks_wake_the_indexer(tmp_path: Path) -> None:
    chain = transfer_blocks(20, has_roots=False)
    node = EvmReplayNode(chain, tip=3)
    slow = replace(SETTINGS, poll_s=3_600.0)
    async with (
        serving_evm(node),
        indexing(tmp_path, [entry(chain, node, ws=True)], settings=slow) as index,
    ):
        await until(lambda: index.height(chain) == 3)
        await until(lambda: node.call_counts["eth_subscribe"])
        for height in (4, 5, 6):
            await node.add_to_tip()
            await until(lambda height=height: index.height(chain) == height)  # type: ignore[misc]
        call_count = node.call_counts["eth_blockNumber"]
    assert call_count < 20


async def test_an_unknown_type_of_transaction_stops_its_chain_alone_and_names_the_type(
    tmp_path: Path,
) -> None:
    chains = [transfer_blocks(20, seed, has_roots=False) for seed in (1, 2)]
    new, old = (EvmReplayNode(chain) for chain in chains)
    new.receipts[7] = chains[0].receipts[7].replace(b'"type":"0x2"', b'"type":"0x7f"')
    async with serving_evm(new, old):
        entries = [entry(chain, node) for chain, node in zip(chains, (new, old), strict=True)]
        async with indexing(tmp_path, entries) as index:
            status = await index.until_stopped(chains[0])
            assert (status.stopped, status.stopped_at, index.height(chains[0])) == (
                "unknown_type",
                7,
                6,
            )
            assert status.detail == "transaction 0 has the unknown type 0x7f: upgrade Warpseal"
            assert rows(tmp_path, chains[0], "SELECT count(*) FROM blocks") == [(7,)]
            await index.until_at(chains[1], 20)
            # A version that knows the type goes on there; so does this one if it is a node's lie.
            new.receipts.clear()
            await index.until_at(chains[0], 20)


async def test_a_stop_or_a_slow_node_of_one_chain_delays_no_other(tmp_path: Path) -> None:
    chains = [transfer_blocks(20, seed, has_roots=False) for seed in (1, 2, 3)]
    stopped, slow, good = (EvmReplayNode(chain) for chain in chains)
    stopped.receipts[1] = b"[]"
    slow.delay_s = 3_600.0
    async with serving_evm(stopped, slow, good):
        entries = [
            entry(chain, node) for chain, node in zip(chains, (stopped, slow, good), strict=True)
        ]
        async with indexing(tmp_path, entries) as index:
            await index.until_at(chains[2], 20)
            assert (await index.until_stopped(chains[0])).stopped == "wrong_receipt_count"


async def test_calls_to_a_public_node_keep_to_the_rate_and_count_batch_entries(
    tmp_path: Path,
) -> None:
    chain = transfer_blocks(60, has_roots=False)
    node = EvmReplayNode(chain)
    limited = EvmIndexing(traces=TraceMode.OFF, calls_per_s=100)
    clock = asyncio.get_running_loop().time
    async with serving_evm(node), indexing(tmp_path, [entry(chain, node, index=limited)]) as index:
        started_at = clock()
        await index.until_at(chain, chain.tip)
        calls, seconds = node.call_counts.total(), clock() - started_at
    assert max(node.batch_sizes) <= 100
    # More than one second's calls can be on their way, but not more.
    assert 120 < calls <= 100 * (seconds + 1)


async def test_background_tasks_begin_when_a_block_is_written(tmp_path: Path) -> None:
    chain = transfer_blocks(30, has_roots=False)
    heights: list[int | None] = []

    class Task:
        def __init__(self, context: EvmChainContext) -> None:
            self._context = context

        async def run(self) -> None:
            heights.append(self._context.height)

    async with serving_evm(EvmReplayNode(chain)) as (node,):
        for _ in range(2):
            async with indexing(
                tmp_path, [entry(chain, node)], build_tasks=lambda context: [Task(context)]
            ) as index:
                await index.until_at(chain, chain.tip)
                await until(lambda: bool(heights))
            assert None not in heights
            heights.clear()


async def test_the_rate_is_in_the_status_as_soon_as_it_is_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpseal.follow.chain_follower._MIN_STATUS_INTERVAL_S", 0.05)
    # Without news, no status follows the one that is written before the first block.
    monkeypatch.setattr("warpseal.follow.chain_follower._CATCHING_UP_STATUS_INTERVAL_S", 3600.0)
    chain = transfer_blocks(600, has_roots=False)
    node = EvmReplayNode(chain, most_in_batch=5, delay_s=0.05)
    async with serving_evm(node):
        for _ in range(2):
            async with indexing(tmp_path, [entry(chain, node)]) as index:
                status = await index.until_status(
                    chain, lambda status: status.rate_blocks_s is not None
                )
                assert status.rate_blocks_s is not None
                assert status.eta_s is not None
                assert 0 < status.eta_s <= 600 / status.rate_blocks_s
                assert (index.height(chain) or 0) < chain.tip
