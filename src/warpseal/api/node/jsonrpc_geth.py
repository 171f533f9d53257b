"""JSON-RPC as an EVM chain's `/rpc` speaks it: calls, batches and their limits, replies; no I/O.

Source of truth: what recorded nodes answered, and geth's `rpc` package where nothing was recorded (-32003). Ids,
params and results are never decoded: they pass as the bytes that came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from warpseal.api.node.json_text import MAX_NESTING, InvalidJson, first_value, kind_of

VERSION: Final = "2.0"
MAX_BODY_BYTES: Final = 5_242_880
MAX_BATCH_CALLS: Final = 1_000
MAX_RESULT_BYTES: Final = 25_000_000
CONTENT_TYPE: Final = "application/json"
ACCEPTED_TYPES: Final = frozenset({"application/json", "application/json-rpc", "application/jsonrequest"})
WRONG_TYPE: Final = "invalid content type, only application/json is supported"
WRONG_METHOD: Final = "method not allowed"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_TIMED_OUT: Final = -32002
RESPONSE_TOO_LARGE: Final = -32003
LIMIT_EXCEEDED: Final = -32005
SERVER_ERROR: Final = -32000

_NULL: Final = msgspec.Raw(b"null")
_NO_IDS: Final = (b"{", b"[")
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Fault:
    """An error object. data: JSON, left out where there is none."""

    code: int
    message: str
    data: msgspec.Raw | None = None


EMPTY_BATCH: Final = Fault(INVALID_REQUEST, "empty batch")
BATCH_TOO_LARGE: Final = Fault(INVALID_REQUEST, "batch too large")
INVALID: Final = Fault(INVALID_REQUEST, "invalid request")
NO_JSON: Final = Fault(PARSE_ERROR, "parse error")
NO_ARRAY: Final = Fault(INVALID_PARAMS, "non-array args")
TOO_LARGE: Final = Fault(RESPONSE_TOO_LARGE, "response too large")
TIMED_OUT: Final = Fault(REQUEST_TIMED_OUT, "request timed out")


class Call(msgspec.Struct, frozen=True):
    """One entry. id, params: JSON as it came; id None: a notification, where it is a call at all.

    fault: why it is answered without a node.
    """

    id: msgspec.Raw | None
    method: str = ""
    params: msgspec.Raw | None = None
    fault: Fault | None = None

    @property
    def is_notification(self) -> bool:
        """Whether it is done, but not answered."""
        return self.id is None and self.fault is not INVALID


@dataclass(frozen=True, slots=True)
class Calls:
    """A body that was understood. is_batch: it was an array, so the answer is one."""

    entries: tuple[Call, ...]
    is_batch: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A body that is answered at once, with these bytes."""

    body: bytes


class _Sent(msgspec.Struct, forbid_unknown_fields=True):
    """A call as nearly all are: names in lower case, and no others."""

    jsonrpc: str
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: str = ""
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Error(msgspec.Struct):
    code: int
    message: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Reply(msgspec.Struct):
    jsonrpc: str
    id: msgspec.Raw
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: _Error | msgspec.UnsetType = msgspec.UNSET


_SENT: Final = msgspec.json.Decoder(_Sent | list[_Sent])


def parse(body: bytes) -> Calls | Refused:
    """Return the calls of a body, or the answer to one that is none. An empty body has no calls."""
    plain = _plain(body)
    if plain is not None:
        return plain
    try:
        text = first_value(body)
    except InvalidJson as error:
        return Calls((), False) if str(error) == "EOF" else Refused(reply(_NULL, fault=NO_JSON))
    if kind_of(text) != "array":
        entry = _entry(text)
        return Calls((entry,) if entry is not None else (), False)
    return _batch(msgspec.json.decode(text, type=list[msgspec.Raw]))


def reply(call_id: msgspec.Raw | None, result: msgspec.Raw | None = None, fault: Fault | None = None) -> bytes:
    """Return one reply object, without a line end. Exactly one of result and fault is given."""
    return _ENCODER.encode(_reply(call_id, result, fault))


class Replies:
    """The replies to the calls of one body, in the order of the calls; results are counted against the limit."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._replies: dict[int, _Reply] = {}
        self._result_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the results so far are more than one batch may have: calls not yet made are not made any more."""
        return self._calls.is_batch and self._result_bytes > MAX_RESULT_BYTES

    def add(self, position: int, result: msgspec.Raw | None = None, fault: Fault | None = None) -> None:
        """Note what became of the call at a position; of a notification nothing is kept."""
        call = self._calls.entries[position]
        if call.is_notification:
            return
        if self.is_full:
            result, fault = None, TOO_LARGE
        if result is not None:
            self._result_bytes += memoryview(result).nbytes
        self._replies[position] = _reply(call.id, result, fault)

    def body(self) -> bytes:
        """Return the body of the answer; calls without a reply did not fit. Empty where nobody is answered."""
        for position, call in enumerate(self._calls.entries):
            if position not in self._replies and not call.is_notification:
                self._replies[position] = _reply(call.id, None, call.fault or TOO_LARGE)
        replies = [self._replies[position] for position in sorted(self._replies)]
        if not replies:
            return b""
        return _ENCODER.encode(replies if self._calls.is_batch else replies[0]) + b"\n"


def encode(calls: Iterable[Call], *, is_batch: bool) -> bytes:
    """Return a body with these calls, as a node is sent it."""
    sent = [_Sent(VERSION, _or_unset(call.id), call.method, _or_unset(call.params)) for call in calls]
    return _ENCODER.encode(sent if is_batch else sent[0])


def too_long(declared_bytes: int) -> str:
    """Return what a body that is too long is told, with status 413."""
    return f"content length too large ({declared_bytes}>{MAX_BODY_BYTES})"


def is_accepted_type(content_type: str) -> bool:
    """Tell whether a Content-Type header is one of JSON."""
    return content_type.partition(";")[0].strip().lower() in ACCEPTED_TYPES


def no_such_method(method: str) -> Fault:
    """Return what a call of a method that is denied or unknown is answered."""
    return Fault(METHOD_NOT_FOUND, f"the method {method[:256]} does not exist/is not available")


def _plain(body: bytes) -> Calls | None:
    """Return the calls of a body that has nothing unusual; None where each part has to be looked at."""
    try:
        sent = _SENT.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(sent, list):
        call = _plain_call(sent)
        return None if call is None else Calls((call,), False)
    calls = tuple(call for one in sent if (call := _plain_call(one)) is not None)
    return Calls(calls, True) if calls and len(calls) == len(sent) <= MAX_BATCH_CALLS else None


def _plain_call(sent: _Sent) -> Call | None:
    call_id, params = sent.id, sent.params
    if sent.jsonrpc != VERSION or not sent.method or (call_id and bytes(call_id).startswith(_NO_IDS)):
        return None
    if params:
        text = bytes(params)
        # No deeper than it has brackets; two more are around it.
        if text[:1] != b"[" or text.count(b"[") + text.count(b"{") > MAX_NESTING - 2:
            return None
    return Call(call_id or None, sent.method, params or None)


def _or_unset(value: msgspec.Raw | None) -> msgspec.Raw | msgspec.UnsetType:
    return msgspec.UNSET if value is None else value


def _reply(call_id: msgspec.Raw | None, result: msgspec.Raw | None, fault: Fault | None) -> _Reply:
    number = call_id if call_id is not None else _NULL
    if fault is None:
        return _Reply(VERSION, number, result if result is not None else _NULL)
    return _Reply(VERSION, number, error=_Error(fault.code, fault.message, _or_unset(fault.data)))


def _batch(texts: Sequence[msgspec.Raw]) -> Calls | Refused:
    if not texts:
        return Refused(reply(_NULL, fault=EMPTY_BATCH))
    if len(texts) > MAX_BATCH_CALLS:
        entries = (_entry(bytes(text).lstrip()) for text in texts)
        first = next((one.id for one in entries if one is not None and one.fault is None and one.id is not None), None)
        return Refused(b"[" + reply(first, fault=BATCH_TOO_LARGE) + b"]")
    found = (_entry(bytes(text).lstrip()) for text in texts)
    return Calls(tuple(entry for entry in found if entry is not None), True)


def _entry(text: bytes) -> Call | None:
    """Return the call that a JSON value is; None: a reply, which nobody answers."""
    if kind_of(text) != "object":
        return Call(None, fault=INVALID)
    fields = {name.lower(): value for name, value in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}
    call_id = _scalar(fields.get("id"))
    method = _text(fields.get("method"))
    params = fields.get("params")
    if _text(fields.get("jsonrpc")) != VERSION:
        return Call(call_id, fault=INVALID)
    if not method:
        is_reply = call_id is not None and params is None and ("result" in fields or "error" in fields)
        return None if is_reply else Call(call_id, fault=INVALID)
    if "id" in fields and call_id is None:
        return Call(None, method, fault=INVALID)
    return Call(call_id, method, params, _wrong_params(params))


def _wrong_params(params: msgspec.Raw | None) -> Fault | None:
    if params is None:
        return None
    return None if kind_of(bytes(params).lstrip()) in ("array", "null") else NO_ARRAY


def _scalar(value: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return an id that may be answered: any JSON but an object or an array; null is one, too."""
    if value is None:
        return None
    text = bytes(value).strip()
    return None if text[:1] in _NO_IDS else msgspec.Raw(text)


def _text(value: msgspec.Raw | None) -> str:
    try:
        return msgspec.json.decode(value, type=str) if value is not None else ""
    except msgspec.MsgspecError:
        return ""
