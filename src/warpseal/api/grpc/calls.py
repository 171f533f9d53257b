"""The calls of proto/warpseal/v1/warpseal.proto, and those of health and reflection.

Requests become the values that HTTP requests become. They and the responses are bytes here, so that
those of repeated calls are not decoded again, and an event is encoded once for all listeners.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as reflection
from msgspec import Struct
from starlette.requests import Request
from starlette.types import Scope

from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.data.endpoints import EVENT_FILTERS, find_endpoint
from warpseal.api.data.errors import EventsNotEnabled, MessageNotFound
from warpseal.api.data.parameters import read_query
from warpseal.api.data.routes import DataApi
from warpseal.api.http.errors import NotFound, ReceiveTimeout
from warpseal.api.http.in_flight import InFlight
from warpseal.api.http.middleware import client_address, log_fields
from warpseal.api.http.settings import ApiSettings
from warpseal.api.signing.endpoints import AggregatorEndpoints, note_message
from warpseal.api.signing.errors import UndecodableBody
from warpseal.api.signing.request_fields import BODY_FIELDS, decode_id
from warpseal.api.signing.requests import build_aggregation_request, parse_l1_query
from warpseal.api.status.probes import ProbeEndpoints
from warpseal.delivery.request import Delivery, DeliveryRequest
from warpseal.errors import InvalidRequest
from warpseal.events.feed import EventFilter
from warpseal.l1.request import L1SignedMessage
from warpseal.pb import warpseal_pb2 as pb
from warpseal.resources.base import UNSET
from warpseal.resources.chains import PrimaryChains
from warpseal.resources.text import hex_text
from warpseal.warp.ids import MessageID, id_text

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Warpseal"].full_name
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION_V1ALPHA: Final = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
REFLECTION_V1: Final = REFLECTION_V1ALPHA.replace(".v1alpha.", ".v1.")
# A listener gets no more than one batch in this time.
GATHER_S: Final = 0.05
# The time before the deadline at which an error must be sent to reach its caller. Clients round
# the deadline up by at most a hundredth.
_RESERVE_S: Final = 0.05
_HEALTH_POLL_S: Final = 1.0
_MAX_PARSED: Final = 1_024
_MAX_PARSED_BYTES: Final = 4_096
_MAX_ENCODED_EVENTS: Final = 4_096
_MAX_OTHER_CALLS: Final = 1_000
_MAX_OTHER_CALLS_PER_CLIENT: Final = 16
# Calls whose request is not there yet. It comes with the call, unless the client is slow: a burst
# holds its places for a moment.
_MAX_ARRIVING: Final = 4_096
_MAX_ARRIVING_PER_CLIENT: Final = 1_000

_EVENTS: Final = find_endpoint("listenEvents")

_Signed = Aggregation | L1SignedMessage


class Call(Struct, frozen=True, eq=False):
    """A call.

    scope: The call in the form of ASGI, for access, limits and the log.
    context: The ServicerContext of grpc.aio.
    """

    scope: Scope
    context: Any

    @property
    def client(self) -> str:
        """The address of the client."""
        return client_address(self.scope)

    async def read(self, receive_timeout_s: float) -> bytes:
        """Return the request. Raises ReceiveTimeout, UndecodableBody."""
        try:
            async with asyncio.timeout(receive_timeout_s):
                request: bytes = await self.context.read()
        except TimeoutError:
            raise ReceiveTimeout(receive_timeout_s) from None
        if request is aio.EOF:
            raise UndecodableBody("body", "missing")
        return request

    def timeout_s(self, max_timeout_s: float) -> float | None:
        """Return the timeout of a request; None without a deadline.

        It leaves time for an error to arrive before the deadline. It is in tenths of a second, so
        that requests of calls with the same timeout are equal.
        """
        remaining_s: float | None = self.context.time_remaining()
        if remaining_s is None:
            return None
        timeout_s = (0.99 * remaining_s - _RESERVE_S) // 0.1 / 10
        return min(max_timeout_s, max(timeout_s, remaining_s / 2))


class GrpcCalls:
    """Serves the calls of all services.

    max_timeout_s: The longest timeout of a request.
    """

    def __init__(
        self,
        aggregator: AggregatorEndpoints,
        data: DataApi,
        probes: ProbeEndpoints,
        settings: ApiSettings,
        max_timeout_s: float,
    ) -> None:
        self._aggregator = aggregator
        self._data = data
        self._probes = probes
        self._settings = settings
        self._max_timeout_s = max_timeout_s
        self._arriving = InFlight(_MAX_ARRIVING, _MAX_ARRIVING_PER_CLIENT, is_fair=True)
        self._other_calls = InFlight(_MAX_OTHER_CALLS, _MAX_OTHER_CALLS_PER_CLIENT)
        services = [SERVICE, HEALTH, REFLECTION_V1, REFLECTION_V1ALPHA]
        self._reflection = reflection.ReflectionServicer(services, _reflection_pool())
        self._parse_cached = lru_cache(_MAX_PARSED)(self._parse)

    async def aggregate_signatures(self, call: Call) -> bytes:
        """Return a SignedMessage."""
        await self._data.access.check_key(Request(call.scope))
        with self._aggregator.counted():
            encoded = await self._receive(call)
            with self._aggregator.in_flight.slot(call.client):
                parse = self._parse if len(encoded) > _MAX_PARSED_BYTES else self._parse_cached
                request = await self._aggregator.resolve(partial(parse, encoded))
                return await self._sign(request, call)

    async def get_signed_message(self, call: Call) -> bytes:
        """Return a SignedMessage."""
        await self._data.access.check_key(Request(call.scope))
        with self._aggregator.counted():
            request = await self._read(pb.GetSignedMessageRequest, call)
            with self._aggregator.in_flight.slot(call.client):
                subject = request.WhichOneof("subject")
                pairs = _pairs(request, "txHash", "messageId")
                if subject == "tx_hash":
                    return await self._sign_l1(request.tx_hash, pairs, call)
                if subject is None:
                    raise InvalidRequest("txHash", "name a transaction, or a message by messageId")
                message_id = MessageID(decode_id("messageId", request.message_id, InvalidRequest))
                message = await self._aggregator.find_message(message_id)
                if message is None:
                    raise MessageNotFound(hex_text(message_id), "the store has no Warp message")
                fields = BODY_FIELDS.collect([("message", message.raw.hex()), *pairs])
                build = partial(build_aggregation_request, fields, self._settings)
                return await self._sign(await self._aggregator.resolve(build), call)

    async def listen_events(self, call: Call) -> None:
        """Write EventBatches until the caller leaves."""
        await self._data.access.admit(Request(call.scope), _EVENTS.units)
        request = await self._read(pb.ListenEventsRequest, call)
        with self._data.event_streams.open.slot(call.client):
            filters = read_query(EVENT_FILTERS, _pairs(request, "cursor"), ignore_unknown=False)
            event_filter = msgspec.convert(filters, EventFilter)
            feed = (await self._data.gate.wait()).feed
            if feed is None:
                raise EventsNotEnabled
            number, cursor = await feed.start("cursor", request.cursor or None)
            loop, next_at = asyncio.get_running_loop(), 0.0

            async def next_batch() -> bytes:
                nonlocal number, cursor, next_at
                if (pause_s := next_at - loop.time()) > 0:
                    await asyncio.sleep(pause_s)
                page = await feed.next_page(number, event_filter)
                number, cursor = page.last, page.cursor
                if not page.events:
                    return b""
                next_at = loop.time() + GATHER_S
                events = [_encode_event(event.encoded) for event in page.events]
                return b"".join([*events, _encode_cursor(cursor)])

            # A client that reads nothing holds its place and one batch; HTTP/2 has no way to end
            # only its stream.
            streams = self._data.event_streams
            await streams.push(
                call.context.write, next_batch, lambda: _encode_cursor(cursor), write_timeout_s=None
            )

    async def check_health(self, call: Call) -> bytes:
        """Return the HealthCheckResponse of now."""
        return self._health(await self._read(health_pb2.HealthCheckRequest, call))

    async def watch_health(self, call: Call) -> None:
        """Write a HealthCheckResponse, and another one whenever it changes."""
        request = await self._read(health_pb2.HealthCheckRequest, call)
        last_health = b""
        with self._other_calls.slot(call.client):
            while True:
                health = self._health(request)
                if health != last_health:
                    await call.context.write(health)
                    last_health = health
                await asyncio.sleep(_HEALTH_POLL_S)

    def _health(self, request: Any) -> bytes:
        if request.service not in ("", SERVICE):
            raise NotFound(f"no such service: {request.service[:64]!r}")
        state = "NOT_SERVING" if self._probes.reasons() else "SERVING"
        encoded: bytes = health_pb2.HealthCheckResponse(status=state).SerializeToString()
        return encoded

    async def reflect(self, call: Call) -> None:
        """Write a ServerReflectionResponse for each request.

        The messages of both versions are the same.
        """

        encoded: Any = await self._receive(call)

        async def read_requests() -> AsyncIterator[Any]:
            nonlocal encoded
            while encoded is not aio.EOF:
                yield _decode(reflection_pb2.ServerReflectionRequest, encoded)
                encoded = await call.context.read()

        with self._other_calls.slot(call.client):
            responses = self._reflection.ServerReflectionInfo(read_requests(), call.context)
            async for response in responses:
                await call.context.write(response.SerializeToString())

    async def _receive(self, call: Call) -> bytes:
        """Return the request of a call, which holds a place of its own kind until it is there."""
        with self._arriving.slot(call.client):
            return await call.read(self._settings.receive_timeout_s)

    async def _read(self, kind: Any, call: Call) -> Any:
        return _decode(kind, await self._receive(call))

    def _parse(
        self, encoded: bytes, chains: PrimaryChains | None
    ) -> AggregationRequest | DeliveryRequest:
        fields = BODY_FIELDS.collect(_pairs(_decode(pb.AggregateSignaturesRequest, encoded)))
        return build_aggregation_request(fields, self._settings, chains)

    async def _sign(self, request: AggregationRequest | DeliveryRequest, call: Call) -> bytes:
        note_message(call.scope, request)
        timeout_s = call.timeout_s(self._max_timeout_s)
        return _encode(await self._aggregator.sign(request, timeout_s=timeout_s), call)

    async def _sign_l1(self, tx_hash: str, pairs: list[tuple[str, Any]], call: Call) -> bytes:
        texts = [(name, _query_text(value)) for name, value in pairs]
        query = await self._aggregator.resolve(
            partial(parse_l1_query, tx_hash, texts, self._settings)
        )
        log_fields(call.scope)["tx_id"] = query.request.tx_id
        timeout_s = call.timeout_s(self._max_timeout_s)
        return _encode(await self._aggregator.sign_l1(query, timeout_s=timeout_s), call)


def _reflection_pool() -> DescriptorPool:
    """Return the default pool with version 1 of reflection, which grpcio-reflection 1.85 lacks."""
    pool: DescriptorPool = descriptor_pool.Default()
    with suppress(KeyError):
        pool.FindServiceByName(REFLECTION_V1)
        return pool
    # Only the name of the package differs.
    alpha = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    text = json.dumps(MessageToDict(alpha)).replace("v1alpha", "v1")
    pool.Add(ParseDict(json.loads(text), FileDescriptorProto()))
    return pool


def _decode(kind: Any, encoded: bytes) -> Any:
    """Return a protobuf message. Raises UndecodableBody."""
    try:
        return kind.FromString(encoded)
    except DecodeError:
        raise UndecodableBody("body", f"not a {kind.DESCRIPTOR.full_name}") from None


def _pairs(request: Any, *others: str) -> list[tuple[str, Any]]:
    """Return the fields that are set, without the others, as a JSON body or a query has them."""
    return [
        (field.json_name, _plain_value(value, is_repeated=field.is_repeated))
        for field, value in request.ListFields()
        if field.json_name not in others
    ]


def _plain_value(value: Any, *, is_repeated: bool) -> Any:
    """Return the value of a field: bytes are hex, and texts are joined by commas."""
    if isinstance(value, bytes):
        return value.hex()
    return ",".join(value) if is_repeated else value


def _query_text(value: Any) -> str:
    """Return a value as the text of a query parameter."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encode(
    signed: _Signed | Delivery[Aggregation] | Delivery[L1SignedMessage], call: Call
) -> bytes:
    result: _Signed = signed.result if isinstance(signed, Delivery) else signed
    log_fields(call.scope).update(height=result.height, cached=result.cached)
    response = pb.SignedMessage(
        signed_message=result.signed_message,
        p_chain_height=result.height,
        signing_subnet_id=id_text(result.signing_subnet_id),
    )
    if isinstance(signed, Delivery):
        if signed.report.verifies_now is not UNSET:
            response.verifies_now = signed.report.verifies_now
        if signed.is_reported:
            ParseDict(msgspec.to_builtins(signed.report), response.report)
        if signed.next is not None:
            ParseDict(_with_base64(msgspec.to_builtins(signed.next)), response.next)
    if isinstance(result, L1SignedMessage):
        response.unchecked = result.is_unchecked
        if result.superseded is not None:
            statement = msgspec.to_builtins(result.superseded)
            ParseDict(_with_base64({**statement.pop("now"), **statement}), response.superseded)
    return response.SerializeToString()


def _with_base64(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with messages in Base64, which is what protobuf has in JSON in place of hex."""
    encoded = dict(body)
    for name in body.keys() & {"signedMessage", "message", "justification"}:
        encoded[name] = b64encode(bytes.fromhex(body[name].removeprefix("0x")))
    return encoded


@lru_cache(_MAX_ENCODED_EVENTS)
def _encode_event(encoded: bytes) -> bytes:
    """Return an EventBatch with one event, from its JSON.

    Batches that follow each other are one batch.
    """
    fields = msgspec.json.decode(encoded)
    fields["data"] = msgspec.json.encode(fields["data"]).decode()
    event = ParseDict(fields, pb.Event(), ignore_unknown_fields=True)
    return pb.EventBatch(events=[event]).SerializeToString()


def _encode_cursor(cursor: str) -> bytes:
    return pb.EventBatch(cursor=cursor).SerializeToString()
