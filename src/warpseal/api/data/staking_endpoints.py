"""Endpoints 7 and 8, paid rewards and the validations of a node; validators of L1s; forecasts."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from starlette.responses import Response

from warpseal.api.data.errors import IndexNotEnabled
from warpseal.api.data.forecast_resources import forecast_resource
from warpseal.api.data.parameters import addresses_in, order_in, read_node_id
from warpseal.api.data.primary_context import INDEX_CHAINS, PrimaryNetworkContext
from warpseal.api.data.staking_resources import reward_resource, validation_resource
from warpseal.api.http.errors import NotFound
from warpseal.errors import InvalidRequest
from warpseal.index.l1_validators import L1ValidatorQuery, l1_validators
from warpseal.resources.base import CurrencyCode, SortOrder, ValidationStatusType
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.interfaces import (
    AssetPrices,
    Connectivity,
    PrimaryNetworkIndex,
    UptimeSource,
)
from warpseal.resources.outputs import HistoricalPrice
from warpseal.resources.queries import Page, PageRequest, Position, RewardQuery, ValidationQuery
from warpseal.resources.transactions import ActiveState, Reward, Validation
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import UnknownSubnet
from warpseal.warp.ids import MalformedID, NodeID, SubnetID, parse_id

if TYPE_CHECKING:
    from warpseal.validators.forecast.service import ForecastService

PRICED_AFTER_S: Final = 24 * 3600
# No node of any network has more validations.
_MAX_KNOWN: Final = 1_000
_NODE_POSITION_LENGTH: Final = 3
# The position behind all validations of the index, and before those of the node that follow.
_BEHIND_INDEX: Final[Position] = (b"", 1)
_PAST_STATUSES: Final = (ValidationStatusType.COMPLETED, ValidationStatusType.REMOVED)
# More validators than these could hold the event loop up for a millisecond.
_INLINE_VALIDATORS: Final = 100


async def list_rewards(context: PrimaryNetworkContext, prices: AssetPrices | None) -> Response:
    """GET .../rewards."""
    index = context.index("rewards")
    context.require_indexed(PrimaryChain.P)
    context.require_fresh([PrimaryChain.P])
    query = await context.page_query(b"")
    reward_page = await index.rewards(reward_query(query.values), query.page)
    currency = str(query.values.get("currency", CurrencyCode.USD))
    rewards = []
    for reward in reward_page.items:
        price = await _price(context, prices, reward, currency)
        rewards.append(reward_resource(reward, price, context.network.text))
    return await context.respond_page(query, rewards, reward_page.next)


async def get_validator(context: PrimaryNetworkContext, uptimes: UptimeSource | None) -> Response:
    """GET .../validators/{nodeId}."""
    node_id = NodeID(read_node_id("nodeId", context.request.path_params["nodeId"]))
    query = await context.page_query(node_id)
    text = query.values.get("validationStatus")
    status = None if text is None else ValidationStatusType(str(text))
    validation_query = ValidationQuery(node_id, status, order_in(query.values))
    validations = await _find_validations(context, validation_query, query.page)
    connectivity = await _connectivity(context, uptimes, node_id, validations.items)
    validators = [
        validation_resource(validation, connectivity, context.network.text)
        for validation in validations.items
    ]
    return await context.respond_page(query, validators, validations.next)


async def list_l1_validators(context: PrimaryNetworkContext) -> Response:
    """GET .../l1Validators."""
    index = context.index("L1 validators")
    context.require_indexed(PrimaryChain.P)
    context.require_fresh([PrimaryChain.P])
    query = await context.page_query(b"")
    values: Mapping[str, Any] = query.values
    criteria = L1ValidatorQuery(
        validation_id=values.get("l1ValidationId"),
        node_id=values.get("nodeId"),
        subnet_id=values.get("subnetId"),
        has_inactive=values.get("includeInactiveL1Validators", False),
    )
    text = context.network.text
    page = await index.page(
        "l1_validators", lambda session: l1_validators(session, text, criteria, query.page)
    )
    return await context.respond_page(query, page.items, page.next, block_height=str(page.height))


def node_page(
    validations: Sequence[Validation], query: ValidationQuery, page: PageRequest
) -> Page[Validation]:
    """Return a page of the validations that a node reports.

    The position is the start and the id of the last validation.
    """
    is_newest_first = query.order is SortOrder.DESC
    ordered = sorted(validations, key=_start_and_id, reverse=is_newest_first)
    if page.after is not None:
        last_position: Any = page.after
        is_behind = operator.lt if is_newest_first else operator.gt
        ordered = [
            validation
            for validation in ordered
            if is_behind(_start_and_id(validation), last_position)
        ]
    items = tuple(ordered[: page.size])
    return Page(items, _start_and_id(items[-1]) if len(ordered) > page.size else None)


def reward_query(values: Mapping[str, Any]) -> RewardQuery:
    """Return the query of a request.

    Raises InvalidRequest naming the parameter that is missing or wrong.
    """
    addresses, accounts = addresses_in(values)
    if accounts:
        raise InvalidRequest(
            "addresses", "rewards are paid on the P-Chain, where there are no accounts (0x)"
        )
    node_ids = tuple(NodeID(node_id) for node_id in values.get("nodeIds", ()))
    if not addresses and not node_ids:
        raise InvalidRequest("addresses", "addresses or nodeIds is required")
    return RewardQuery(addresses, node_ids, order_in(values))


def _start_and_id(validation: Validation) -> tuple[int, bytes]:
    return validation.start, validation.tx_id


async def get_forecast(
    context: PrimaryNetworkContext, forecasts: ForecastService | None
) -> Response:
    """GET .../subnets/{subnetId}/forecast."""
    context.parameters()
    try:
        subnet_id = SubnetID(parse_id(context.request.path_params["subnetId"]))
    except MalformedID as error:
        raise InvalidRequest("subnetId", str(error)) from None
    if forecasts is None:
        raise NotFound("no such path")
    try:
        forecast = await forecasts.forecast(subnet_id)
    except UnknownSubnet as error:
        raise NotFound(str(error)) from None
    if len(forecast.outlook.validators) <= _INLINE_VALIDATORS:
        return await context.respond(forecast_resource(forecast))
    return await context.respond(await asyncio.to_thread(forecast_resource, forecast))


async def _find_validations(
    context: PrimaryNetworkContext, query: ValidationQuery, page: PageRequest
) -> Page[Validation]:
    """Ask the index if it has the P-Chain, else the node, which knows only active validations.

    The node adds the active validations that the index does not have yet: the index is without the
    genesis, began later, or is still catching up.
    """
    index = context.network.index
    if index is not None and context.is_indexed(PrimaryChain.P):
        context.require_fresh([PrimaryChain.P])
        return await _find_in_index_and_node(context, index, query, page)
    if query.status in _PAST_STATUSES:
        if index is not None:
            context.require_indexed(PrimaryChain.P)
        raise IndexNotEnabled(f"{query.status} validations", INDEX_CHAINS, "name p")
    if query.status is ValidationStatusType.PENDING:
        return Page(())
    return node_page(await context.network.node.validations(query.node_id), query, page)


async def _find_in_index_and_node(
    context: PrimaryNetworkContext,
    index: PrimaryNetworkIndex,
    query: ValidationQuery,
    page: PageRequest,
) -> Page[Validation]:
    progress = context.progress_of(PrimaryChain.P)
    is_complete = progress is not None and progress.has_every_block
    has_active = query.status in (None, ValidationStatusType.ACTIVE)
    if not has_active or (is_complete and page.after is not None and not _is_of_node(page.after)):
        return await index.validations(query, page)
    if is_complete and page.after is None:
        validations = await index.validations(query, page)
        if validations.items:
            return validations
    try:
        listed = await context.network.node.validations(query.node_id)
    except NodeUnavailable:
        if page.after is not None and _is_of_node(page.after):
            raise
        validations = await index.validations(query, page)
        if not validations.items and page.after is None:
            raise
        return validations
    of_node = ValidationQuery(query.node_id)
    validations = await index.validations(of_node, PageRequest(_MAX_KNOWN)) if listed else Page(())
    indexed_ids = {validation.tx_id for validation in validations.items}
    unindexed = [validation for validation in listed if validation.tx_id not in indexed_ids]
    indexed_until = 0 if progress is None else progress.block_time
    return await merge_validations(unindexed, index, query, page, indexed_until)


async def merge_validations(
    unindexed: Sequence[Validation],
    index: PrimaryNetworkIndex,
    query: ValidationQuery,
    page: PageRequest,
    indexed_until: int,
) -> Page[Validation]:
    """Return a page of the index's validations between those that only the node has.

    unindexed: the validations that only the node has.
    indexed_until: unix seconds of the last indexed block. Validations that began later are newer
        than the index, the others are older.
    The position behind a validation of the node is (start, id, 0 before or 1 behind the index).
    """
    newer = [validation for validation in unindexed if validation.start > indexed_until]
    older = [validation for validation in unindexed if validation.start <= indexed_until]
    before, behind = (newer, older) if query.order is SortOrder.DESC else (older, newer)
    after = page.after
    is_of_node = after is not None and _is_of_node(after)
    side: int | bytes | None = None
    last_position: Position | None = None
    if after is not None and is_of_node:
        side = after[-1]
        if after != _BEHIND_INDEX:
            last_position = after[:-1]
    items: list[Validation] = []
    if after is None or side == 0:
        nodes = node_page(before, query, PageRequest(page.size, last_position))
        items += nodes.items
        if len(items) == page.size:
            return Page(tuple(items), (*_start_and_id(items[-1]), 0))
    if side != 1:
        # The page before ended in front of the index, so all validations behind the index follow.
        last_position = None
        index_position = None if is_of_node else after
        indexed = await index.validations(
            query, PageRequest(page.size - len(items), index_position)
        )
        items += indexed.items
        if indexed.next is not None or len(items) == page.size:
            return Page(tuple(items), indexed.next or (_BEHIND_INDEX if behind else None))
    nodes = node_page(behind, query, PageRequest(page.size - len(items), last_position))
    return Page((*items, *nodes.items), None if nodes.next is None else (*nodes.next, 1))


def _is_of_node(position: Position) -> bool:
    """Return whether a position comes from `merge_validations` and not from the index."""
    return position == _BEHIND_INDEX or len(position) == _NODE_POSITION_LENGTH


async def _price(
    context: PrimaryNetworkContext, prices: AssetPrices | None, reward: Reward, currency: str
) -> HistoricalPrice | None:
    """Return the price of a unit when the reward was paid.

    Returns None if the price is not known, and for rewards of the last 24 hours.
    """
    if prices is None or reward.paid_at > context.now - PRICED_AFTER_S:
        return None
    text = await prices.price(reward.asset, currency, reward.paid_at)
    if text is None:
        return None
    value = float(text) if context.for_sdk else text
    return HistoricalPrice(currency_code=CurrencyCode(currency), value=value)


async def _connectivity(
    context: PrimaryNetworkContext,
    uptimes: UptimeSource | None,
    node_id: NodeID,
    validations: Sequence[Validation],
) -> Connectivity | None:
    """Return the connectivity of an active validator, as the node reports it.

    Uptime and reachability are those that this daemon observed, once it observed them for a day.
    While no node replies, the daemon knows nothing else, since no block has them.
    """
    starts = [
        validation.start for validation in validations if isinstance(validation.state, ActiveState)
    ]
    if not starts:
        return None
    observed = None if uptimes is None else await uptimes.reach(node_id, min(starts))
    try:
        reported = await context.network.node.connectivity(node_id)
    except NodeUnavailable:
        if observed is None:
            raise
        return Connectivity(observed.uptime, observed.reachability)
    if observed is None:
        return reported
    return replace(reported, uptime=observed.uptime, reachability=observed.reachability)
