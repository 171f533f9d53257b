"""JSON-RPC as an EVM chain's `/rpc` speaks it: request bodies, batches and their limits, response bodies; no I/O.

Source of truth: the answers of recorded nodes, and geth's `rpc` package for what was not recorded (-32003).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from warpseal.api.node.json_text import MAX_NESTING, InvalidJson, first_value, kind_of
from warpseal.node.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    RESPONSE_TOO_LARGE,
    VERSION,
    RpcCall,
    RpcError,
    RpcResponse,
    encode_batch_response,
    encode_response,
)

MAX_BODY_BYTES: Final = 5_242_880
MAX_BATCH_CALLS: Final = 1_000
MAX_RESULT_BYTES: Final = 25_000_000
CONTENT_TYPE: Final = "application/json"
ACCEPTED_TYPES: Final = frozenset({"application/json", "application/json-rpc", "application/jsonrequest"})

_EMPTY_BATCH: Final = RpcResponse(error=RpcError(INVALID_REQUEST, "empty batch"))
_BATCH_TOO_LARGE: Final = RpcResponse(error=RpcError(INVALID_REQUEST, "batch too large"))
_NO_JSON: Final = RpcResponse(error=RpcError(PARSE_ERROR, "parse error"))
_TOO_LARGE: Final = RpcResponse(error=RpcError(RESPONSE_TOO_LARGE, "response too large"))
_INVALID: Final = RpcError(INVALID_REQUEST, "invalid request")
_NO_ARRAY: Final = RpcError(INVALID_PARAMS, "non-array args")
_NO_IDS: Final = (b"{", b"[")


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The calls of a body. is_batch: it was an array, so the response is one.

    rejection: the body of the response to a body that has no calls.
    """

    calls: tuple[RpcCall, ...] = ()
    is_batch: bool = False
    rejection: bytes | None = None


class _PlainCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call as nearly all are: names in lower case, and no others."""

    jsonrpc: str
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: str = ""
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_PLAIN: Final = msgspec.json.Decoder(_PlainCall | list[_PlainCall])


def parse_request_body(body: bytes) -> RequestBody:
    """Return the calls of a body, or the rejection of a body without calls. An empty body has neither."""
    plain = _parse_plain(body)
    if plain is not None:
        return plain
    try:
        text = first_value(body)
    except InvalidJson as error:
        return RequestBody() if str(error) == "EOF" else RequestBody(rejection=encode_response(None, _NO_JSON))
    if kind_of(text) != "array":
        call = _parse_call(text)
        return RequestBody((call,) if call is not None else (), False)
    return _parse_batch(msgspec.json.decode(text, type=list[msgspec.Raw]))


def encode_responses(request: RequestBody, responses: Mapping[int, RpcResponse]) -> bytes:
    """Return the body with the responses to these calls, given by position; empty if no call expects a response.

    A call without a response gets the error of its entry. Results of a batch beyond the limit become errors.
    """
    result_bytes = 0
    encoded: list[tuple[msgspec.Raw | None, RpcResponse]] = []
    for position, call in enumerate(request.calls):
        if call.is_notification:
            continue
        response = responses.get(position) or RpcResponse(error=call.error)
        if request.is_batch and result_bytes > MAX_RESULT_BYTES:
            response = _TOO_LARGE
        if response.error is None and response.result is not None:
            result_bytes += memoryview(response.result).nbytes
        encoded.append((call.id, response))
    if not encoded:
        return b""
    return (encode_batch_response(encoded) if request.is_batch else encode_response(*encoded[0])) + b"\n"


def _parse_plain(body: bytes) -> RequestBody | None:
    """Return the calls of a body with nothing unusual in it; None if each part has to be parsed by itself."""
    try:
        decoded = _PLAIN.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(decoded, list):
        call = _plain_call(decoded)
        return None if call is None else RequestBody((call,), False)
    calls = tuple(call for entry in decoded if (call := _plain_call(entry)) is not None)
    return RequestBody(calls, True) if calls and len(calls) == len(decoded) <= MAX_BATCH_CALLS else None


def _plain_call(entry: _PlainCall) -> RpcCall | None:
    call_id, params = entry.id, entry.params
    if entry.jsonrpc != VERSION or not entry.method or (call_id and bytes(call_id).startswith(_NO_IDS)):
        return None
    if params:
        text = bytes(params)
        # Brackets nest no deeper than their number; two more enclose the params.
        if text[:1] != b"[" or text.count(b"[") + text.count(b"{") > MAX_NESTING - 2:
            return None
    return RpcCall(entry.method, params or None, call_id or None, not call_id)


def _parse_batch(texts: Sequence[msgspec.Raw]) -> RequestBody:
    if not texts:
        return RequestBody(rejection=encode_response(None, _EMPTY_BATCH))
    parsed = (_parse_call(bytes(text).lstrip()) for text in texts)
    calls = (call for call in parsed if call is not None)
    if len(texts) > MAX_BATCH_CALLS:
        first_id = next((call.id for call in calls if call.error is None and call.id is not None), None)
        return RequestBody(rejection=encode_batch_response([(first_id, _BATCH_TOO_LARGE)]))
    return RequestBody(tuple(calls), True)


def _parse_call(text: bytes) -> RpcCall | None:
    """Return the call that a JSON value is; None for a response, which is not answered."""
    if kind_of(text) != "object":
        return RpcCall(error=_INVALID)
    fields = {name.lower(): value for name, value in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}
    call_id = _parse_id(fields.get("id"))
    method = _parse_text(fields.get("method"))
    params = fields.get("params")
    if _parse_text(fields.get("jsonrpc")) != VERSION:
        return RpcCall(id=call_id, error=_INVALID)
    if not method:
        is_response = call_id is not None and params is None and ("result" in fields or "error" in fields)
        return None if is_response else RpcCall(id=call_id, error=_INVALID)
    if "id" in fields and call_id is None:
        return RpcCall(method, error=_INVALID)
    is_array = params is None or kind_of(bytes(params).lstrip()) in ("array", "null")
    return RpcCall(method, params, call_id, call_id is None, None if is_array else _NO_ARRAY)


def _parse_id(value: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return an id that a response may carry: any JSON but an object or an array; null is one."""
    if value is None:
        return None
    text = bytes(value).strip()
    return None if text[:1] in _NO_IDS else msgspec.Raw(text)


def _parse_text(value: msgspec.Raw | None) -> str:
    try:
        return msgspec.json.decode(value, type=str) if value is not None else ""
    except msgspec.MsgspecError:
        return ""
