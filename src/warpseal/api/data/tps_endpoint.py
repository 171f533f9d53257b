"""Endpoint 17: the average transactions per second of each UTC day, of one chain or of several together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from warpseal.api.data.bodies import AverageTps, TpsPoint
from warpseal.api.data.errors import IndexNotEnabled
from warpseal.api.data.evm_context import SETTING, EvmContext, indexed_contexts
from warpseal.api.data.parameters import FROM, TO
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.errors import NetworkNotServed
from warpseal.errors import InvalidRequest

if TYPE_CHECKING:
    from warpseal.api.data.page_tokens import PageQuery

TOTAL: Final = "total"
MAINNET: Final = "mainnet"
TESTNET: Final = "testnet"
_DAY_S: Final = 86_400
_LAST_DAY: Final = 2**53 // _DAY_S
_STATUS: Final = 200


async def get_avg_tps(context: RequestContext) -> Response:
    """GET /v1/avg_tps/{chainId}."""
    name = context.request.path_params["chainId"]
    if name in (TOTAL, MAINNET, TESTNET):
        chains, subject = await _all_chains(context, name), name.encode()
    else:
        chain = await EvmContext.of(context)
        chains, subject = (chain,), chain.chain.entry.blockchain_id
    query = await context.metrics_query(subject)
    low, high = _requested_days(query)
    indexes = [chain.index() for chain in chains]
    high = min(high, max(map(_newest_day, chains)))
    replies = await asyncio.gather(*(index.daily_tps(max(low, high - query.size + 1), high) for index in indexes))
    series = [days for days in replies if days is not None]
    low = max(low, min((days.first_day for days in series if days.first_day is not None), default=high + 1))
    dates = range(high, max(low - 1, high - query.size), -1)
    position = (dates[-1],) if dates and dates[-1] > low else None
    token = await context.next_metrics_token(query, position)
    points = [
        TpsPoint(timestamp=day * _DAY_S, value=fsum(days.values.get(day, 0.0) for days in series)) for day in dates
    ]
    return await context.respond(
        AverageTps(
            next_page_token=token,
            next_page_start_key=token,
            results=tuple(points),
            status=_STATUS,
            last_run=max((days.advanced_at for days in series), default=0),
        )
    )


async def _all_chains(context: RequestContext, name: str) -> Sequence[EvmContext]:
    """Return the indexed chains of a network; those without a block only if all are. Raises NetworkNotServed."""
    network = MAINNET if context.services.is_mainnet else TESTNET
    if name not in (TOTAL, network):
        raise NetworkNotServed(name, (TOTAL, network), context.services.network_id)
    indexed = [chain for chain in context.services.evm if chain.index is not None]
    if not indexed:
        raise IndexNotEnabled("any EVM chain", SETTING)
    return await indexed_contexts(context, indexed)


def _newest_day(chain: EvmContext) -> int:
    """Return the day of the last point: today, or that of the newest block while the index may lack newer ones."""
    assert chain.freshness is not None
    newest = chain.freshness.time // _DAY_S
    return newest if chain.freshness.lag_s(chain.now) else max(newest, int(chain.now) // _DAY_S)


def _requested_days(query: PageQuery) -> tuple[int, int]:
    """Return the first and the last day that the page may have. Raises InvalidRequest if `to` is before `from`."""
    since: Any = query.values.get(FROM.name, 0)
    until: Any = query.values.get(TO.name, _LAST_DAY * _DAY_S)
    if until < since:
        raise InvalidRequest(TO.name, f"{until} is before {FROM.name}, {since}")
    last_day = query.page.after_key
    return -(-since // _DAY_S), until // _DAY_S if last_day is None else last_day - 1
