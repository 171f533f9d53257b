"""Contracts that other contracts created, in the traces of a block's transactions.

Source of truth: go-ethereum's callTracer (`eth/tracers/native/call.go`), which coreth and
subnet-evm have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct, field

from warpseal.chains.evm.blocks import (
    ADDRESS_BYTES,
    HASH_BYTES,
    MalformedBlock,
    decode_json,
    parse_bytes,
)
from warpseal.chains.evm.facts import Creation

MAX_CALL_DEPTH: Final = 1_024
"""Calls of a transaction that may be open at the same time, without its own; a rule of the EVM."""

_CREATE_TYPES: Final = frozenset({"CREATE", "CREATE2"})
# A call is an object and a list. The rest is for the callers, and for the reply around the trace.
_NESTING: Final = 2 * (MAX_CALL_DEPTH + 1) + 500


class TxTrace(Struct, frozen=True, gc=False):
    """The contracts that the calls of a transaction created.

    tx_hash: hash of the transaction; None if the node does not name it.
    creations: the contracts in the order of the calls; their positions count from 1.
    """

    tx_hash: bytes | None
    creations: tuple[Creation, ...]


class _Call(Struct, gc=False):
    """A call of a transaction.

    to: the callee, or the new contract.
    error: the reason of a revert; None if the call succeeded.
    """

    type: str
    sender: str = field(name="from")
    to: str | None = None
    error: str | None = None
    calls: list[_Call] = field(default_factory=list)


class _TracedTx(Struct, gc=False, rename="camel"):
    result: _Call | None = None
    error: str | None = None
    tx_hash: str | None = None


_TRACES: Final = msgspec.json.Decoder(tuple[_TracedTx, ...] | None)


def allow_nested_traces() -> None:
    """Let this process decode traces as deep as the EVM allows, also inside of a JSON-RPC reply.

    Python 3.11 counts nested JSON as nested function calls, of which it allows 1,000. The decoder
    takes 500 bytes of stack for a level; a thread has 8 MB. Later versions have a higher limit for
    it.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _NESTING))


def decode_block_trace(raw_result: bytes) -> tuple[TxTrace, ...] | None:
    """Return the traces of a debug_traceBlockByNumber result (callTracer); None for null.

    The traces have the order of the transactions. Reverted calls and all calls below them are left
    out. The transaction's own contract is left out as well, since its receipt has it. Raises
    MalformedBlock, also if the node failed to trace a transaction.
    """
    txs = decode_json(_TRACES.decode, raw_result)
    if txs is None:
        return None
    return tuple([_trace(index, tx) for index, tx in enumerate(txs)])


def _trace(tx_index: int, tx: _TracedTx) -> TxTrace:
    if tx.result is None:
        reason = (tx.error or "no reason")[:200]
        raise MalformedBlock(f"transaction {tx_index} is not traced: {reason}")
    tx_hash = None if tx.tx_hash is None else parse_bytes(tx.tx_hash, HASH_BYTES)
    return TxTrace(tx_hash, tuple(_creations(tx_index, tx.result)))


def _creations(tx_index: int, transaction: _Call) -> Iterator[Creation]:
    if transaction.error:
        return
    sender = parse_bytes(transaction.sender, ADDRESS_BYTES)
    position = 0
    waiting = transaction.calls[::-1]
    while waiting:
        call = waiting.pop()
        if call.error:
            continue
        if call.type in _CREATE_TYPES:
            position += 1
            address = parse_bytes(call.to or "", ADDRESS_BYTES)
            factory = parse_bytes(call.sender, ADDRESS_BYTES)
            yield Creation(tx_index, position, address, sender, factory)
        waiting.extend(reversed(call.calls))
