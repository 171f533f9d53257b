"""Blocks as nodes return them, decoded, and the error for a block that cannot follow the indexed ones.

A block is bare, or in a container of the index API, which may be wrapped by the proposervm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct

from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.chains.proposervm import recognize_proposervm_block
from warpseal.index.records import proposer_of
from warpseal.resources.blocks import Proposer

if TYPE_CHECKING:
    from warpseal.chains.evm.checks import BlockMismatch


class StopReason(StrEnum):
    """The reason; docs/operations.md says what to do about each. EVM chains stop for a BlockMismatch as well."""

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


class IndexingStopped(Exception):
    """A block cannot follow the indexed ones. raw: its bytes, empty if they are not the reason."""

    def __init__(self, reason: StopReason | BlockMismatch, height: int, detail: str, raw: bytes = b"") -> None:
        super().__init__(f"{reason} at block {height}: {detail}")
        self.reason = reason
        self.height = height
        self.detail = detail
        self.raw = raw

    def __reduce__(self) -> tuple[type[IndexingStopped], tuple[StopReason | BlockMismatch, int, str, bytes]]:
        """Make the exception picklable, since the worker raises it in another process."""
        return IndexingStopped, (self.reason, self.height, self.detail, self.raw)


def undecodable(error: MalformedChainBytes, height: int, raw: bytes, where: str = "") -> IndexingStopped:
    """Return the error for bytes that cannot be decoded. where: their place, if it is not the block of this height."""
    reason = StopReason.UNKNOWN_TYPE if isinstance(error, UnknownType) else StopReason.UNDECODABLE_BLOCK
    return IndexingStopped(reason, height, f"{where}{error}", raw)


def check_parent(parent_id: bytes, last_id: bytes | None, height: int, raw: bytes) -> None:
    """Raise IndexingStopped if the parent is not the last written block; None: no block is written."""
    if last_id is not None and parent_id != last_id:
        detail = f"it names {parent_id.hex()} as its parent, not {last_id.hex()}"
        raise IndexingStopped(StopReason.WRONG_PARENT, height, detail, raw)


class HasHeight(Protocol):
    """A block of any chain."""

    @property
    def height(self) -> int:
        """The height in the chain."""


B = TypeVar("B", bound=HasHeight)
T = TypeVar("T")
R = TypeVar("R")


class RawBlock(Struct, frozen=True):
    """A block as a node returned it. is_container: the proposervm may wrap it."""

    raw: bytes
    is_container: bool


class UnwrappedBlock(Struct, Generic[B], frozen=True):
    """A decoded block, its bytes as a node returned them, and its proposer if the wrapping names one."""

    block: B
    raw: bytes
    proposer: Proposer | None


def unwrap_blocks(
    parse: Callable[[bytes], B], raw_blocks: Sequence[RawBlock], first_height: int, parent_proposer: Proposer | None
) -> tuple[list[UnwrappedBlock[B]], IndexingStopped | None]:
    """Return the decoded blocks up to the first that cannot be the block of its height, and the reason for that one."""
    blocks: list[UnwrappedBlock[B]] = []
    for height, raw in enumerate(raw_blocks, first_height):
        try:
            blocks.append(unwrap_block(parse, raw, height, parent_proposer))
        except IndexingStopped as stop:
            return blocks, stop
        parent_proposer = blocks[-1].proposer
    return blocks, None


def unwrap_block(
    parse: Callable[[bytes], B], raw_block: RawBlock, height: int, parent_proposer: Proposer | None
) -> UnwrappedBlock[B]:
    """Return a decoded block, which must be of this height. Raises IndexingStopped."""
    outer = recognize_proposervm_block(raw_block.raw) if raw_block.is_container else None
    inner = raw_block.raw if outer is None else outer.inner
    try:
        block = parse(inner)
    except MalformedChainBytes as error:
        raise undecodable(error, height, raw_block.raw) from None
    if block.height != height:
        detail = f"the block says that its height is {block.height}"
        raise IndexingStopped(StopReason.WRONG_HEIGHT, height, detail, raw_block.raw)
    return UnwrappedBlock(block, raw_block.raw, None if outer is None else proposer_of(outer, parent_proposer))


def apply_blocks(
    blocks: Iterable[T], apply: Callable[[T], R], stop: IndexingStopped | None
) -> tuple[list[R], IndexingStopped | None]:
    """Return the records of blocks up to the first that cannot be applied, and the reason for that one, else `stop`."""
    records: list[R] = []
    try:
        for block in blocks:
            records.append(apply(block))
    except IndexingStopped as error:
        return records, error
    return records, stop
