"""One JSON-RPC call of an EVM chain and its answer, apart from the envelopes that carry them.

Source of truth: geth's `rpc` package as recorded nodes answered; params and results stay the bytes that came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
REQUEST_TIMED_OUT: Final = -32002
RESPONSE_TOO_LARGE: Final = -32003
SERVER_ERROR: Final = -32000


class RpcCall(msgspec.Struct, frozen=True):
    """A call. params: a JSON array, None where there are none. is_notification: nobody waits for its answer."""

    method: str
    params: msgspec.Raw | None = None
    is_notification: bool = False


@dataclass(frozen=True, slots=True)
class RpcError:
    """An error object. data: JSON, None where there is none."""

    code: int
    message: str
    data: msgspec.Raw | None = None


class RpcAnswer(msgspec.Struct, frozen=True):
    """What became of a call: a result or an error. is_derived: it is not a node's."""

    result: msgspec.Raw | None = None
    error: RpcError | None = None
    is_derived: bool = False


class RpcFailure(Exception):
    """A call that an error object answers; raised where an answer is put together."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


NO_NODE: Final = RpcError(SERVER_ERROR, "no node of this chain can be reached")
NOT_ANSWERED: Final = RpcError(SERVER_ERROR, "the node did not answer; it may have done what it was asked")
TIMED_OUT: Final = RpcError(REQUEST_TIMED_OUT, "request timed out")
TOO_LARGE: Final = RpcError(RESPONSE_TOO_LARGE, "response too large")
FILTER_NOT_FOUND: Final = RpcError(SERVER_ERROR, "filter not found")


def invalid_argument(position: int, reason: str) -> RpcFailure:
    """Return what is said of an argument that cannot be read."""
    return RpcFailure(RpcError(INVALID_PARAMS, f"invalid argument {position}: {reason}"))


def too_many_arguments(at_most: int) -> RpcFailure:
    """Return what is said of a call with more arguments than there are."""
    return RpcFailure(RpcError(INVALID_PARAMS, f"too many arguments, want at most {at_most}"))
