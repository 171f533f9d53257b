"""WebSocket connections to the nodes of one EVM chain: one for each client, from a node that agrees on the chain.

Source of truth: RFC 6455; geth's `rpc/websocket.go`. A connection that dies is told, never mended: events that were
missed meanwhile would be missed silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from warpseal.evm_rpc.calls import RpcAnswer
from warpseal.evm_rpc.messages import decode_answers, encode_calls, quantity_of
from warpseal.evm_rpc.pool import CHAIN_ID_CALL, GENESIS_CALL, HEAD_CALL, ChainIdentity, EvmPool, identity_of
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.node.endpoint import NodeEndpoint

log = logging.getLogger(__name__)

_HEARTBEAT_S: Final = 20.0
_RECHECK_S: Final = 60.0


class WebSocketUnavailable(Exception):
    """No node gives a WebSocket of this chain now."""


class TooManyWebSockets(Exception):
    """The chain has as many WebSocket clients as it may."""


class _Alien(Exception):
    """A node that is not of this chain."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A connection to a node that agreed on the chain. head: how far it was then."""

    socket: aiohttp.ClientWebSocketResponse
    position: int
    head: int


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
        settings: EvmRpcSettings,
    ) -> None:
        self.clients = 0
        self.refused: dict[int, str] = {}
        self._seen = 0
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
        """Hold a connection to a node that agrees on the chain: the first that is not behind what clients have seen.

        Raises NoSocket, TooManySockets.
        """
        if self.clients >= self._settings.max_sockets:
            raise TooManyWebSockets
        self.clients += 1
        try:
            opened = await self._best()
            try:
                yield NodeSocket(opened.socket, opened.position)
            finally:
                await opened.socket.close()
        finally:
            self.clients -= 1

    async def run(self) -> None:
        """Look now and then whether all endpoints are of this chain, until cancelled."""
        while True:
            if self._pool.identity is not None:
                for position in range(len(self._endpoints)):
                    opened = await self._try(position)
                    if opened is not None:
                        await opened.socket.close()
            await asyncio.sleep(_RECHECK_S if self._pool.identity is not None else self._settings.poll_s)

    async def _best(self) -> _Opened:
        if self._pool.identity is None:
            await self._pool.candidates()
        best: _Opened | None = None
        try:
            for position in range(len(self._endpoints)):
                best = await _further(best, await self._try(position))
                self._seen = max(self._seen, self._pool.highest, best.head if best is not None else 0)
                if best is not None and best.head >= self._seen:
                    return best
        except BaseException:
            if best is not None:
                await best.socket.close()
            raise
        if best is None:
            raise WebSocketUnavailable
        return best

    async def _try(self, position: int) -> _Opened | None:
        """Return a connection to a node of this chain; None where there is none to be had now."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                opened = await self._opened(position)
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
        return opened

    async def _opened(self, position: int) -> _Opened:
        """Return a connection to a node of this chain. Raises what aiohttp raises, or _Alien."""
        endpoint = self._endpoints[position]
        socket = await self._session.ws_connect(
            endpoint.url(""),
            headers=dict(endpoint.http_headers),
            max_msg_size=self._settings.max_message_bytes,
            heartbeat=_HEARTBEAT_S,
        )
        try:
            told, head = await _introduction(socket)
            if told is None:
                raise _Alien("does not tell its chain id and block 0")
            if told != self._pool.identity:
                raise _Alien(f"is of another chain: chain id {told.chain_id}, block 0 {told.genesis_hash}")
        except BaseException:
            await socket.close()
            raise
        return _Opened(socket, position, head)


async def _further(best: _Opened | None, other: _Opened | None) -> _Opened | None:
    """Return whose node is further, the first where both are as far, and close the other."""
    if best is None or other is None:
        return best or other
    kept, left = (other, best) if other.head > best.head else (best, other)
    await left.socket.close()
    return kept


async def _introduction(socket: aiohttp.ClientWebSocketResponse) -> tuple[ChainIdentity | None, int]:
    """Return which chain a node is of, and how far it is."""
    await socket.send_str(encode_calls(dict(enumerate((CHAIN_ID_CALL, GENESIS_CALL, HEAD_CALL)))).decode())
    answers = decode_answers((await socket.receive_str()).encode(), range(3))
    chain_id, block, head = (_value(answers[number]) for number in range(3))
    return identity_of(quantity_of(chain_id), block), quantity_of(head) or 0


def _value(answer: RpcAnswer) -> object:
    return None if answer.result is None else msgspec.json.decode(answer.result)
