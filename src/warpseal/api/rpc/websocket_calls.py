"""The calls of a WebSocket client that its node has not answered yet, and the number of its
subscriptions.

Source of truth: geth's `rpc/handler.go`: any namespace may have subscriptions, and a batch may ask
for many. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Struct

from warpseal.forwarding.evm.methods import MethodClass, class_of
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.upstream.jsonrpc import MALFORMED, NULL, RpcCall, decode_id, id_key

SUBSCRIBE: Final = "_subscribe"
_UNSUBSCRIBE: Final = "_unsubscribe"
_EVENT: Final = '"eth_subscription"'
_EVENT_START: Final = 64
_TRUE: Final = b"true"
_NO_ERROR: Final = b"null"

Count = Callable[[MethodClass, str], None]
"""Counts one call and its outcome."""

OnCallEnd = Callable[[str, float, msgspec.Raw], None]
"""Takes the method of an answered call, its time of sending, and its error, else null."""


class _Reply(msgspec.Struct):
    id: Any = None
    result: msgspec.Raw = NULL
    error: msgspec.Raw = NULL


_REPLIES: Final = msgspec.json.Decoder(_Reply | list[_Reply])


class _InFlight(Struct, frozen=True):
    """A call in flight.

    ends_subscription: the id of the subscription that the call ends.
    sent_at: the time that `note_sent` got.
    """

    method: str
    sent_at: float
    method_class: MethodClass
    is_subscribe: bool
    ends_subscription: bytes | None


class WebSocketCalls:
    """The calls of one client. A subscription counts until the node refuses it or confirms its end.

    on_end: called at the end of each call.
    """

    def __init__(
        self, settings: EvmRpcSettings, count: Count, on_end: OnCallEnd | None = None
    ) -> None:
        self._settings = settings
        self._count = count
        self._on_end = on_end
        self._calls: dict[object, list[_InFlight]] = {}
        self._in_flight = 0
        self._subscribing = 0
        self._active: set[bytes] = set()

    def refusal(self, calls: Sequence[RpcCall]) -> str | None:
        """Return why these calls, all or none of them, may not be sent now; None if they may."""
        new = sum(call.method.endswith(SUBSCRIBE) for call in calls)
        if new and len(self._active) + self._subscribing + new > self._settings.max_subscriptions:
            return "too many subscriptions"
        if self._in_flight + len(calls) > self._settings.max_in_flight:
            return "too many calls wait for an answer"
        return None

    def note_sent(self, calls: Iterable[RpcCall], at: float) -> None:
        """Note calls that are sent to the node.

        at: any clock's time.
        """
        for call in calls:
            method_class = class_of(call.method)
            if call.id is None:
                self._count(method_class, "ok")
                continue
            is_subscribe = call.method.endswith(SUBSCRIBE)
            ended = _subscription_id(call) if call.method.endswith(_UNSUBSCRIBE) else None
            in_flight = self._calls.setdefault(decode_id(call.id), [])
            in_flight.append(_InFlight(call.method, at, method_class, is_subscribe, ended))
            self._in_flight += 1
            self._subscribing += is_subscribe

    def note_message(self, text: str) -> None:
        """Note the calls that a message of the node answers."""
        if not self._in_flight or _EVENT in text[:_EVENT_START]:
            return
        try:
            replies = _REPLIES.decode(text)
        except MALFORMED:
            return
        for reply in replies if isinstance(replies, list) else [replies]:
            self._note_reply(reply)

    def end(self) -> list[str]:
        """End all calls. Return the methods of those without a reply."""
        lost = list(chain.from_iterable(self._calls.values()))
        for call in lost:
            self._count(call.method_class, "lost")
        self._calls.clear()
        self._in_flight = 0
        return [call.method for call in lost]

    def _note_reply(self, reply: _Reply) -> None:
        key = id_key(reply.id)
        same_id = self._calls.get(key)
        if not same_id:
            return
        call = same_id.pop(0)
        if not same_id:
            del self._calls[key]
        self._in_flight -= 1
        self._subscribing -= call.is_subscribe
        self._count(call.method_class, "ok")
        if self._on_end is not None:
            self._on_end(call.method, call.sent_at, reply.error)
        if call.is_subscribe and bytes(reply.error) == _NO_ERROR:
            self._active.add(bytes(reply.result))
        elif call.ends_subscription is not None and bytes(reply.result) == _TRUE:
            self._active.discard(call.ends_subscription)


def _subscription_id(call: RpcCall) -> bytes:
    return bytes(call.params or b"[]").strip()[1:-1].strip()
