"""Endpoints 17 to 19: average transactions per second of UTC days, holders of tokens and NFTs.

All pages of a walk through holders show the block of the first page: a position is that block and
the position of the index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from warpseal.api.data.bodies import HolderEntry, SdkHolderEntry, TpsPoint
from warpseal.api.data.endpoints import PAGE_TOKEN
from warpseal.api.data.errors import (
    ExpiredPageToken,
    IndexNotEnabled,
    IndexNotReady,
    NotAnErc20Token,
)
from warpseal.api.data.evm_context import (
    ENABLE_INDEX,
    SETTING,
    EvmRequestContext,
    complete_page,
    indexed_contexts,
)
from warpseal.api.data.page_tokens import PageQuery
from warpseal.api.data.parameters import time_range_in
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.errors import NetworkNotServed
from warpseal.errors import InvalidRequest, WarpsealError
from warpseal.resources.base import UNSET
from warpseal.resources.evm import Holder, HolderQuery
from warpseal.resources.queries import PageRequest, Position
from warpseal.resources.text import account_text

if TYPE_CHECKING:
    from warpseal.index.evm.records import HolderPage

TOTAL: Final = "total"
MAINNET: Final = "mainnet"
TESTNET: Final = "testnet"
_DAY_S: Final = 86_400
_LAST_DAY: Final = 2**53 // _DAY_S
_STATUS: Final = 200
_IN_THREAD_FROM: Final = 100


async def get_avg_tps(context: RequestContext) -> Response:
    """GET /v1/avg_tps/{chainId}."""
    name = context.request.path_params["chainId"]
    if name in (TOTAL, MAINNET, TESTNET):
        chains, subject = await _all_chains(context, name), name.encode()
    else:
        chain = await EvmRequestContext.of(context)
        chains, subject = (chain,), chain.chain.entry.blockchain_id
    query = await context.page_query(subject)
    low, high = _requested_days(query)
    indexes = [chain.index() for chain in chains]
    high = min(high, max(map(_newest_day, chains)))
    page_low = max(low, high - query.size + 1)
    replies = await asyncio.gather(*(index.daily_tps(page_low, high) for index in indexes))
    series = [days for days in replies if days is not None]
    first_days = [days.first_day for days in series if days.first_day is not None]
    low = max(low, min(first_days, default=high + 1))
    dates = range(high, max(low - 1, high - query.size), -1)
    position = (dates[-1],) if dates and dates[-1] > low else None
    token = await context.next_token(query, position)
    points = []
    for day in dates:
        total = fsum(days.values.get(day, 0.0) for days in series)
        points.append(TpsPoint(timestamp=day * _DAY_S, value=total))
    advanced_at = max((days.advanced_at for days in series), default=0)
    body = context.page_body(
        points, token, status=_STATUS, last_run=advanced_at, next_page_start_key=token
    )
    return await context.respond(body)


async def _all_chains(context: RequestContext, name: str) -> Sequence[EvmRequestContext]:
    """Return the indexed chains of a network; those without a block only if all are.

    Raises NetworkNotServed.
    """
    network = MAINNET if context.network.is_mainnet else TESTNET
    if name not in (TOTAL, network):
        raise NetworkNotServed(name, (TOTAL, network), context.network.network_id)
    indexed = [chain for chain in context.evm if chain.index is not None]
    if not indexed:
        raise IndexNotEnabled("any EVM chain", SETTING, ENABLE_INDEX)
    return await indexed_contexts(context, indexed)


def _newest_day(chain: EvmRequestContext) -> int:
    """Return the day of the last point.

    It is today, or the day of the newest block while the index may lack newer blocks.
    """
    assert chain.progress is not None
    newest = chain.progress.block_time // _DAY_S
    return newest if chain.progress.lag_s(chain.now) else max(newest, int(chain.now) // _DAY_S)


def _requested_days(query: PageQuery) -> tuple[int, int]:
    """Return the first and the last day that the page may have.

    Raises InvalidRequest if `to` is before `from`.
    """
    since: Any = query.values.get("from", 0)
    until: Any = query.values.get("to", _LAST_DAY * _DAY_S)
    if until < since:
        raise InvalidRequest("to", f"{until} is before from, {since}")
    last_day = query.page.after_key
    return -(-since // _DAY_S), until // _DAY_S if last_day is None else last_day - 1


async def list_token_holders(context: EvmRequestContext) -> Response:
    """GET .../contracts/{address}/balances."""
    contract = context.address()
    query = await context.page_query(context.chain.entry.blockchain_id + contract)
    values: dict[str, Any] = query.values
    holder_query = HolderQuery(contract, values["threshold"], time_range_in(values))
    index = context.index()
    entry = context.chain.entry.index
    is_complete = context.progress is not None and context.progress.first_height == 0
    if entry is None or not entry.has_holders or entry.first_height or not is_complete:
        missing = f"ERC-20 balances of EVM chain {context.chain.name} from block 0 on"
        change = 'set "index": {"from": 0, "holders": true} for the chain'
        raise IndexNotEnabled(missing, SETTING, change)
    page, at_block = _page_of(query)
    holders = await index.holders_above(holder_query, page, at_block)
    if holders is None:
        raise _no_page(context, at_block)
    if not holders.items and (kind := await index.unlisted_kind(contract)) is not None:
        raise NotAnErc20Token(account_text(contract), kind)
    return await context.respond_page(
        query,
        await _entries(context, holders.items),
        _next_position(holders),
        events_inconsistent=holders.events_inconsistent or UNSET,
    )


async def list_nft_holders(context: EvmRequestContext) -> Response:
    """GET .../contracts/{address}/nfts:listHolders."""
    contract = context.address()
    query = await context.page_query(context.chain.entry.blockchain_id + contract)
    index = context.index()
    page, at_block = _page_of(query)

    async def read() -> HolderPage:
        holders = await index.nft_holders(contract, page, at_block)
        if holders is None:
            raise _no_page(context, at_block)
        return holders

    holders = await complete_page(context, read)
    collection_name: str | tuple[str, ...]
    nft_symbol: str | tuple[str, ...]
    collection_name, nft_symbol = context.wording.names(contract, holders.name, holders.symbol)
    if context.for_sdk:
        # The SDKs read both as lists.
        collection_name, nft_symbol = _listed(collection_name), _listed(nft_symbol)
    return await context.respond_page(
        query,
        await _entries(context, holders.items),
        _next_position(holders),
        nft_collection_name=collection_name,
        nft_symbol=nft_symbol,
        total_holders=holders.total_holders,
        total_tokens=holders.total_tokens,
        events_inconsistent=holders.events_inconsistent or UNSET,
    )


def _page_of(query: PageQuery) -> tuple[PageRequest, int | None]:
    """Return the requested page, and the block of the first page, None if it is the first page."""
    if query.position is None:
        return query.page, None
    block, *after = query.position
    assert isinstance(block, int)
    return PageRequest(query.size, tuple(after)), block


def _no_page(context: EvmRequestContext, at_block: int | None) -> WarpsealError:
    """Return the error about a page that the index does not have."""
    if at_block is None:
        return IndexNotReady(f"EVM chain {context.chain.name} with ERC-20 balances")
    reason = "the index no longer has the block of the first page; begin again with the first page"
    return ExpiredPageToken(PAGE_TOKEN.name, reason)


def _next_position(holders: HolderPage) -> Position | None:
    return None if holders.next is None else (holders.block, *holders.next)


def _listed(name: str) -> tuple[str, ...]:
    return (name,) if name else ()


async def _entries(
    context: EvmRequestContext, holders: Sequence[Holder]
) -> Sequence[HolderEntry | SdkHolderEntry]:
    """Return holders as responses show them.

    The checksums of a large page are computed in a thread.
    """

    def encode() -> Sequence[HolderEntry | SdkHolderEntry]:
        if context.for_sdk:
            return [
                SdkHolderEntry(address=account_text(item.address), sort_key=str(item.balance))
                for item in holders
            ]
        return [
            HolderEntry(address=account_text(item.address), sort_key=item.balance)
            for item in holders
        ]

    return encode() if len(holders) < _IN_THREAD_FROM else await asyncio.to_thread(encode)
