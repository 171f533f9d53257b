"""Blocks and receipts of EVM chains, decoded from the JSON in which nodes answer.

Values keep their hex text and are converted where they are needed: few logs of a chain are of NFTs.
Source of truth: the Ethereum JSON-RPC specification; avalanchego `graft/coreth/internal/ethapi`,
ACP-194.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

T = TypeVar("T")

RawJson = bytes | msgspec.Raw | memoryview
"""JSON, or the part of a larger text of JSON, which is decoded without a copy."""

ADDRESS_BYTES: Final = 20
HASH_BYTES: Final = 32
BLOOM_BYTES: Final = 256
_MAX_QUANTITY: Final = len("0x") + 64


class MalformedBlock(ValueError):
    """A node's reply is not the JSON of a block, its receipts or its traces."""


class EvmHeader(Struct, frozen=True, gc=False, rename="camel"):
    """A block without its receipts.

    transactions: the hashes of the transactions.
    base_fee_per_gas, block_gas_cost: fields of later headers; None if the header lacks them.

    From Helicon on, the C-Chain's gas_used is the most that the transactions may use, and
    logs_bloom and receipts_root belong to the ancestors that the block settles.
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
    """A log.

    log_index: the place of the log in the block.
    """

    address: str
    topics: tuple[str, ...]
    data: str
    log_index: str


class EvmReceipt(Struct, frozen=True, gc=False, rename="camel"):
    """A transaction's receipt.

    contract_address: the contract that the transaction creates if it succeeds; None for a call.
    """

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
    """Return the receipts of an eth_getBlockReceipts result; None for null.

    Raises MalformedBlock.
    """
    return decode_json(_RECEIPTS.decode, raw_result)


def decode_receipt(raw_result: RawJson) -> EvmReceipt | None:
    """Return the receipt of an eth_getTransactionReceipt result; None for null.

    Raises MalformedBlock.
    """
    return decode_json(_RECEIPT.decode, raw_result)


def decode_json(decode: Callable[[RawJson], T], raw: RawJson) -> T:
    """Return what a msgspec decoder makes of `raw`.

    Raises MalformedBlock for JSON of another shape.
    """
    try:
        return decode(raw)
    except RecursionError:
        raise MalformedBlock("the JSON is nested too deeply") from None
    except ValueError as error:
        raise MalformedBlock(str(error)) from None


def parse_quantity(text: str, bits: int = 64) -> int:
    """Return the number of at most `bits` bits that a node writes in hex with 0x.

    Raises MalformedBlock.
    """
    try:
        if text[:2] == "0x" and len(text) <= _MAX_QUANTITY:
            value = int(text, 16)
            if not value >> bits:
                return value
    except ValueError:
        pass
    raise MalformedBlock(f"not a quantity of {bits} bits: {text[:80]!r}")


def parse_bytes(text: str, length: int | None = None) -> bytes:
    """Return the bytes that a node writes in hex with 0x, `length` of them if given.

    Raises MalformedBlock.
    """
    try:
        raw = unhexlify(text[2:])
    except ValueError:
        raise MalformedBlock(f"not hex: {text[:80]!r}") from None
    if text[:2] != "0x" or (length is not None and len(raw) != length):
        expected = "any" if length is None else length
        raise MalformedBlock(f"not {expected} bytes in hex: {text[:80]!r}")
    return raw


class UnknownShape(Exception):
    """A log has the topic of an event and another shape."""


class TopicLog(Struct, frozen=True):
    """A log with the topic of an event."""

    tx_index: int
    log: ReceiptLog

    def index(self) -> int:
        """Return the place of the log in its block."""
        return parse_quantity(self.log.log_index)

    def contract(self) -> bytes:
        """Return the address of the contract."""
        return parse_bytes(self.log.address, ADDRESS_BYTES)

    def data(self) -> bytes:
        """Return the data."""
        return parse_bytes(self.log.data)

    def indexed(self, count: int) -> list[bytes]:
        """Return the topics behind the first, of which there must be `count`."""
        topics = self.log.topics[1:]
        if len(topics) != count:
            raise UnknownShape
        return [parse_bytes(topic, HASH_BYTES) for topic in topics]

    def words(self, count: int) -> list[bytes]:
        """Return the words of the data, of which there must be `count`."""
        data = self.data()
        if len(data) != count * HASH_BYTES:
            raise UnknownShape
        return [data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES)]


def address_in(word: bytes) -> bytes:
    """Return the address in a word. Raises UnknownShape."""
    if not word.startswith(_PADDING):
        raise UnknownShape
    return word[HASH_BYTES - ADDRESS_BYTES :]


_PADDING: Final = bytes(HASH_BYTES - ADDRESS_BYTES)
