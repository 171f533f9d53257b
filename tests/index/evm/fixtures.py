"""Writers and readers of EVM indexes, and all results of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from tests.index.evm.histories import GENESIS_PARENT, address
from tests.index.evm.model import EvmModel
from warpseal.index.database import reading_index
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.reader import EvmIndex, EvmPage
from warpseal.index.evm.records import EvmChainIdentity
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.resources.base import UNSET, SortOrder
from warpseal.resources.evm import CollectibleQuery, Erc1155Query
from warpseal.resources.queries import PageRequest
from warpseal.store.connection import Engine
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ChainID

CHAIN_ID = ChainID(bytes(range(32)))
IDENTITY = EvmChainIdentity(CHAIN_ID, 43_112, b"g" * 32)
IS_ERC721 = {address(2): True, address(4): False}


def small_settings(url: str) -> IndexSettings:
    """Return settings of an index that caches little, so that everything is looked up again and
    again.
    """
    return IndexSettings(url, cached_addresses=6, recent_outputs=7)


def index_url(url: str) -> StoreUrl:
    """Return the URL of the chain's index."""
    return evm_index_url(small_settings(url), None, CHAIN_ID)


@contextmanager
def open_writer(
    url: str,
    first: int = 0,
    now: Callable[[], float] = lambda: 0.0,
    settings: IndexSettings | None = None,
) -> Iterator[EvmIndexWriter]:
    """Hold the index of a chain open for writing, begun at its first block."""
    settings = settings or small_settings(url)
    engine = writing_evm_index(evm_index_url(settings, None, CHAIN_ID), settings, CHAIN_ID)
    writer = EvmIndexWriter(engine, settings, now)
    try:
        while writer.rebuild(60.0) is not None:
            pass
        if writer.start(replace(IDENTITY, first=first)) is None and first == 0:
            writer.begin(0, GENESIS_PARENT)
        yield writer
    finally:
        writer.close()


def open_index(url: str, now: Callable[[], float] = lambda: 0.0) -> EvmIndex:
    """Return a reader of the index, to be opened by `async with`."""
    return EvmIndex(index_url(url), small_settings(url), now)


def open_engine(url: str) -> Engine:
    """Return an engine that reads the index."""
    return reading_index(index_url(url), small_settings(url))


async def all_items(read: Callable[[PageRequest], Any], size: int) -> list[Any]:
    """Return the items of all pages; a page is never longer than requested."""
    items: list[Any] = []
    after = None
    while True:
        page: EvmPage[Any] = await read(PageRequest(size, after))
        assert len(page.items) <= size
        items += page.items
        if page.next is None:
            return items
        after = page.next


async def read_everything(
    url: str, parties: Sequence[bytes], size: int, last: int, first: int = 0
) -> dict[str, Any]:
    """Return all results about blocks and addresses."""
    async with open_index(url) as index:
        results: dict[str, Any] = {}
        for number in range(first, last + 1):
            block = await index.block(number)
            assert block is not None
            assert await index.block(bytes.fromhex(block.block_hash[2:])) == block
            results[f"block {number}"] = _as_dict(block)
        for party in parties:
            results[f"holds {party.hex()}"] = await read_collectibles(
                index, CollectibleQuery(party), size
            )
            results[f"tokens {party.hex()}"] = await read_collection(index, party, size)
            results[f"moved {party.hex()}"] = await read_transfers(
                index, Erc1155Query(party, order=SortOrder.ASC), size
            )
            results[f"moved last {party.hex()}"] = await read_transfers(
                index, Erc1155Query(party), size
            )
            results[f"made {party.hex()}"] = await read_deployments(index, party, size)
        return results


def expect_everything(
    model: EvmModel, parties: Sequence[bytes], earlier_txs: int | None = 0
) -> dict[str, Any]:
    """Return the results that `read_everything` expects."""
    results: dict[str, Any] = {
        f"block {block.number}": model.block(block.number, earlier_txs) for block in model.blocks
    }
    for party in parties:
        results[f"holds {party.hex()}"] = model.collectibles(party)
        results[f"tokens {party.hex()}"] = model.collection(party)
        results[f"moved {party.hex()}"] = model.transfers(party)
        results[f"moved last {party.hex()}"] = model.transfers(party)[::-1]
        results[f"made {party.hex()}"] = model.deployments(party)
    return results


async def read_collectibles(
    index: EvmIndex, query: CollectibleQuery, size: int
) -> list[tuple[Any, ...]]:
    """Return what an address holds, as the model does."""
    items = await all_items(lambda page: index.collectibles(query, page), size)
    assert {item.chain_id for item in items} <= {str(IDENTITY.evm_chain_id)}
    return [
        (
            item.address,
            item.erc_type,
            item.token_id,
            _or_none(item.balance),
            item.events_inconsistent is True,
        )
        for item in items
    ]


async def read_collection(index: EvmIndex, contract: bytes, size: int) -> list[tuple[Any, ...]]:
    """Return the tokens of a contract, as the model does."""
    items = await all_items(lambda page: index.tokens(contract, page), size)
    return [token_fields(item) for item in items]


def token_fields(item: Any) -> tuple[Any, ...]:
    """Return a token, as the model does."""
    owner = _or_none(item.owner_address)
    return item.address, item.erc_type, item.token_id, owner, item.events_inconsistent is True


async def read_transfers(index: EvmIndex, query: Erc1155Query, size: int) -> list[tuple[Any, ...]]:
    """Return transfers, as the model does."""
    items = await all_items(lambda page: index.erc1155_transfers(query, page), size)
    return [
        (
            int(item.block_number),
            item.block_timestamp,
            item.block_hash,
            item.tx_hash,
            item.sender.address,
            item.to.address,
            item.log_index,
            item.value,
            item.erc1155_token.address,
            item.erc1155_token.token_id,
        )
        for item in items
    ]


async def read_deployments(index: EvmIndex, party: bytes, size: int) -> list[tuple[Any, ...]]:
    """Return creations, as the model does."""
    items = await all_items(lambda page: index.deployments(party, page), size)
    return [
        (
            item.address,
            item.deployment_details.tx_hash,
            item.deployment_details.deployer_address,
            _or_none(item.deployment_details.deployer_contract_address),
        )
        for item in items
    ]


def _as_dict(block: Any) -> dict[str, Any]:
    fields = {
        name: getattr(block, field)
        for field, name in zip(block.__struct_fields__, block.__struct_encode_fields__, strict=True)
    }
    assert fields.pop("chainId") == str(IDENTITY.evm_chain_id)
    return {name: field for name, field in fields.items() if field is not UNSET}


def _or_none(field: Any) -> Any:
    return None if field is UNSET else field
