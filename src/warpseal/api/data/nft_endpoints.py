"""Endpoints 11, 12, 14 and 15: ERC-1155 transfers, the NFTs of an address, and the tokens of a collection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace
from starlette.responses import Response

from warpseal.api.data.bodies import CollectibleBalances, Erc1155Transfers, NftTokens
from warpseal.api.data.errors import IndexBehind, IndexNotEnabled, ReindexedRecently, ReindexUnavailable, TokenNotFound
from warpseal.api.data.evm_context import SETTING, EvmContext, complete_page
from warpseal.api.data.parameters import CONTRACT_ADDRESS, block_range_in, order_in
from warpseal.errors import WarpsealError
from warpseal.index.evm.records import ReindexOutcome
from warpseal.resources.evm import CollectibleBalance, CollectibleQuery, Erc1155Query, ErcType
from warpseal.resources.text import account_text

INDEXER_SILENCE_S: Final = 30.0
"""The indexer writes its status every 15 seconds. One that is silent for longer hangs, although its process runs."""
_ZERO: Final = "0"


async def list_erc1155_transfers(context: EvmContext) -> Response:
    """GET .../addresses/{address}/transactions:listErc1155."""
    address = context.address()
    query = await context.page_query(address)
    start, end = block_range_in(query.values)
    index = context.index()
    described = context.services.evm.contracts_of(context.chain)
    criteria = Erc1155Query(address, start, end, order_in(query.values), described.hidden)
    page = await complete_page(context, lambda: index.erc1155_transfers(criteria, query.page))
    wording = context.wording
    return await context.respond(
        Erc1155Transfers(
            next_page_token=await context.next_token(query, page.next),
            transactions=tuple([wording.transfer(transfer) for transfer in page.items]),
        )
    )


async def list_collectibles(context: EvmContext) -> Response:
    """GET .../addresses/{address}/balances:listCollectibles."""
    address = context.address()
    query = await context.page_query(address)
    index = context.index()
    described = context.services.evm.contracts_of(context.chain)
    values: Mapping[str, Any] = query.values
    criteria = CollectibleQuery(address, values.get(CONTRACT_ADDRESS.name), described.hidden)
    page = await complete_page(context, lambda: index.collectibles(criteria, query.page))
    items = page.items
    if context.freshness is not None and context.freshness.first_height:
        items = await _with_amounts(context, address, items)
    wording = context.wording
    return await context.respond(
        CollectibleBalances(
            next_page_token=await context.next_token(query, page.next),
            collectible_balances=tuple([wording.token(item) for item in items]),
        )
    )


async def list_tokens(context: EvmContext) -> Response:
    """GET .../nfts/collections/{address}/tokens."""
    contract = context.address()
    query = await context.page_query(contract)
    index = context.index()
    page = await complete_page(context, lambda: index.tokens(contract, query.page))
    wording = context.wording
    return await context.respond(
        NftTokens(
            next_page_token=await context.next_token(query, page.next),
            tokens=tuple([wording.token(token) for token in page.items]),
        )
    )


async def get_token(context: EvmContext) -> Response:
    """GET .../nfts/collections/{address}/tokens/{tokenId}."""
    context.parameters()
    contract, token_id, index = context.address(), context.token_id(), context.index()
    token = await complete_page(context, lambda: index.token(contract, token_id))
    if not token.items:
        raise _unknown_token(context, contract, token_id)
    return await context.respond(context.wording.token(token.items[0]))


async def reindex(context: EvmContext) -> Response:
    """POST .../nfts/collections/{address}/tokens/{tokenId}:reindex."""
    context.parameters()
    contract, token_id, index = context.address(), context.token_id(), context.index()
    if not context.chain.has_metadata:
        raise IndexNotEnabled(f"NFT metadata of EVM chain {context.chain.name}", SETTING)
    status = await index.status()
    if status is None or context.now - status.written_at > INDEXER_SILENCE_S:
        raise ReindexUnavailable("the indexer has been silent for too long")
    result = await index.reindex(contract, token_id)
    if result.outcome is ReindexOutcome.NO_INDEXER:
        raise ReindexUnavailable("the indexer does not run")
    if result.outcome is ReindexOutcome.UNKNOWN_TOKEN:
        raise _unknown_token(context, contract, token_id)
    if result.outcome is ReindexOutcome.TOO_EARLY:
        raise ReindexedRecently(account_text(contract), str(token_id), result.retry_after_s)
    if result.outcome is ReindexOutcome.BUSY:
        raise ReindexUnavailable("too many requests wait")
    return Response(status_code=201, headers={"cache-control": "no-store"})


def _unknown_token(context: EvmContext, contract: bytes, token_id: int) -> WarpsealError:
    """Return the error about a token that the index does not have: it may be in a block that the index lacks."""
    chain = context.freshness
    if chain is not None and chain.lag_s(context.now):
        return IndexBehind(str(chain.chain_id), chain.height, chain.node_height)
    return TokenNotFound(account_text(contract), str(token_id))


async def _with_amounts(
    context: EvmContext, owner: bytes, items: Sequence[CollectibleBalance]
) -> tuple[CollectibleBalance, ...]:
    """Return a page with the ERC-1155 amounts of a node: the index does not have the transfers before its beginning.

    What the owner does not hold any more is left out. Raises NodeUnavailable.
    """
    by_contract: dict[str, list[CollectibleBalance]] = {}
    for item in items:
        if item.erc_type is ErcType.ERC1155:
            by_contract.setdefault(item.address, []).append(item)

    async def amounts(address: str, tokens: Sequence[CollectibleBalance]) -> dict[tuple[str, str], str]:
        ids = [int(token.token_id) for token in tokens]
        numbers = await context.chain.nodes.balances(bytes.fromhex(address[2:]), owner, ids)
        if numbers is None:
            return {}
        return {(address, token.token_id): str(amount) for token, amount in zip(tokens, numbers, strict=True)}

    balances: dict[tuple[str, str], str] = {}
    for amounts_of_contract in await asyncio.gather(*(amounts(*entry) for entry in by_contract.items())):
        balances |= amounts_of_contract
    completed = []
    for item in items:
        amount = balances.get((item.address, item.token_id), item.balance)
        if amount != _ZERO:
            completed.append(item if amount == item.balance else replace(item, balance=amount))
    return tuple(completed)
