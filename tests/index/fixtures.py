"""Histories to index: made-up ones of the P-Chain, and the recorded network with its chains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from msgspec.structs import replace

from tests.ledger import made_up_network as made_up
from tests.ledger.histories import History
from tests.ledger.memory_utxos import MemoryUtxos
from tests.ledger.recorded import GENESIS, c_blocks, moves, p_blocks, params, x_blocks
from warpseal.chains.ids import Address, parse_address
from warpseal.chains.p_txs import CreateChainTx
from warpseal.chains.x_blocks import parse_x_genesis
from warpseal.index.database import index_url, reading_index, writing_index
from warpseal.index.index import Index
from warpseal.index.raw_blocks import encode_c_block
from warpseal.index.read_session import ReadSession
from warpseal.index.rebuild import RowRebuilder
from warpseal.index.records import CRecord, PRecord, Record, XPreLinearizationRecord, XRecord
from warpseal.index.schema import create_row_tables
from warpseal.index.settings import IndexSettings
from warpseal.index.validator_sets import read_all_members, read_heights
from warpseal.index.writer import IndexWriter
from warpseal.ledger.c_chain import apply_c_block
from warpseal.ledger.checkpoint import encode_checkpoint
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis
from warpseal.ledger.params import Parameters
from warpseal.ledger.x_chain import apply_x_block, build_x_genesis_effects
from warpseal.resources.base import UNSET
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.resources.queries import (
    BlockQuery,
    Page,
    PageRequest,
    RewardQuery,
    TransactionQuery,
    ValidationQuery,
)
from warpseal.resources.text import NetworkText
from warpseal.warp.ids import NodeID, parse_node_id

SMALL = IndexSettings(
    recent_outputs=8, cached_addresses=20, raw_bytes=4_000, changes_per_snapshot=4
)
"""So little memory that everything is looked up again and again."""


def made_up_params() -> Parameters:
    """Return the parameters of made-up histories."""
    return made_up.PARAMS


@cache
def made_up_history(seed: int, blocks: int) -> tuple[tuple[Record, bytes], ...]:
    """Return a history of the P-Chain, each block with the ledger's state after it."""
    history = History(seed)
    state, effects = state_from_genesis(history.genesis, made_up.PARAMS)
    outputs = MemoryUtxos()
    outputs.add(effects.emitted)
    outputs.apply(effects.txs)
    records: list[tuple[Record, bytes]] = [
        (PRecord(effects, history.genesis.raw), encode_checkpoint(state))
    ]
    for _ in range(blocks):
        block = history.next_block()
        effects = apply_p_block(state, block, outputs)
        outputs.apply(moves(effects))
        records.append((PRecord(effects, block.raw), encode_checkpoint(state)))
    return tuple(records)


@cache
def recorded_history(*, one_after_the_other: bool = False) -> tuple[Record, ...]:
    """Return the recorded network's blocks as they came by time, or the P-Chain first, then X, then
    C.
    """
    outputs = MemoryUtxos()
    state, effects = state_from_genesis(GENESIS, params())
    outputs.add(effects.emitted)
    outputs.apply(effects.txs)
    creation = GENESIS.chains[0].unsigned
    assert isinstance(creation, CreateChainTx)
    x_effects = build_x_genesis_effects(parse_x_genesis(creation.genesis), params().x_chain_id)
    outputs.apply(x_effects)
    records: list[Record] = [PRecord(effects, GENESIS.raw)]
    records.append(XPreLinearizationRecord(-1, GENESIS.timestamp, x_effects, creation.genesis))
    timed = _timed([(block.time or 0, _imports(block.txs), block) for block in p_blocks()])
    timed += _timed([(block.time, _imports(block.txs), block) for block in x_blocks()])
    timed += _timed([(header.time_s, _imports(txs), (header, txs)) for header, txs in c_blocks()])
    if not one_after_the_other:
        timed.sort(key=lambda item: item[:2])
    for _, _, block in timed:
        records.append(_applied(state, block, outputs))
    return tuple(records)


def _timed(blocks: list[tuple[int, bool, Any]]) -> list[tuple[int, bool, Any]]:
    """Return a chain's blocks that sorting by time, exports first, leaves in their order."""
    timed_blocks: list[tuple[int, bool, Any]] = []
    last = (0, False)
    for time, imports, block in blocks:
        last = max(last, (time, imports))
        timed_blocks.append((*last, block))
    return timed_blocks


def _applied(state: Any, block: Any, outputs: MemoryUtxos) -> Record:
    if isinstance(block, tuple):
        c_effects = apply_c_block(params().c_chain_id, block[0], block[1], outputs)
        outputs.apply(c_effects.txs)
        return CRecord(c_effects, encode_c_block(*block))
    if type(block).__name__ == "XBlock":
        x_effects = apply_x_block(params().x_chain_id, block, outputs, is_complete=True)
        outputs.apply(x_effects.txs)
        return XRecord(x_effects, block.raw)
    effects = apply_p_block(state, block, outputs)
    outputs.apply(moves(effects))
    return PRecord(effects, block.raw)


def _imports(txs: Any) -> bool:
    return any(tx.kind == "ImportTx" for tx in txs)


def small_settings(url: str) -> IndexSettings:
    """Return settings of an index at a URL that remembers little."""
    return replace(SMALL, url=url)


@contextmanager
def open_writer(
    url: str, network: Parameters, settings: IndexSettings | None = None
) -> Iterator[IndexWriter]:
    """Hold an index open for writing."""
    settings = settings or small_settings(url)
    writer = IndexWriter(writing_index(index_url(settings, None), settings), network, settings)
    try:
        yield writer
    finally:
        writer.close()


def drop_rows(url: str) -> None:
    """Drop all derived rows of an index, as a new version of the schema does."""
    engine = writing_index(index_url(small_settings(url), None), small_settings(url))
    with engine.begin() as connection:
        create_row_tables(connection)
    engine.dispose()


def rebuild_rows(url: str, network: Parameters) -> None:
    """Derive all rows of an index that are missing."""
    engine = reading_index(index_url(small_settings(url), None), small_settings(url))
    with open_writer(url, network) as writer:
        rebuilder = RowRebuilder(writer, engine, network)
        while rebuilder.step(60.0) is not None:
            pass


def write_all(url: str, network: Parameters, records: Sequence[Record], at_once: int = 50) -> None:
    """Write a history."""
    with open_writer(url, network) as writer:
        for start in range(0, len(records), at_once):
            writer.write(records[start : start + at_once])


def network_text(network: Parameters) -> NetworkText:
    """Return the texts of a network."""
    return NetworkText(network.network_id, PrimaryChains(network.x_chain_id, network.c_chain_id))


def open_index(url: str, network: Parameters) -> Index:
    """Return a reader of an index, to be opened by `async with`."""
    settings = small_settings(url)
    return Index(index_url(settings, None), network_text(network), settings)


async def all_pages(query_page: Any, query: Any, size: int) -> list[Any]:
    """Return the items of all pages; a page is never empty while there are more, and never longer
    than asked for.
    """
    items: list[Any] = []
    after = None
    while True:
        page: Page[Any] = await query_page(query, PageRequest(size, after))
        assert len(page.items) <= size
        items += page.items
        if page.next is None:
            return items
        assert len(str(page.next)) < 100
        after = page.next


def utxos_of(tx: Any) -> tuple[Any, ...]:
    """Return the outputs that a transaction shows."""
    return (*tx.consumed_utxos, *tx.emitted_utxos)


def _read_sets(session: ReadSession) -> Any:
    """Return the snapshots of validator sets, and all sets after each tenth block."""
    snapshots = session.rows("SELECT subnet, height FROM set_snapshots ORDER BY number")
    session.load_ids(subnet for subnet, _ in snapshots)
    heights = read_heights(session)
    sets = (
        [read_all_members(session, height) for height in range(0, heights.newest + 1, 10)]
        if heights
        else []
    )
    return sorted((session.id_of(subnet), height) for subnet, height in snapshots), sets


async def read_everything(url: str, network: Parameters) -> dict[str, Any]:
    """Return all results of an index to queries without filters, and to some by owner and node."""
    async with open_index(url, network) as index:
        results: dict[str, Any] = {"fresh": index.progress()}
        nodes: set[NodeID] = set()
        for chain in PrimaryChain:
            txs = await all_pages(index.transactions, TransactionQuery(chain), 100)
            nodes.update(
                NodeID(parse_node_id(tx.node_id)) for tx in txs if getattr(tx, "node_id", UNSET)
            )
            results[chain] = (txs, await all_pages(index.blocks, BlockQuery(chain), 100))
            owners = sorted(
                {owner for tx in txs for utxo in utxos_of(tx) for owner in utxo.addresses}
            )
            by_owner = [
                TransactionQuery(chain, addresses=(Address(parse_address(owner)[1]),))
                for owner in owners[:8]
            ]
            results[f"{chain} by owner"] = [
                await all_pages(index.transactions, query, 100) for query in by_owner
            ]
        results["sets"] = await index._reader.read(_read_sets)
        for node_id in sorted(nodes):
            results[node_id.hex()] = await all_pages(
                index.validations, ValidationQuery(node_id), 100
            )
        if nodes:
            results["rewards"] = await all_pages(
                index.rewards, RewardQuery(node_ids=tuple(sorted(nodes))), 100
            )
    return results
