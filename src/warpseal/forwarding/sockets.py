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
_RECHECK_S: Final = 60.0


class NoSocket(Exception):
    """No node gives a WebSocket of this chain now."""


class TooManySockets(Exception):
    """The chain has as many WebSocket clients as it may."""


class _Alien(Exception):
    """A node that is not of this chain."""


class NodeSocket:
    """A connection to a node, for one client. upstream: as metrics name the node."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, position: int) -> None:
        self.upstream = f"ws{position}"
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
    """The WebSocket endpoints of one chain in the operator's order, and how many clients are connected.

    refused: why endpoints are refused, by position: they are not of this chain.
    """

    def __init__(
        self,
        endpoints: Sequence[NodeEndpoint],
        session: aiohttp.ClientSession,
        pool: EvmPool,
        settings: ForwardingSettings,
    ) -> None:
        self.clients = 0
        self.refused: dict[int, str] = {}
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
            position, socket = await self._first()
            try:
                yield NodeSocket(socket, position)
            finally:
                await socket.close()
        finally:
            self.clients -= 1

    async def run(self) -> None:
        """Look now and then whether all endpoints are of this chain, until cancelled."""
        while True:
            if self._pool.identity is not None:
                for position in range(len(self._endpoints)):
                    socket = await self._try(position)
                    if socket is not None:
                        await socket.close()
            await asyncio.sleep(_RECHECK_S if self._pool.identity is not None else self._settings.poll_s)

    async def _first(self) -> tuple[int, aiohttp.ClientWebSocketResponse]:
        if self._pool.identity is None:
            await self._pool.in_turn()
        for position in range(len(self._endpoints)):
            socket = await self._try(position)
            if socket is not None:
                return position, socket
        raise NoSocket

    async def _try(self, position: int) -> aiohttp.ClientWebSocketResponse | None:
        """Return a connection to a node of this chain; None where there is none to be had now."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                socket = await self._opened(self._endpoints[position])
        except (aiohttp.ClientError, OSError, TimeoutError, TypeError) as error:
            reason = type(error).__name__
            log.info("no WebSocket from a node", extra={"upstream": position, "reason": reason})
            return None
        except _Alien as alien:
            if position not in self.refused:
                shown = self._endpoints[position].shown
                log.warning("a node is refused", extra={"node": shown, "reason": str(alien)})
            self.refused[position] = str(alien)
            return None
        self.refused.pop(position, None)
        return socket

    async def _opened(self, endpoint: NodeEndpoint) -> aiohttp.ClientWebSocketResponse:
        """Return a connection to a node of this chain. Raises what aiohttp raises, or _Alien."""
        socket = await self._session.ws_connect(
            endpoint.url(""),
            headers=dict(endpoint.http_headers),
            max_msg_size=self._settings.max_message_bytes,
            heartbeat=_HEARTBEAT_S,
        )
        try:
            told = await _identity(socket)
            if told is None:
                raise _Alien("does not tell its chain id and block 0")
            if told != self._pool.identity:
                raise _Alien(f"is of another chain: chain id {told.chain_id}, block 0 {told.genesis_hash}")
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
