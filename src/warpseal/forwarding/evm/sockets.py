"""WebSocket connections to the nodes of one EVM chain, one for each client.

Source of truth: RFC 6455; geth's `rpc/websocket.go`. A connection that is lost is reported to the
client and not replaced: the client would not notice the events that it missed in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.runtime.http_session import aiohttp
from warpseal.runtime.process import error_words
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import CallFailure, NodeFailure, RpcRefusal
from warpseal.upstream.identity import (
    BLOCK_NUMBER,
    ChainIdentity,
    identity_refused,
    parse_identity,
)
from warpseal.upstream.json_values import height_or_none, quantity_or_none
from warpseal.upstream.jsonrpc import (
    MALFORMED,
    UNREADABLE,
    RpcCall,
    RpcResponse,
    decode_responses,
    encode_numbered_calls,
    rpc_call,
)
from warpseal.upstream.node import BUSY_STATUSES, status_failure
from warpseal.upstream.pool import NodePool

log = logging.getLogger(__name__)

_ADDRESS_PARTS: Final = 4
_HEARTBEAT_S: Final = 20.0
_RECHECK_S: Final = 60.0
_CHAIN_ID: Final = rpc_call("eth_chainId")
_GENESIS: Final = rpc_call("eth_getBlockByNumber", "0x0", False)
_IDENTITY_CALLS: Final = (_CHAIN_ID, _GENESIS, rpc_call(BLOCK_NUMBER))


class WebSocketUnavailable(Exception):
    """No node accepts a WebSocket of this chain now, or a limit of WebSockets is reached."""


class NodeSocket:
    """A connection to a node of this chain.

    upstream: name of the node in metrics.
    head: head of the node when the connection was opened.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, position: int, head: int) -> None:
        self.upstream = f"ws{position}"
        self.head = head
        self.close = socket.close
        self._socket = socket

    async def send(self, text: str) -> None:
        """Send a message; if that fails the message is lost, and `messages` ends."""
        try:
            await self._socket.send_str(text)
        except (aiohttp.ClientError, OSError):
            await self._socket.close()

    async def messages(self) -> AsyncIterator[str]:
        """Yield the messages of the node until the connection ends."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                yield message.data
            elif message.type is aiohttp.WSMsgType.BINARY:
                yield message.data.decode(errors="replace")


class EvmSockets:
    """The WebSocket endpoints of one chain in configured order.

    clients: number of connected clients.
    failures: reasons why endpoints cannot be used now, by position.
    mismatches: those of them that show that the endpoint is of another chain.
    name: name of the chain in the log.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[NodeEndpoint],
        session: aiohttp.ClientSession,
        pool: NodePool[ChainIdentity],
        settings: EvmRpcSettings,
    ) -> None:
        self._name = name
        self.clients = 0
        self._clients_by_address: Counter[str] = Counter()
        self.failures: dict[int, str] = {}
        self.mismatches: dict[int, str] = {}
        self._highest_head = 0
        self._endpoints = tuple(endpoints)
        # The node of each endpoint, with one state for both transports; None for a host without an
        # RPC URL.
        by_host = {_host(node.node.endpoint): node for node in reversed(pool.nodes)}
        self._nodes = [by_host.get(_host(endpoint)) for endpoint in endpoints]
        self._session = session
        self._pool = pool
        self._settings = settings

    @property
    def is_configured(self) -> bool:
        """Whether the chain has WebSocket endpoints."""
        return bool(self._endpoints)

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[NodeSocket]:
        """Hold a connection to the first node that has every block that clients have seen.

        address: address of the client, which may have a quarter of all connections.
        Raises WebSocketUnavailable.
        """
        if self.clients >= self._settings.max_sockets:
            raise WebSocketUnavailable("too many clients are connected")
        max_of_address = max(1, self._settings.max_sockets // _ADDRESS_PARTS)
        if self._clients_by_address[address] >= max_of_address:
            raise WebSocketUnavailable("this client has too many connections")
        self.clients += 1
        self._clients_by_address[address] += 1
        try:
            opened = await self._connect_best()
            try:
                yield opened
            finally:
                await opened.close()
        finally:
            self.clients -= 1
            self._clients_by_address[address] -= 1
            if not self._clients_by_address[address]:
                del self._clients_by_address[address]

    async def run(self) -> None:
        """Check periodically that all endpoints are of this chain, until cancelled."""
        while True:
            if self._pool.identity.expected is None:
                await asyncio.sleep(self._settings.poll_s)
                continue
            for position in range(len(self._endpoints)):
                opened = await self._try_connect(position)
                if opened is not None:
                    await opened.close()
            await asyncio.sleep(_RECHECK_S)

    async def _connect_best(self) -> NodeSocket:
        if self._pool.identity.expected is None:
            await self._pool.candidates()
        best: NodeSocket | None = None
        try:
            for position in sorted(range(len(self._endpoints)), key=self._is_avoided):
                best = await _keep_higher(best, await self._try_connect(position))
                head = best.head if best is not None else 0
                self._highest_head = max(self._highest_head, self._pool.highest, head)
                if best is not None and best.head >= self._highest_head:
                    return best
        except BaseException:
            if best is not None:
                await best.close()
            raise
        if best is None:
            raise WebSocketUnavailable("no node can be reached now")
        return best

    def _is_avoided(self, position: int) -> bool:
        """Return whether other endpoints are tried first, since calls to their node failed.

        The node has one state for HTTP and for WebSockets.
        """
        node = self._nodes[position]
        return node is not None and self._pool.is_avoided(node)

    async def _try_connect(self, position: int) -> NodeSocket | None:
        """Return a connection to the node at this position; None if it cannot be used now."""
        endpoint, node = self._endpoints[position], self._nodes[position]
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    socket = await self._session.ws_connect(
                        endpoint.url(""),
                        headers=dict(endpoint.http_headers),
                        max_msg_size=self._settings.max_message_bytes,
                        heartbeat=_HEARTBEAT_S,
                    )
                    stack.push_async_callback(socket.close)
                    identity, head = await _handshake(socket, endpoint)
            except (aiohttp.ClientError, OSError, TimeoutError, TypeError, CallFailure) as error:
                self._note_failure(position, _failure_of(error))
                return None
            mismatch = self._pool.identity.find_mismatch(identity)
            if mismatch is None:
                self.failures.pop(position, None)
                self.mismatches.pop(position, None)
                stack.pop_all()
                if node is not None:
                    self._pool.note_head(node, head)
                return NodeSocket(socket, position, head)
            if position not in self.mismatches:
                fields = {"evm_chain": self._name, "node": endpoint.display, "reason": mismatch}
                log.warning("node refused", extra=fields)
            self.failures[position] = self.mismatches[position] = mismatch
            return None

    def _note_failure(self, position: int, failure: CallFailure) -> None:
        """Note that a node accepts no WebSocket, or refuses to name its chain on it.

        The node keeps a mismatch until it names the right chain.
        """
        node = self._nodes[position]
        fields = {
            "evm_chain": self._name,
            "node": self._endpoints[position].display,
            "upstream": position,
            "reason": failure.detail or failure.failure.value,
        }
        log.info("EVM node WebSocket failed", extra=fields)
        self.failures[position] = failure.reply
        if node is not None and _fails_calls(failure):
            self._pool.note_failure(node, failure)


async def _keep_higher(best: NodeSocket | None, other: NodeSocket | None) -> NodeSocket | None:
    """Return the connection with the higher head, and close the other; the first wins a tie."""
    if best is None or other is None:
        return best or other
    higher, lower = (other, best) if other.head > best.head else (best, other)
    await lower.close()
    return higher


def _failure_of(error: Exception) -> CallFailure:
    """Return the failure of a node that an error of its handshake is."""
    match error:
        case CallFailure():
            return error
        case aiohttp.WSServerHandshakeError():
            return status_failure(error.status)
        case aiohttp.ClientConnectorError():
            return CallFailure(NodeFailure.UNREACHABLE, error_words(error))
        case TimeoutError():
            return CallFailure(NodeFailure.TIMEOUT)
        case _:
            return CallFailure(NodeFailure.LOST, error_words(error))


def _fails_calls(failure: CallFailure) -> bool:
    """Return whether a node with this failure of a WebSocket fails HTTP calls as well."""
    kinds = (NodeFailure.UNREACHABLE, NodeFailure.TIMEOUT)
    return failure.failure in kinds or failure.status in BUSY_STATUSES


async def _handshake(
    socket: aiohttp.ClientWebSocketResponse, endpoint: NodeEndpoint
) -> tuple[ChainIdentity | None, int]:
    """Return the identity of a node's chain, and its head; 0 if the node reports no head.

    Raises CallFailure if the node refuses to name its chain, or its reply cannot be read.
    """
    await socket.send_str(encode_numbered_calls(dict(enumerate(_IDENTITY_CALLS))).decode())
    body = (await socket.receive_str()).encode()
    chain_id, block, head = decode_responses(body, range(len(_IDENTITY_CALLS))).values()
    return (
        parse_identity(
            quantity_or_none(_require_result(_CHAIN_ID, chain_id, endpoint)),
            _require_result(_GENESIS, block, endpoint),
        ),
        height_or_none(None if head.result is None else _decode(BLOCK_NUMBER, head.result)) or 0,
    )


def _require_result(call: RpcCall, response: RpcResponse, endpoint: NodeEndpoint) -> object:
    """Return a node's result about itself. Raises CallFailure.

    A refusal, such as that of an invalid API key, does not show that the node is of another chain.
    """
    if response is UNREADABLE:
        raise _unreadable(call.method)
    if response.error is not None:
        error = RpcRefusal(response.error.code, endpoint.scrub(response.error.message))
        raise identity_refused(call.method, error)
    return None if response.result is None else _decode(call.method, response.result)


def _decode(method: str, result: msgspec.Raw) -> object:
    try:
        decoded: object = msgspec.json.decode(result)
    except MALFORMED:  # Escaped text that is not UTF-16.
        raise _unreadable(method) from None
    return decoded


def _unreadable(method: str) -> CallFailure:
    return CallFailure(NodeFailure.BAD_ANSWER, f"{method}: the reply cannot be read")


def _host(endpoint: NodeEndpoint) -> tuple[str | None, int | None]:
    url = endpoint.url("")
    return url.host, url.port
