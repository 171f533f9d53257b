"""Endpoints 9 to 15: EVM chains, their blocks, ERC-1155 transfers, NFTs, deployed contracts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.data.bodies import (
    EvmChainDetails,
    EvmChainList,
    EvmChainStatus,
    EvmFeature,
    NetworkToken,
    UtilityAddresses,
)
from warpseal.api.data.errors import (
    BlockNotFound,
    IndexBehind,
    IndexNotEnabled,
    ReindexedRecently,
    ReindexUnavailable,
    TokenNotFound,
)
from warpseal.api.data.evm_chains import MULTICALL, EvmChainService, PlatformFacts
from warpseal.api.data.evm_context import SETTING, EvmRequestContext, complete_page
from warpseal.api.data.evm_resources import block_of_node
from warpseal.api.data.parameters import block_range_in, order_in, read_block_id
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.responses import FINAL_S, SOURCE, response_headers
from warpseal.errors import WarpsealError
from warpseal.index.evm.records import ReindexOutcome
from warpseal.resources.base import UNSET, or_unset
from warpseal.resources.blocks import Blockchain
from warpseal.resources.evm import CollectibleBalance, CollectibleQuery, Erc1155Query, ErcType
from warpseal.resources.evm_genesis import chain_id_of, evm_genesis
from warpseal.resources.text import account_text, shared_id_text
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID, id_text

_PROXY_SCHEME: Final = "x-forwarded-proto"
_PLATFORM_WAIT_S: Final = 2.0
_DECIMALS: Final = 18
_BASE_CURRENCY: Final = "AVAX"
_BASE_CURRENCY_NAME: Final = "Avalanche"
_C_CHAIN_NAME: Final = "C-Chain"
INDEXER_SILENCE_S: Final = 30.0
"""Time without a status after which the indexer counts as hanging.

A healthy indexer writes its status every 15 seconds.
"""
_ZERO: Final = "0"


async def get_chain(context: EvmRequestContext) -> Response:
    """GET /v1/chains/{chainId}."""
    context.parameters()
    return await context.respond(await _describe_chain(context, context.chain))


async def list_chains(context: RequestContext) -> Response:
    """GET /v1/chains."""
    values = context.parameters()
    network, feature = values.get("network"), values.get("feature")
    chains: list[EvmChainDetails] = []
    if network is None or context.api_settings.serves(str(network), context.network.network_id):
        described = await asyncio.gather(
            *(_describe_chain(context, chain) for chain in context.evm)
        )
        chains += described
    if feature is not None:
        chains = [chain for chain in chains if feature in chain.enabled_features]
    return await context.respond(EvmChainList(chains=tuple(chains)))


async def get_block(context: EvmRequestContext) -> Response:
    """GET .../blocks/{blockId}."""
    context.parameters()
    text = context.request.path_params["blockId"]
    block_id = read_block_id("blockId", text)
    wording = context.wording
    block = None
    if context.chain.index is not None and context.progress is not None:
        with suppress(StoreDown):
            block = await context.chain.index.block(block_id)
    if block is not None:
        # The number of all earlier transactions may become known later.
        final_s = 0 if block.cumulative_transactions is UNSET else FINAL_S
        return await context.respond(wording.block(block), final_s)
    node_block = await context.chain.nodes.block(block_id)
    if node_block is None:
        raise BlockNotFound(text, context.chain.name)
    response_headers(context.request.scope)[SOURCE] = "node"
    chain_id = await context.chain.chain_id()
    chain_id_text = "" if chain_id is None else str(chain_id)
    return await context.respond(wording.block(block_of_node(node_block, chain_id_text)))


async def list_deployments(context: EvmRequestContext) -> Response:
    """GET .../contracts/{address}/deployments."""
    address = context.address()
    query = await context.page_query(address)
    index = context.index()
    page = await complete_page(context, lambda: index.deployments(address, query.page))
    contracts = map(context.wording.contract, page.items)
    return await context.respond_page(query, contracts, page.next)


async def _describe_chain(context: RequestContext, chain: EvmChainService) -> EvmChainDetails:
    """Return a chain. Its entry in the configuration goes before its nodes and the P-Chain."""
    platform, chain_id, status, has_multicall = await asyncio.gather(
        _platform_facts(context, chain), chain.chain_id(), _status(chain), chain.has_multicall()
    )
    info = chain.entry.info
    is_c_chain = chain.entry.blockchain_id == context.network.chains.c
    if chain_id is None and platform is not None:
        chain_id = platform.evm_chain_id
    name = _C_CHAIN_NAME if is_c_chain else ""
    subnet_id = vm_id = None
    if platform is not None:
        name = platform.name
        subnet_id, vm_id = shared_id_text(platform.subnet_id), shared_id_text(platform.vm_id)
    own_url = f"{own_address(context.request)}/ext/bc/{id_text(chain.entry.blockchain_id)}"
    ws_url = f"ws{own_url}/ws" if chain.entry.ws else None
    multicall = info.multicall or (account_text(MULTICALL) if has_multicall else None)
    addresses = None if multicall is None else UtilityAddresses(multicall=multicall)
    is_testnet = info.is_testnet
    if is_testnet is None:
        is_testnet = not context.network.is_mainnet
    features = () if chain.index is None else (EvmFeature.NFT_INDEXING,)
    return EvmChainDetails(
        chain_id="" if chain_id is None else str(chain_id),
        status=status,
        chain_name=name if info.chain_name is None else info.chain_name,
        description=info.description or "",
        platform_chain_id=info.platform_chain_id or id_text(chain.entry.blockchain_id),
        subnet_id=or_unset(info.subnet_id or subnet_id),
        vm_id=or_unset(info.vm_id or vm_id),
        explorer_url=or_unset(info.explorer_url),
        rpc_url=info.rpc_url or f"http{own_url}/rpc",
        ws_url=or_unset(info.ws_url or ws_url),
        is_testnet=is_testnet,
        utility_addresses=or_unset(addresses),
        network_token=_network_token(chain, is_c_chain=is_c_chain),
        chain_logo_uri=or_unset(info.chain_logo_uri),
        private=or_unset(info.private),
        enabled_features=features,
    )


def own_address(request: Request) -> str:
    """Return the address that the client called, without `http`: s://host, or ://host:port.

    A proxy that ends TLS names the scheme in a header.
    """
    try:
        host = request.base_url.netloc
    except ValueError:  # The Host header is malformed.
        host = ""
    if not host:
        name, port = request.scope["server"]
        host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    scheme = request.headers.get(_PROXY_SCHEME, request.scope["scheme"])
    return f"s://{host}" if scheme == "https" else f"://{host}"


def _network_token(chain: EvmChainService, *, is_c_chain: bool) -> NetworkToken:
    token = chain.entry.info.network_token
    name, symbol = (_BASE_CURRENCY_NAME, _BASE_CURRENCY) if is_c_chain else ("", "")
    return NetworkToken(
        name=name if token.name is None else token.name,
        symbol=symbol if token.symbol is None else token.symbol,
        decimals=_DECIMALS if token.decimals is None else token.decimals,
        logo_uri=or_unset(token.logo_uri),
        description=or_unset(token.description),
    )


async def _status(chain: EvmChainService) -> EvmChainStatus:
    """Return UNAVAILABLE if no node of the chain answers, or if indexing stopped."""
    try:
        progress = await chain.progress()
    except StoreDown:
        return EvmChainStatus.UNAVAILABLE
    if progress is not None and progress.stop is not None:
        return EvmChainStatus.UNAVAILABLE
    return EvmChainStatus.OK if await chain.is_up() else EvmChainStatus.UNAVAILABLE


async def _platform_facts(context: RequestContext, chain: EvmChainService) -> PlatformFacts | None:
    """Return the P-Chain's facts about a chain; None if neither the index nor a node has them."""
    if chain.platform is None:
        try:
            async with asyncio.timeout(_PLATFORM_WAIT_S):
                blockchain = await _find_blockchain(context, chain.entry.blockchain_id)
        except (TimeoutError, NodeUnavailable):
            return None
        if blockchain is not None:
            evm_chain_id = chain_id_of(evm_genesis(blockchain.genesis))
            chain.platform = PlatformFacts(
                blockchain.subnet_id, blockchain.vm_id, blockchain.name, evm_chain_id
            )
    return chain.platform


async def _find_blockchain(context: RequestContext, chain_id: ChainID) -> Blockchain | None:
    index = context.network.index
    blockchain = None
    if index is not None:
        with suppress(StoreDown):
            blockchain = await index.blockchain(chain_id)
    return blockchain or await context.network.node.blockchain(chain_id)


async def list_erc1155_transfers(context: EvmRequestContext) -> Response:
    """GET .../addresses/{address}/transactions:listErc1155."""
    address = context.address()
    query = await context.page_query(address)
    start, end = block_range_in(query.values)
    index = context.index()
    described = context.evm.contracts_of(context.chain)
    criteria = Erc1155Query(address, start, end, order_in(query.values), described.hidden)
    page = await complete_page(context, lambda: index.erc1155_transfers(criteria, query.page))
    transfers = map(context.wording.transfer, page.items)
    return await context.respond_page(query, transfers, page.next)


async def list_collectibles(context: EvmRequestContext) -> Response:
    """GET .../addresses/{address}/balances:listCollectibles."""
    address = context.address()
    query = await context.page_query(address)
    index = context.index()
    described = context.evm.contracts_of(context.chain)
    values: Mapping[str, Any] = query.values
    criteria = CollectibleQuery(address, values.get("contractAddress"), described.hidden)
    page = await complete_page(context, lambda: index.collectibles(criteria, query.page))
    items = page.items
    if context.progress is not None and context.progress.first_height:
        items = await _with_amounts(context, address, items)
    balances = map(context.wording.token, items)
    return await context.respond_page(query, balances, page.next)


async def list_tokens(context: EvmRequestContext) -> Response:
    """GET .../nfts/collections/{address}/tokens."""
    contract = context.address()
    query = await context.page_query(contract)
    index = context.index()
    page = await complete_page(context, lambda: index.tokens(contract, query.page))
    tokens = map(context.wording.token, page.items)
    return await context.respond_page(query, tokens, page.next)


async def get_token(context: EvmRequestContext) -> Response:
    """GET .../nfts/collections/{address}/tokens/{tokenId}."""
    context.parameters()
    contract, token_id, index = context.address(), context.token_id(), context.index()
    token = await complete_page(context, lambda: index.token(contract, token_id))
    if not token.items:
        raise _unknown_token(context, contract, token_id)
    return await context.respond(context.wording.token(token.items[0]))


async def reindex(context: EvmRequestContext) -> Response:
    """POST .../nfts/collections/{address}/tokens/{tokenId}:reindex."""
    context.parameters()
    contract, token_id, index = context.address(), context.token_id(), context.index()
    if not context.chain.has_metadata:
        change = 'set "index": {"metadata": "asked"} for the chain'
        raise IndexNotEnabled(f"NFT metadata of EVM chain {context.chain.name}", SETTING, change)
    reported_at = 0 if context.progress is None else context.progress.updated_at
    if context.now - reported_at > INDEXER_SILENCE_S:
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


def _unknown_token(context: EvmRequestContext, contract: bytes, token_id: int) -> WarpsealError:
    """Return the error about a token that the index does not have.

    The token may be in a block that the index lacks.
    """
    chain = context.progress
    if chain is not None and chain.lag_s(context.now):
        return IndexBehind(str(chain.evm_chain_id), chain.height or 0, chain.node_height or 0)
    return TokenNotFound(account_text(contract), str(token_id))


async def _with_amounts(
    context: EvmRequestContext, owner: bytes, items: Sequence[CollectibleBalance]
) -> tuple[CollectibleBalance, ...]:
    """Return a page with the ERC-1155 amounts of a node.

    The index does not have the transfers before its beginning. Tokens that the owner does not hold
    any more are left out. Raises NodeUnavailable.
    """
    by_contract: dict[str, list[CollectibleBalance]] = {}
    for item in items:
        if item.erc_type is ErcType.ERC1155:
            by_contract.setdefault(item.address, []).append(item)

    async def amounts(
        address: str, tokens: Sequence[CollectibleBalance]
    ) -> dict[tuple[str, str], str]:
        ids = [int(token.token_id) for token in tokens]
        numbers = await context.chain.nodes.balances(bytes.fromhex(address[2:]), owner, ids)
        if numbers is None:
            return {}
        return {
            (address, token.token_id): str(amount)
            for token, amount in zip(tokens, numbers, strict=True)
        }

    balances: dict[tuple[str, str], str] = {}
    replies = await asyncio.gather(*(amounts(*entry) for entry in by_contract.items()))
    for amounts_of_contract in replies:
        balances |= amounts_of_contract
    completed = []
    for item in items:
        amount = balances.get((item.address, item.token_id), item.balance)
        if amount != _ZERO:
            completed.append(item if amount == item.balance else replace(item, balance=amount))
    return tuple(completed)
