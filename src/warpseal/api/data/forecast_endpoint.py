"""The forecast of a subnet: which validators leave its quorum when, and what keeps it; see docs/forecast.md."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from warpseal.api.data.forecast_resources import forecast_resource
from warpseal.api.data.primary_context import PrimaryNetworkContext
from warpseal.api.http.errors import NotFound
from warpseal.errors import InvalidRequest
from warpseal.validators.errors import UnknownSubnet
from warpseal.warp.ids import MalformedID, SubnetID, parse_id

# More validators than these could hold the event loop up for a millisecond.
_INLINE_VALIDATORS: Final = 100


async def get_forecast(context: PrimaryNetworkContext) -> Response:
    """GET .../subnets/{subnetId}/forecast."""
    context.parameters()
    try:
        subnet_id = SubnetID(parse_id(context.request.path_params["subnetId"]))
    except MalformedID as error:
        raise InvalidRequest("subnetId", str(error)) from None
    forecasts = context.services.forecasts
    if forecasts is None:
        raise NotFound("no such path")
    try:
        forecast = await forecasts.forecast(subnet_id)
    except UnknownSubnet as error:
        raise NotFound(str(error)) from None
    if len(forecast.outlook.validators) <= _INLINE_VALIDATORS:
        return await context.respond(forecast_resource(forecast))
    return await context.respond(await asyncio.to_thread(forecast_resource, forecast))
