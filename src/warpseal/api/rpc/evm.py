"""An EVM chain's endpoint `/ext/bc/<id>/rpc`: calls by HTTP.

Source of truth: geth's `rpc/http.go` as recorded nodes answered; docs/node-interfaces.md for the
differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.responses import Response
from starlette.types import Scope

from warpseal.api.http.errors import RateLimited
from warpseal.api.http.middleware import log_fields
from warpseal.api.http.request_body import declared_length
from warpseal.api.http.responses import SOURCE, response_headers, text_response
from warpseal.api.http.settings import ApiSettings
from warpseal.api.rpc.admission import Admission, CountUnits, RpcEndpoint, retry_after
from warpseal.api.rpc.jsonrpc_geth import (
    ACCEPTED_TYPES,
    CONTENT_TYPE,
    MAX_BODY_BYTES,
    MAX_RESULT_BYTES,
    RequestBody,
    count_entries,
    encode_responses,
    parse_request_body,
)
from warpseal.api.rpc.metering import MeteredRequest, RouteMeter
from warpseal.forwarding.evm.forwarder import EvmForwarder
from warpseal.forwarding.evm.methods import SUBNET_EVM
from warpseal.upstream.jsonrpc import (
    LIMIT_EXCEEDED,
    RpcCall,
    RpcError,
    RpcResponse,
    encode_calls,
    encode_response,
)
from warpseal.upstream.node import NodeReply
from warpseal.usage.calls import NO_METHOD
from warpseal.usage.credits import MethodCredits


def encode_error_for_all(request: RequestBody, error: RpcError) -> bytes:
    """Return the body with the same error for all calls; one error without an id if there are no
    calls.
    """
    response = RpcResponse(error=error)
    if not request.calls:
        return encode_response(None, response)
    return encode_responses(request, dict.fromkeys(range(len(request.calls)), response))


def rate_limit_response(request: RequestBody | None, error: RateLimited) -> Response:
    """Return the response to calls that exceed a rate limit."""
    body = encode_error_for_all(request or RequestBody(), RpcError(LIMIT_EXCEEDED, str(error)))
    headers = {"content-type": CONTENT_TYPE, "retry-after": retry_after(error)}
    return Response(body, 429, headers)


def http_refusal(scope: Scope) -> Response | None:
    """Return the response to a request whose body is not read; None if it is to be read.

    The method, the length or the content type is wrong, or there is no body.
    """
    method, length = scope["method"], declared_length(scope)
    if method == "GET" and not length and not scope.get("query_string"):
        return Response()
    if method in ("PUT", "DELETE"):
        return text_response(405, "method not allowed")
    if length > MAX_BODY_BYTES:
        return text_response(413, f"content length too large ({length}>{MAX_BODY_BYTES})")
    if method == "OPTIONS":
        return Response()
    content_types = [value for name, value in scope["headers"] if name == b"content-type"]
    content_type = content_types[0].decode("latin-1") if content_types else ""
    if content_type.partition(";")[0].strip().lower() in ACCEPTED_TYPES:
        return None
    return text_response(415, "invalid content type, only application/json is supported")


class EvmEndpoint(RpcEndpoint[RequestBody]):
    """Serves one chain. Every call of a batch costs a unit, unless `count_units` says otherwise."""

    _max_body_bytes = MAX_BODY_BYTES
    _http_refusal = staticmethod(http_refusal)
    _parse = staticmethod(parse_request_body)
    _count_entries = staticmethod(count_entries)
    _rate_limit_response = staticmethod(rate_limit_response)

    def __init__(
        self,
        forwarder: EvmForwarder,
        admission: Admission,
        settings: ApiSettings,
        count_units: CountUnits = count_entries,
        meter: RouteMeter | None = None,
    ) -> None:
        super().__init__(admission, settings, count_units, meter)
        self._forwarder = forwarder

    @staticmethod
    def _calls_of(request: RequestBody | None) -> Sequence[RpcCall]:
        return request.calls if request else ()

    async def _handle(
        self, scope: Scope, request: RequestBody, metered: MeteredRequest
    ) -> Response:
        if request.rejection is not None:
            return _json_response(request.rejection)
        if request.is_response:
            metered.entries = 0
        metered.is_batch = request.is_batch
        calls = metered.calls = request.calls
        if len(calls) == 1:
            log_fields(scope)["method_called"] = calls[0].method[:64]
        else:
            log_fields(scope)["calls"] = len(calls)
        if len(calls) == 1 and not request.is_batch and calls[0].error is None:
            return await self._handle_single(scope, request, metered)
        return await self._handle_batch(scope, request, metered)

    async def _handle_single(
        self, scope: Scope, request: RequestBody, metered: MeteredRequest
    ) -> Response:
        (call,) = request.calls
        reply = await self._forwarder.forward_call(call, encode_calls([call], is_batch=False))
        if isinstance(reply, NodeReply):
            return _unchanged_response(reply)
        responses = metered.responses = {0: reply}
        _set_source_header(scope, request, responses)
        return _json_response(encode_responses(request, responses))

    async def _handle_batch(
        self, scope: Scope, request: RequestBody, metered: MeteredRequest
    ) -> Response:
        unchanged = await self._forward_unchanged(request, metered)
        if unchanged is not None:
            return unchanged
        responses = metered.responses = await forward_calls(self._forwarder, request)
        _set_source_header(scope, request, responses)
        return _json_response(encode_responses(request, responses))

    async def _forward_unchanged(
        self, request: RequestBody, metered: MeteredRequest
    ) -> Response | None:
        """Return a node's unchanged response to a batch; None if it must be split into calls."""
        calls = request.calls
        if not calls or any(call.error is not None or call.id is None for call in calls):
            return None
        methods = {call.method for call in calls}
        body = encode_calls(calls, is_batch=True)
        reply = await self._forwarder.forward_read_batch(methods, body, len(calls))
        if isinstance(reply, RpcResponse):
            responses = metered.responses = dict.fromkeys(range(len(calls)), reply)
            return _json_response(encode_responses(request, responses))
        if reply is None or len(reply.body) > MAX_RESULT_BYTES:
            return None
        return _unchanged_response(reply)


async def forward_calls(forwarder: EvmForwarder, request: RequestBody) -> dict[int, RpcResponse]:
    """Return the responses to the valid calls of a body, by position."""
    positions = [position for position, call in enumerate(request.calls) if call.error is None]
    responses = await forwarder.forward_batch([request.calls[position] for position in positions])
    return dict(zip(positions, responses, strict=True))


def sum_credits(credits: MethodCredits, body: bytes) -> int:
    """Return the credits of the calls of a body; a body without calls costs an unknown method."""
    calls = parse_request_body(body).calls
    if not calls:
        return credits.of(NO_METHOD)
    return sum(credits.of(call.method) for call in calls)


def _set_source_header(
    scope: Scope, request: RequestBody, responses: Mapping[int, RpcResponse]
) -> None:
    """Name the source of the responses in a header, if nodes and the daemon have the methods."""
    subnet_evm_responses = [
        response
        for position, response in responses.items()
        if request.calls[position].method in SUBNET_EVM
    ]
    if subnet_evm_responses:
        is_derived = any(response.is_derived for response in subnet_evm_responses)
        response_headers(scope)[SOURCE] = "derived" if is_derived else "node"


def _unchanged_response(reply: NodeReply) -> Response:
    return Response(reply.body, reply.status, {"content-type": reply.content_type})


def _json_response(body: bytes) -> Response:
    return Response(body, 200, {"content-type": CONTENT_TYPE})
