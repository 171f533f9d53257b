"""A server of an ASGI app on a port, over HTTP/1.1. Signals belong to daemon/app.py."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp

from warpseal.api.http.chunk_turns import ChunkTurns
from warpseal.api.http.clients import IdleConnections, TrustedProxies
from warpseal.api.http.http_protocol import MAX_SOCKET_MESSAGE_BYTES, LimitedHttp
from warpseal.api.http.listener import Listener
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.uvicorn_parts import Config, ServerState
from warpseal.api.http.websocket_protocol import LimitedWebSocket

SHUTDOWN_EVENT: Final = "shutdown_event"
"""Key of the ASGI scope's state: an event that is set when the grace period is over."""

_POLL_S: Final = 0.01
_DRAIN_S: Final = 1.0


class HttpServer:
    """Serves `app`, which sees the clients behind trusted proxies, on the port of a listener.

    `run` serves until `stop`, then finishes the requests in flight, and closes the listener.
    """

    def __init__(self, app: ASGIApp, listener: Listener, settings: ApiSettings) -> None:
        self._listener = listener
        self._settings = settings
        proxies = TrustedProxies(settings.trusted_proxies)
        self._chunk_turns = ChunkTurns()
        # uvicorn calls it as a class.
        web_socket: Any = partial(LimitedWebSocket, chunk_turns=self._chunk_turns)
        self._config = Config(
            proxies.wrap(app),
            http="httptools",
            ws=web_socket,
            ws_max_size=MAX_SOCKET_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._state = ServerState()
        self._idle_connections = IdleConnections(settings.max_connections)
        self._grace_s = settings.grace_period_s
        self._stopping = asyncio.Event()
        self._shutdown_event = asyncio.Event()

    @property
    def port(self) -> int:
        """The port of the listener."""
        return self._listener.port

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        return self._listener.url

    def stop(self, *, grace_s: float | None = None) -> None:
        """Accept no new connections, finish requests in flight, then let `run` return.

        grace_s: the time for requests in flight; None for the grace period of the settings. After
            it each request gets an error response.
        """
        if grace_s is not None:
            self._grace_s = grace_s
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`, or until cancelled: then everything ends at once."""
        server = await asyncio.get_running_loop().create_server(
            self._connection, sock=self._listener.socket
        )
        try:
            await self._serve()
            server.close()
            await self._finish()
        finally:
            server.close()
            self._abort()

    def _connection(self) -> LimitedHttp:
        app_state: dict[str, Any] = {SHUTDOWN_EVENT: self._shutdown_event}
        shared = self._idle_connections, self._chunk_turns
        return LimitedHttp(self._settings, self._config, self._state, app_state, *shared)

    async def _serve(self) -> None:
        """Update the Date header every second until stopped."""
        while not self._stopping.is_set():
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            try:
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _finish(self) -> None:
        """Wait for requests in flight until the grace period ends, then cancel them.

        A cancelled request gets a response.
        """
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._until_idle(self._grace_s)
        if self._state.tasks:
            self._cancel_requests()
            await self._until_idle(_DRAIN_S)

    async def _until_idle(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        # uvicorn's sets have no event to wait for.
        while loop.time() < deadline:
            if not self._state.tasks and not self._state.connections:
                return
            await asyncio.sleep(_POLL_S)

    def _cancel_requests(self) -> None:
        self._shutdown_event.set()
        for task in list(self._state.tasks):
            task.cancel()

    def _abort(self) -> None:
        self._cancel_requests()
        for connection in list(self._state.connections):
            connection.transport.abort()
