"""Calls that are on their way to nodes, and the errors of calls that no node answered. Pure.

Source of truth: docs/node-interfaces.md: a call that one node may have executed is not sent to a second one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from warpseal.evm_rpc.methods import MethodClass, class_of
from warpseal.evm_rpc.node import EvmErrorKind, EvmNodeError
from warpseal.node.jsonrpc import (
    REQUEST_TIMED_OUT,
    RESPONSE_TOO_LARGE,
    SERVER_ERROR,
    RpcCall,
    RpcError,
    RpcResponse,
)

NO_NODE: Final = RpcError(SERVER_ERROR, "no node of this chain can be reached")
NOT_ANSWERED: Final = RpcError(SERVER_ERROR, "the node did not answer; it may have done what it was asked")
TIMED_OUT: Final = RpcError(REQUEST_TIMED_OUT, "request timed out")
TOO_LARGE: Final = RpcError(RESPONSE_TOO_LARGE, "response too large")
FILTER_NOT_FOUND: Final = RpcError(SERVER_ERROR, "filter not found")


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """A body that is forwarded unchanged. call: the call in it; for a batch of reads, any of its `count` calls."""

    call: RpcCall
    body: bytes
    count: int = 1

    @property
    def method_class(self) -> MethodClass:
        """How it is forwarded."""
        return class_of(self.call.method)


@dataclass(slots=True)
class BatchState:
    """The calls of a batch that are still to be sent, and the responses so far, by number.

    error_kind: why the node asked last did not answer.
    """

    calls: dict[int, RpcCall]
    responses: dict[int, RpcResponse] = field(default_factory=dict)
    error_kind: EvmErrorKind | None = None

    def record_failure(self, error: EvmNodeError) -> None:
        """Note that a node did not answer: calls that it may have executed get an error, the others stay."""
        self.error_kind = error.kind
        for number, call in list(self.calls.items()):
            is_read = class_of(call.method) is MethodClass.READ
            if error.kind is EvmErrorKind.TOO_LARGE or (error.was_written and not is_read):
                self.responses[number] = RpcResponse(error=error_for(error.kind, call))
                del self.calls[number]


def error_for(kind: EvmErrorKind | None, call: RpcCall) -> RpcError:
    """Return the error of a call that no node answered. A filter is lost with its node, as after a restart."""
    method_class = class_of(call.method)
    if method_class is MethodClass.USE_FILTER and kind in (EvmErrorKind.UNREACHABLE, EvmErrorKind.LOST):
        return FILTER_NOT_FOUND
    errors = {
        None: NO_NODE,
        EvmErrorKind.UNREACHABLE: NO_NODE,
        EvmErrorKind.BUSY: NO_NODE if method_class is MethodClass.READ else NOT_ANSWERED,
        EvmErrorKind.TIMEOUT: TIMED_OUT,
        EvmErrorKind.TOO_LARGE: TOO_LARGE,
    }
    return errors.get(kind, NOT_ANSWERED)
