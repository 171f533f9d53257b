"""JSON-RPC 2.0: calls and responses as values, and the bodies that carry them; pure.

Source of truth: the JSON-RPC 2.0 specification; geth's `rpc` package as recorded nodes answered.
Ids, params and results are never decoded: they stay the bytes that came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

VERSION: Final = "2.0"
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
REQUEST_TIMED_OUT: Final = -32002
RESPONSE_TOO_LARGE: Final = -32003
LIMIT_EXCEEDED: Final = -32005
SERVER_ERROR: Final = -32000
METHOD_NOT_SUPPORTED: Final = -32004
"""Of EIP-1474."""
REVERTED: Final = 3

# No known text is longer; searching an endless one would take time that grows with its square.
_MAX_MESSAGE: Final = 1_000
# Texts of avalanchego, of coreth, and of the gateways in front of nodes, which have codes of their
# own. A method whose block is not found is there.
_METHOD_MISSING: Final = re.compile(
    r"rpc: can't find (?:method|service)|"
    r"method\b(?:(?!\b(?:block|header|receipt|transaction|state|trie)).){0,200}?\b(?:"
    r"not (?:found|exist|available|supported|allowed|permitted|enabled|whitelisted)|"
    r"not (?:in|on) (?:the|your|this) \w*list|unsupported|unavailable|disabled|forbidden)|"
    r"(?:unsupported|unknown|unavailable|disabled) method|upgrade your plan",
    re.IGNORECASE | re.DOTALL,
)

NULL: Final = msgspec.Raw(b"null")
_ENCODER: Final = msgspec.json.Encoder()


class RpcError(msgspec.Struct, frozen=True):
    """An error object.

    data: JSON of the error's details; UNSET if it has none.
    """

    code: int = 0
    message: str = ""
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class RpcCall(msgspec.Struct, frozen=True):
    """A call.

    params: JSON array; None if the call has no params.
    id: id that the caller chose; None if the sender of the call numbers it.
    is_notification: true if the caller expects no response.
    error: response to an entry that cannot be forwarded.
    """

    method: str = ""
    params: msgspec.Raw | None = None
    id: msgspec.Raw | None = None
    is_notification: bool = False
    error: RpcError | None = None


class RpcResponse(msgspec.Struct, frozen=True):
    """The result or the error of a call.

    is_derived: true if the daemon computed the result, and no node returned it.
    """

    result: msgspec.Raw | None = None
    error: RpcError | None = None
    is_derived: bool = False


def rpc_call(method: str, *params: Any) -> RpcCall:
    """Return a call with these params, JSON-ready."""
    return RpcCall(method, msgspec.Raw(_ENCODER.encode(params)))


UNREADABLE: Final = RpcResponse(error=RpcError(SERVER_ERROR, "the node's answer cannot be read"))
"""Stands for a response that is missing or malformed."""


def is_method_missing(error: RpcError, method: str) -> bool:
    """Return whether an error says that a node or its gateway does not serve a method."""
    if error.code in (METHOD_NOT_FOUND, METHOD_NOT_SUPPORTED):
        return True
    if error.code == REVERTED:  # The text is the contract's.
        return False
    message = error.message[:_MAX_MESSAGE]
    if method:
        message = message.replace(method, "method")
    return _METHOD_MISSING.search(message) is not None


def is_unknown_method(response: RpcResponse, method: str) -> bool:
    """Return whether the response to a call says that the node has no such method."""
    return response.error is not None and is_method_missing(response.error, method)


class _SentCall(msgspec.Struct):
    jsonrpc: str
    id: Any
    method: str
    params: msgspec.Raw | msgspec.UnsetType


class _SentResponse(msgspec.Struct):
    jsonrpc: str
    id: msgspec.Raw
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: RpcError | msgspec.UnsetType = msgspec.UNSET


class _Received(msgspec.Struct):
    id: Any = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: RpcError | None = None


_SINGLE: Final = msgspec.json.Decoder(_Received)
_BATCH: Final = msgspec.json.Decoder(list[_Received])
RESULT_BODY: Final = "JSON-RPC result"
ERROR_BODY: Final = "JSON-RPC error"
MALFORMED: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""Errors of decoding bytes of another shape; ValueError: text that is not UTF-8."""


def encode_calls(calls: Iterable[RpcCall], *, is_batch: bool) -> bytes:
    """Return a body with these calls and the ids that their caller gave them."""
    entries = [_sent(call, call.id if call.id is not None else msgspec.UNSET) for call in calls]
    return _ENCODER.encode(entries if is_batch else entries[0])


def encode_numbered_calls(calls: Mapping[int, RpcCall]) -> bytes:
    """Return a body with these calls; a single one is no batch. Keys become the ids."""
    entries = [
        _sent(call, msgspec.UNSET if call.is_notification else number)
        for number, call in calls.items()
    ]
    return _ENCODER.encode(entries if len(entries) > 1 else entries[0])


def decode_responses(body: bytes, numbers: Sequence[int]) -> dict[int, RpcResponse]:
    """Return the response to each of these ids; UNREADABLE if it is missing or malformed.

    A single object in place of a list answers all calls.
    """
    try:
        if body.lstrip()[:1] == b"[":
            # A node may answer with an id that is no number, for example null.
            by_number = {entry.id: entry for entry in _BATCH.decode(body) if type(entry.id) is int}
            return {number: _response(by_number.get(number)) for number in numbers}
        response = _response(_SINGLE.decode(body))
    except MALFORMED:
        response = UNREADABLE
    if len(numbers) > 1 and response.error is None:
        response = UNREADABLE
    return dict.fromkeys(numbers, response)


def describe_body(body: bytes) -> str:
    """Return the kind of a body, without any part of it."""
    if not body.strip():
        return "an empty body"
    if body.lstrip()[:1] == b"<":
        return "HTML"
    try:
        decoded: Any = msgspec.json.decode(body)
    except MALFORMED:
        return "text"
    if isinstance(decoded, dict) and decoded.get("error") is not None:
        return ERROR_BODY
    return RESULT_BODY if isinstance(decoded, dict) and "result" in decoded else "JSON"


def decode_result(body: bytes) -> msgspec.Raw | None:
    """Return the result in the body of a single response; None if there is none."""
    try:
        result = _SINGLE.decode(body).result
    except MALFORMED:
        return None
    return None if isinstance(result, msgspec.UnsetType) else result


def decode_id(call_id: msgspec.Raw | None) -> object:
    """Return an id as a key, equal however it is written; None without an id.

    The key of an id that cannot be read is its bytes.
    """
    if call_id is None:
        return None
    try:
        decoded = msgspec.json.decode(call_id)
    except MALFORMED:  # A number out of range, text that is not UTF-8.
        return bytes(call_id)
    return id_key(decoded)


def id_key(call_id: object) -> object:
    """Return the key of a decoded id; None if the value is no id."""
    return call_id if isinstance(call_id, str | int | float) else None


def encode_response(call_id: msgspec.Raw | None, response: RpcResponse) -> bytes:
    """Return one response object, without a line end."""
    return _ENCODER.encode(_sent_response(call_id, response))


def encode_batch_response(responses: Iterable[tuple[msgspec.Raw | None, RpcResponse]]) -> bytes:
    """Return a list of response objects, given by id, without a line end."""
    return _ENCODER.encode([_sent_response(call_id, response) for call_id, response in responses])


def _sent(call: RpcCall, call_id: object) -> _SentCall:
    params = call.params if call.params is not None else msgspec.UNSET
    return _SentCall(VERSION, call_id, call.method, params)


def _sent_response(call_id: msgspec.Raw | None, response: RpcResponse) -> _SentResponse:
    if call_id is None:
        call_id = NULL
    if response.error is not None:
        return _SentResponse(VERSION, call_id, error=response.error)
    result = response.result if response.result is not None else NULL
    return _SentResponse(VERSION, call_id, result)


def _response(entry: _Received | None) -> RpcResponse:
    if entry is None:
        return UNREADABLE
    error = entry.error
    if error is not None:
        if isinstance(error.data, msgspec.Raw) and bytes(error.data) == b"null":
            error = RpcError(error.code, error.message)
        return RpcResponse(error=error)
    return UNREADABLE if isinstance(entry.result, msgspec.UnsetType) else RpcResponse(entry.result)
