"""Endpoints 3 to 6: transactions and blocks of a primary chain, any blockchain, and where addresses were active."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.data.encoding.blocks import encode_block, encode_blockchain
from warpseal.api.data.encoding.sdk_transactions import sdk_c_transaction, sdk_p_transaction, sdk_x_transaction
from warpseal.api.data.encoding.transactions import c_transaction, p_transaction, x_transaction
from warpseal.api.data.operations import BLOCKCHAIN, BLOCKS, CHAIN_IDS, TRANSACTIONS
from warpseal.api.data.paging import addresses_of, asked_page, next_token, order_of, times_of
from warpseal.api.data.parameters import REQUIRED_ADDRESSES, address_of, read_query
from warpseal.api.data.request_context import ContextFactory, RequestContext
from warpseal.api.data.responses import FINAL_PAGE_S, FINAL_S, ResourceResponse, respond
from warpseal.api.data.schema.base import Resource
from warpseal.api.data.schema.enums import PrimaryNetworkChainName
from warpseal.api.data.schema.pages import (
    CChainTransactions,
    ChainInfo,
    ChainInteraction,
    ChainInteractions,
    PChainTransactions,
    PrimaryNetworkBlocks,
    SdkCChainTransactions,
    SdkXChainTransactions,
    XChainTransactions,
)
from warpseal.chains.ids import Address
from warpseal.errors import InvalidRequest, UnknownChain
from warpseal.history.blocks import Blockchain
from warpseal.history.chains import PrimaryChain
from warpseal.history.queries import BlockQuery, TransactionQuery
from warpseal.warp.ids import ChainID, ValidationID, id_text

Tell = Callable[..., Any]

_PAGES: Final[Mapping[tuple[PrimaryChain, bool], tuple[Callable[..., Resource], Tell]]] = {
    (PrimaryChain.P, False): (PChainTransactions, p_transaction),
    (PrimaryChain.P, True): (PChainTransactions, sdk_p_transaction),
    (PrimaryChain.X, False): (XChainTransactions, x_transaction),
    (PrimaryChain.X, True): (SdkXChainTransactions, sdk_x_transaction),
    (PrimaryChain.C, False): (CChainTransactions, c_transaction),
    (PrimaryChain.C, True): (SdkCChainTransactions, sdk_c_transaction),
}
"""By chain, and whether the SDKs' shapes are wanted: the page, and how a transaction is told."""

_NEEDS_A_SUBJECT: Final = ("txTypes", "startTimestamp", "endTimestamp")


class ChainEndpoints:
    """Translates requests about chains, asks the index once, translates its answers back."""

    def __init__(self, reception: ContextFactory) -> None:
        self._reception = reception

    async def transactions(self, request: Request) -> Response:
        """GET .../blockchains/{blockchainId}/transactions."""
        visit = await self._reception.enter(request)
        index = visit.index("transactions")
        chain = visit.chain()
        self._reception.refuse_stale(visit, [chain])
        asked, page = await asked_page(visit, TRANSACTIONS, chain.encode())
        found = await index.transactions(transaction_query(chain, asked.values), page)
        shape, tell = _PAGES[chain, visit.for_sdk]
        words = visit.words
        return await self._answer(
            visit,
            shape(
                next_page_token=await next_token(visit, asked, found.next),
                transactions=tuple([tell(tx, words) for tx in found.items]),
                chain_info=_chain_info(chain, visit),
            ),
        )

    async def blocks(self, request: Request) -> Response:
        """GET .../blockchains/{blockchainId}/blocks."""
        visit = await self._reception.enter(request)
        index = visit.index("blocks")
        chain = visit.chain()
        self._reception.refuse_stale(visit, [chain])
        asked, page = await asked_page(visit, BLOCKS, chain.encode())
        query = BlockQuery(chain, times_of(asked.values))
        found = await index.blocks(query, page)
        shape = PrimaryNetworkBlocks(
            next_page_token=await next_token(visit, asked, found.next),
            blocks=tuple([encode_block(block) for block in found.items]),
            chain_info=_chain_info(chain, visit),
        )
        return await self._answer(visit, shape, _final_s(query, visit, is_continued=page.after is not None))

    async def blockchain(self, request: Request) -> Response:
        """GET .../blockchains/{blockchainId}."""
        visit = await self._reception.enter(request)
        read_query(BLOCKCHAIN.parameters, visit.query, ignore_unknown=visit.ignore_unknown)
        chain_id = visit.chain_id()
        found = await self._blockchain(visit, chain_id)
        if found is None:
            raise UnknownChain(id_text(chain_id))
        final_s = 0 if found.height is None else FINAL_S
        return await self._answer(visit, encode_blockchain(found, for_sdk=visit.for_sdk), final_s)

    async def _blockchain(self, visit: RequestContext, chain_id: ChainID) -> Blockchain | None:
        """Ask the index, and the node for what an index that is not complete cannot know."""
        index = visit.services.index
        fresh = next((one for one in visit.freshness if one.chain is PrimaryChain.P), None)
        if index is None or fresh is None:
            return await visit.services.node.blockchain(chain_id)
        self._reception.refuse_stale(visit, [PrimaryChain.P])
        found = await index.blockchain(chain_id)
        is_complete = not fresh.first_height and not fresh.lag_s(visit.now)
        return found if found is not None or is_complete else await visit.services.node.blockchain(chain_id)

    async def chain_ids(self, request: Request) -> Response:
        """GET .../addresses:listChainIds."""
        visit = await self._reception.enter(request)
        index = visit.index("addresses")
        self._reception.refuse_stale(visit, PrimaryChain)
        given: dict[str, Any] = dict(read_query(CHAIN_IDS.parameters, visit.query, ignore_unknown=visit.ignore_unknown))
        name = REQUIRED_ADDRESSES.name
        if name not in given:
            raise InvalidRequest(name, "required")
        parsed = {text: address_of(name, text, visit.words.prefix) for text in given[name]}
        addresses = tuple(Address(raw) for raw, is_account in parsed.values() if not is_account)
        accounts = tuple(raw for raw, is_account in parsed.values() if is_account)
        of_addresses, of_accounts = await index.chains_of(addresses, accounts)
        entries = [
            _interaction(visit, text, (of_accounts if is_account else of_addresses).get(Address(raw), frozenset()))
            for text, (raw, is_account) in parsed.items()
        ]
        return await self._answer(visit, ChainInteractions(addresses=tuple(entries)))

    async def _answer(self, visit: RequestContext, shape: Resource, final_s: int = 0) -> Response:
        return await respond(visit.request, ResourceResponse(shape, final_s), is_private=self._reception.is_private)


def transaction_query(chain: PrimaryChain, values: Mapping[str, Any]) -> TransactionQuery:
    """Return what is asked of a chain. Raises InvalidRequest naming the parameter that does not go with the others."""
    addresses, accounts = addresses_of(values)
    validation = values.get("l1ValidationId")
    if validation is not None and chain is not PrimaryChain.P:
        raise InvalidRequest("l1ValidationId", f"L1 validations are on the P-Chain, not on the {chain}")
    if accounts and chain is not PrimaryChain.C:
        raise InvalidRequest("addresses", f"accounts (0x) are on the C-Chain, not on the {chain}")
    if not (addresses or accounts or validation):
        for name in _NEEDS_A_SUBJECT:
            if name in values:
                raise InvalidRequest(name, "only together with addresses or l1ValidationId")
    return TransactionQuery(
        chain=chain,
        addresses=addresses,
        evm_addresses=accounts,
        validation_id=None if validation is None else ValidationID(validation),
        kinds=frozenset(values.get("txTypes", ())),
        times=times_of(values),
        order=order_of(values),
    )


def _final_s(query: BlockQuery, visit: RequestContext, *, is_continued: bool) -> int:
    """Return how long a page of blocks stays as it is: a newest page does not, all others and the past do."""
    indexed = next(one.time for one in visit.freshness if one.chain is query.chain)
    is_past = query.times.until is not None and query.times.until < indexed
    return FINAL_PAGE_S if is_continued or is_past else 0


def _chain_info(chain: PrimaryChain, visit: RequestContext) -> ChainInfo:
    return ChainInfo(chain_name=PrimaryNetworkChainName(chain.value), network=visit.network)


def _interaction(visit: RequestContext, text: str, chains: frozenset[PrimaryChain]) -> ChainInteraction:
    ids = tuple([visit.words.chain(chain) for chain in PrimaryChain if chain in chains])
    return ChainInteraction(address=text, blockchain_ids=ids)
