"""ICM messages of all indexed EVM chains.

Pages of the chains are merged by time, and both sides of a message are joined. Source of truth: the
models of the published SDKs; docs/icm.md. The deprecated paths have the same responses with another
key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from warpseal.api.data import parameters as p
from warpseal.api.data.bodies import (
    DeprecatedIcmMessage,
    IcmDestinationTransaction,
    IcmMessage,
    IcmReceipt,
    IcmRewardDetails,
    IcmSourceTransaction,
)
from warpseal.api.data.errors import IndexBehind, IndexNotEnabled, MessageNotFound
from warpseal.api.data.evm_context import ENABLE_INDEX, SETTING, EvmRequestContext, indexed_contexts
from warpseal.api.data.evm_resources import EvmWording
from warpseal.api.data.request_context import RequestContext
from warpseal.chains.evm.icm_events import decode_tail
from warpseal.icm.resources import WarpsealBlock
from warpseal.icm.retry import JoinedMessage
from warpseal.index.evm.records import (
    MAX_PAGE_BYTES,
    IcmKey,
    IcmPosition,
    IcmQuery,
    MessageChange,
    ReceivedMessage,
    SentMessage,
)
from warpseal.resources.base import UNSET, UnsetType
from warpseal.resources.evm import IcmStatus
from warpseal.resources.queries import PageRequest
from warpseal.resources.text import account_text, hex_text
from warpseal.warp.ids import ChainID, id_text

if TYPE_CHECKING:
    from warpseal.icm.obstacles import MessageObstacles
    from warpseal.index.evm.reader import EvmIndex

_NO_REWARD: Final = IcmRewardDetails(
    address=hex_text(bytes(20)), name="", symbol="", decimals=0, value="0"
)


async def list_messages(context: RequestContext, obstacles: MessageObstacles | None) -> Response:
    """GET /v1/icm/messages, /v1/icm/addresses/{address}/messages, and both of /v1/teleporter."""
    text = context.request.path_params.get("address")
    address = None if text is None else p.read_account("address", text)
    query = await context.page_query(address or b"")
    values: Mapping[str, Any] = query.values
    _, indexes = await _open_indexes(context)
    status = IcmStatus(values["status"]) if "status" in values else None
    is_stuck = values.get("isStuck")
    indexed_since = {} if is_stuck is None else await _read_indexed_since(indexes)
    criteria = IcmQuery(
        chain=await _chain_in(context, values, "blockchainId"),
        source=await _chain_in(context, values, "sourceBlockchainId"),
        destination=await _chain_in(context, values, "destinationBlockchainId"),
        sender=values.get("from"),
        recipient=values.get("to"),
        address=address,
        times=p.time_range_in(values),
        indexed=frozenset(indexes),
        status=status,
        is_stuck=is_stuck,
        indexed_since=indexed_since,
    )
    network = values.get("network")
    keys: Sequence[IcmKey] = ()
    more: IcmPosition | None = None
    if network is None or context.api_settings.serves(network, context.network.network_id):
        keys, more = await _read_page(indexes, criteria, query.page)
    places = [(key.position.chain, key.position.key) for key in keys]
    sides = await _read_sides(indexes, places)
    joined = await _join_sides(indexes, [sides[place] for place in places if place in sides])
    if criteria.status is not None:
        # The row of a delivery may name another message, while its destination is indexed again.
        joined = [message for message in joined if _status_of(message) is criteria.status]
    blocks = [UNSET] * len(joined) if obstacles is None else await obstacles.outline(joined)
    messages = [
        _describe(context, message, block) for message, block in zip(joined, blocks, strict=True)
    ]
    return await context.respond_page(query, messages, more)


async def get_message(context: RequestContext, obstacles: MessageObstacles | None) -> Response:
    """GET /v1/icm/messages/{messageId}, /v1/teleporter/messages/{messageId}."""
    context.parameters()
    message_id = p.read_id("messageId", context.request.path_params["messageId"])
    chains, indexes = await _open_indexes(context)
    sides = await _find_sides(indexes, message_id)
    if not sides and obstacles is not None:
        # The path may have the id of the Warp message.
        icm_id = await obstacles.find_icm_id(message_id)
        if icm_id is not None:
            sides = await _find_sides(indexes, icm_id)
    if not sides:
        for chain in chains:
            progress = chain.progress
            if progress is not None and progress.lag_s(context.now):
                height, node_height = progress.height or 0, progress.node_height or 0
                raise IndexBehind(chain.chain.name, height, node_height)
        raise MessageNotFound(hex_text(message_id))
    # The source knows more than a destination that was indexed before it.
    side = next((side for side in sides if isinstance(side, SentMessage)), sides[0])
    (message,) = await _join_sides(indexes, [side])
    block: WarpsealBlock | UnsetType = UNSET
    if obstacles is not None and not message.is_executed:
        block = await obstacles.describe(message, *await _read_facts(chains, message))
    return await context.respond(_describe(context, message, block))


async def _find_sides(
    indexes: Mapping[ChainID, EvmIndex], message_id: bytes
) -> Sequence[SentMessage | ReceivedMessage]:
    replies = await asyncio.gather(
        *(index.find_icm_message(message_id) for index in indexes.values())
    )
    return [reply for reply in replies if reply is not None]


async def _read_facts(
    chains: Sequence[EvmRequestContext], message: JoinedMessage
) -> tuple[Sequence[MessageChange], int | None]:
    """Return the changes of a message at its source, and the last gas limit of its destination."""
    changes: Sequence[MessageChange] = ()
    block_gas = None
    for chain in chains:
        chain_id = chain.chain.entry.blockchain_id
        height = None if chain.progress is None else chain.progress.height
        if chain_id == message.side.source and isinstance(message.side, SentMessage):
            changes = await chain.index().icm_changes(message.side.key)
        if chain_id == message.side.destination and height is not None:
            block = await chain.index().block(height)
            block_gas = None if block is None else int(block.gas_limit)
    return changes, block_gas


async def _read_indexed_since(indexes: Mapping[ChainID, EvmIndex]) -> Mapping[ChainID, int]:
    """Return the time from which on the index of each chain has all received messages."""
    times = await asyncio.gather(*(index.icm_since() for index in indexes.values()))
    return {
        chain_id: time for chain_id, time in zip(indexes, times, strict=True) if time is not None
    }


async def _open_indexes(
    context: RequestContext,
) -> tuple[Sequence[EvmRequestContext], Mapping[ChainID, EvmIndex]]:
    """Return the chains whose messages are indexed, and their indexes. Raises IndexNotEnabled."""
    chains = [chain for chain in context.evm if chain.index is not None and chain.has_icm]
    if not chains:
        raise IndexNotEnabled("ICM messages of any EVM chain", SETTING, ENABLE_INDEX)
    contexts = await indexed_contexts(context, chains)
    return contexts, {chain.chain.entry.blockchain_id: chain.index() for chain in contexts}


async def _chain_in(
    context: RequestContext, values: Mapping[str, Any], name: str
) -> ChainID | None:
    """Return the chain that a parameter names. Raises InvalidRequest."""
    return await context.chain_id_of(name, values[name]) if name in values else None


async def _read_page(
    indexes: Mapping[ChainID, EvmIndex], query: IcmQuery, page: PageRequest
) -> tuple[Sequence[IcmKey], IcmPosition | None]:
    """Return the messages of a page, and the position of the next page."""
    before: Any = None if page.after is None else IcmPosition(*page.after)  # type: ignore[arg-type]
    replies = await asyncio.gather(
        *(index.icm_page(query, before, page.size) for index in indexes.values())
    )
    # All chains were read down to this position.
    read_to = max((reply.read_to for reply in replies if reply.read_to is not None), default=None)
    items = [
        item
        for reply in replies
        for item in reply.items
        if read_to is None or item.position >= read_to
    ]
    keys: list[IcmKey] = []
    size = 0
    for item in sorted(items, reverse=True)[: page.size]:
        size += item.size
        if keys and size > MAX_PAGE_BYTES:
            break
        keys.append(item)
    return keys, keys[-1].position if len(keys) < len(items) else read_to


async def _read_sides(
    indexes: Mapping[ChainID, EvmIndex], places: Iterable[tuple[ChainID, int]]
) -> Mapping[tuple[ChainID, int], SentMessage | ReceivedMessage]:
    """Return the messages of chains by chain and key."""
    keys: dict[ChainID, list[int]] = {}
    for chain_id, key in places:
        keys.setdefault(chain_id, []).append(key)
    replies = await asyncio.gather(
        *(indexes[chain_id].icm_messages(part) for chain_id, part in keys.items())
    )
    by_chain = zip(keys, replies, strict=True)
    return {
        (chain_id, key): message for chain_id, reply in by_chain for key, message in reply.items()
    }


async def _join_sides(
    indexes: Mapping[ChainID, EvmIndex], sides: Sequence[SentMessage | ReceivedMessage]
) -> Sequence[JoinedMessage]:
    """Return messages with their receives."""
    places = {
        side.message_id: (side.destination, side.receive)
        for side in sides
        if isinstance(side, SentMessage)
        and side.receive is not None
        and side.destination in indexes
    }
    receives = await _read_sides(indexes, places.values())
    messages = []
    for side in sides:
        if isinstance(side, ReceivedMessage):
            messages.append(JoinedMessage(side, side))
            continue
        receive = receives.get(places[side.message_id]) if side.message_id in places else None
        # The index of the destination may have been rebuilt, so that the key belongs to another
        # message, or to none.
        if not isinstance(receive, ReceivedMessage) or receive.message_id != side.message_id:
            receive = None
        messages.append(JoinedMessage(side, receive))
    return messages


def _status_of(message: JoinedMessage) -> IcmStatus:
    if not isinstance(message.side, SentMessage):
        return IcmStatus.DELIVERED_SOURCE_NOT_INDEXED
    return IcmStatus.PENDING if message.received is None else IcmStatus.DELIVERED


def _describe(
    context: RequestContext, message: JoinedMessage, block: WarpsealBlock | UnsetType
) -> IcmMessage | DeprecatedIcmMessage:
    side, received = message
    sent = side if isinstance(side, SentMessage) else None
    _, receipts = decode_tail(side.tail)
    fields: dict[str, Any] = {
        "message_id": hex_text(side.message_id),
        "source_blockchain_id": id_text(side.source),
        "destination_blockchain_id": id_text(side.destination),
        "source_evm_chain_id": context.evm.evm_chain_id_text(side.source),
        "destination_evm_chain_id": context.evm.evm_chain_id_text(side.destination),
        "message_nonce": str(side.nonce),
        "sender": account_text(side.sender),
        "to": account_text(side.recipient),
        "data": UNSET if side.body is None else hex_text(side.body),
        "message_executed": message.is_executed,
        "receipts": tuple(
            IcmReceipt(
                received_message_nonce=str(nonce), relayer_reward_address=account_text(account)
            )
            for nonce, account in receipts
        ),
        "receipt_delivered": sent is not None and sent.has_receipt,
        "reward_details": _NO_REWARD,
        "source_transaction": UNSET,
        "destination_transaction": UNSET,
        "status": _status_of(message),
        "warpseal": block,
    }
    if sent is not None:
        fields["reward_details"] = _describe_reward(context, sent)
        fields["source_transaction"] = IcmSourceTransaction(**_transaction(sent))
    if received is not None:
        fields["destination_transaction"] = IcmDestinationTransaction(
            **_transaction(received),
            reward_redeemer=account_text(received.redeemer),
            deliverer_address=account_text(received.deliverer),
        )
    contract = account_text(side.messenger)
    if context.endpoint.deprecated_at is None:
        return IcmMessage(icm_contract_address=contract, **fields)
    # In lists of the deprecated paths, the SDKs read a message whose source is not indexed by the
    # model of the other paths.
    icm_contract = contract if sent is None else UNSET
    return DeprecatedIcmMessage(
        teleporter_contract_address=contract, icm_contract_address=icm_contract, **fields
    )


def _describe_reward(context: RequestContext, sent: SentMessage) -> IcmRewardDetails:
    name, symbol = sent.asset_name, sent.asset_symbol
    chain = context.evm.get(sent.source)
    if chain is not None:
        wording = EvmWording(context.evm.contracts_of(chain), for_sdk=context.for_sdk)
        name, symbol = wording.names(sent.asset, name, symbol)
    return IcmRewardDetails(
        address=account_text(sent.asset),
        name=name,
        symbol=symbol,
        decimals=sent.asset_decimals,
        value=str(sent.reward),
    )


def _transaction(side: SentMessage | ReceivedMessage) -> dict[str, Any]:
    return {
        "tx_hash": hex_text(side.tx_hash),
        "timestamp": side.time,
        "gas_spent": str(side.tx_fee),
    }
