"""WebSocket connections to the nodes of one EVM chain: one for each client, from a node that agrees on the chain.

Source of truth: RFC 6455; geth's `rpc/websocket.go`. A connection that dies is told, never mended: events that were
missed meanwhile would be missed silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from warpseal.forwarding.messages import decode_result, encode_calls, quantity_of
from warpseal.forwarding.pool import CHAIN_ID_CALL, GENESIS_CALL, ChainIdentity, EvmPool, identity_of
from warpseal.forwarding.settings import ForwardingSettings
from warpseal.node.endpoint import NodeEndpoint

log = logging.getLogger(__name__)

_HEARTBEAT_S: Final = 20.0


class NoSocket(Exception):
    """No node gives a WebSocket of this chain now."""


class TooManySockets(Exception):
    """The chain has as many WebSocket clients as it may."""


class NodeSocket:
    """A connection to a node, for one client."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, text: str) -> None:
        """Send a message; one that cannot be sent any more is lost, and `messages` ends."""
        try:
            await self._socket.send_str(text)
        except (aiohttp.ClientError, OSError):
            await self._socket.close()

    async def messages(self) -> AsyncIterator[str]:
        """Yield what the node says, until the connection ends, for whatever reason."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                yield message.data
            elif message.type is aiohttp.WSMsgType.BINARY:
                yield message.data.decode(errors="replace")


class EvmSockets:
    """The WebSocket endpoints of one chain in the operator's order, and how many clients are connected."""

    def __init__(
        self,
        endpoints: Sequence[NodeEndpoint],
        session: aiohttp.ClientSession,
        pool: EvmPool,
        settings: ForwardingSettings,
    ) -> None:
        self.clients = 0
        self._endpoints = tuple(endpoints)
        self._session = session
        self._pool = pool
        self._settings = settings

    @property
    def is_configured(self) -> bool:
        """Whether the chain has WebSocket endpoints at all."""
        return bool(self._endpoints)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[NodeSocket]:
        """Hold a connection to the first node that agrees on the chain. Raises NoSocket, TooManySockets."""
        if self.clients >= self._settings.max_sockets:
            raise TooManySockets
        self.clients += 1
        try:
            socket = await self._first()
            try:
                yield NodeSocket(socket)
            finally:
                await socket.close()
        finally:
            self.clients -= 1

    async def _first(self) -> aiohttp.ClientWebSocketResponse:
        if self._pool.identity is None:
            await self._pool.in_turn()
        for position, endpoint in enumerate(self._endpoints):
            try:
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    socket = await self._opened(endpoint)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                reason = type(error).__name__
                log.info("no WebSocket from a node", extra={"upstream": position, "reason": reason})
                continue
            return socket
        raise NoSocket

    async def _opened(self, endpoint: NodeEndpoint) -> aiohttp.ClientWebSocketResponse:
        """Return a connection to a node of this chain. Raises what aiohttp raises, or ValueError."""
        socket = await self._session.ws_connect(
            endpoint.url(""),
            headers=dict(endpoint.http_headers),
            max_msg_size=self._settings.max_message_bytes,
            heartbeat=_HEARTBEAT_S,
        )
        try:
            told = await _identity(socket)
            if told is None or told != self._pool.identity:
                log.error("a node is refused", extra={"node": endpoint.shown, "reason": "it is of another chain"})
                raise ValueError("of another chain")
        except BaseException:
            await socket.close()
            raise
        return socket


async def _identity(socket: aiohttp.ClientWebSocketResponse) -> ChainIdentity | None:
    results = []
    for call in (CHAIN_ID_CALL, GENESIS_CALL):
        await socket.send_str(encode_calls({0: call}).decode())
        results.append(decode_result((await socket.receive_str()).encode()))
    return identity_of(quantity_of(results[0]), results[1])
