"""Endpoints 3 to 6: transactions and blocks of primary chains, blockchains, chains of addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from warpseal.api.data.bodies import ChainInfo, ChainInteraction, ChainInteractions
from warpseal.api.data.endpoints import ADDRESSES
from warpseal.api.data.parameters import (
    addresses_in,
    order_in,
    parse_address_parameter,
    time_range_in,
)
from warpseal.api.data.primary_context import PrimaryNetworkContext
from warpseal.api.data.sdk_resources import sdk_c_transaction, sdk_p_transaction, sdk_x_transaction
from warpseal.api.http.responses import FINAL_PAGE_S, FINAL_S
from warpseal.chains.ids import Address
from warpseal.errors import InvalidRequest
from warpseal.resources.base import UNSET, PrimaryNetworkChainName, Resource, UnsetType, or_unset
from warpseal.resources.blocks import Blockchain, BlockchainDetails
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.evm_genesis import chain_id_of, evm_genesis, sdk_genesis
from warpseal.resources.queries import BlockQuery, TransactionQuery
from warpseal.resources.text import hex_text, shared_id_text
from warpseal.validators.errors import UnknownChain
from warpseal.warp.ids import ChainID, ValidationID, id_text

# From the specification's dialect to the SDKs'.
_TRANSLATIONS: Final[Mapping[PrimaryChain, Callable[[Any], Resource]]] = {
    PrimaryChain.P: sdk_p_transaction,
    PrimaryChain.X: sdk_x_transaction,
    PrimaryChain.C: sdk_c_transaction,
}
_NEEDS_A_SUBJECT: Final = ("txTypes", "startTimestamp", "endTimestamp")


async def list_transactions(context: PrimaryNetworkContext) -> Response:
    """GET .../blockchains/{blockchainId}/transactions."""
    index = context.index("transactions")
    chain = context.chain()
    query = await context.page_query(chain.encode())
    result = await index.transactions(transaction_query(chain, query.values), query.page)
    transactions: Sequence[Resource] = result.items
    if context.for_sdk:
        transactions = [_TRANSLATIONS[chain](transaction) for transaction in result.items]
    chain_info = _chain_info(chain, context)
    return await context.respond_page(query, transactions, result.next, chain_info=chain_info)


async def list_blocks(context: PrimaryNetworkContext) -> Response:
    """GET .../blockchains/{blockchainId}/blocks."""
    index = context.index("blocks")
    chain = context.chain()
    query = await context.page_query(chain.encode())
    times = time_range_in(query.values)
    blocks = await index.blocks(BlockQuery(chain, times), query.page)
    # The newest page can change at any time, all others cannot.
    progress = context.progress_of(chain)
    indexed_until = 0 if progress is None else progress.block_time
    is_range_complete = times.until is not None and times.until < indexed_until
    is_final = query.position is not None or is_range_complete
    final_s = FINAL_PAGE_S if is_final else 0
    chain_info = _chain_info(chain, context)
    return await context.respond_page(
        query, blocks.items, blocks.next, final_s, chain_info=chain_info
    )


async def get_blockchain(context: PrimaryNetworkContext) -> Response:
    """GET .../blockchains/{blockchainId}."""
    context.parameters()
    chain_id = context.chain_id()
    blockchain = await _find_blockchain(context, chain_id)
    if blockchain is None:
        raise UnknownChain(id_text(chain_id))
    final_s = 0 if blockchain.height is None else FINAL_S
    return await context.respond(blockchain_details(blockchain, for_sdk=context.for_sdk), final_s)


async def list_chain_ids(context: PrimaryNetworkContext) -> Response:
    """GET .../addresses:listChainIds."""
    index = context.index("addresses")
    context.require_fresh(PrimaryChain)
    name = ADDRESSES.name
    values: dict[str, Any] = context.parameters()
    network_text = context.network.text
    prefix = network_text.prefix
    parsed = {text: parse_address_parameter(name, text, prefix) for text in values[name]}
    addresses = tuple(Address(raw) for raw, is_account in parsed.values() if not is_account)
    accounts = tuple(raw for raw, is_account in parsed.values() if is_account)
    of_addresses, of_accounts = await index.chains_of(addresses, accounts)
    entries = []
    for text, (raw, is_account) in parsed.items():
        touched = (of_accounts if is_account else of_addresses).get(Address(raw), frozenset())
        ids = tuple([network_text.chain_id(chain) for chain in PrimaryChain if chain in touched])
        entries.append(ChainInteraction(address=text, blockchain_ids=ids))
    return await context.respond(ChainInteractions(addresses=tuple(entries)))


def transaction_query(chain: PrimaryChain, values: Mapping[str, Any]) -> TransactionQuery:
    """Return the query of a request.

    Raises InvalidRequest naming the parameter that does not go with the others.
    """
    addresses, accounts = addresses_in(values)
    validation = values.get("l1ValidationId")
    if validation is not None and chain is not PrimaryChain.P:
        raise InvalidRequest(
            "l1ValidationId", f"L1 validations are on the P-Chain, not on the {chain}"
        )
    if accounts and chain is not PrimaryChain.C:
        raise InvalidRequest("addresses", f"accounts (0x) are on the C-Chain, not on the {chain}")
    if not (addresses or accounts or validation):
        for name in _NEEDS_A_SUBJECT:
            if name in values:
                raise InvalidRequest(name, "only together with addresses or l1ValidationId")
    validation_id = None if validation is None else ValidationID(validation)
    return TransactionQuery(
        chain=chain,
        addresses=addresses,
        evm_addresses=accounts,
        validation_id=validation_id,
        kinds=frozenset(values.get("txTypes", ())),
        times=time_range_in(values),
        order=order_in(values),
    )


def blockchain_details(chain: Blockchain, *, for_sdk: bool) -> BlockchainDetails:
    """Return a blockchain as a resource; the EVM chain id of any other VM is 0.

    for_sdk: unknown values of keys that SDKs require are 0, and never left out.
    """
    genesis = evm_genesis(chain.genesis)
    if genesis is not None and for_sdk:
        genesis = sdk_genesis(genesis)
    unknown = 0 if for_sdk else None
    evm_chain_id = unknown if chain.genesis is None else chain_id_of(genesis) or 0
    height = unknown if chain.height is None else chain.height
    time = unknown if chain.time is None else chain.time
    genesis_hex: str | UnsetType = UNSET
    if chain.genesis and genesis is None:
        genesis_hex = hex_text(chain.genesis)
    return BlockchainDetails(
        blockchain_id=id_text(chain.chain_id),
        blockchain_name=chain.name,
        subnet_id=shared_id_text(chain.subnet_id),
        vm_id=shared_id_text(chain.vm_id),
        create_block_timestamp=or_unset(time),
        create_block_number=or_unset(None if height is None else str(height)),
        evm_chain_id=or_unset(evm_chain_id),
        genesis_data=genesis or UNSET,
        genesis_data_hex=genesis_hex,
    )


async def _find_blockchain(context: PrimaryNetworkContext, chain_id: ChainID) -> Blockchain | None:
    """Ask the index, and the node for a blockchain that an incomplete index cannot have."""
    index = context.network.index
    p_chain = context.progress_of(PrimaryChain.P)
    if index is None or p_chain is None:
        return await context.network.node.blockchain(chain_id)
    context.require_fresh([PrimaryChain.P])
    blockchain = await index.blockchain(chain_id)
    is_complete = not p_chain.first_height and not p_chain.lag_s(context.now)
    if blockchain is not None or is_complete:
        return blockchain
    return await context.network.node.blockchain(chain_id)


def _chain_info(chain: PrimaryChain, context: PrimaryNetworkContext) -> ChainInfo:
    return ChainInfo(chain_name=PrimaryNetworkChainName(chain.value), network=context.network_name)
