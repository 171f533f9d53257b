"""`GET .../aggregateSignatures/{txHash}`: the signed message of a P-Chain transaction.

Source of truth: endpoint 2 of the specification (success is 201); `?explain=true` is our own and answers 200.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.aggregator.endpoints import HEIGHT_HEADER, SUBNET_HEADER
from warpseal.api.aggregator.l1_request import parse_l1_query
from warpseal.api.aggregator.services import (
    NetworkGuard,
    SigningServices,
    admit,
    cancel_on_disconnect,
    network_guard,
)
from warpseal.api.in_flight import InFlight, client_address
from warpseal.api.request_log import log_fields
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate
from warpseal.errors import WarpsealError
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.metrics.registry import Metrics
from warpseal.warp.ids import id_text

HEIGHT_SOURCE_HEADER: Final = "X-Warpseal-P-Chain-Height-Source"


class L1MessageEndpoint:
    """Parses a request, calls the L1 message service once, encodes its result."""

    def __init__(
        self, gate: StartupGate[SigningServices], settings: ApiSettings, metrics: Metrics, in_flight: InFlight
    ) -> None:
        self._gate = gate
        self._settings = settings
        self._metrics = metrics
        self._in_flight = in_flight

    async def get(self, request: Request) -> Response:
        """GET /v1/signatureAggregator/{network}/aggregateSignatures/{txHash}."""
        self._metrics.aggregation_requested()
        started = perf_counter()
        try:
            response = await self._answer(request)
        except WarpsealError as error:
            self._metrics.aggregation_failed(error)
            raise
        self._metrics.aggregation_answered(perf_counter() - started)
        return response

    async def _answer(self, request: Request) -> Response:
        params = request.path_params
        guard = network_guard(params["network"], self._settings)
        query = parse_l1_query(params["tx_hash"], request.query_params.multi_items(), self._settings)
        log_fields(request.scope)["tx_id"] = id_text(query.request.tx_id)
        with self._in_flight.slot(client_address(request.scope)):
            if query.explain:
                explanation = await cancel_on_disconnect(self._explain(query.request, guard), request.receive)
                return _json(explanation, 200, {})
            signed = await cancel_on_disconnect(self._sign(query.request, guard), request.receive)
        log_fields(request.scope).update(height=signed.height, cached=signed.cached)
        return _encode(signed)

    async def _sign(self, request: L1Request, guard: NetworkGuard) -> L1SignedMessage:
        services, request = await admit(self._gate, request, guard)
        return await services.l1_message(request)

    async def _explain(self, request: L1Request, guard: NetworkGuard) -> Mapping[str, Any]:
        services, request = await admit(self._gate, request, guard)
        return await services.explain_l1_message(request)


def _encode(signed: L1SignedMessage) -> Response:
    content: dict[str, Any] = {"signedMessage": signed.signed_message.hex()}
    if signed.superseded is not None:
        content["superseded"] = dict(signed.superseded)
    headers = {
        HEIGHT_HEADER: str(signed.height),
        HEIGHT_SOURCE_HEADER: signed.height_source,
        SUBNET_HEADER: id_text(signed.signing_subnet_id),
    }
    return _json(content, 201, headers)


def _json(content: Mapping[str, Any], status: int, headers: Mapping[str, str]) -> Response:
    body = json.dumps(content, separators=(",", ":"))
    return Response(body, status, dict(headers), media_type="application/json")
