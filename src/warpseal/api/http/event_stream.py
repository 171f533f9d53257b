"""Server-sent events: a response that goes on until its client leaves or stops reading, or the
daemon stops.

A client that is slow holds what one write has, and delays no other. Source of truth: the HTML
standard, section 9.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warpseal.api.http.http_protocol import ABORT
from warpseal.api.http.in_flight import InFlight
from warpseal.api.http.middleware import client_address
from warpseal.errors import WarpsealError

WRITE_TIMEOUT_S: Final = 20.0
_HEARTBEAT_S: Final = 15.0
# nginx passes each part on at once if a response says so.
_HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-accel-buffering": "no",
}


class EventStreams:
    """The open streams of events, at most `limit` in all and `limit_per_client` of one network.

    open: The places of streams; streams by gRPC take places as well.
    stopping: The event that the daemon sets when it stops; it ends the streams.
    write_timeout_s: The time that a client has to read a write.
    heartbeat_s: The time without events after which a heartbeat is sent.
    """

    def __init__(
        self,
        stopping: asyncio.Event,
        limit: int,
        limit_per_client: int,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        heartbeat_s: float = _HEARTBEAT_S,
    ) -> None:
        self._stopping = stopping
        self.open = InFlight(limit, limit_per_client)
        self._write_timeout_s = write_timeout_s
        self._heartbeat_s = heartbeat_s

    def respond(
        self,
        request: Request,
        next_events: Callable[[], Awaitable[bytes]],
        heartbeat: Callable[[], bytes],
    ) -> Response:
        """Return the response with a stream; it raises TooManyRequests if there are too many.

        next_events: waits for events and returns them as they are sent, or nothing; it may be
            cancelled and called again. A WarpsealError that it raises ends the stream.
        heartbeat: returns a part without an event, which is sent first.
        """
        response = Response(headers=_HEADERS, media_type="text/event-stream")
        if request.method == "HEAD":
            return response
        del response.headers["content-length"]

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            async def write(part: bytes) -> None:
                await send({"type": "http.response.body", "body": part, "more_body": True})

            with self.open.slot(client_address(scope)):
                await send(
                    {"type": "http.response.start", "status": 200, "headers": response.raw_headers}
                )
                writing = asyncio.create_task(
                    self.push(write, next_events, heartbeat, self._write_timeout_s)
                )
                leaving = asyncio.create_task(_disconnected(receive))
                ends = (writing, leaving, asyncio.create_task(self._stopping.wait()))
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    if leaving.done():
                        return
                    error = writing.exception() if writing.done() else None
                    if isinstance(error, TimeoutError):
                        scope["state"][ABORT]()
                        await leaving
                    elif error is None or isinstance(error, WarpsealError):
                        await send({"type": "http.response.body", "body": b""})
                    else:
                        raise error
                finally:
                    for end in ends:
                        end.cancel()

        return _AppResponse(stream)

    async def push(
        self,
        write: Callable[[bytes], Awaitable[None]],
        next_events: Callable[[], Awaitable[bytes]],
        heartbeat: Callable[[], bytes],
        write_timeout_s: float | None,
    ) -> NoReturn:
        """Write a heartbeat, then events, and heartbeats in silence, until cancelled.

        Raises TimeoutError if a write takes too long, and what `next_events` raises.
        """
        loop = asyncio.get_running_loop()
        part, silent_until = heartbeat(), 0.0
        while True:
            if part:
                async with asyncio.timeout(write_timeout_s):
                    await write(part)
                silent_until = loop.time() + self._heartbeat_s
            try:
                async with asyncio.timeout_at(silent_until):
                    part = await next_events()
            except TimeoutError:
                part = heartbeat()


class _AppResponse(Response):
    """A response that an ASGI app sends."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
