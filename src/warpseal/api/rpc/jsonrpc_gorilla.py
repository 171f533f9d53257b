"""JSON-RPC as administration, health and validators speak it: requests in, replies out, no I/O.

Source of truth: what recorded nodes answered (gorilla's json2 codec behind avalanchego's
`utils/json/codec.go`): the method is `service.function`, params are one object, every reply has
status 200, errors of methods have code -32000.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from warpseal.api.http.json_text import MAX_NESTING, InvalidJson, first_value, kind_of
from warpseal.api.http.request_body import declared_length
from warpseal.api.http.responses import JSON
from warpseal.resources.base import UNSET, Resource, UnsetType

VERSION: Final = "2.0"
MAX_BODY_BYTES: Final = 1_048_576
# Every field has one; counting them costs nothing.
MAX_COLONS: Final = 10_000
CONTENT_TYPE: Final = "application/json; charset=utf-8"
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
SERVER_ERROR: Final = -32000
BAD_ARGUMENT: Final = (
    "couldn't unmarshal an argument. Ensure arguments are valid and properly formatted. "
    "See documentation for example calls"
)
_NULL: Final = msgspec.Raw(b"null")
_ENCODER: Final = msgspec.json.Encoder()

S = TypeVar("S", bound=msgspec.Struct)


def post_refusal(scope: Scope) -> Response | None:
    """Return the response to a request that is not a POST of JSON, or is too long; else None."""
    if scope["method"] != "POST":
        return PlainTextResponse(f"rpc: POST method required, received {scope['method'][:32]}", 405)
    content_types = [value for name, value in scope["headers"] if name == b"content-type"]
    header = content_types[0].decode("latin-1") if content_types else ""
    content_type = header.partition(";")[0]
    if content_type.lower() != JSON:
        return PlainTextResponse(f"rpc: unrecognized Content-Type: {content_type[:128]}", 415)
    length = declared_length(scope)
    if length > MAX_BODY_BYTES:
        return PlainTextResponse(f"content length too large ({length}>{MAX_BODY_BYTES})", 413)
    return None


class JsonRpcError(Exception):
    """The error object of a request that is not served: code, text and data."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class JsonRpcRequest(Struct, frozen=True):
    """One request.

    id, params: JSON as received. id is None in a notification, which gets no reply.
    """

    version: str
    method: str
    params: msgspec.Raw
    id: msgspec.Raw | None

    def check(self) -> None:
        """Raise JsonRpcError if the request is not JSON-RPC 2.0."""
        if self.version != VERSION:
            fields = {
                "jsonrpc": self.version,
                "method": self.method,
                "params": self.params,
                "id": self.id or _NULL,
            }
            raise JsonRpcError(INVALID_REQUEST, "jsonrpc must be 2.0", fields)

    def called(self) -> tuple[str, str]:
        """Return the service and the function, its first letter upper case. Raises JsonRpcError."""
        service, dot, function = self.method.partition(".")
        if dot and function[:1].isupper():
            raise JsonRpcError(SERVER_ERROR, "method must start with a non-uppercase letter")
        name = function[:1].upper() + function[1:]
        if not dot or "." in function:
            called = quoted(service + dot + name)
            raise JsonRpcError(SERVER_ERROR, f"rpc: service/method request ill-formed: {called}")
        return service, name

    def encode(self) -> bytes:
        """Return a body with this request, each field once.

        With a field twice, a node might read another method than the checked one.
        """
        request: dict[str, Any] = {"jsonrpc": VERSION, "method": self.method, "params": self.params}
        if self.id is not None:
            request["id"] = self.id
        return _ENCODER.encode(request)


class JsonRpcFailure(Resource, frozen=True, gc=False, kw_only=True):
    """The error of a JSON-RPC call."""

    code: int
    message: str
    data: Any | UnsetType = UNSET


class JsonRpcReply(Resource, frozen=True, gc=False, kw_only=True):
    """The reply to a JSON-RPC call: a result or an error.

    id: null if that of the call cannot be read.
    """

    jsonrpc: str = VERSION
    result: Any | UnsetType = UNSET
    error: JsonRpcFailure | UnsetType = UNSET
    id: int | str | None


class _PlainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request as nearly all are: names in lower case, and no others."""

    jsonrpc: str
    method: str
    params: msgspec.Raw = _NULL
    id: msgspec.Raw = _NULL


_PLAIN_REQUEST: Final = msgspec.json.Decoder(_PlainRequest)


class _Arguments(msgspec.Struct, array_like=True):
    """An array of which only the first element counts."""

    first: msgspec.Raw = _NULL


def parse(body: bytes) -> JsonRpcRequest:
    """Return the request that a body begins with. Raises JsonRpcError with code -32700."""
    plain = _parse_plain(body)
    if plain is not None:
        return plain
    try:
        text = first_value(body)
    except InvalidJson as error:
        raise JsonRpcError(PARSE_ERROR, str(error)) from None
    if kind_of(text) == "null":
        return JsonRpcRequest("", "", _NULL, None)
    if kind_of(text) != "object":
        reason = f"a request is a JSON object, this is of type {kind_of(text)}"
        raise JsonRpcError(PARSE_ERROR, reason)
    if text.count(b":") > MAX_COLONS:
        raise JsonRpcError(PARSE_ERROR, f"a request has at most {MAX_COLONS} fields")
    decoded = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    fields = {name.lower(): value for name, value in decoded.items()}
    return JsonRpcRequest(
        version=_text(fields, "jsonrpc"),
        method=_text(fields, "method"),
        params=fields.get("params", _NULL),
        id=_id(fields.get("id", _NULL)),
    )


def arguments(params: msgspec.Raw, kind: type[S]) -> S:
    """Return params as a struct of this kind: an object, or the first of an array.

    Raises JsonRpcError.

    Keys count in any case, unknown ones are ignored, null counts as not given.
    """
    try:
        if kind_of(bytes(params).lstrip()) == "array":
            params = msgspec.json.decode(params, type=_Arguments).first
        raw_fields = msgspec.json.decode(params, type=dict[str, msgspec.Raw] | None) or {}
        names = {name.lower(): name for name in kind.__struct_encode_fields__}
        fields = {
            names.get(key.lower(), key): value
            for key, value in raw_fields.items()
            if bytes(value) != b"null"
        }
        return msgspec.json.decode(_ENCODER.encode(fields), type=kind)
    # Text that is not UTF-8 is a ValueError.
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise JsonRpcError(SERVER_ERROR, BAD_ARGUMENT) from None


def success(request_id: msgspec.Raw, result: Any) -> bytes:
    """Return the reply with a result, which is any value that msgspec encodes.

    request_id: JSON that is sent unchanged.
    """
    return _ENCODER.encode(JsonRpcReply(id=request_id, result=result)) + b"\n"  # type: ignore[arg-type]


def failure(request_id: msgspec.Raw | None, error: JsonRpcError) -> bytes:
    """Return the reply with an error.

    request_id: JSON that is sent unchanged; None if the id of the call cannot be read.
    """
    body = JsonRpcFailure(code=error.code, message=str(error), data=error.data)
    return _ENCODER.encode(JsonRpcReply(id=request_id, error=body)) + b"\n"  # type: ignore[arg-type]


def unknown(kind: Literal["service", "method"], service: str, name: str) -> JsonRpcError:
    """Return the error of a call of an unknown service or method."""
    return JsonRpcError(SERVER_ERROR, f"rpc: can't find {kind} {quoted(f'{service}.{name}')}")


def _parse_plain(body: bytes) -> JsonRpcRequest | None:
    """Return a request with nothing unusual in it; None if each part has to be parsed by itself."""
    # Brackets nest no deeper than their number.
    if body.count(b"[") + body.count(b"{") > MAX_NESTING or body.count(b":") > MAX_COLONS:
        return None
    try:
        request = _PLAIN_REQUEST.decode(body)
    except (msgspec.MsgspecError, ValueError):
        return None
    return JsonRpcRequest(request.jsonrpc, request.method, request.params, _id(request.id))


def _id(value: msgspec.Raw) -> msgspec.Raw | None:
    text = bytes(value).strip()
    return None if text == b"null" else msgspec.Raw(text)


def _text(fields: Mapping[str, msgspec.Raw], name: str) -> str:
    try:
        return msgspec.json.decode(fields.get(name, _NULL), type=str | None) or ""
    except msgspec.MsgspecError:
        kind = kind_of(bytes(fields[name]).lstrip())
        raise JsonRpcError(
            PARSE_ERROR, f"{name} is of type {kind}, where a string is expected"
        ) from None


def quoted(text: str) -> str:
    """Return the beginning of a text as a JSON string."""
    return json.dumps(text[:256], ensure_ascii=False)
