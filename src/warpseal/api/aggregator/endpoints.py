"""The two aggregation endpoints: the specification's `/v1` path and the reference's `/aggregate-signatures`.

Source of truth: endpoint 1 of the specification (success is 201, which the published SDKs insist on) and the
reference aggregator's HTTP API (success is 200; a GET is a client's probe and gets the 400 of an empty body).
"""

from __future__ import annotations

import json
from time import perf_counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.aggregator.aggregation_request import parse_aggregation_request
from warpseal.api.aggregator.services import (
    NetworkGuard,
    SigningServices,
    admit,
    allow_any_network,
    cancel_on_disconnect,
    network_guard,
)
from warpseal.api.in_flight import InFlight, client_address
from warpseal.api.request_body import read_body
from warpseal.api.request_log import log_fields
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate
from warpseal.errors import UndecodableBody, WarpsealError
from warpseal.metrics.registry import Metrics
from warpseal.warp.ids import id_text

HEIGHT_HEADER: Final = "X-Warpseal-P-Chain-Height"
SUBNET_HEADER: Final = "X-Warpseal-Signing-Subnet-Id"
_KEBAB_METHODS: Final = ("POST", "PUT")


class AggregatorEndpoints:
    """Parses a request, calls the aggregation once, encodes its result."""

    def __init__(self, gate: StartupGate[SigningServices], settings: ApiSettings, metrics: Metrics) -> None:
        self._gate = gate
        self._settings = settings
        self._metrics = metrics
        self.in_flight = InFlight(settings.max_requests_in_flight, settings.max_requests_per_client)

    async def v1(self, request: Request) -> Response:
        """POST /v1/signatureAggregator/{network}/aggregateSignatures."""
        guard = network_guard(request.path_params["network"], self._settings)
        return _encode(await self._aggregate(request, guard), "signedMessage", 201)

    async def kebab(self, request: Request) -> Response:
        """POST or PUT /aggregate-signatures; every other method gets the reference's answer to an empty body."""
        if request.method not in _KEBAB_METHODS:
            raise UndecodableBody("body", f"a {request.method[:32]} request carries none; send it with POST")
        return _encode(await self._aggregate(request, allow_any_network), "signed-message", 200)

    async def _aggregate(self, request: Request, guard: NetworkGuard) -> Aggregation:
        self._metrics.aggregation_requested()
        started = perf_counter()
        try:
            with self.in_flight.slot(client_address(request.scope)):
                body = await read_body(request.scope, request.receive, self._settings)
                wanted = parse_aggregation_request(body, self._settings)
                if wanted.message is not None:
                    log_fields(request.scope)["message_id"] = id_text(wanted.message.id)
                aggregation = await cancel_on_disconnect(self._aggregate_admitted(wanted, guard), request.receive)
        except WarpsealError as error:
            self._metrics.aggregation_failed(error)
            raise
        self._metrics.aggregation_answered(perf_counter() - started)
        log_fields(request.scope).update(
            height=aggregation.height, signers=aggregation.signers, cached=aggregation.cached
        )
        return aggregation

    async def _aggregate_admitted(self, wanted: AggregationRequest, guard: NetworkGuard) -> Aggregation:
        services, wanted = await admit(self._gate, wanted, guard)
        return await services.aggregate(wanted)


def _encode(aggregation: Aggregation, key: str, status: int) -> Response:
    body = json.dumps({key: aggregation.signed_message.hex()}, separators=(",", ":"))
    headers = {
        HEIGHT_HEADER: str(aggregation.height),
        SUBNET_HEADER: id_text(aggregation.signing_subnet_id),
    }
    return Response(body, status, headers, media_type="application/json")
