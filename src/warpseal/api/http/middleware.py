"""The middleware of every request: its id, its line in the log, and the response to its error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpseal.api.http.clients import client_network, client_of, connection_address, is_behind_proxy
from warpseal.api.http.error_response import Dialect, dialect_of, error_response
from warpseal.api.http.errors import ShuttingDown
from warpseal.api.http.request_body import ClientDisconnected
from warpseal.api.http.server import SHUTDOWN_EVENT
from warpseal.errors import InternalError, WarpsealError
from warpseal.metrics.registry import Metrics
from warpseal.runtime.request_id import new_request_id, parse_request_id, request_id
from warpseal.runtime.tracing import TRACING, Trace
from warpseal.warp.ids import id_text

log = logging.getLogger("warpseal.api")

REQUEST_ID: Final = "x-request-id"
CLIENT_GONE: Final = 499
"""Logged as the status of a request whose client disconnected before the response."""

_FIELDS: Final = "warpseal.log"
_NODE_PROBES: Final = (
    "/ext/health",
    "/ext/health/health",
    "/ext/health/liveness",
    "/ext/health/readiness",
)
_GRPC_PROBE: Final = "/grpc.health.v1.Health/Check"
_PROBES: Final = frozenset(
    {"/health", "/ready", "/metrics", "/status.json", _GRPC_PROBE, *_NODE_PROBES}
)
_SHOWN_CHARACTERS: Final = 200
_SERVER_ERROR: Final = 500
_FORWARDED: Final = b"forwarded"
_X_FORWARDED: Final = b"x-forwarded-"
_HEADER: Final = REQUEST_ID.encode()


def log_fields(scope: Scope) -> dict[str, Any]:
    """Return the fields of the log line of this request; callers add to them.

    Bytes are ids, logged as their texts.
    """
    fields: dict[str, Any] = scope.setdefault(_FIELDS, {})
    return fields


def client_address(scope: Scope) -> str:
    """Return the address of the client of a request, without its port: that behind a trusted proxy,
    if there is one.
    """
    return client_of(scope).address


def is_from_this_machine(scope: Scope) -> bool:
    """Return whether a request comes from this machine and no proxy forwarded it."""
    names = (name.replace(b"_", b"-") for name, _ in scope["headers"])
    is_forwarded = any(name == _FORWARDED or name.startswith(_X_FORWARDED) for name in names)
    return (
        not is_forwarded
        and not is_behind_proxy(scope)
        and client_network(connection_address(scope))[1]
    )


class RequestLog:
    """Wraps an app: each request has an id, a log line and a count.

    The caller may send the id as `X-Request-Id`; the response carries it.
    paths: The template of the path by endpoint; an endpoint that is a text is its own template.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Mapping[Any, str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        current = find_request_id(scope) or new_request_id()
        token, trace = request_id.set(current), begin_trace(scope)
        started = perf_counter()
        status = CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (_HEADER, current.encode("ascii")),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            endpoint = scope.get("endpoint")
            route = endpoint if isinstance(endpoint, str) else self._paths.get(endpoint)
            self._metrics.observe_http(route or "unknown", status)
            log_request(scope, status, perf_counter() - started)
            if trace is not None:
                end_trace(trace, scope, f"{scope['method']} {route or ''}".rstrip(), status)
            request_id.reset(token)


def find_request_id(scope: Scope) -> str | None:
    """Return the id that the caller chose for a request."""
    for name, value in scope["headers"]:
        if name == _HEADER:
            return parse_request_id(value)
    return None


def log_request(scope: Scope, status: int, duration_s: float) -> None:
    """Log the line of a request.

    status: HTTP status of the response.
    """
    # A failing probe is sent every few seconds; the change behind it has a log line of its own.
    level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields = {
        "method": scope["method"],
        "path": scope["path"][:_SHOWN_CHARACTERS],
        "status": status,
        "duration_ms": round(duration_s * 1000, 3),
        "client": client_address(scope),
    }
    for name, value in log_fields(scope).items():
        fields[name] = id_text(value) if type(value) is bytes else value
    log.log(level, "request", extra=fields)


def begin_trace(scope: Scope) -> Trace | None:
    """Begin the trace of a request; None for probes, and for all requests without an exporter."""
    if TRACING.begin is None or scope["path"] in _PROBES:
        return None
    return TRACING.begin(scope["headers"])


def end_trace(trace: Trace, scope: Scope, name: str, status: int) -> None:
    """End the trace of a request, with the fields of its log line.

    status: HTTP status of the response.
    """
    attributes = {
        "http.request.method": scope["method"],
        "url.path": scope["path"][:_SHOWN_CHARACTERS],
        "http.response.status_code": status,
        "client.address": client_address(scope),
        "request_id": request_id.get(),
        **log_fields(scope),
    }
    error = str(attributes.get("code", status)) if status >= _SERVER_ERROR else ""
    trace.end(name, attributes, error)


class ErrorMiddleware:
    """Wraps an app and answers its errors; a disconnected client gets no response.

    dialect: dialect of the errors; None means the dialect of the path.
    """

    def __init__(self, app: ASGIApp, dialect: Dialect | None = None) -> None:
        self._app = app
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnected:
            return
        except asyncio.CancelledError:
            if started or not is_shutdown(scope):
                raise
            await self._respond(ShuttingDown(), scope, receive, send)
        # The edge: the client gets a response, the error a log line.
        except Exception as error:  # noqa: BLE001
            error = as_warpseal_error(error)
            if not started:
                await self._respond(error, scope, receive, send)

    async def _respond(
        self, error: WarpsealError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        log_fields(scope)["code"] = error.code
        dialect = self._dialect or dialect_of(scope["path"])
        response = error_response(error, dialect, shows_addresses=is_from_this_machine(scope))
        await response(scope, receive, send)


def as_warpseal_error(error: Exception) -> WarpsealError:
    """Return the error of a request for its caller; any other exception is logged."""
    if isinstance(error, WarpsealError):
        return error
    log.error("internal error, request failed", exc_info=error)
    return InternalError(f"internal error; see the log of request {request_id.get()} for details")


def is_shutdown(scope: Scope) -> bool:
    """Return whether the server cancelled the request because its grace period ended."""
    event: asyncio.Event | None = scope.get("state", {}).get(SHUTDOWN_EVENT)
    return event is not None and event.is_set()
