"""The forecast of a subnet: which validators leave its quorum when, and what keeps it; see docs/forecast.md."""

from __future__ import annotations

from starlette.responses import Response

from warpseal.api.data.forecast_resources import forecast_resource
from warpseal.api.data.primary_context import PrimaryNetworkContext
from warpseal.errors import InvalidRequest, NotFound, UnknownSubnet
from warpseal.warp.ids import MalformedID, SubnetID, parse_id


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
    return await context.respond(forecast_resource(forecast))
