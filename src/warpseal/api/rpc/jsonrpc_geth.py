"""JSON-RPC as an EVM chain's `/rpc` speaks it: request bodies, batches and their limits, response
bodies; no I/O.

Source of truth: the replies of recorded nodes, and geth's `rpc` package for what was not recorded
(-32003).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from warpseal.api.http.json_text import (
    BLANK,
    MAX_NESTING,
    InvalidJson,
    as_utf8,
    count_brackets,
    end_of_first_value,
    first_value,
    kind_of,
)
from warpseal.api.http.request_body import LARGE_BYTES
from warpseal.upstream.jsonrpc import (
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
# Of a body, outside strings. The event loop has to wait while the decoder reads them, also in
# another thread.
MAX_BRACKETS: Final = 1_000_000
MAX_RESULT_BYTES: Final = 25_000_000
CONTENT_TYPE: Final = "application/json"
ACCEPTED_TYPES: Final = frozenset(
    {"application/json", "application/json-rpc", "application/jsonrequest"}
)

_EMPTY_BATCH: Final = RpcResponse(error=RpcError(INVALID_REQUEST, "empty batch"))
_BATCH_TOO_LARGE: Final = RpcResponse(error=RpcError(INVALID_REQUEST, "batch too large"))
_NO_JSON: Final = RpcResponse(error=RpcError(PARSE_ERROR, "parse error"))
_TOO_LARGE: Final = RpcResponse(error=RpcError(RESPONSE_TOO_LARGE, "response too large"))
_INVALID: Final = RpcError(INVALID_REQUEST, "invalid request")
_NO_ARRAY: Final = RpcError(INVALID_PARAMS, "non-array args")
_NO_IDS: Final = (b"{", b"[")


class RequestBody(Struct, frozen=True):
    """The calls of a body.

    is_batch: Whether the body is an array; the response is an array then.
    rejection: The body of the response to a body without calls.
    is_response: Whether the body has responses alone, which get no reply.
    """

    calls: tuple[RpcCall, ...] = ()
    is_batch: bool = False
    rejection: bytes | None = None
    is_response: bool = False


class _PlainCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call as nearly all are: names in lower case, and no others."""

    jsonrpc: str
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: str = ""
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _LargeCall(msgspec.Struct):
    """All fields of a call or a response; others are skipped without being built."""

    jsonrpc: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _batch_decoder(entry: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of arrays that stops with a ValidationError at the entry after the last one
    allowed.
    """
    fields = [
        (f"entry_{number}", entry | msgspec.UnsetType, msgspec.UNSET)
        for number in range(MAX_BATCH_CALLS)
    ]
    return msgspec.json.Decoder(
        msgspec.defstruct("_Batch", fields, array_like=True, forbid_unknown_fields=True)
    )


_LARGE_CALL: Final = msgspec.json.Decoder(_LargeCall)
_PLAIN_CALL: Final = msgspec.json.Decoder(_PlainCall)
_PLAIN_BATCH: Final = _batch_decoder(_PlainCall)
_BATCH: Final = _batch_decoder(msgspec.Raw)


def count_entries(body: bytes) -> int:
    """Return the number of entries of a batch; 1 for another body, and for a refused batch."""
    if not _is_array(body) or _has_too_many_brackets(body):
        return 1
    try:
        return max(1, len(_entries(_BATCH.decode(body))))
    except (msgspec.MsgspecError, RecursionError):
        return 1


def parse_request_body(body: bytes) -> RequestBody:
    """Return the calls of a body, or the rejection of a body without calls.

    An empty body has neither.
    """
    is_too_dense = _has_too_many_brackets(body)
    plain = None if is_too_dense else _parse_plain(body)
    if plain is not None:
        return plain
    if _is_array(body) and _has_surplus(body[:LARGE_BYTES] if is_too_dense else body):
        return RequestBody(rejection=encode_batch_response([(_first_id(body), _BATCH_TOO_LARGE)]))
    if is_too_dense:
        return RequestBody(rejection=encode_response(None, _NO_JSON))
    try:
        text = first_value(body)
    except InvalidJson as error:
        if str(error) == "EOF":
            return RequestBody()
        return RequestBody(rejection=encode_response(None, _NO_JSON))
    if kind_of(text) != "array":
        call = _parse_call(text)
        return RequestBody((call,)) if call is not None else RequestBody(is_response=True)
    return _parse_batch(_entries(_BATCH.decode(text)))


def encode_responses(request: RequestBody, responses: Mapping[int, RpcResponse]) -> bytes:
    """Return the body with the responses to these calls, given by position; empty if no call
    expects a response.

    A call without a response gets the error of its entry. Results of a batch beyond the limit
    become errors.
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
    if request.is_batch:
        return encode_batch_response(encoded) + b"\n"
    return encode_response(*encoded[0]) + b"\n"


def _parse_plain(body: bytes) -> RequestBody | None:
    """Return the calls of a plain body; None if each part has to be parsed by itself."""
    try:
        if not _is_array(body):
            call = _plain_call(_PLAIN_CALL.decode(body))
            return None if call is None else RequestBody((call,), False)
        entries = _entries(_PLAIN_BATCH.decode(body))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    calls = tuple(call for entry in entries if (call := _plain_call(entry)) is not None)
    return RequestBody(calls, True) if calls and len(calls) == len(entries) else None


def _has_too_many_brackets(body: bytes) -> bool:
    if len(body) <= MAX_BRACKETS or body.count(b"[") + body.count(b"{") <= MAX_BRACKETS:
        return False
    return count_brackets(body) > MAX_BRACKETS


def _is_array(body: bytes) -> bool:
    return body[:1] == b"[" or body.lstrip(BLANK)[:1] == b"["


def _entries(batch: msgspec.Struct) -> tuple[Any, ...]:
    entries = msgspec.structs.astuple(batch)
    return entries[: entries.index(msgspec.UNSET)] if entries[-1] is msgspec.UNSET else entries


def _has_surplus(body: bytes) -> bool:
    try:
        _BATCH.decode(body)
    except msgspec.ValidationError:
        return True
    except (msgspec.MsgspecError, RecursionError):
        return False
    return False


def _first_id(body: bytes) -> msgspec.Raw | None:
    """Return the id of the first valid call among the allowed entries of a batch with more; None if
    none has one.
    """
    left = memoryview(body.lstrip(BLANK))
    for _ in range(MAX_BATCH_CALLS):
        left = left[1:]
        try:
            end = end_of_first_value(left[:LARGE_BYTES])
        except InvalidJson:  # It is longer.
            return None
        call = _parse_call(as_utf8(bytes(left[:end]).strip(BLANK)))
        if call is not None and call.error is None and call.id is not None:
            return call.id
        left = left[end:]
    return None


def _plain_call(entry: _PlainCall) -> RpcCall | None:
    call_id, params = entry.id, entry.params
    if (
        entry.jsonrpc != VERSION
        or not entry.method
        or (call_id and bytes(call_id).startswith(_NO_IDS))
    ):
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
    calls = tuple(call for call in parsed if call is not None)
    return RequestBody(calls, True, is_response=not calls)


def _parse_call(text: bytes) -> RpcCall | None:
    """Return the call that a JSON value is; None for a response, which is not answered."""
    if kind_of(text) != "object":
        return RpcCall(error=_INVALID)
    fields = _fields(text)
    call_id = _parse_id(fields.get("id"))
    method = _parse_text(fields.get("method"))
    params = fields.get("params")
    if _parse_text(fields.get("jsonrpc")) != VERSION:
        return RpcCall(id=call_id, error=_INVALID)
    if not method:
        has_outcome = "result" in fields or "error" in fields
        if call_id is not None and params is None and has_outcome:
            return None
        return RpcCall(id=call_id, error=_INVALID)
    if "id" in fields and call_id is None:
        return RpcCall(method, error=_INVALID)
    is_array = params is None or kind_of(bytes(params).lstrip()) in ("array", "null")
    return RpcCall(method, params, call_id, call_id is None, None if is_array else _NO_ARRAY)


def _fields(text: bytes) -> Mapping[str, msgspec.Raw]:
    """Return the fields of an object by their names in lower case.

    The names in a large object must be in lower case.
    """
    if len(text) > LARGE_BYTES:
        fields = msgspec.structs.asdict(_LARGE_CALL.decode(text))
        return {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    decoded = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {name.lower(): value for name, value in decoded.items()}


def _parse_id(value: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return an id that a response may carry: any JSON but an object or an array, also null."""
    if value is None:
        return None
    text = bytes(value).strip()
    return None if text[:1] in _NO_IDS else msgspec.Raw(text)


def _parse_text(value: msgspec.Raw | None) -> str:
    try:
        return msgspec.json.decode(value, type=str) if value is not None else ""
    except msgspec.MsgspecError:
        return ""
