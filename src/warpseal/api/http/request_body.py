"""Reading a request body and a query within their limits of size and time, and discarding an unread
body.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpseal.api.http.errors import BodyTooLarge, ReceiveTimeout
from warpseal.api.http.http_protocol import IS_COMPLETE, MAX_MESSAGE_BODIES, RECEIVE_BY
from warpseal.api.http.settings import ApiSettings
from warpseal.errors import InvalidRequest

LARGE_BYTES: Final = 65_536
"""A body of more bytes is parsed in a worker thread."""
SMALL_BYTES: Final = 4_096
"""A body of more bytes is parsed only if the caller has a unit left, and in its turn.

`ParsingTurns` says which body is next.
"""
PARSING_S: Final = 0.01
"""The event loop parses for about so long between two looks at its sockets."""

KEY_PARAMETERS: Final = ("rltoken", "apikey")
"""Query parameters that carry an API key.

Core sends the first, and wallets, which cannot set headers, the second.
"""

_MAX_LENGTH_DIGITS: Final = 18
_MAX_PARAMETERS: Final = 1_000
# One thread: two would take turns with the event loop, which then waits twice as long.
_PARSING: Final = ThreadPoolExecutor(1, "parse")

T = TypeVar("T")


async def read_body(scope: Scope, receive: Receive, settings: ApiSettings) -> bytes:
    """Return the whole body.

    Raises BodyTooLarge (without reading on), ReceiveTimeout or ClientDisconnected.
    """
    if declared_length(scope) > settings.max_body_bytes:
        raise BodyTooLarge(settings.max_body_bytes)
    # The common case: a timeout costs more than reading.
    if IS_COMPLETE in scope.get("state", ()):
        return await _read(receive, settings.max_body_bytes)
    try:
        async with asyncio.timeout_at(_receive_by(scope)):
            return await _read(receive, settings.max_body_bytes)
    except TimeoutError:
        raise ReceiveTimeout(settings.receive_timeout_s) from None


async def _read(receive: Receive, limit_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        if not message.get("more_body", False):
            return bytes(body)


class ParsingTurns:
    """Bounds the parsing in a turn of the event loop; bodies that are ready at once take turns."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._spent_s = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def parse(self, parse: Callable[[bytes], T], body: bytes) -> T:
        """Return the parsed body, in a later turn if other bodies have used up this one."""
        loop = asyncio.get_running_loop()
        while self._spent_s >= PARSING_S:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if not self._spent_s:
            # Callbacks that a callback adds run in the next turn, behind a look at the sockets.
            loop.call_soon(self._begin_turn)
        started_at = self._clock()
        try:
            return parse(body)
        finally:
            self._spent_s += max(self._clock() - started_at, 1e-9)

    def _begin_turn(self) -> None:
        self._spent_s = 0.0
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


_TURNS: Final = ParsingTurns()


async def parse_body(parse: Callable[[bytes], T], body: bytes) -> T:
    """Return the parsed body.

    The event loop runs while a large body is parsed, and between bodies of medium size.
    """
    if len(body) <= SMALL_BYTES:
        return parse(body)
    if len(body) <= LARGE_BYTES:
        return await _TURNS.parse(parse, body)
    return await asyncio.get_running_loop().run_in_executor(_PARSING, parse, body)


def declared_length(scope: Scope) -> int:
    """Return the value of Content-Length; 0 if the header is missing."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:_MAX_LENGTH_DIGITS])
    return 0


def _receive_by(scope: Scope) -> float | None:
    by: float | None = scope.get("state", {}).get(RECEIVE_BY)
    return by


class ClientDisconnected(Exception):
    """The client closed its connection before the response."""


class DiscardUnread:
    """Discards the body after an early response, so that a client that still sends can read it.

    The response is complete for the client, which knows its length, before the rest of the body is
    discarded. A client that asks whether to send the body (Expect: 100-continue) gets the response
    and a closed connection.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings, limit_bytes: int = 0) -> None:
        self._app = app
        self._limit_bytes = max(limit_bytes, MAX_MESSAGE_BODIES * settings.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        if not is_http or not _has_header(scope, b"content-length", b"transfer-encoding"):
            await self._app(scope, receive, send)
            return
        unread, asks_first = True, _has_header(scope, b"expect")

        async def watched_receive() -> Message:
            nonlocal unread, asks_first
            asks_first = False
            message = await receive()
            unread = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def held_send(message: Message) -> None:
            if message["type"] == "http.response.start" and asks_first:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            has_more = message.get("more_body", False)
            is_last = message["type"] == "http.response.body" and not has_more
            if not is_last or not unread or asks_first:
                await send(message)
                return
            await send({**message, "more_body": True})
            await self._discard(scope, receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, watched_receive, held_send)

    async def _discard(self, scope: Scope, receive: Receive) -> None:
        """Discard until the body or its time ends, or until the limit of discarded bytes."""
        left = self._limit_bytes
        try:
            async with asyncio.timeout_at(_receive_by(scope)):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return


def _has_header(scope: Scope, *names: bytes) -> bool:
    # Each request comes here, and a generator takes twice as long.
    for name, _ in scope["headers"]:  # noqa: SIM110
        if name in names:
            return True
    return False


def query_parameters(scope: Scope) -> list[tuple[str, str]]:
    """Return the names and values of a query, in its order.

    Raises InvalidRequest if there are more than a thousand.
    """
    query = scope["query_string"].decode("latin-1")
    # Splitting the thousands of parameters that fit into a header holds the event loop for 20 ms.
    if query.count("&") >= _MAX_PARAMETERS:
        raise InvalidRequest("query", f"more than {_MAX_PARAMETERS} parameters")
    return parse_qsl(query, keep_blank_values=True)


def key_in_query(scope: Scope) -> str | None:
    """Return the API key of a query, None without one. It is neither logged nor passed on."""
    query: bytes = scope.get("query_string", b"")
    if b"rltoken=" not in query and b"apikey=" not in query:
        return None
    keys = (text for name, text in query_parameters(scope) if name in KEY_PARAMETERS and text)
    return next(keys, None)
