"""Endpoints 18 and 19: the holders of an ERC-20 token above a threshold, and those of a collection of NFTs.

All pages of a walk show the block of the first one: a position is that block and the index's own position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from warpseal.api.data.bodies import (
    AddressesAboveThreshold,
    HolderEntry,
    NftHolders,
    SdkAddressesAboveThreshold,
    SdkHolderEntry,
    SdkNftHolders,
)
from warpseal.api.data.errors import ExpiredPageToken, IndexNotEnabled, IndexNotReady
from warpseal.api.data.evm_context import SETTING, EvmContext, complete_page
from warpseal.api.data.page_tokens import PageQuery
from warpseal.api.data.parameters import PAGE_TOKEN, THRESHOLD, time_range_in
from warpseal.api.data.sdk_resources import copy_resource
from warpseal.resources.base import UNSET, UnsetType
from warpseal.resources.evm import Holder, HolderQuery
from warpseal.resources.queries import PageRequest
from warpseal.resources.text import account_text

if TYPE_CHECKING:
    from warpseal.index.evm.records import HolderPage

_IN_THREAD_FROM: Final = 100


async def list_token_holders(context: EvmContext) -> Response:
    """GET .../contracts/{address}/balances."""
    contract = context.address()
    query = await context.metrics_query(context.chain.entry.blockchain_id + contract)
    values: dict[str, Any] = query.values
    holder_query = HolderQuery(contract, values[THRESHOLD.name], time_range_in(values))
    index = context.index()
    entry = context.chain.entry.index
    is_complete = context.freshness is not None and context.freshness.first_height == 0
    if entry is None or not entry.has_holders or entry.first_height or not is_complete:
        raise IndexNotEnabled(f"ERC-20 balances of EVM chain {context.chain.name} from block 0 on", SETTING)
    page, at_block = _page_of(query)
    holders = _known(context, await index.holders_above(holder_query, page, at_block), at_block)
    body = AddressesAboveThreshold(
        next_page_token=await _next_token(context, query, holders),
        addresses=await _entries(holders.items),
        events_inconsistent=holders.events_inconsistent or UNSET,
    )
    if not context.for_sdk:
        return await context.respond(body)
    return await context.respond(copy_resource(body, SdkAddressesAboveThreshold, addresses=_sdk_entries(body)))


async def list_nft_holders(context: EvmContext) -> Response:
    """GET .../contracts/{address}/nfts:listHolders."""
    contract = context.address()
    query = await context.metrics_query(context.chain.entry.blockchain_id + contract)
    index = context.index()
    page, at_block = _page_of(query)

    async def read() -> HolderPage:
        return _known(context, await index.nft_holders(contract, page, at_block), at_block)

    holders = await complete_page(context, read)
    name, symbol = context.wording.names(contract, holders.name, holders.symbol)
    body = NftHolders(
        next_page_token=await _next_token(context, query, holders),
        addresses=await _entries(holders.items),
        nft_collection_name=name,
        nft_symbol=symbol,
        total_holders=holders.total_holders,
        total_tokens=holders.total_tokens,
        events_inconsistent=holders.events_inconsistent or UNSET,
    )
    if not context.for_sdk:
        return await context.respond(body)
    names = {"nft_collection_name": (name,) if name else (), "nft_symbol": (symbol,) if symbol else ()}
    return await context.respond(copy_resource(body, SdkNftHolders, addresses=_sdk_entries(body), **names))


def _page_of(query: PageQuery) -> tuple[PageRequest, int | None]:
    """Return the requested page, and the block of the first one, None if this is it."""
    if query.position is None:
        return query.page, None
    block, *after = query.position
    assert isinstance(block, int)
    return PageRequest(query.size, tuple(after)), block


def _known(context: EvmContext, holders: HolderPage | None, at_block: int | None) -> HolderPage:
    """Return a page that the index has. Raises ExpiredPageToken, IndexNotReady."""
    if holders is not None:
        return holders
    if at_block is not None:
        reason = "the index no longer has the block of the first page; begin again with the first page"
        raise ExpiredPageToken(PAGE_TOKEN.name, reason)
    raise IndexNotReady(f"EVM chain {context.chain.name} with ERC-20 balances")


async def _next_token(context: EvmContext, query: PageQuery, holders: HolderPage) -> str | UnsetType:
    position = None if holders.next is None else (holders.block, *holders.next)
    return await context.next_metrics_token(query, position)


async def _entries(holders: Sequence[Holder]) -> tuple[HolderEntry, ...]:
    """Return holders as responses show them. The checksums of a large page are computed in a thread."""

    def encode() -> tuple[HolderEntry, ...]:
        return tuple([HolderEntry(address=account_text(item.address), sort_key=item.balance) for item in holders])

    return encode() if len(holders) < _IN_THREAD_FROM else await asyncio.to_thread(encode)


def _sdk_entries(body: AddressesAboveThreshold | NftHolders) -> tuple[SdkHolderEntry, ...]:
    return tuple([SdkHolderEntry(address=entry.address, sort_key=str(entry.sort_key)) for entry in body.addresses])
