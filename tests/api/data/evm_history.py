"""A made-up EVM chain with every kind of contract, transfer and metadata, and its index as the
indexer writes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.api.data import samples as s
from tests.api.data.evm_fixtures import evm_setup
from tests.api.data.fixtures import Clock, DataApiSetup
from tests.indexer.evm_chains import (
    GENESIS_TIME,
    Log,
    MadeUpChain,
    ServedChain,
    Tx,
    erc721_transfer,
    erc1155_batch,
    erc1155_transfer,
)
from tests.indexer.evm_node import EvmReplayNode
from warpseal.chains.evm.blocks import decode_block, decode_receipts
from warpseal.chains.evm.checks import BlockRules, block_facts
from warpseal.chains.evm.facts import Creation, EvmBlockFacts
from warpseal.chains.evm.nft_document import NftFields
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.database import reading_index
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import ContractFacts, EvmChainIdentity, TokenDocument, TracedBlock
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.resources.evm import ErcType, MetadataStatus
from warpseal.resources.text import account_text
from warpseal.store.locks import has_writer
from warpseal.upstream.endpoint import EvmIndexing
from warpseal.warp.ids import ChainID, id_text

SETTINGS: Final = IndexSettings()
ZERO: Final = bytes(20)
_BUILDER: Final = MadeUpChain(seed=12, evm_chain_id=54_321)
ALICE, BOB, CAROL = (_BUILDER.address(name) for name in ("alice", "bob", "carol"))
CATS, ITEMS, COIN, PLAIN, FACTORY, CHILD = (
    _BUILDER.address(name) for name in ("cats", "items", "coin", "plain", "factory", "child")
)
DOGS: Final = _BUILDER.address("dogs")
"""An ERC-721 collection whose tokens have one metadata status each."""
STATUSES: Final = tuple(MetadataStatus)
FIELDS: Final = NftFields(
    name="Cat 1",
    symbol="CAT1",
    image_uri="ipfs://image",
    description="The first cat.",
    animation_uri="https://cats/1.mp4",
    external_url="https://cats/1",
    background="#ffffff",
    attributes='[{"trait_type":"Color","value":"red"}]',
    properties='{"size":1}',
    decimals=3,
)
FETCHED_AT: Final = s.NOW - 60


def _make_chain() -> ServedChain:
    builder = _BUILDER

    def deploy(contract: bytes, sender: bytes = ALICE) -> Tx:
        return Tx(sender, None, gas_used=900_000, created=contract)

    def call(sender: bytes, to: bytes, *logs: Log) -> Tx:
        return Tx(sender, to, logs, gas_used=80_000)

    builder.add([deploy(CATS), deploy(ITEMS), deploy(DOGS, BOB)])
    builder.add(
        [
            call(ALICE, CATS, *(erc721_transfer(CATS, ZERO, ALICE, token) for token in (1, 2, 3))),
            call(ALICE, ITEMS, erc1155_batch(ITEMS, ZERO, ALICE, [(1, 10), (2, 20)])),
            call(
                BOB,
                DOGS,
                *(erc721_transfer(DOGS, ZERO, BOB, token) for token in range(len(STATUSES))),
            ),
        ]
    )
    builder.add(
        [
            call(ALICE, CATS, erc721_transfer(CATS, ALICE, BOB, 2)),
            call(
                ALICE,
                ITEMS,
                erc1155_transfer(ITEMS, ALICE, BOB, 1, 4),
                erc1155_transfer(ITEMS, ALICE, ALICE, 2, 5),
            ),
            call(CAROL, FACTORY),
        ]
    )
    builder.add(
        [deploy(COIN), deploy(PLAIN), call(ALICE, CATS, erc721_transfer(CATS, ALICE, ZERO, 3))]
    )
    builder.add([])
    return builder.chain


CHAIN: Final = _make_chain()
PATH: Final = f"/v1/chains/{CHAIN.evm_chain_id}"
CONTRACTS: Final = (
    ContractFacts(CATS, ErcType.ERC721, "Cats", "CAT", None, 5),
    ContractFacts(ITEMS, ErcType.ERC1155, None, None, None, 5),
    ContractFacts(DOGS, ErcType.ERC721, "Dogs", "", None, 5),
    ContractFacts(COIN, ErcType.ERC20, "Coin", "COIN", 6, 5),
    ContractFacts(PLAIN, ErcType.UNKNOWN, None, None, None, 5),
    ContractFacts(CHILD, ErcType.UNKNOWN, None, None, None, 5),
)
DOCUMENTS: Final = (
    TokenDocument(CATS, 1, MetadataStatus.INDEXED, FETCHED_AT, "ipfs://cats/1", FIELDS),
    TokenDocument(CATS, 2, MetadataStatus.UNREACHABLE_TOKEN_URI, FETCHED_AT, "https://gone/2"),
    TokenDocument(CATS, 3, MetadataStatus.MISSING_TOKEN, FETCHED_AT),
    TokenDocument(ITEMS, 1, MetadataStatus.INDEXED, FETCHED_AT, "https://items/1", FIELDS),
    TokenDocument(
        ITEMS, 2, MetadataStatus.INDEXED, FETCHED_AT, "https://items/2", NftFields(name="Item 2")
    ),
    *(
        TokenDocument(DOGS, number, status, FETCHED_AT, f"https://dogs/{number}")
        for number, status in enumerate(STATUSES)
        if status is not MetadataStatus.UNINDEXED
    ),
)
TRACED: Final = TracedBlock(3, (Creation(2, 1, CHILD, CAROL, FACTORY),), {})


def text(address: bytes) -> str:
    """Return an address as answers spell it."""
    return account_text(address)


def tx_hash(number: int, index: int) -> str:
    """Return the hash of a transaction."""
    header = decode_block(CHAIN.headers[number])
    assert header is not None
    return header.transactions[index]


def facts_of(chain: ServedChain, first: int = 0) -> list[EvmBlockFacts]:
    """Return the blocks of a chain from a height on."""
    facts = []
    for header, receipts in zip(chain.headers[first:], chain.receipts[first:], strict=True):
        decoded, decoded_receipts = decode_block(header), decode_receipts(receipts)
        assert decoded is not None
        assert decoded_receipts is not None
        facts.append(block_facts(decoded, decoded_receipts, BlockRules()))
    return facts


def status_of(chain: ServedChain, **changes: Any) -> ProgressRow:
    """Return the status that an indexer writes which has all blocks."""
    fields: dict[str, Any] = {
        "chain": id_text(chain.blockchain_id),
        "node_height": chain.tip,
        "is_node_behind": False,
        "reported_at": s.NOW,
        "written_at": s.NOW,
    }
    return ProgressRow(**{**fields, **changes})


@contextmanager
def open_writer(
    folder: Path,
    chain: ServedChain = CHAIN,
    first: int = 0,
    settings: IndexSettings = SETTINGS,
    *,
    has_holders: bool = False,
) -> Iterator[EvmIndexWriter]:
    """Open the index of a chain for writing; it has no block yet if it is new."""
    url = evm_index_url(settings, folder, chain.blockchain_id)
    engine = writing_evm_index(url, settings, chain.blockchain_id)
    writer = EvmIndexWriter(engine, settings, lambda: float(s.NOW))
    try:
        writer.start(
            EvmChainIdentity(
                chain.blockchain_id, chain.evm_chain_id, chain.genesis_hash, first, has_holders
            )
        )
        yield writer
    finally:
        writer.close()


def has_indexer(folder: Path, settings: IndexSettings) -> bool:
    """Return whether a process holds the index of the chain open for writing."""
    url = evm_index_url(settings, folder, CHAIN.blockchain_id)
    engine = reading_index(url, settings)
    try:
        with engine.connect() as connection:
            return has_writer(connection, url.path)
    finally:
        engine.dispose()


def write_blocks(writer: EvmIndexWriter, chain: ServedChain = CHAIN, first: int = 0) -> None:
    """Write all blocks of a chain, and the status of an indexer that has them."""
    blocks = facts_of(chain, first)
    writer.begin(first, blocks[0].parent_hash)
    assert writer.candidates(blocks) == set()
    writer.write(blocks)
    writer.write_status(status_of(chain))


def write_history(writer: EvmIndexWriter) -> None:
    """Write the whole made-up chain: blocks, traces, contracts and metadata."""
    write_blocks(writer)
    traced = TracedBlock(TRACED.number, TRACED.creations, {2: bytes.fromhex(tx_hash(3, 2)[2:])})
    writer.traces.write(0, CHAIN.tip, [traced])
    writer.contracts.write(CONTRACTS)
    writer.documents.write(DOCUMENTS)


@asynccontextmanager
async def indexed_setup(
    folder: Path,
    chain_id: ChainID = CHAIN.blockchain_id,
    indexing: EvmIndexing | None = None,
    nodes: Sequence[EvmReplayNode] | None = None,
    clock: Clock | None = None,
    settings: IndexSettings = SETTINGS,
    **more: Any,
) -> AsyncIterator[DataApiSetup]:
    """Yield an API in front of the index of a chain in a folder.

    nodes: nodes of the chain; by default a single node, which has all blocks.
    """
    clock = clock or Clock()
    url = evm_index_url(settings, folder, chain_id)
    nodes = (EvmReplayNode(CHAIN),) if nodes is None else nodes
    async with (
        EvmIndex(url, settings, clock) as index,
        evm_setup(
            *nodes, chain_id=chain_id, index_reader=index, index=indexing or EvmIndexing(), **more
        ) as setup,
    ):
        yield replace(setup, clock=clock)


def block_time(number: int) -> int:
    """Return the time of a block."""
    return GENESIS_TIME + 2 * number
