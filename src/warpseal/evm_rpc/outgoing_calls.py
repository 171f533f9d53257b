"""Calls on their way to nodes, and what is said of those that no node answered. Pure.

Source of truth: docs/node-interfaces.md: what a node may have done is never asked of a second one.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.evm_rpc.calls import (
    FILTER_NOT_FOUND,
    NO_NODE,
    NOT_ANSWERED,
    TIMED_OUT,
    TOO_LARGE,
    RpcAnswer,
    RpcCall,
    RpcError,
)
from warpseal.evm_rpc.methods import MethodClass, class_of
from warpseal.evm_rpc.node import EvmErrorKind, EvmNodeError


@dataclass(frozen=True, slots=True)
class Sending:
    """A body that goes up as it is, and comes back so. call: the one in it; of a batch of reads, any of them."""

    call: RpcCall
    body: bytes
    calls: int = 1

    @property
    def kind(self) -> MethodClass:
        """How it is forwarded."""
        return class_of(self.call.method)


@dataclass(slots=True)
class Work:
    """Calls on their way, by number, and what became of those that are back. fault: the last that stopped one."""

    calls: dict[int, RpcCall]
    answers: dict[int, RpcAnswer]
    fault: EvmErrorKind | None = None

    def take_back(self, fault: EvmNodeError) -> None:
        """Note that a node gave no answer: what it may have done is not asked again, the rest is."""
        self.fault = fault.kind
        for number, call in list(self.calls.items()):
            if fault.kind is EvmErrorKind.TOO_LARGE or (
                fault.was_written and class_of(call.method) is not MethodClass.READ
            ):
                self.answers[number] = RpcAnswer(error=told_of(fault.kind, call))
                del self.calls[number]


def told_of(kind: EvmErrorKind | None, call: RpcCall) -> RpcError:
    """Return what is said of a call that no node answered. A filter is gone with its node, as after its restart."""
    if class_of(call.method) is MethodClass.USE_FILTER and kind in (EvmErrorKind.UNREACHABLE, EvmErrorKind.LOST):
        return FILTER_NOT_FOUND
    is_read = class_of(call.method) is MethodClass.READ
    told = {
        None: NO_NODE,
        EvmErrorKind.UNREACHABLE: NO_NODE,
        EvmErrorKind.BUSY: NO_NODE if is_read else NOT_ANSWERED,
        EvmErrorKind.TIMEOUT: TIMED_OUT,
        EvmErrorKind.TOO_LARGE: TOO_LARGE,
    }
    return told.get(kind, NOT_ANSWERED)
