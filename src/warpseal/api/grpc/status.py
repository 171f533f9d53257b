"""The gRPC status of an error, with the code and the detail that its HTTP response has.

Source of truth: google/rpc/code.proto for the codes and their HTTP statuses; google/rpc/error_details.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from warpseal.aggregation.errors import QuorumImpossible
from warpseal.api.http.error_response import Dialect, error_detail, error_text, retry_after_s, status_of
from warpseal.errors import WarpsealError
from warpseal.store.errors import CursorExpired

DETAILS_KEY: Final = "grpc-status-details-bin"
DOMAIN: Final = "warpseal"

_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    501: StatusCode.UNIMPLEMENTED,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
}
# Errors whose request would be right at another time.
_CODES_OF_CLASSES: Final[Mapping[type[WarpsealError], StatusCode]] = {
    QuorumImpossible: StatusCode.FAILED_PRECONDITION,
    CursorExpired: StatusCode.OUT_OF_RANGE,
}
# Clients take 8 KiB of metadata by default, in Base64.
_MAX_DETAIL_BYTES: Final = 4_096
_MAX_TEXT_CHARACTERS: Final = 400


def error_status(error: WarpsealError, *, shows_addresses: bool) -> tuple[StatusCode, str, bytes]:
    """Return the code, the text and the serialized google.rpc.Status of an error."""
    code = _CODES_OF_CLASSES.get(type(error)) or _CODES[status_of(error, Dialect.V1)]
    text = _text(error_text(error)[:_MAX_TEXT_CHARACTERS])
    detail = msgspec.to_builtins(error_detail(error, shows_addresses=shows_addresses))
    status, seconds = Status(code=code.value[0], message=text), retry_after_s(error)
    status.details.add().Pack(ErrorInfo(reason=error.code, domain=DOMAIN, metadata=_texts(detail)))
    if seconds is not None:
        status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
    return code, text, status.SerializeToString()


def _texts(detail: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a detail as texts, the longest of which are shortened or left out."""
    texts, left_bytes = {}, _MAX_DETAIL_BYTES
    for name, value in sorted(detail.items(), key=lambda item: len(str(item[1]))):
        text = _text(value)
        while len(text) > left_bytes and isinstance(value, list | tuple) and value:
            value = value[: len(value) // 2]
            text = _text(value)
        if len(text) <= left_bytes:
            texts[name] = text
            left_bytes -= len(text)
    return texts


def _text(value: Any) -> str:
    # Of a surrogate pair, a request may have half.
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text.encode("utf-8", "replace").decode()
