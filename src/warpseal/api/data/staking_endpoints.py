"""Endpoints 7 and 8: rewards that were paid, and the validations of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.data.encoding.staking import encode_reward, encode_validation
from warpseal.api.data.operations import REWARDS, VALIDATOR
from warpseal.api.data.paging import addresses_of, asked_page, next_token, order_of
from warpseal.api.data.parameters import node_id_of
from warpseal.api.data.request_context import ContextFactory, RequestContext
from warpseal.api.data.responses import ResourceResponse, respond
from warpseal.api.data.schema.enums import CurrencyCode
from warpseal.api.data.schema.outputs import HistoricalPrice
from warpseal.api.data.schema.pages import HistoricalRewards, Validators
from warpseal.errors import IndexNotEnabled, InvalidRequest
from warpseal.history.chains import PrimaryChain
from warpseal.history.ports import Connectivity
from warpseal.history.queries import Order, Page, PageRequest, RewardQuery, ValidationQuery
from warpseal.history.staking import Active, Reward, Validation, ValidationStatus
from warpseal.warp.ids import NodeID

PRICED_AFTER_S: Final = 24 * 3600
_OF_THE_PAST: Final = (ValidationStatus.COMPLETED, ValidationStatus.REMOVED)


class StakingEndpoints:
    """Translates requests about staking, asks once, translates the answers back."""

    def __init__(self, reception: ContextFactory) -> None:
        self._reception = reception

    async def rewards(self, request: Request) -> Response:
        """GET .../rewards."""
        visit = await self._reception.enter(request)
        index = visit.index("rewards")
        visit.need(PrimaryChain.P)
        self._reception.refuse_stale(visit, [PrimaryChain.P])
        asked, page = await asked_page(visit, REWARDS, b"")
        found = await index.rewards(reward_query(asked.values), page)
        currency = str(asked.values.get("currency", CurrencyCode.USD))
        shape = HistoricalRewards(
            next_page_token=await next_token(visit, asked, found.next),
            historical_rewards=tuple(
                [encode_reward(one, await _price(visit, one, currency), visit.words) for one in found.items]
            ),
        )
        return await respond(request, ResourceResponse(shape), is_private=self._reception.is_private)

    async def validator(self, request: Request) -> Response:
        """GET .../validators/{nodeId}."""
        visit = await self._reception.enter(request)
        node_id = NodeID(node_id_of("nodeId", request.path_params["nodeId"]))
        asked, page = await asked_page(visit, VALIDATOR, node_id)
        status = asked.values.get("validationStatus")
        query = ValidationQuery(
            node_id, None if status is None else ValidationStatus(str(status)), order_of(asked.values)
        )
        found = await self._validations(visit, query, page)
        seen = await _connectivity(visit, node_id, found.items)
        shape = Validators(
            next_page_token=await next_token(visit, asked, found.next),
            validators=tuple([encode_validation(one, seen, visit.words) for one in found.items]),
        )
        return await respond(request, ResourceResponse(shape), is_private=self._reception.is_private)

    async def _validations(self, visit: RequestContext, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
        index = visit.services.index
        if index is not None and any(one.chain is PrimaryChain.P for one in visit.freshness):
            self._reception.refuse_stale(visit, [PrimaryChain.P])
            return await index.validations(query, page)
        if query.status in _OF_THE_PAST:
            if index is not None:
                visit.need(PrimaryChain.P)
            raise IndexNotEnabled(f"{query.status} validations")
        if query.status is ValidationStatus.PENDING:
            return Page(())
        return node_page(await visit.services.node.validations(query.node_id), query, page)


def node_page(validations: Sequence[Validation], query: ValidationQuery, page: PageRequest) -> Page[Validation]:
    """Return a page of what a node told of itself; the position is the last validation's beginning and id."""
    is_newest_first = query.order is Order.DESC
    ordered = sorted(validations, key=lambda one: (one.start, one.tx_id), reverse=is_newest_first)
    if page.after is not None:
        begin: Any = page.after
        ordered = [
            one
            for one in ordered
            if ((one.start, one.tx_id) < begin if is_newest_first else (one.start, one.tx_id) > begin)
        ]
    items = tuple(ordered[: page.size])
    last = items[-1] if len(ordered) > page.size else None
    return Page(items, None if last is None else (last.start, last.tx_id))


def reward_query(values: Mapping[str, Any]) -> RewardQuery:
    """Return which rewards are asked for. Raises InvalidRequest naming the parameter that is missing or wrong."""
    addresses, accounts = addresses_of(values)
    if accounts:
        raise InvalidRequest("addresses", "rewards are paid on the P-Chain, where there are no accounts (0x)")
    node_ids = tuple(NodeID(one) for one in values.get("nodeIds", ()))
    if not addresses and not node_ids:
        raise InvalidRequest("addresses", "addresses or nodeIds is required")
    return RewardQuery(addresses, node_ids, order_of(values))


async def _price(visit: RequestContext, reward: Reward, currency: str) -> HistoricalPrice | None:
    """Return what one unit was worth when the reward was paid; None where nobody knows, and for the last 24 hours."""
    prices = visit.services.prices
    if prices is None or reward.paid_at > visit.now - PRICED_AFTER_S:
        return None
    value = await prices.price(reward.reward.asset, currency, reward.paid_at)
    if value is None:
        return None
    return HistoricalPrice(currency_code=CurrencyCode(currency), value=float(value) if visit.for_sdk else value)


async def _connectivity(visit: RequestContext, node_id: NodeID, found: Sequence[Validation]) -> Connectivity | None:
    """Return how an active validator is reached: as we observed it ourselves, once that is a day, else the node."""
    began = [one.start for one in found if isinstance(one.state, Active)]
    if not began:
        return None
    told, observed = await visit.services.node.connectivity(node_id), visit.services.observed
    seen = None if observed is None else await observed.reach(node_id, min(began))
    return told if seen is None else replace(told, uptime=seen.uptime, reachability=seen.reachability)
