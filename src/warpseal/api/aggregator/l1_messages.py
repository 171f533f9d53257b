"""`GET .../aggregateSignatures/{txHash}`: the signed message of a P-Chain transaction.

Source of truth: endpoint 2 of the specification (success is 201); `?explain=true` is our own and answers 200.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.aggregator.endpoints import (
    HEIGHT_HEADER,
    SUBNET_HEADER,
    NetworkGuard,
    RequestMetrics,
    cancel_on_disconnect,
    network_guard,
)
from warpseal.api.aggregator.l1_request import parse_l1_query
from warpseal.api.in_flight import InFlight, client_address
from warpseal.api.request_log import log_fields
from warpseal.api.settings import ApiSettings
from warpseal.errors import WarpsealError
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.warp.ids import id_text

HEIGHT_SOURCE_HEADER: Final = "X-Warpseal-P-Chain-Height-Source"


class L1Service(Protocol):
    """What stands behind the door; it may still be on its way. admit: as of the doors of aggregation."""

    async def l1_message(self, request: L1Request, admit: NetworkGuard) -> L1SignedMessage:
        """Return the signed message of a transaction. Raises a WarpsealError."""
        ...

    async def explain_l1_message(self, request: L1Request, admit: NetworkGuard) -> Mapping[str, Any]:
        """Tell how it would come about, JSON-ready. Raises a WarpsealError."""
        ...


class L1MessageEndpoint:
    """Translates a request, calls the service once, translates its answer back."""

    def __init__(self, service: L1Service, settings: ApiSettings, metrics: RequestMetrics, in_flight: InFlight) -> None:
        self._service = service
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
        admit = network_guard(params["network"], self._settings)
        question = parse_l1_query(params["tx_hash"], request.query_params.multi_items(), self._settings)
        log_fields(request.scope)["tx_id"] = id_text(question.request.tx_id)
        with self._in_flight.slot(client_address(request.scope)):
            if question.explain:
                told = self._service.explain_l1_message(question.request, admit)
                return _json(await cancel_on_disconnect(told, request.receive), 200, {})
            answer = await cancel_on_disconnect(self._service.l1_message(question.request, admit), request.receive)
        log_fields(request.scope).update(height=answer.height, cached=answer.cached)
        return _signed(answer)


def _signed(answer: L1SignedMessage) -> Response:
    shown: dict[str, Any] = {"signedMessage": answer.signed_message.hex()}
    if answer.superseded is not None:
        shown["superseded"] = dict(answer.superseded)
    headers = {
        HEIGHT_HEADER: str(answer.height),
        HEIGHT_SOURCE_HEADER: answer.height_source,
        SUBNET_HEADER: id_text(answer.signing_subnet_id),
    }
    return _json(shown, 201, headers)


def _json(shown: Mapping[str, Any], status: int, headers: Mapping[str, str]) -> Response:
    body = json.dumps(shown, separators=(",", ":"))
    return Response(body, status, dict(headers), media_type="application/json")
