"""Blocks, receipts and traces of EVM chains, decoded from the JSON in which nodes answer.

Values keep their hex text and are converted where they are needed: few logs of a chain are of NFTs.
Source of truth: the Ethereum JSON-RPC specification; avalanchego `graft/coreth/internal/ethapi`, ACP-194; for traces
go-ethereum's callTracer (`eth/tracers/native/call.go`), which coreth and subnet-evm have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

from warpseal.chains.evm.facts import Creation

T = TypeVar("T")

RawJson = bytes | msgspec.Raw
"""JSON, or the part of a larger text of JSON, which is decoded without a copy."""

ADDRESS_BYTES: Final = 20
HASH_BYTES: Final = 32
BLOOM_BYTES: Final = 256
_MAX_QUANTITY: Final = len("0x") + 64


class MalformedBlock(ValueError):
    """A node's answer is not the JSON of a block, its receipts or its traces."""


class EvmHeader(Struct, frozen=True, gc=False, rename="camel"):
    """A block without its receipts. transactions: their hashes. base_fee_per_gas, block_gas_cost: not in all headers.

    From Helicon on, the C-Chain's gas_used is the most that the transactions may use, and logs_bloom and receipts_root
    are those of the ancestors that the block settles.
    """

    number: str
    hash: str
    parent_hash: str
    timestamp: str
    gas_limit: str
    gas_used: str
    logs_bloom: str
    receipts_root: str
    transactions: tuple[str, ...]
    base_fee_per_gas: str | None = None
    block_gas_cost: str | None = None


class ReceiptLog(Struct, frozen=True, gc=False, rename="camel"):
    """A log. log_index: its place in the block."""

    address: str
    topics: tuple[str, ...]
    data: str
    log_index: str


class EvmReceipt(Struct, frozen=True, gc=False, rename="camel"):
    """A transaction's receipt. contract_address: of the contract that the transaction creates, if it succeeds."""

    block_hash: str
    transaction_hash: str
    transaction_index: str
    status: str
    gas_used: str
    cumulative_gas_used: str
    effective_gas_price: str
    logs_bloom: str
    logs: tuple[ReceiptLog, ...]
    sender: str = field(name="from")
    contract_address: str | None = None
    type: str = "0x0"


_BLOCK: Final[msgspec.json.Decoder[EvmHeader | None]] = msgspec.json.Decoder(EvmHeader | None)
_RECEIPTS: Final[msgspec.json.Decoder[tuple[EvmReceipt, ...] | None]] = msgspec.json.Decoder(
    tuple[EvmReceipt, ...] | None
)
_RECEIPT: Final[msgspec.json.Decoder[EvmReceipt | None]] = msgspec.json.Decoder(EvmReceipt | None)


def decode_block(raw_result: RawJson) -> EvmHeader | None:
    """Return the block of an eth_getBlockByNumber result with transaction hashes; None for null.

    Raises MalformedBlock.
    """
    return decode_json(_BLOCK.decode, raw_result)


def decode_receipts(raw_result: RawJson) -> tuple[EvmReceipt, ...] | None:
    """Return the receipts of an eth_getBlockReceipts result; None for null. Raises MalformedBlock."""
    return decode_json(_RECEIPTS.decode, raw_result)


def decode_receipt(raw_result: RawJson) -> EvmReceipt | None:
    """Return the receipt of an eth_getTransactionReceipt result; None for null. Raises MalformedBlock."""
    return decode_json(_RECEIPT.decode, raw_result)


def decode_json(decode: Callable[[RawJson], T], raw: RawJson) -> T:
    """Return what a msgspec decoder makes of `raw`. Raises MalformedBlock for JSON of another shape."""
    try:
        return decode(raw)
    except RecursionError:
        raise MalformedBlock("the JSON is nested too deeply") from None
    except ValueError as error:
        raise MalformedBlock(str(error)) from None


def parse_quantity(text: str, bits: int = 64) -> int:
    """Return the number of at most `bits` bits that a node writes in hex with 0x. Raises MalformedBlock."""
    try:
        if text[:2] == "0x" and len(text) <= _MAX_QUANTITY and not (value := int(text, 16)) >> bits:
            return value
    except ValueError:
        pass
    raise MalformedBlock(f"not a quantity of {bits} bits: {text[:80]!r}")


def parse_bytes(text: str, length: int | None = None) -> bytes:
    """Return the bytes that a node writes in hex with 0x, `length` of them if given. Raises MalformedBlock."""
    try:
        raw = bytes.fromhex(text[2:])
    except ValueError:
        raise MalformedBlock(f"not hex: {text[:80]!r}") from None
    size = len(raw)
    # The lengths differ if there is white space in the text.
    if text[:2] != "0x" or len(text) != 2 + 2 * size or (size != length and length is not None):
        raise MalformedBlock(f"not {'any' if length is None else length} bytes in hex: {text[:80]!r}")
    return raw


MAX_CALL_DEPTH: Final = 1_024
"""Calls of a transaction that may be open at the same time, its own not counted: a rule of the EVM."""

_CREATE_TYPES: Final = frozenset({"CREATE", "CREATE2"})
# A call is an object and a list. The rest is for the callers, and for the answer around the trace.
_NESTING: Final = 2 * (MAX_CALL_DEPTH + 1) + 500


class TxTrace(Struct, frozen=True, gc=False):
    """The contracts that the calls of one transaction created, in the order of the calls; positions count from 1.

    tx_hash: None if the node does not say it.
    """

    tx_hash: bytes | None
    creations: tuple[Creation, ...]


class _Call(Struct, gc=False):
    """A call of a transaction. to: of a creation, the new contract. error: why it was reverted."""

    type: str
    sender: str = field(name="from")
    to: str | None = None
    error: str | None = None
    calls: list[_Call] = []


class _TracedTx(Struct, gc=False, rename="camel"):
    result: _Call | None = None
    error: str | None = None
    tx_hash: str | None = None


_TRACES: Final = msgspec.json.Decoder(tuple[_TracedTx, ...] | None)


def allow_nested_traces() -> None:
    """Let this process decode traces as deep as the EVM allows, also inside of a JSON-RPC answer.

    Python 3.11 counts nested JSON as nested function calls, of which it allows 1,000. The decoder takes 500 bytes of
    stack for a level; a thread has 8 MB. Later versions have a higher limit for it.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _NESTING))


def decode_block_trace(raw_result: bytes) -> tuple[TxTrace, ...] | None:
    """Return the traces of a debug_traceBlockByNumber result (callTracer), by transaction; None for null.

    What is reverted, and everything below it, is left out. The transaction's own contract is that of its receipt, and
    left out as well. Raises MalformedBlock, also if the node failed to trace a transaction.
    """
    traced = decode_json(_TRACES.decode, raw_result)
    return None if traced is None else tuple([_trace(index, tx) for index, tx in enumerate(traced)])


def _trace(tx_index: int, tx: _TracedTx) -> TxTrace:
    if tx.result is None:
        raise MalformedBlock(f"transaction {tx_index} is not traced: {(tx.error or 'no reason')[:200]}")
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
            address, factory = parse_bytes(call.to or "", ADDRESS_BYTES), parse_bytes(call.sender, ADDRESS_BYTES)
            yield Creation(tx_index, position, address, sender, factory)
        waiting.extend(reversed(call.calls))
