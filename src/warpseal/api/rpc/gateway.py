"""A route of the primary network's gateway: a POST is checked, forwarded, and the node's reply returned unchanged.

Source of truth: docs/gateway.md; the HTTP rules and the errors are those of the daemon's own services.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warpseal.api.http.errors import RateLimited
from warpseal.api.http.middleware import log_fields
from warpseal.api.http.request_body import LARGE_BYTES, declared_length, parse_body, read_body
from warpseal.api.http.settings import ApiSettings
from warpseal.api.node.jsonrpc_endpoint import post_refusal
from warpseal.api.rpc.evm import Admission, scope_for_admission
from warpseal.api.rpc.jsonrpc_gorilla import (
    CONTENT_TYPE,
    MAX_BODY_BYTES,
    JsonRpcError,
    JsonRpcRequest,
    failure,
    parse,
    unknown_method,
    unknown_service,
)
from warpseal.api.rpc.metering import MeteredRequest, RouteMeter
from warpseal.errors import WarpsealError
from warpseal.forwarding.primary.gateway import GatewayForwarder
from warpseal.forwarding.primary.methods import AllowedMethods
from warpseal.forwarding.primary.routes import GatewayRoute
from warpseal.upstream.jsonrpc import LIMIT_EXCEEDED, RpcCall, RpcError, RpcResponse
from warpseal.upstream.node import NodeReply
from warpseal.usage.calls import NO_METHOD
from warpseal.usage.credits import MethodCredits

_UNIT: Final = 1


class GatewayEndpoint:
    """Serves one route. credits: None: each call costs a unit of the rate limit. meter: None: no call is recorded."""

    def __init__(
        self,
        route: GatewayRoute,
        forwarder: GatewayForwarder,
        methods: AllowedMethods,
        admission: Admission,
        settings: ApiSettings,
        credits: MethodCredits | None = None,
        meter: RouteMeter | None = None,
    ) -> None:
        self._path = route.path
        self._service = route.service
        self._forwarder = forwarder
        self._methods = methods
        self._admission = admission
        self._settings = replace(settings, max_body_bytes=MAX_BODY_BYTES)
        self._credits = credits
        self.meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with MeteredRequest(self.meter, scope) as metered:
            response = post_refusal(scope)
            if response is None:
                response = await self._admit(scope, receive, metered)
        await metered.respond(response, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, metered: MeteredRequest) -> Response:
        """Read a body and parse it. Key and limits are checked before, unless the call's credits have to be known."""
        caller = Request(scope_for_admission(scope))
        request: JsonRpcRequest | JsonRpcError | None = None
        body = b""
        try:
            if not 0 < declared_length(scope) <= LARGE_BYTES:
                await self._admission.check(caller)
            body = await read_body(scope, receive, self._settings)
            metered.body_read()
            if self._credits is None:
                await self._admission.admit(caller, _UNIT)
            request = await parse_body(_parse, body)
            if self._credits is not None:
                method = request.method if isinstance(request, JsonRpcRequest) else NO_METHOD
                await self._admission.admit(caller, self._credits.of(method))
        except WarpsealError as error:
            if request is None and 0 < len(body) <= LARGE_BYTES:
                request = _parse(body)
            metered.calls = _calls_of(request)
            if isinstance(error, RateLimited):
                return _rate_limit_response(request, error)
            raise
        if isinstance(request, JsonRpcError):
            return _error_response(None, request)
        try:
            request.check()
            metered.calls = _calls_of(request)
            return await self._forward(request, scope)
        except JsonRpcError as error:
            metered.responses = {0: RpcResponse(error=RpcError(error.code, str(error)))}
            return _error_response(request, error)

    async def _forward(self, request: JsonRpcRequest, scope: Scope) -> Response:
        """Forward an allowed call. Raises JsonRpcError."""
        log_fields(scope)["method_called"] = request.method[:64]
        service, name = request.called()
        if service != self._service:
            raise unknown_service(service, name)
        if not self._methods.allow(request.method):
            raise unknown_method(service, name)
        reply = await self._forwarder.forward(request.method, request.encode(), self._path)
        if isinstance(reply, NodeReply):
            return Response(reply.body, reply.status, {"content-type": reply.content_type})
        raise JsonRpcError(reply.code, reply.message)


def _parse(body: bytes) -> JsonRpcRequest | JsonRpcError:
    try:
        return parse(body)
    except JsonRpcError as error:
        return error


def _calls_of(request: JsonRpcRequest | JsonRpcError | None) -> tuple[RpcCall, ...]:
    """Return the call of a request, as it is metered."""
    if not isinstance(request, JsonRpcRequest):
        return ()
    return (RpcCall(request.method, id=request.id, is_notification=request.id is None),)


def _error_response(request: JsonRpcRequest | None, error: JsonRpcError, status: int = 200) -> Response:
    """Return the response with an error; a notification gets none of it."""
    if request is not None and request.id is None:
        return Response(status_code=status)
    return Response(failure(request.id if request else None, error), status, {"content-type": CONTENT_TYPE})


def _rate_limit_response(request: JsonRpcRequest | JsonRpcError | None, error: RateLimited) -> Response:
    known = request if isinstance(request, JsonRpcRequest) else None
    response = _error_response(known, JsonRpcError(LIMIT_EXCEEDED, str(error)), 429)
    response.headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return response
