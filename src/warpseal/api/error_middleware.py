"""The middleware that turns every error into a response, by the table of api/errors.py."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpseal.api.errors import ErrorResponse, dialect_of, error_response
from warpseal.api.request_body import ClientDisconnected
from warpseal.api.request_log import log_fields
from warpseal.api.server import SHUTDOWN_EVENT
from warpseal.errors import InternalError, ShuttingDown, WarpsealError
from warpseal.runtime.request_id import request_id

log = logging.getLogger("warpseal.api")


class ErrorMiddleware:
    """Wraps an app and answers its errors in the dialect of the path; a disconnected client gets no answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

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
            if started or not _is_shutdown(scope):
                raise
            await _answer(ShuttingDown(), scope, send)
        except Exception as error:  # noqa: BLE001 - this is the edge
            known = _translate(error)
            if not started:
                await _answer(known, scope, send)


def _is_shutdown(scope: Scope) -> bool:
    """Return whether the server cancelled the request because its grace period ended."""
    event: asyncio.Event | None = scope.get("state", {}).get(SHUTDOWN_EVENT)
    return event is not None and event.is_set()


def _translate(error: Exception) -> WarpsealError:
    if isinstance(error, WarpsealError):
        return error
    log.error("internal error, request failed", exc_info=error)
    return InternalError(f"internal error; see the log of request {request_id.get()} for details")


async def _answer(error: WarpsealError, scope: Scope, send: Send) -> None:
    log_fields(scope)["code"] = error.code
    await send_error(error_response(error, dialect_of(scope["path"])), send)


async def send_error(response: ErrorResponse, send: Send) -> None:
    """Send an error response."""
    headers = [
        (b"content-type", response.content_type),
        (b"content-length", str(len(response.body)).encode()),
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
