"""A route of the primary network's gateway: a POST is checked, forwarded, and the node's reply
returned unchanged.

Source of truth: docs/gateway.md; the HTTP rules and the errors are those of the daemon's own
services.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Scope

from warpseal.api.http.errors import RateLimited
from warpseal.api.http.middleware import log_fields
from warpseal.api.http.settings import ApiSettings
from warpseal.api.rpc.admission import Admission, RpcEndpoint, retry_after
from warpseal.api.rpc.jsonrpc_gorilla import (
    CONTENT_TYPE,
    MAX_BODY_BYTES,
    JsonRpcError,
    JsonRpcRequest,
    failure,
    parse,
    post_refusal,
    unknown,
)
from warpseal.api.rpc.metering import MeteredRequest, RouteMeter
from warpseal.forwarding.primary.gateway import GatewayForwarder
from warpseal.forwarding.primary.methods import AllowedMethods, GatewayRoute
from warpseal.upstream.jsonrpc import LIMIT_EXCEEDED, RpcCall, RpcError, RpcResponse
from warpseal.upstream.node import NodeReply
from warpseal.usage.calls import NO_METHOD
from warpseal.usage.credits import MethodCredits


class GatewayEndpoint(RpcEndpoint[JsonRpcRequest | JsonRpcError]):
    """Serves one route.

    credits: The credits of methods; None if each call costs a unit of the rate limit.
    meter: The meter of the route; None records nothing.
    """

    _max_body_bytes = MAX_BODY_BYTES
    _http_refusal = staticmethod(post_refusal)

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
        super().__init__(admission, settings, self._units, meter)
        self._path = route.path
        self._service = route.service
        self._forwarder = forwarder
        self._methods = methods
        self._credits = credits

    @staticmethod
    def _parse(body: bytes) -> JsonRpcRequest | JsonRpcError:
        try:
            return parse(body)
        except JsonRpcError as error:
            return error

    @staticmethod
    def _calls_of(request: JsonRpcRequest | JsonRpcError | None) -> tuple[RpcCall, ...]:
        if not isinstance(request, JsonRpcRequest):
            return ()
        return (RpcCall(request.method, id=request.id, is_notification=request.id is None),)

    @staticmethod
    def _rate_limit_response(
        request: JsonRpcRequest | JsonRpcError | None, error: RateLimited
    ) -> Response:
        call = request if isinstance(request, JsonRpcRequest) else None
        response = _error_response(call, JsonRpcError(LIMIT_EXCEEDED, str(error)), 429)
        response.headers["retry-after"] = retry_after(error)
        return response

    async def _handle(
        self, scope: Scope, request: JsonRpcRequest | JsonRpcError, metered: MeteredRequest
    ) -> Response:
        if isinstance(request, JsonRpcError):
            return _error_response(None, request)
        try:
            request.check()
            metered.calls = self._calls_of(request)
            return await self._forward(request, scope)
        except JsonRpcError as error:
            metered.responses = {0: RpcResponse(error=RpcError(error.code, str(error)))}
            return _error_response(request, error)

    def _units(self, body: bytes) -> int:
        if self._credits is None:
            return 1
        request = self._parse(body)
        method = request.method if isinstance(request, JsonRpcRequest) else NO_METHOD
        return self._credits.of(method)

    async def _forward(self, request: JsonRpcRequest, scope: Scope) -> Response:
        """Forward an allowed call. Raises JsonRpcError."""
        log_fields(scope)["method_called"] = request.method[:64]
        service, name = request.called()
        if service != self._service:
            raise unknown("service", service, name)
        if not self._methods.allow(request.method):
            raise unknown("method", service, name)
        reply = await self._forwarder.forward(request.method, request.encode(), self._path)
        if isinstance(reply, NodeReply):
            return Response(reply.body, reply.status, {"content-type": reply.content_type})
        raise JsonRpcError(reply.code, reply.message)


def _error_response(
    request: JsonRpcRequest | None, error: JsonRpcError, status: int = 200
) -> Response:
    """Return the response with an error; the response to a notification has no body."""
    if request is None:
        request_id = None
    elif request.id is None:
        return Response(status_code=status)
    else:
        request_id = request.id
    return Response(failure(request_id, error), status, {"content-type": CONTENT_TYPE})
