"""The aggregation endpoints: the specification's two `/v1` paths and the reference's
`/aggregate-signatures`.

Source of truth: endpoints 1 and 2 of the specification (success is 201, which the published SDKs
insist on) and the reference aggregator's HTTP API (success is 200; a GET is a client's probe and
gets the 400 of an empty body). `?explain=true` is our own and answers 200.
"""

from __future__ import annotations

import asyncio
from binascii import hexlify
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from time import perf_counter
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import structs
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from warpseal.aggregation.errors import NoValidators, QuorumNotReached
from warpseal.aggregation.service import Aggregation, AggregationRequest, SignedRequest
from warpseal.api.http.error_response import with_kebab_names
from warpseal.api.http.errors import StillStarting
from warpseal.api.http.http_protocol import IS_CLOSING, ON_DISCONNECT
from warpseal.api.http.in_flight import InFlight
from warpseal.api.http.middleware import client_address, log_fields
from warpseal.api.http.request_body import ClientDisconnected, read_body
from warpseal.api.http.responses import json_response
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.signing.errors import UndecodableBody
from warpseal.api.signing.request_fields import UnresolvedChain, select_parameters
from warpseal.api.signing.requests import (
    QUERY_FIELDS,
    L1Query,
    parse_aggregation_request,
    parse_l1_query,
    parse_preflight_request,
)
from warpseal.api.signing.signing_service import SigningService
from warpseal.delivery.preflight import PreflightAnswer, PreflightRequest
from warpseal.delivery.report import (
    HEIGHT_HEADER,
    HEIGHT_SOURCE_HEADER,
    SUBNET_HEADER,
    DestinationReport,
    RawHeaders,
    encode_headers,
)
from warpseal.delivery.request import (
    Delivery,
    DeliveryRequest,
    L1DeliveryRequest,
    NextSignedMessage,
)
from warpseal.errors import WarpsealError
from warpseal.l1.request import L1Request, L1SignedMessage, SupersededStatement
from warpseal.metrics.registry import Metrics
from warpseal.resources.base import UNSET, Resource, UnsetType, or_unset
from warpseal.resources.chains import PrimaryChains
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID, MessageID, SubnetID, id_text
from warpseal.warp.message import UnsignedMessage

V1_AGGREGATE: Final = "/v1/signatureAggregator/{network}/aggregateSignatures"
V1_L1_MESSAGE: Final = V1_AGGREGATE + "/{tx_hash}"
V1_VERIFY: Final = "/v1/signatureAggregator/{network}/verify"
KEBAB_AGGREGATE: Final = "/aggregate-signatures"
UNCHECKED_HEADER: Final = "X-Warpseal-Unchecked"
_KEBAB_METHODS: Final = ("POST", "PUT")
# The validator sets whose headers are cached.
_MAX_SETS: Final = 256
# The bodies whose parsed requests are cached.
_MAX_PARSED: Final = 1_024
_MAX_PARSED_BYTES: Final = 4_096
_SHOWN_CHARACTERS: Final = 64

_LATE_START_TEXT: Final = "the daemon has just started; too little of the request's time was left"

# These ids replace those of the network while only the other fields of a request are read.
_UNKNOWN_CHAINS: Final = PrimaryChains(ChainID(bytes(32)), ChainID(bytes(32)))

T = TypeVar("T")
M = TypeVar("M", bound="SignedMessage")
R = TypeVar("R", AggregationRequest, L1Request)


class SignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """The signed message, hex without 0x.

    report: if the request asks for it.
    next: a message for the next epoch, if it needs another one.
    """

    signed_message: str
    report: DestinationReport | UnsetType = UNSET
    next: NextSignedMessage | UnsetType = UNSET


class KebabSignedMessage(SignedMessage, frozen=True, gc=False, kw_only=True):
    """The signed message as the reference aggregator writes it: all keys in kebab case."""


class SignedL1Message(SignedMessage, frozen=True, gc=False, kw_only=True):
    """The signed message of a transaction.

    superseded: what replaces it, if it is not true any more.
    """

    superseded: SupersededStatement | UnsetType = UNSET


class RunningNetwork(NamedTuple):
    """The network of a daemon, its name in paths, and the first signed message with its request."""

    network_id: int
    name: str
    signed: SignedRequest | None = None


class AggregatorEndpoints:
    """Parses a request, calls a service once, encodes its result.

    in_flight: The places of requests; requests by gRPC take places as well.
    """

    def __init__(
        self, gate: StartupGate[SigningService], settings: ApiSettings, metrics: Metrics
    ) -> None:
        self._gate = gate
        self._settings = settings
        self._metrics = metrics
        self.in_flight = InFlight(settings.max_requests_in_flight, settings.max_requests_per_client)
        self._chains: PrimaryChains | None = None
        self._parse_cached = lru_cache(_MAX_PARSED)(self._parse)

    def network(self) -> RunningNetwork | None:
        """Return the network of this daemon with a signed message; None while it starts."""
        signer = self._gate.services
        if signer is None:
            return None
        names = self._settings.served_names(signer.network_id)
        name = "fuji" if "fuji" in names else names[0]
        return RunningNetwork(signer.network_id, name, signer.first_signed)

    async def v1(self, request: Request) -> Response:
        """POST /v1/signatureAggregator/{network}/aggregateSignatures."""
        signed = await self._aggregate(request, request.path_params["network"])
        if isinstance(signed, Delivery) and signed.is_reported:
            response = json_response(_signed_message(signed, SignedMessage), 201)
            return _add_headers(response, signed.headers)
        return _encode(signed, b"signedMessage", 201)

    async def kebab(self, request: Request) -> Response:
        """POST or PUT /aggregate-signatures.

        Every other method gets the reference's response to an empty body.
        """
        if request.method not in _KEBAB_METHODS:
            reason = f"a {request.method[:32]} request carries none; send it with POST"
            raise UndecodableBody("body", reason)
        signed = await self._aggregate(request, None)
        if isinstance(signed, Delivery) and signed.is_reported:
            content = msgspec.to_builtins(_signed_message(signed, KebabSignedMessage))
            return _add_headers(json_response(with_kebab_names(content), 200), signed.headers)
        return _encode(signed, b"signed-message", 200)

    async def l1_message(self, request: Request) -> Response:
        """GET /v1/signatureAggregator/{network}/aggregateSignatures/{txHash}."""
        with self.counted():
            params = request.path_params
            ignore_all = self._settings.ignore_unknown_fields
            query = select_parameters(request.scope, QUERY_FIELDS.spellings, ignore_all=ignore_all)
            parse = partial(parse_l1_query, params["tx_hash"], query, self._settings)
            l1_query = await self.resolve(parse)
            log_fields(request.scope)["tx_id"] = l1_query.request.tx_id
            with self.in_flight.slot(client_address(request.scope)):
                work = self._l1_response(l1_query, params["network"], request.scope)
                response = await cancel_on_disconnect(work, request.scope)
        return response

    async def verify(self, request: Request) -> Response:
        """POST /v1/signatureAggregator/{network}/verify."""
        body = await read_body(request.scope, request.receive, self._settings)
        with self.in_flight.slot(client_address(request.scope)):
            parse = partial(parse_preflight_request, body, self._settings)
            try:
                preflight = await self.resolve(parse)
            except UndecodableBody as error:
                raise _name_encoding(error, request) from None
            log_fields(request.scope)["message_id"] = preflight.signed.unsigned.id
            work = self._verify(preflight, request.path_params["network"])
            result = await cancel_on_disconnect(work, request.scope)
        log_fields(request.scope).update(
            verifies_now=result.verifies_now, reason=result.reason or None
        )
        return json_response(result, 200)

    async def _verify(self, preflight: PreflightRequest, network: str) -> PreflightAnswer:
        signer, _ = await self._admit(None, network)
        return await signer.verify(preflight)

    async def _aggregate(
        self, request: Request, network: str | None
    ) -> Aggregation | Delivery[Aggregation]:
        with self.counted():
            # A place is for a request that is there: a client that sends slowly holds none.
            body = await read_body(request.scope, request.receive, self._settings)
            with self.in_flight.slot(client_address(request.scope)):
                parse = self._parse if len(body) > _MAX_PARSED_BYTES else self._parse_cached
                try:
                    parsed = await self.resolve(partial(parse, body))
                except UndecodableBody as error:
                    raise _name_encoding(error, request) from None
                note_message(request.scope, parsed)
                signed = await cancel_on_disconnect(self.sign(parsed, network), request.scope)
        aggregation = signed.result if isinstance(signed, Delivery) else signed
        log_fields(request.scope).update(
            height=aggregation.height, signers=aggregation.signers, cached=aggregation.cached
        )
        return signed

    def _parse(
        self, body: bytes, chains: PrimaryChains | None
    ) -> AggregationRequest | DeliveryRequest:
        return parse_aggregation_request(body, self._settings, chains)

    async def resolve(self, parse: Callable[[PrimaryChains | None], T]) -> T:
        """Return a request, parsed with the ids of the chains if it names them by letter.

        Raises NodeUnavailable and the errors of the gate, and what `parse` raises.
        """
        try:
            return parse(None)
        except UnresolvedChain:
            if self._chains is not None:
                return parse(self._chains)
        # The timeout of the request covers the search for the ids, so it is read before them.
        timeout_s = _timeout_of(parse(_UNKNOWN_CHAINS)) or self._gate.timeout_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        signer = await self._gate.wait(timeout_s)
        try:
            async with asyncio.timeout_at(deadline):
                self._chains = await signer.primary_chains()
        except TimeoutError:
            raise NodeUnavailable("the ids of the primary chains") from None
        return _shorten(parse(self._chains), max(deadline - loop.time(), 0.001))

    async def find_message(self, message_id: MessageID) -> UnsignedMessage | None:
        """Return a stored message. Raises StoreDown."""
        return await (await self._gate.wait()).find_message(message_id)

    async def sign(
        self,
        request: AggregationRequest | DeliveryRequest,
        network: str | None = None,
        timeout_s: float | None = None,
    ) -> Aggregation | Delivery[Aggregation]:
        """Return the signed message as soon as the services are there.

        network: The network that the path names; None if it names none.
        timeout_s: The timeout of a request that names none.
        """
        aggregation = request.aggregation if isinstance(request, DeliveryRequest) else request
        signer, timeout_s = await self._admit(aggregation.timeout_s or timeout_s, network)
        aggregation = _with_timeout(aggregation, timeout_s)
        if isinstance(request, DeliveryRequest):
            return await signer.sign(replace(request, aggregation=aggregation))
        return await signer.sign(aggregation)

    async def sign_l1(
        self, query: L1Query, network: str | None = None, timeout_s: float | None = None
    ) -> L1SignedMessage | Delivery[L1SignedMessage]:
        """Return the signed message of a transaction as `sign` does."""
        signer, timeout_s = await self._admit(query.request.timeout_s or timeout_s, network)
        request = _with_timeout(query.request, timeout_s)
        if query.delivery is None:
            return await signer.sign_l1(request)
        return await signer.sign_l1(replace(query.delivery, l1=request))

    async def _l1_response(self, query: L1Query, network: str, scope: Scope) -> Response:
        if query.is_explain:
            signer, timeout_s = await self._admit(query.request.timeout_s, network)
            request = _with_timeout(query.request, timeout_s)
            explained = replace(query.delivery or L1DeliveryRequest(request), l1=request)
            return json_response(await signer.explain_l1(explained), 200)
        result = await self.sign_l1(query, network)
        if isinstance(result, Delivery):
            signed, headers = result.result, result.headers
            content = _signed_message(result, SignedL1Message)
        else:
            signed = result
            content = SignedL1Message(signed_message=signed.signed_message.hex())
            height_source = encode_headers({HEIGHT_SOURCE_HEADER: signed.height_source})
            headers = _set_headers(signed.height, signed.signing_subnet_id) + height_source
        log_fields(scope).update(height=signed.height, cached=signed.cached)
        if signed.superseded is not None:
            content = structs.replace(content, superseded=signed.superseded)
        if signed.is_unchecked:
            headers += encode_headers({UNCHECKED_HEADER: NodeUnavailable.code})
        return _add_headers(json_response(content, 201), headers)

    async def _admit(
        self, timeout_s: float | None, network: str | None
    ) -> tuple[SigningService, float | None]:
        """Return the signer and the timeout of a request, less the time that it waited for it.

        network: The network that the path names; None if it names none.

        Raises NetworkNotServed, and the errors of the gate.
        """
        signer = self._gate.services
        if signer is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + (timeout_s or self._gate.timeout_s)
            signer = await self._gate.wait(timeout_s)
            timeout_s = max(deadline - loop.time(), 0.001)
        if network is not None:
            self._settings.require_network(network, signer.network_id)
        return signer, timeout_s

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request, and its duration or its error.

        Names the start as the error if it took nearly all of the request's time.
        """
        self._metrics.aggregation_requested()
        started = perf_counter()
        has_waited = self._gate.services is None
        try:
            yield
        except WarpsealError as error:
            if has_waited and self._gate.has_just_opened and _is_lack_of_time(error):
                late_start = StillStarting(_LATE_START_TEXT)
                count_failure(self._metrics, late_start)
                raise late_start from None
            count_failure(self._metrics, error)
            raise
        self._metrics.aggregation_answered(perf_counter() - started)


def note_message(scope: Scope, request: AggregationRequest | DeliveryRequest) -> None:
    """Add the id of the message to the log line of a request."""
    aggregation = request.aggregation if isinstance(request, DeliveryRequest) else request
    if aggregation.message is not None:
        log_fields(scope)["message_id"] = aggregation.message.id


def _is_lack_of_time(error: WarpsealError) -> bool:
    """Return whether no node failed."""
    return type(error) is NodeUnavailable and not error.attempts


def count_failure(metrics: Metrics, error: WarpsealError) -> None:
    """Count a request without a signed message in the series of the reference."""
    if isinstance(error, NodeUnavailable | NoValidators):
        metrics.count_missing_validator_set()
    elif isinstance(error, QuorumNotReached) and "not_connected" in error.shortfall.counts:
        metrics.count_too_little_connected()


async def cancel_on_disconnect(work: Awaitable[T], scope: Scope) -> T:
    """Return the result of `work`, which is cancelled if the client closes its connection.

    Raises ClientDisconnected then.
    """
    request, has_cancelled = asyncio.current_task(), False
    assert request is not None

    def cancel() -> None:
        nonlocal has_cancelled
        has_cancelled = request.cancel()

    state = scope["state"]
    state[ON_DISCONNECT] = cancel
    if state[IS_CLOSING]():
        cancel()
    try:
        return await work
    except asyncio.CancelledError:
        # The server may have cancelled the request as well.
        if has_cancelled and not request.uncancel():
            raise ClientDisconnected from None
        raise
    finally:
        del state[ON_DISCONNECT]


def _name_encoding(error: UndecodableBody, request: Request) -> UndecodableBody:
    """Return the error of a body that is not JSON, with the encoding that its header names."""
    encoding = request.headers.get("content-encoding", "identity")[:_SHOWN_CHARACTERS]
    if error.field != "body" or encoding == "identity":
        return error
    reason = f"compressed (Content-Encoding: {ascii(encoding)[1:-1]}); send it uncompressed"
    return UndecodableBody("body", reason)


def _timeout_of(request: object) -> float | None:
    """Return the timeout of a parsed request that may name a chain by letter."""
    match request:
        case DeliveryRequest():
            return request.aggregation.timeout_s
        case L1Query():
            return request.request.timeout_s
    return None


def _shorten(request: T, timeout_s: float) -> T:
    """Return such a request with another timeout."""
    match request:
        case DeliveryRequest():
            return replace(request, aggregation=_with_timeout(request.aggregation, timeout_s))
        case L1Query():
            return replace(request, request=_with_timeout(request.request, timeout_s))
    return request


def _with_timeout(request: R, timeout_s: float | None) -> R:
    return request if timeout_s == request.timeout_s else replace(request, timeout_s=timeout_s)


def _signed_message(
    delivery: Delivery[Aggregation] | Delivery[L1SignedMessage], kind: type[M]
) -> M:
    """Return the body: the message alone, or with the report if one was asked for."""
    return kind(
        signed_message=delivery.result.signed_message.hex(),
        report=delivery.report if delivery.is_reported else UNSET,
        next=or_unset(delivery.next),
    )


def _encode(signed: Aggregation | Delivery[Aggregation], key: bytes, status: int) -> Response:
    """Return the response without a report.

    Hex is JSON as it is; an encoder takes longer than the rest.
    """
    if isinstance(signed, Delivery):
        aggregation, headers = signed.result, signed.headers
    else:
        aggregation, headers = signed, _set_headers(signed.height, signed.signing_subnet_id)
    body = b'{"%b":"%b"}' % (key, hexlify(aggregation.signed_message))
    return _add_headers(Response(body, status, media_type="application/json"), headers)


@lru_cache(_MAX_SETS)
def _set_headers(height: int, subnet_id: SubnetID) -> RawHeaders:
    """Return the headers that name the validator set."""
    return encode_headers({HEIGHT_HEADER: str(height), SUBNET_HEADER: id_text(subnet_id)})


def _add_headers(response: Response, headers: RawHeaders) -> Response:
    response.raw_headers.extend(headers)
    return response
