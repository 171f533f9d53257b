"""An EVM chain's `/ws`: one connection to a node for each client, what it says passed on in order and in full.

Source of truth: geth's `rpc/websocket.go`; RFC 6455 for the codes with which a connection ends.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from warpseal.api.errors import Dialect, error_response
from warpseal.api.http_protocol import ABORT
from warpseal.api.node import jsonrpc_geth as b
from warpseal.api.node.evm import Admission, answers_of, error_reply, keyed, over_limit, replies
from warpseal.api.node.send_queue import SendQueue, SharedQueueSize
from warpseal.api.node.text_responses import text_response
from warpseal.api.node.websocket_calls import SUBSCRIBE, WebSocketCalls
from warpseal.errors import RateLimited, WarpsealError
from warpseal.evm_rpc.calls import RpcAnswer
from warpseal.evm_rpc.forwarder import EvmForwarder
from warpseal.evm_rpc.methods import MethodClass
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.evm_rpc.sockets import EvmSockets, NodeSocket, TooManyWebSockets, WebSocketUnavailable

log = logging.getLogger("warpseal.api")

GONE: Final = 1012
TRY_LATER: Final = 1013
REFUSED: Final = 1008
TOO_BIG: Final = 1009
# How long a client may take what waits for it, after its connection to the node has ended.
_LAST_WORD_S: Final = 2.0
_MAX_REASON_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True)
class _Rooms:
    """What all clients of a chain share."""

    forwarder: EvmForwarder
    admission: Admission
    settings: EvmRpcSettings
    waiting: SharedQueueSize


class EvmWebSocketEndpoint:
    """Serves the WebSocket clients of one chain, an ASGI app."""

    def __init__(
        self, forwarder: EvmForwarder, sockets: EvmSockets, admission: Admission, settings: EvmRpcSettings
    ) -> None:
        self._rooms = _Rooms(forwarder, admission, settings, SharedQueueSize())
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await text_response(400, "Bad Request")(scope, receive, send)
            return
        client = WebSocket(scope, receive, send)
        try:
            await self._rooms.admission.admit(Request(keyed(scope)), 1)
        except WarpsealError as error:
            await client.send_denial_response(_refusal(error))
            return
        await client.accept()
        try:
            async with self._sockets.connect() as node:
                await _Pairing(client, node, self._rooms).run()
        except WebSocketUnavailable:
            await _close(client, TRY_LATER, "no node can be reached now")
        except TooManyWebSockets:
            await _close(client, TRY_LATER, "too many clients are connected")


class _Pairing:
    """One client and its connection to a node, until either ends."""

    def __init__(self, client: WebSocket, node: NodeSocket, rooms: _Rooms) -> None:
        self._client = client
        self._node = node
        self._forwarder = rooms.forwarder
        self._admission = rooms.admission
        self._outbox = SendQueue(rooms.settings, rooms.waiting)
        self._calls = WebSocketCalls(rooms.settings, self._count)

    async def run(self) -> None:
        """Pass on what either says. The first of the three that ends, ends all."""
        tasks = [asyncio.create_task(part()) for part in (self._listen, self._read_node, self._write)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._outbox.clear()
            self._calls.end()
        for task in done:
            task.result()
        code, reason = self._outbox.ended or (1000, "")
        log.info("WebSocket ended", extra={"evm_chain": self._forwarder.name, "code": code, "reason": reason})
        await _close(self._client, code, reason)

    async def _listen(self) -> None:
        """Send on what the client says, in its order."""
        while self._outbox.ended is None:
            try:
                message = await self._client.receive()
            except (WebSocketDisconnect, RuntimeError):
                return
            if message["type"] != "websocket.receive":
                return
            given = message.get("text")
            await self._take(given.encode() if given is not None else message.get("bytes") or b"")
        await asyncio.sleep(_LAST_WORD_S)

    async def _take(self, body: bytes) -> None:
        calls = b.parse(body)
        units = len(calls.entries) if isinstance(calls, b.Calls) else 1
        try:
            await self._admission.admit(Request(keyed(self._client.scope)), max(1, units))
        except RateLimited as error:
            self._say(error_reply(calls, b.Fault(b.LIMIT_EXCEEDED, str(error))))
            return
        except WarpsealError as error:  # A key that was taken back, for example.
            self._outbox.end(REFUSED, str(error)[:_MAX_REASON_CHARACTERS])
            return
        if isinstance(calls, b.Refused):
            self._say(calls.body)
            return
        await self._pass(calls)

    async def _pass(self, calls: b.Calls) -> None:
        """Send calls to the client's own node; where one is not for it, all of that batch go the way of HTTP."""
        if any(
            call.fault is not None or not self._forwarder.is_plain(call.method, call.params) for call in calls.entries
        ):
            await self._answer(calls)
            return
        refusal = self._calls.refusal(calls.entries)
        if refusal is not None:
            self._say(error_reply(calls, b.Fault(b.LIMIT_EXCEEDED, refusal)))
            return
        # What nobody learns the id of, nobody can give up.
        asked = [call for call in calls.entries if call.id is not None or not call.method.endswith(SUBSCRIBE)]
        if asked:
            self._calls.note_sent(asked)
            await self._node.send(b.encode(asked, is_batch=calls.is_batch).decode())

    async def _answer(self, calls: b.Calls) -> None:
        answered = await answers_of(self._forwarder, calls)
        self._say(replies(calls, [answered.get(place, RpcAnswer()) for place in range(len(calls.entries))]))

    def _say(self, body: bytes) -> None:
        if body:
            self._outbox.put(body.decode().rstrip("\n"))

    async def _read_node(self) -> None:
        async for text in self._node.messages():
            self._calls.note_message(text)
            if not self._outbox.put(text):
                break
        else:
            self._outbox.end(GONE, "the node's connection ended")
        await asyncio.sleep(_LAST_WORD_S)

    async def _write(self) -> None:
        """Send the client what waits for it."""
        while (text := await self._outbox.get()) is not None:
            try:
                await self._client.send_text(text)
            except (WebSocketDisconnect, RuntimeError, OSError):
                return

    def _count(self, kind: MethodClass, outcome: str) -> None:
        self._forwarder.count(kind, self._node.upstream, outcome)


def _refusal(error: WarpsealError) -> Response:
    """Return what a client is told in place of a WebSocket; browsers show their pages none of it."""
    if isinstance(error, RateLimited):
        return over_limit(b.Calls((), False), error)
    said = error_response(error, Dialect.NODE)
    headers = {name.decode(): value.decode() for name, value in said.headers if name != b"connection"}
    return Response(said.body, said.status, {**headers, "content-type": said.content_type.decode()})


async def _close(client: WebSocket, code: int, reason: str) -> None:
    if client.application_state is not WebSocketState.CONNECTED or client.client_state is not WebSocketState.CONNECTED:
        return
    try:
        async with asyncio.timeout(_LAST_WORD_S):
            await client.close(code, reason)
    except TimeoutError:  # It reads nothing at all.
        client.scope["state"][ABORT]()
    except (RuntimeError, OSError):
        return
