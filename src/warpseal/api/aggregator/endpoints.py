"""The two front doors of aggregation: the specification's `/v1` path and the reference's `/aggregate-signatures`.

Source of truth: endpoint 1 of the specification (success is 201, which the published SDKs insist on) and the
reference aggregator's HTTP API (success is 200; a GET is a client's probe and gets the 400 of an empty body).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from warpseal.aggregation.request import Aggregation, AggregationRequest
from warpseal.api.aggregator.aggregation_request import parse_aggregation_request
from warpseal.api.in_flight import InFlight, client_address
from warpseal.api.request_body import read_body
from warpseal.api.request_errors import ClientDisconnected
from warpseal.api.request_log import log_fields
from warpseal.api.settings import ApiSettings
from warpseal.errors import NetworkNotServed, UndecodableBody, WarpsealError
from warpseal.warp.ids import id_text

T = TypeVar("T")

NetworkGuard = Callable[[int], None]
"""Told the id of the served network; raises where a request is for another one."""

HEIGHT_HEADER: Final = "X-Warpseal-P-Chain-Height"
SUBNET_HEADER: Final = "X-Warpseal-Signing-Subnet-Id"
_KEBAB_METHODS: Final = ("POST", "PUT")


class Service(Protocol):
    """What stands behind the doors; it may still be on its way."""

    async def aggregate(self, request: AggregationRequest, admit: NetworkGuard) -> Aggregation:
        """Return the signed message. Raises a WarpsealError.

        admit: told the network id before anything is asked; raises to refuse the request.
        """
        ...


class RequestMetrics(Protocol):
    """What the doors report."""

    def aggregation_requested(self) -> None:
        """Count a request, whatever becomes of it."""

    def aggregation_answered(self, duration_s: float) -> None:
        """Note how long a request took that was answered with a signed message."""

    def aggregation_failed(self, error: WarpsealError) -> None:
        """Note why a request was not."""


class AggregatorEndpoints:
    """Translates a request, calls the service once, translates its answer back."""

    def __init__(self, service: Service, settings: ApiSettings, metrics: RequestMetrics) -> None:
        self._service = service
        self._settings = settings
        self._metrics = metrics
        self.in_flight = InFlight(settings.max_requests_in_flight, settings.max_requests_per_client)

    async def v1(self, request: Request) -> Response:
        """POST /v1/signatureAggregator/{network}/aggregateSignatures."""
        admit = network_guard(request.path_params["network"], self._settings)
        return _signed(await self._aggregate(request, admit), "signedMessage", 201)

    async def kebab(self, request: Request) -> Response:
        """POST or PUT /aggregate-signatures; every other method gets what the reference says to an empty body."""
        if request.method not in _KEBAB_METHODS:
            raise UndecodableBody("body", f"a {request.method[:32]} request carries none; send it with POST")
        return _signed(await self._aggregate(request, allow_any_network), "signed-message", 200)

    async def _aggregate(self, request: Request, admit: NetworkGuard) -> Aggregation:
        self._metrics.aggregation_requested()
        started = perf_counter()
        try:
            aggregation = await self._answer(request, admit)
        except WarpsealError as error:
            self._metrics.aggregation_failed(error)
            raise
        self._metrics.aggregation_answered(perf_counter() - started)
        log_fields(request.scope).update(
            height=aggregation.height, signers=aggregation.signers, cached=aggregation.cached
        )
        return aggregation

    async def _answer(self, request: Request, admit: NetworkGuard) -> Aggregation:
        with self.in_flight.slot(client_address(request.scope)):
            body = await read_body(request.scope, request.receive, self._settings)
            wanted = parse_aggregation_request(body, self._settings)
            if wanted.message is not None:
                log_fields(request.scope)["message_id"] = id_text(wanted.message.id)
            return await cancel_on_disconnect(self._service.aggregate(wanted, admit), request.receive)


def network_guard(name: str, settings: ApiSettings) -> NetworkGuard:
    """Return what refuses a request whose path names a network that is not served. Raises NetworkNotServed."""

    def admit(network_id: int) -> None:
        served = settings.networks_served(network_id)
        if name.lower() not in served:
            raise NetworkNotServed(name, served, network_id)

    return admit


def allow_any_network(network_id: int) -> None:
    """Admit everybody: the kebab path names no network."""


async def cancel_on_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return what `work` returns; cancel it and raise ClientGone as soon as the client closes its connection."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _signed(aggregation: Aggregation, key: str, status: int) -> Response:
    body = json.dumps({key: aggregation.signed_message.hex()}, separators=(",", ":"))
    headers = {
        HEIGHT_HEADER: str(aggregation.height),
        SUBNET_HEADER: id_text(aggregation.signing_subnet_id),
    }
    return Response(body, status, headers, media_type="application/json")
