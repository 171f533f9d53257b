"""What a WebSocket client has asked its node and was not answered yet, and how many subscriptions it has.

Source of truth: geth's `rpc/handler.go`: any namespace may have subscriptions, and a batch may ask for many. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from warpseal.api.node import jsonrpc_geth as b
from warpseal.evm_rpc.methods import MethodClass, class_of
from warpseal.evm_rpc.settings import EvmRpcSettings

SUBSCRIBE: Final = "_subscribe"
_UNSUBSCRIBE: Final = "_unsubscribe"
_EVENT: Final = '"eth_subscription"'
_EVENT_START: Final = 64
_TRUE: Final = b"true"

Count = Callable[[MethodClass, str], None]
"""Notes one call and what became of it."""


class _Reply(msgspec.Struct):
    id: Any = None
    result: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    error: msgspec.Raw | None = None


_REPLIES: Final = msgspec.json.Decoder(_Reply | list[_Reply])


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that is under way. given_up: the subscription that it ends."""

    kind: MethodClass
    subscribes: bool
    given_up: bytes | None


class WebSocketCalls:
    """The calls of one client. What it subscribed to counts until the node refuses it or confirms its end."""

    def __init__(self, settings: EvmRpcSettings, count: Count) -> None:
        self._settings = settings
        self._count = count
        self._asked: dict[object, list[_Asked]] = {}
        self._under_way = 0
        self._subscribing = 0
        self._active: set[bytes] = set()

    def refusal(self, calls: Sequence[b.Call]) -> str | None:
        """Return why these calls may not be asked now, all or none of them; None: they may."""
        wanted = sum(call.method.endswith(SUBSCRIBE) for call in calls)
        if wanted and len(self._active) + self._subscribing + wanted > self._settings.max_subscriptions:
            return "too many subscriptions"
        if self._under_way + len(calls) > self._settings.max_in_flight:
            return "too many calls wait for an answer"
        return None

    def note_sent(self, calls: Iterable[b.Call]) -> None:
        """Note calls that go to the node."""
        for call in calls:
            kind = class_of(call.method)
            if call.id is None:
                self._count(kind, "ok")
                continue
            subscribes = call.method.endswith(SUBSCRIBE)
            asked = _Asked(kind, subscribes, _subscription(call) if call.method.endswith(_UNSUBSCRIBE) else None)
            self._asked.setdefault(_key(msgspec.json.decode(call.id)), []).append(asked)
            self._under_way += 1
            self._subscribing += subscribes

    def note_message(self, text: str) -> None:
        """Note what a node said, where it may answer calls."""
        if not self._under_way or _EVENT in text[:_EVENT_START]:
            return
        try:
            replies = _REPLIES.decode(text)
        except msgspec.MsgspecError:
            return
        for reply in replies if isinstance(replies, list) else [replies]:
            self._note_reply(reply)

    def end(self) -> None:
        """Note that no more answers come."""
        for asked in self._asked.values():
            for one in asked:
                self._count(one.kind, "lost")
        self._asked.clear()
        self._under_way = 0

    def _note_reply(self, reply: _Reply) -> None:
        key = _key(reply.id)
        waiting = self._asked.get(key)
        if not waiting:
            return
        asked = waiting.pop(0)
        if not waiting:
            del self._asked[key]
        self._under_way -= 1
        self._subscribing -= asked.subscribes
        self._count(asked.kind, "ok")
        if asked.subscribes and reply.error is None:
            self._active.add(bytes(reply.result))
        elif asked.given_up is not None and bytes(reply.result) == _TRUE:
            self._active.discard(asked.given_up)


def _key(call_id: Any) -> object:
    """Return an id by which a reply is found, however a node writes it. No id is true or false."""
    return call_id if isinstance(call_id, str | int | float) else None


def _subscription(call: b.Call) -> bytes:
    return bytes(call.params or b"[]").strip()[1:-1].strip()
