"""A server of one ASGI app on one port, over HTTP/1.1, until it is stopped; signals belong to daemon/app.py."""

from __future__ import annotations

import asyncio
import errno
import socket
from email.utils import formatdate
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.server import ServerState

from warpseal.api.http.client_network import IdleConnections
from warpseal.api.http.http_protocol import MAX_SOCKET_MESSAGE_BYTES, LimitedHttp
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.trusted_proxies import TrustedProxies
from warpseal.errors import StartupError
from warpseal.runtime.process import find_listener, os_error_text

SHUTDOWN_EVENT: Final = "shutdown_event"
"""Key of the ASGI scope's state: an event that is set when the grace period is over."""

_BACKLOG: Final = 2_048
_POLL_S: Final = 0.01
_DRAIN_S: Final = 1.0


class HttpServer:
    """Serves `app`, which sees the clients behind trusted proxies.

    `bind` takes the port; `run` serves until `stop`, then finishes the requests in flight.

    name: first word of the settings of its host and port, for errors.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, settings: ApiSettings, *, name: str = "api") -> None:
        self._host = host
        self._wanted_port = port
        self._settings = settings
        self._name = name
        proxies = TrustedProxies(settings.trusted_proxies)
        self._config = Config(
            proxies.wrap(app),
            http="httptools",
            ws="warpseal.api.http.websocket_protocol:LimitedWebSocket",  # Loaded when the first connection is there.
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
        self._socket: socket.socket | None = None
        self._grace_s = settings.grace_period_s
        self._stopping = asyncio.Event()
        self._shutdown_event = asyncio.Event()

    def bind(self) -> None:
        """Take the port and listen, unless that was done; connections wait until `run`. Raises StartupError."""
        if self._socket is not None:
            return
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        dual = self._host == "::" and socket.has_dualstack_ipv6()
        try:
            self._socket = socket.create_server(
                (self._host, self._wanted_port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual
            )
        except OSError as error:
            raise StartupError(self._bind_fault(error)) from error

    @property
    def address(self) -> str:
        """The bound address for people, such as `127.0.0.1:8080`, or `0.0.0.0:8080 (all interfaces)`."""
        host, port = self._bound().getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return f"{address} (all interfaces)" if host in ("0.0.0.0", "::") else address

    @property
    def port(self) -> int:
        """The bound port, also if 0 was requested."""
        port: int = self._bound().getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}
        host = reachable.get(self._host, f"[{self._host}]" if ":" in self._host else self._host)
        return f"http://{host}:{self.port}"

    def stop(self, *, grace_s: float | None = None) -> None:
        """Accept no new connections, finish requests in flight within the grace period, then let `run` return.

        grace_s: in place of the grace period of the settings; then each request gets an error response.
        """
        if grace_s is not None:
            self._grace_s = grace_s
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`, or until cancelled: then everything ends at once."""
        self.bind()
        listener = await asyncio.get_running_loop().create_server(self._connection, sock=self._bound())
        try:
            await self._serve()
            listener.close()
            await self._finish()
        finally:
            listener.close()
            self._abort()

    def _bound(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError("the server is not bound yet")
        return self._socket

    def _bind_fault(self, error: OSError) -> str:
        """Return why the port cannot be taken, and which setting to change."""
        host, port, name = self._host, self._wanted_port, self._name
        if error.errno == errno.EADDRINUSE:
            pid = find_listener(port)
            holder = f"process {pid}" if pid else "another process"
            return f"{name}-port {port} on {host} is in use by {holder}: stop it, or set another {name}-port"
        if error.errno in (errno.EACCES, errno.EPERM):
            return (
                f"{name}-port {port} needs privileges that this user does not have: set another {name}-port, above 1023"
            )
        # An unknown name has a number of the resolver, which is negative.
        reason = "unknown name" if (error.errno or -1) < 0 else os_error_text(error)
        return f"api-host {host} is no address of this machine ({reason}): set another api-host"

    def _connection(self) -> LimitedHttp:
        app_state: dict[str, Any] = {SHUTDOWN_EVENT: self._shutdown_event}
        return LimitedHttp(self._settings, self._config, self._state, app_state, self._idle_connections)

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
        """Wait for requests in flight until the grace period ends; then cancel them, so that they get an answer."""
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._until_idle(self._grace_s)
        if self._state.tasks:
            self._cancel_requests()
            await self._until_idle(_DRAIN_S)

    async def _until_idle(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (  # noqa: ASYNC110 - uvicorn's sets have no event
            self._state.tasks or self._state.connections
        ) and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)

    def _cancel_requests(self) -> None:
        self._shutdown_event.set()
        for task in list(self._state.tasks):
            task.cancel()

    def _abort(self) -> None:
        self._cancel_requests()
        for connection in list(self._state.connections):
            connection.transport.abort()
