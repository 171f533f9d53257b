"""An EVM chain's `/ws`: one connection to a node for each client; its messages are passed on in
order and in full.

Source of truth: geth's `rpc/websocket.go`; RFC 6455 for the codes with which a connection ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import perf_counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from warpseal.api.http.clients import client_network
from warpseal.api.http.error_response import Dialect, error_response
from warpseal.api.http.errors import RateLimited
from warpseal.api.http.http_protocol import ABORT
from warpseal.api.http.middleware import client_address
from warpseal.api.http.request_body import SMALL_BYTES, parse_body
from warpseal.api.http.responses import text_response
from warpseal.api.rpc.admission import Admission, CountUnits, scope_for_admission
from warpseal.api.rpc.evm import encode_error_for_all, forward_calls, rate_limit_response
from warpseal.api.rpc.jsonrpc_geth import (
    RequestBody,
    count_entries,
    encode_responses,
    parse_request_body,
)
from warpseal.api.rpc.metering import WEBSOCKET, MeteredRequest, RouteMeter, SocketMeter
from warpseal.api.rpc.websocket_calls import SUBSCRIBE, WebSocketCalls
from warpseal.errors import WarpsealError
from warpseal.forwarding.evm.forwarder import EvmForwarder
from warpseal.forwarding.evm.methods import MethodClass
from warpseal.forwarding.evm.sockets import EvmSockets, NodeSocket, WebSocketUnavailable
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.upstream.jsonrpc import LIMIT_EXCEEDED, RpcCall, RpcError, RpcResponse, encode_calls
from warpseal.usage.classify import NOT_JSON_RPC

log = logging.getLogger("warpseal.api")

GONE: Final = 1012
TRY_LATER: Final = 1013
REFUSED: Final = 1008
TOO_SLOW: Final = 1008
# How long a client may read queued messages after its connection to the node has ended.
_DRAIN_S: Final = 2.0
_MAX_REASON_CHARACTERS: Final = 100
# The code with which uvicorn ends connections when it stops.
_SERVER_STOPS: Final = 1012


class EvmWebSocketEndpoint:
    """Serves the WebSocket clients of one chain, an ASGI app."""

    def __init__(
        self,
        forwarder: EvmForwarder,
        sockets: EvmSockets,
        admission: Admission,
        settings: EvmRpcSettings,
        count_units: CountUnits = count_entries,
        meter: RouteMeter | None = None,
    ) -> None:
        self.forwarder = forwarder
        self.admission = admission
        self.count_units = count_units
        self.settings = settings
        self.meter = meter
        self.queued_bytes = 0
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await MeteredRequest(self.meter, scope).respond(
                text_response(400, "Bad Request"), receive, send
            )
            return
        client = WebSocket(scope, receive, send)
        try:
            await self.admission.admit(Request(scope_for_admission(scope)), 1)
        except WarpsealError as error:
            denial = _denial(error)
            SocketMeter(self.meter, scope).record_refused_handshake(denial.status_code)
            await client.send_denial_response(denial)
            return
        await client.accept()
        try:
            async with self._sockets.connect(client_network(client_address(scope))[0]) as node:
                await _ProxySession(client, node, self).run()
        except WebSocketUnavailable as error:
            SocketMeter(self.meter, scope).record_refused_handshake(WEBSOCKET)
            await _close(client, TRY_LATER, str(error))


class _ProxySession:
    """One client and its connection to a node, until either ends."""

    def __init__(self, client: WebSocket, node: NodeSocket, endpoint: EvmWebSocketEndpoint) -> None:
        self._client = client
        self._node = node
        self._forwarder = endpoint.forwarder
        self._admission = endpoint.admission
        self._count_units = endpoint.count_units
        self._queue = SendQueue(endpoint)
        self._meter = SocketMeter(endpoint.meter, client.scope)
        self._calls = WebSocketCalls(endpoint.settings, self._count, self._meter.record_reply)
        self._has_client_left = False

    async def run(self) -> None:
        """Pass messages on in both directions. The first of the three tasks that ends, ends all."""
        tasks = [
            asyncio.create_task(loop())
            for loop in (self._read_client, self._read_node, self._write_client)
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._queue.clear()
            self._meter.record_lost(self._calls.end(), has_client_left=self._has_client_left)
        for task in done:
            task.result()
        code, reason = self._queue.ended or (1000, "")
        log.info(
            "WebSocket ended",
            extra={"evm_chain": self._forwarder.name, "code": code, "reason": reason},
        )
        await _close(self._client, code, reason)

    async def _read_client(self) -> None:
        """Handle the messages of the client, in their order."""
        while self._queue.ended is None:
            try:
                message = await self._client.receive()
            except (WebSocketDisconnect, RuntimeError):
                self._has_client_left = True
                return
            if message["type"] != "websocket.receive":
                self._has_client_left = message.get("code") != _SERVER_STOPS
                return
            text = message.get("text")
            if text is None:
                # Go's decoder also puts replacement characters into text that is not UTF-8.
                text = (message.get("bytes") or b"").decode(errors="replace")
            await self._handle(text.encode())
            # While there are messages, neither `receive` nor `_handle` need suspend.
            await asyncio.sleep(0)
        await asyncio.sleep(_DRAIN_S)

    async def _handle(self, body: bytes) -> None:
        read_at = perf_counter()
        caller = Request(scope_for_admission(self._client.scope))
        try:
            if len(body) > SMALL_BYTES:
                await self._admission.check(caller)
            await self._admission.admit(caller, await parse_body(self._count_units, body))
        except WarpsealError as error:
            # A message that is not small is not parsed, and counts as one call.
            refused = parse_request_body(body) if len(body) <= SMALL_BYTES else RequestBody()
            self._meter.record_refused(refused.calls, 1, read_at)
            if isinstance(error, RateLimited):
                self._send(encode_error_for_all(refused, RpcError(LIMIT_EXCEEDED, str(error))))
            else:
                # For example, the key was revoked.
                self._queue.end(REFUSED, str(error)[:_MAX_REASON_CHARACTERS])
            return
        request = await parse_body(parse_request_body, body)
        if not request.calls:
            if not request.is_response:
                self._meter.record_call("", NOT_JSON_RPC, read_at)
            self._send(request.rejection or b"")
            return
        await self._forward(request, read_at)

    async def _forward(self, request: RequestBody, read_at: float) -> None:
        """Send calls to the client's own node, or by HTTP if one of them must not go there."""
        calls = request.calls
        if not all(map(self._is_for_own_node, calls)):
            await self._forward_by_http(request, read_at)
            return
        refusal = self._calls.refusal(calls)
        if refusal is not None:
            error = RpcError(LIMIT_EXCEEDED, refusal)
            responses = dict.fromkeys(range(len(calls)), RpcResponse(error=error))
            self._meter.record_responses(calls, responses, read_at)
            self._send(encode_error_for_all(request, error))
            return
        # A client never learns the id of a subscription that it asks for in a notification, and so
        # cannot end it.
        passed = [
            call for call in calls if call.id is not None or not call.method.endswith(SUBSCRIBE)
        ]
        self._meter.record_notifications(calls)
        if passed:
            self._calls.note_sent(passed, read_at)
            await self._node.send(encode_calls(passed, is_batch=request.is_batch).decode())

    def _is_for_own_node(self, call: RpcCall) -> bool:
        return call.error is None and self._forwarder.is_plain(call.method, call.params)

    async def _forward_by_http(self, request: RequestBody, read_at: float) -> None:
        try:
            responses = await forward_calls(self._forwarder, request)
        except asyncio.CancelledError:
            methods = [call.method for call in request.calls]
            self._meter.record_lost(methods, has_client_left=self._has_client_left)
            raise
        self._meter.record_responses(request.calls, responses, read_at)
        self._send(encode_responses(request, responses))

    def _send(self, body: bytes) -> None:
        if body:
            self._queue.put(body.decode().rstrip("\n"))

    async def _read_node(self) -> None:
        async for text in self._node.messages():
            self._calls.note_message(text)
            if not self._queue.put(text):
                break
        else:
            self._queue.end(GONE, "the node's connection ended")
        await asyncio.sleep(_DRAIN_S)

    async def _write_client(self) -> None:
        """Send the queued messages to the client."""
        while (text := await self._queue.get()) is not None:
            try:
                await self._client.send_text(text)
            except (WebSocketDisconnect, RuntimeError, OSError):
                return

    def _count(self, kind: MethodClass, outcome: str) -> None:
        self._forwarder.count(kind, self._node.upstream, outcome)


def _denial(error: WarpsealError) -> Response:
    """Return the response in place of a WebSocket; browsers do not show it to their pages."""
    if isinstance(error, RateLimited):
        return rate_limit_response(None, error)
    return error_response(error, Dialect.NODE)


async def _close(client: WebSocket, code: int, reason: str) -> None:
    if (
        client.application_state is not WebSocketState.CONNECTED
        or client.client_state is not WebSocketState.CONNECTED
    ):
        return
    try:
        async with asyncio.timeout(_DRAIN_S):
            await client.close(code, reason)
    except TimeoutError:
        # The client does not read at all.
        client.scope["state"][ABORT]()
    except (RuntimeError, OSError):
        return


class SendQueue:
    """Messages for one client.

    A client that reads too slowly loses the connection; no message is ever skipped.

    ended: the code and reason with which the connection closes. The endpoint counts the queued
    bytes of all clients.
    """

    def __init__(self, endpoint: EvmWebSocketEndpoint) -> None:
        self.ended: tuple[int, str] | None = None
        self._endpoint = endpoint
        self._messages: deque[str] = deque()
        self._size_bytes = 0
        self._changed = asyncio.Event()

    def put(self, text: str) -> bool:
        """Add a message.

        Return False if the queue is full: the connection then ends without the queued messages.
        """
        if self.ended is not None:
            return False
        if not self._has_room(len(text)):
            self.clear()
            self.end(TOO_SLOW, "messages are not read as fast as they come")
            return False
        self._messages.append(text)
        self._add_bytes(len(text))
        self._changed.set()
        return True

    def end(self, code: int, reason: str) -> None:
        """Close the connection after the queued messages."""
        self.ended = self.ended or (code, reason)
        self._changed.set()

    async def get(self) -> str | None:
        """Return the next message; None at the end."""
        while not self._messages:
            if self.ended is not None:
                return None
            self._changed.clear()
            await self._changed.wait()
        text = self._messages.popleft()
        self._add_bytes(-len(text))
        return text

    def clear(self) -> None:
        """Drop the queued messages."""
        self._messages.clear()
        self._add_bytes(-self._size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        settings = self._endpoint.settings
        if len(self._messages) >= settings.max_queued:
            return False
        if self._size_bytes + size_bytes > settings.max_queued_bytes:
            return False
        # An empty queue takes a message even if other clients have used all the memory.
        total_bytes = self._endpoint.queued_bytes + size_bytes
        return not self._messages or total_bytes <= settings.max_total_queued_bytes

    def _add_bytes(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self._endpoint.queued_bytes += size_bytes
