"""Blocks as nodes return them, the checks that link them, and the error of a block that cannot
follow the written ones.

A block is bare, or in a container of the index API, which may be wrapped by the proposervm. This
module calls no node, since the process that writes an index uses it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Protocol, TypeVar

from msgspec import Struct

from warpseal.chains.codec import UnknownType
from warpseal.upstream.json_values import unix_s
from warpseal.warp.codec import MalformedMessage


class StopReason(StrEnum):
    """The reason why no block follows; docs/troubleshooting.md has a remedy for each.

    Only EVM chains have the reasons from WRONG_RECEIPT_COUNT on, which are the values of
    `chains.evm.checks.BlockMismatch`.
    """

    UNKNOWN_TYPE = "unknown_type"
    UNDECODABLE_BLOCK = "undecodable_block"
    WRONG_HEIGHT = "wrong_height"
    WRONG_PARENT = "wrong_parent"
    ANOTHER_CHAIN = "another_chain"
    CONTRADICTION = "contradiction"
    WRONG_GENESIS = "wrong_genesis"
    INTERNAL_ERROR = "internal_error"
    INDEX_DAMAGED = "index_damaged"
    ANOTHER_HASH = "another_hash"
    NODES_DISAGREE = "nodes_disagree"
    ANSWER_TOO_LARGE = "answer_too_large"
    WRONG_TIME = "wrong_time"
    WRONG_RECEIPT_COUNT = "wrong_receipt_count"
    RECEIPT_OF_ANOTHER_BLOCK = "receipt_of_another_block"
    RECEIPT_OF_ANOTHER_TRANSACTION = "receipt_of_another_transaction"
    WRONG_RECEIPT_ORDER = "wrong_receipt_order"
    WRONG_LOG_INDEX = "wrong_log_index"
    WRONG_GAS = "wrong_gas"
    WRONG_BLOOM = "wrong_bloom"
    WRONG_RECEIPTS_ROOT = "wrong_receipts_root"


class ChainStopped(Exception):
    """A block cannot follow those that were written.

    raw: bytes of the block, empty if they are not the reason.
    """

    def __init__(self, reason: StopReason, height: int, detail: str, raw: bytes = b"") -> None:
        super().__init__(f"{reason} at block {height}: {detail}")
        self.reason = reason
        self.height = height
        self.detail = detail
        self.raw = raw

    def __reduce__(self) -> tuple[type[ChainStopped], tuple[StopReason, int, str, bytes]]:
        """Make the exception picklable, since the worker raises it in another process."""
        return ChainStopped, (self.reason, self.height, self.detail, self.raw)


def undecodable(error: MalformedMessage, height: int, raw: bytes, where: str = "") -> ChainStopped:
    """Return the error for bytes that cannot be decoded.

    where: prefix of the detail with the place of the bytes, if they are not the block.
    """
    reason = (
        StopReason.UNKNOWN_TYPE if isinstance(error, UnknownType) else StopReason.UNDECODABLE_BLOCK
    )
    return ChainStopped(reason, height, f"{where}{error}", raw)


def check_parent(parent_id: bytes, last_id: bytes | None, height: int, raw: bytes) -> None:
    """Raise ChainStopped if the parent is not the last written block.

    last_id: id of that block, None if no block is written.
    """
    if last_id is not None and parent_id != last_id:
        detail = f"it names {parent_id.hex()} as its parent, not {last_id.hex()}"
        raise ChainStopped(StopReason.WRONG_PARENT, height, detail, raw)


class AnyBlock(Protocol):
    """A block of any chain."""

    @property
    def height(self) -> int:
        """The height in the chain."""

    @property
    def time(self) -> int | None:
        """Unix seconds, None if the block carries none."""


B = TypeVar("B", bound=AnyBlock)
T = TypeVar("T")
R = TypeVar("R")


class RawBlock(Struct, frozen=True):
    """A block as a node returned it.

    is_container: the proposervm may wrap the bytes.
    """

    raw: bytes
    is_container: bool


def decode_block(parse: Callable[[bytes], B], inner: bytes, height: int, raw: bytes) -> B:
    """Return the block of a height. Raises ChainStopped.

    raw: bytes that a node returned.
    inner: block of the chain itself, inside of `raw`.
    """
    try:
        block = parse(inner)
    except MalformedMessage as error:
        raise undecodable(error, height, raw) from None
    if block.height != height:
        detail = f"the block says that its height is {block.height}"
        raise ChainStopped(StopReason.WRONG_HEIGHT, height, detail, raw)
    try:
        # Rows and pages hold no later time, and no node accepts a block of one.
        unix_s(block.time or 0)
    except ValueError:
        detail = f"its time, {block.time}, is behind the year 9999"
        raise ChainStopped(StopReason.UNDECODABLE_BLOCK, height, detail, raw) from None
    return block


def apply_blocks(
    blocks: Iterable[T], apply: Callable[[T], R], stop: ChainStopped | None
) -> tuple[list[R], ChainStopped | None]:
    """Return the records of the blocks before the first that cannot be applied, and its reason.

    stop: reason that is returned if every block can be applied.
    """
    records: list[R] = []
    try:
        for block in blocks:
            records.append(apply(block))
    except ChainStopped as error:
        return records, error
    return records, stop
