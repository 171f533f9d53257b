"""An EVM chain's `/ws`: one connection to a node for each client, what it says passed on in order and in full.

Source of truth: geth's `rpc/websocket.go`; RFC 6455 for the codes with which a connection ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from warpseal.api.http.ext import dialect_b as b
from warpseal.api.http.ext.evm import Admission, answers_of, as_rpc_call, keyed, limit_reply, replies
from warpseal.api.http.ext.plain import told
from warpseal.errors import RateLimited, WarpsealError
from warpseal.forwarding.calls import RpcAnswer, RpcCall, RpcError
from warpseal.forwarding.forwarder import EvmForwarder
from warpseal.forwarding.methods import SUBNET_EVM
from warpseal.forwarding.settings import ForwardingSettings
from warpseal.forwarding.sockets import EvmSockets, NodeSocket, NoSocket, TooManySockets

GONE: Final = 1012
TRY_LATER: Final = 1013
TOO_SLOW: Final = 1008
TOO_BIG: Final = 1009
_SUBSCRIBE: Final = "eth_subscribe"
_UNSUBSCRIBE: Final = "eth_unsubscribe"
_TOO_MANY: Final = RpcError(b.LIMIT_EXCEEDED, "too many subscriptions")
_SMALL_BYTES: Final = 4_096
# How long a client that reads may take what waits for it, after its connection to the node has ended.
_LAST_WORD_S: Final = 2.0


class EvmSocketDoor:
    """Serves the WebSocket clients of one chain, an ASGI app."""

    def __init__(
        self, forwarder: EvmForwarder, sockets: EvmSockets, admission: Admission, settings: ForwardingSettings
    ) -> None:
        self._forwarder = forwarder
        self._sockets = sockets
        self._admission = admission
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await told(400, "Bad Request")(scope, receive, send)
            return
        client = WebSocket(scope, receive, send)
        try:
            await self._admission.admit(Request(keyed(scope)), 1)
        except WarpsealError:
            await client.close()
            return
        await client.accept()
        try:
            async with self._sockets.connect() as node:
                await _Pairing(client, node, self._forwarder, self._admission, self._settings).run()
        except (NoSocket, TooManySockets):
            await _close(client, TRY_LATER, "no node can be reached now")


class _Pairing:
    """One client and its connection to a node, until either ends."""

    def __init__(
        self,
        client: WebSocket,
        node: NodeSocket,
        forwarder: EvmForwarder,
        admission: Admission,
        settings: ForwardingSettings,
    ) -> None:
        self._client = client
        self._node = node
        self._forwarder = forwarder
        self._admission = admission
        self._settings = settings
        self._queue = _Queue(settings)
        self._subscriptions = _Subscriptions(settings.max_subscriptions)

    async def run(self) -> None:
        """Pass on what either says. The first of the three that ends, ends all."""
        tasks = [asyncio.create_task(part()) for part in (self._listen, self._read_node, self._write)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
        code, reason = self._queue.ended or (1000, "")
        await _close(self._client, code, reason)

    async def _listen(self) -> None:
        """Send on what the client says, in its order."""
        while True:
            try:
                message = await self._client.receive()
            except (WebSocketDisconnect, RuntimeError):
                return
            if message["type"] != "websocket.receive":
                return
            given = message.get("text")
            body = given.encode() if given is not None else message.get("bytes") or b""
            if len(body) > self._settings.max_message_bytes:
                self._queue.ended = (TOO_BIG, "message too big")
                return
            await self._take(body)

    async def _take(self, body: bytes) -> None:
        calls = b.parse(body)
        try:
            units = len(calls.entries) if isinstance(calls, b.Calls) else 1
            await self._admission.admit(Request(keyed(self._client.scope)), max(1, units))
        except RateLimited as error:
            self._queue.put(limit_reply(calls, error).decode())
            return
        if isinstance(calls, b.Refused):
            self._queue.put(calls.body.decode())
            return
        await self._pass(calls)

    async def _pass(self, calls: b.Calls) -> None:
        """Send calls to the client's own node; where one is not for it, all of that batch go the way of HTTP."""
        asked: list[b.Call] = []
        for call in calls.entries:
            plain = self._forwarder.at_once(as_rpc_call(call)) if call.fault is None else None
            if not isinstance(plain, RpcCall) or call.method in SUBNET_EVM:
                await self._answer(calls)
                return
            if call.method == _SUBSCRIBE and not self._subscriptions.has_room:
                self._queue.put(replies(calls, [RpcAnswer(error=_TOO_MANY)] * len(calls.entries)).decode())
                return
            asked.append(call)
        for call in asked:
            self._subscriptions.note_call(call)
        if asked:
            await self._node.send(b.encode(asked, is_batch=calls.is_batch).decode())

    async def _answer(self, calls: b.Calls) -> None:
        answered = await answers_of(self._forwarder, calls)
        everyone = [answered.get(place, RpcAnswer()) for place in range(len(calls.entries))]
        body = replies(calls, everyone)
        if body:
            self._queue.put(body.decode().rstrip("\n"))

    async def _read_node(self) -> None:
        async for text in self._node.messages():
            self._subscriptions.note_message(text)
            if not self._queue.put(text):
                break
        else:
            self._queue.end(GONE, "the node's connection ended")
        await asyncio.sleep(_LAST_WORD_S)

    async def _write(self) -> None:
        """Send the client what waits for it, and then how it ended, where it did."""
        while (text := await self._queue.get()) is not None:
            try:
                await self._client.send_text(text)
            except (WebSocketDisconnect, RuntimeError):
                return
            except OSError:
                return


class _Queue:
    """Messages for a client, bounded; one that reads too slowly loses its connection, never a message unseen.

    ended: the code and reason with which the connection closes.
    """

    def __init__(self, settings: ForwardingSettings) -> None:
        self.ended: tuple[int, str] | None = None
        self._settings = settings
        self._messages: deque[str] = deque()
        self._waiting_bytes = 0
        self._changed = asyncio.Event()

    def put(self, text: str) -> bool:
        """Add a message. Returns False where there is no room: the connection ends now, with what waits."""
        is_full = len(self._messages) >= self._settings.max_queued
        if is_full or self._waiting_bytes + len(text) > self._settings.max_queued_bytes:
            self._messages.clear()
            self.end(TOO_SLOW, "messages are not read as fast as they come")
            return False
        self._messages.append(text)
        self._waiting_bytes += len(text)
        self._changed.set()
        return True

    def end(self, code: int, reason: str) -> None:
        """Say that nothing follows what waits."""
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
        self._waiting_bytes -= len(text)
        return text


class _Reply(msgspec.Struct):
    id: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    result: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    error: msgspec.Raw | None = None


class _Subscriptions:
    """How many subscriptions a client has: what it asked for counts until the node refuses it or it is given up."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active: set[bytes] = set()
        self._asked: dict[bytes, bytes | None] = {}

    @property
    def has_room(self) -> bool:
        """Whether one more may be asked for."""
        waiting = sum(given_up is None for given_up in self._asked.values())
        return len(self._active) + waiting < self._limit and len(self._asked) < 2 * self._limit

    def note_call(self, call: b.Call) -> None:
        """Note a call that goes to the node."""
        if call.id is None or call.method not in (_SUBSCRIBE, _UNSUBSCRIBE):
            return
        params = bytes(call.params or b"[]").strip()[1:-1].strip()
        self._asked[bytes(call.id)] = None if call.method == _SUBSCRIBE else params

    def note_message(self, text: str) -> None:
        """Note what a node said, where it may be the answer to such a call."""
        if not self._asked or len(text) > _SMALL_BYTES:
            return
        try:
            reply = msgspec.json.decode(text, type=_Reply)
        except msgspec.MsgspecError:
            return
        number = bytes(reply.id)
        if number not in self._asked:
            return
        given_up = self._asked.pop(number)
        if given_up is not None:
            self._active.discard(given_up)
        elif reply.error is None:
            self._active.add(bytes(reply.result))


async def _close(client: WebSocket, code: int, reason: str) -> None:
    if client.application_state is not WebSocketState.CONNECTED or client.client_state is not WebSocketState.CONNECTED:
        return
    try:
        await client.close(code, reason)
    except (RuntimeError, OSError):
        return
