"""Outcomes of calls by HTTP status and JSON-RPC error, and the errors in unchanged replies.

Pure.
Source of truth: docs/usage-metrics.md; codes of the JSON-RPC 2.0 specification and of geth's
`rpc/errors.go`; texts of avalanchego's `utils/json/codec.go`, whose errors all have one code.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from warpseal.usage.calls import CallOutcome

_UNCHARGED_STATUSES: Final = frozenset({401, 403, 429})
"""Statuses of requests that cost no credits."""

_INVALID_STATUSES: Final = frozenset({400, 404, 405, 413, 415})
_FIRST_ERROR_STATUS: Final = 400
_INVALID_CODES: Final = frozenset({-32700, -32600, -32601, -32602})
_INTERNAL_ERROR: Final = -32603
_FAILED_CODES: Final = frozenset({_INTERNAL_ERROR, -32002, -32003, -32005})
_SERVER_ERROR: Final = -32000
# Texts of server errors. Errors of a node's own methods, such as reverts, begin otherwise.
_INVALID_TEXTS: Final = (
    "rpc: can't find service ",
    "rpc: can't find method ",
    "rpc: service/method request ill-formed",
    "method must start with a non-uppercase letter",
    "couldn't unmarshal an argument",
)
_ERROR: Final = b'"error"'
# A single reply with an error begins with it, behind its version and its id.
_ERROR_WITHIN_BYTES: Final = 1_024


class CallError(NamedTuple):
    """The error of one call."""

    code: int
    message: str = ""


UNANSWERED: Final = CallError(_INTERNAL_ERROR)
"""Stands for every error of a call that no node answered."""
RATE_LIMITED: Final = CallError(-32005)
"""Error of a call that a limit refuses."""
NOT_JSON_RPC: Final = CallError(-32700)
"""Error of a body without calls."""


def outcome_of(status: int, error: CallError | None = None) -> CallOutcome:
    """Return the outcome of a call.

    status: HTTP status of its response; 499 if the client left.
    """
    if status >= _FIRST_ERROR_STATUS:
        return CallOutcome.INVALID if status in _INVALID_STATUSES else CallOutcome.FAILED
    if error is None:
        return CallOutcome.SUCCESSFUL
    code, message = error
    if code in _INVALID_CODES or (code == _SERVER_ERROR and message.startswith(_INVALID_TEXTS)):
        return CallOutcome.INVALID
    return CallOutcome.FAILED if code in _FAILED_CODES else CallOutcome.SUCCESSFUL


def is_charged_status(status: int) -> bool:
    """Return whether requests with this status cost credits."""
    return status not in _UNCHARGED_STATUSES


class _ErrorObject(msgspec.Struct):
    code: Any = 0
    message: Any = ""


class _Reply(msgspec.Struct):
    """Results are skipped without being built."""

    id: Any = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_SINGLE: Final = msgspec.json.Decoder(_Reply)
_BATCH: Final = msgspec.json.Decoder(list[_Reply])
_ERROR_OBJECT: Final = msgspec.json.Decoder(_ErrorObject | None)
# ValueError: of text that is not UTF-8.
_MALFORMED: Final = (msgspec.MsgspecError, RecursionError, ValueError)


def may_have_error(body: bytes) -> bool:
    """Return whether a reply can have an error, by a search of its bytes."""
    return _ERROR in body


def may_begin_with_error(body: bytes, id_bytes: int) -> bool:
    """Return whether a large single reply can have an error, without a search of its result.

    id_bytes: length of the reply's id.
    """
    return body.find(_ERROR, 0, id_bytes + _ERROR_WITHIN_BYTES) >= 0


def error_of(body: bytes) -> CallError | None:
    """Return the error of a single reply; None if it has none or cannot be read."""
    try:
        return decode_error(_SINGLE.decode(body).error)
    except _MALFORMED:
        return None


def errors_of(body: bytes, ids: Sequence[object]) -> list[CallError | None]:
    """Return the errors of the calls of a batch with these ids, in their order.

    A single reply answers all calls.
    """
    if body.lstrip()[:1] != b"[":
        return [error_of(body)] * len(ids)
    try:
        replies = _BATCH.decode(body)
    except _MALFORMED:
        return [None] * len(ids)
    # A node need not keep the order, but all known nodes do.
    if [reply.id for reply in replies] == ids:
        return [decode_error(reply.error) for reply in replies]
    by_id = defaultdict[object, deque[msgspec.Raw]](deque)
    for reply in replies:
        reply_id = reply.id if isinstance(reply.id, str | int | float) else None
        by_id[reply_id].append(reply.error)
    error_queues = map(by_id.get, ids)
    return [decode_error(errors.popleft()) if errors else None for errors in error_queues]


def decode_error(error: msgspec.Raw) -> CallError | None:
    """Return an error object; None for null."""
    try:
        decoded = _ERROR_OBJECT.decode(error)
    except _MALFORMED:  # For example a text in place of the object.
        return CallError(0)
    if decoded is None:
        return None
    code = decoded.code if isinstance(decoded.code, int) else 0
    message = decoded.message if isinstance(decoded.message, str) else ""
    return CallError(code, message)
