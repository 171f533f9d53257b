"""One service of dialect A over HTTP: a POST is read, its method called, the reply sent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from warpseal.api.http.middleware import log_fields
from warpseal.api.http.request_body import declared_length, parse_body, read_body
from warpseal.api.http.settings import ApiSettings
from warpseal.api.rpc.jsonrpc_gorilla import (
    CONTENT_TYPE,
    MAX_BODY_BYTES,
    SERVER_ERROR,
    JsonRpcError,
    JsonRpcRequest,
    arguments,
    failure,
    parse,
    success,
    unknown,
)
from warpseal.errors import CallRefused, WarpsealError

log = logging.getLogger("warpseal.api")

S = TypeVar("S", bound=msgspec.Struct)
JSON: Final = "application/json"


class NoParams(msgspec.Struct):
    """Params of a method without parameters: any object, all of it ignored."""


class Method(Struct, Generic[S], frozen=True):
    """One method. params: the type of its parameters; call: returns the result and raises CallRefused,
    WarpsealError or OSError.
    """

    params: type[S]
    call: Callable[[S], Awaitable[Any]]


class JsonRpcEndpoint:
    """The ASGI app of one service. methods: by name, without the name of the service."""

    def __init__(self, service: str, methods: Mapping[str, Method[Any]], settings: ApiSettings) -> None:
        self._service = service
        self._methods = {name[:1].upper() + name[1:]: method for name, method in methods.items()}
        self._settings = replace(settings, max_body_bytes=MAX_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = post_refusal(scope)
        if response is None:
            reply = await self.reply(await read_body(scope, receive, self._settings), scope)
            response = Response(reply, 200, {"content-type": CONTENT_TYPE}) if reply else Response()
        await response(scope, receive, send)

    async def reply(self, body: bytes, scope: Scope) -> bytes:
        """Return the reply to a body; empty for a notification."""
        request: JsonRpcRequest | None = None
        try:
            request = await parse_body(parse, body)
            request.check()
            log_fields(scope)["method_called"] = request.method[:64]
            result = await self._call(request)
        except JsonRpcError as error:
            return failure(request.id if request else None, error) if request is None or request.id else b""
        return success(request.id, result) if request.id else b""

    async def _call(self, request: JsonRpcRequest) -> Any:
        service, name = request.called()
        if service != self._service:
            raise unknown("service", service, name)
        method = self._methods.get(name)
        if method is None:
            raise unknown("method", service, name)
        params = arguments(request.params, method.params)
        try:
            return await method.call(params)
        except (CallRefused, WarpsealError) as error:
            raise JsonRpcError(SERVER_ERROR, str(error)) from None
        except OSError as error:
            log.warning("a call failed", extra={"method_called": request.method, "reason": str(error)})
            raise JsonRpcError(SERVER_ERROR, error.strerror or str(error)) from None
        except Exception as error:  # The reply of a JSON-RPC call has status 200, whatever became of the call.
            log.error("internal error, call failed", exc_info=error)
            raise JsonRpcError(SERVER_ERROR, "internal error; see the log for details") from None


def post_refusal(scope: Scope) -> Response | None:
    """Return the response to a request that is no POST of JSON, or too long; None if its body is to be read."""
    if scope["method"] != "POST":
        return PlainTextResponse(f"rpc: POST method required, received {scope['method'][:32]}", 405)
    header = next((value for name, value in scope["headers"] if name == b"content-type"), b"").decode("latin-1")
    content_type = header.partition(";")[0]
    if content_type.lower() != JSON:
        return PlainTextResponse(f"rpc: unrecognized Content-Type: {content_type[:128]}", 415)
    length = declared_length(scope)
    if length > MAX_BODY_BYTES:
        return PlainTextResponse(f"content length too large ({length}>{MAX_BODY_BYTES})", 413)
    return None
