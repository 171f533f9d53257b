"""Blocks as nodes return them: bare, or in a container of the index API, which may be wrapped by the proposervm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.chains.proposervm import recognize_proposervm_block
from warpseal.history.blocks import Proposer
from warpseal.index.records import proposer_of
from warpseal.indexer.errors import IndexingStopped, StopReason


class HasHeight(Protocol):
    """A block of any chain."""

    @property
    def height(self) -> int:
        """The height in the chain."""


B = TypeVar("B", bound=HasHeight)


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A block as a node returned it. is_container: the proposervm may wrap it."""

    raw: bytes
    is_container: bool


@dataclass(frozen=True, slots=True)
class UnwrappedBlock(Generic[B]):
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
    parse: Callable[[bytes], B], given: RawBlock, height: int, parent_proposer: Proposer | None
) -> UnwrappedBlock[B]:
    """Return a decoded block, which must be of this height. Raises IndexingStopped."""
    outer = recognize_proposervm_block(given.raw) if given.is_container else None
    inner = given.raw if outer is None else outer.inner
    try:
        block = parse(inner)
    except MalformedChainBytes as error:
        reason = StopReason.UNKNOWN_TYPE if isinstance(error, UnknownType) else StopReason.UNDECODABLE_BLOCK
        raise IndexingStopped(reason, height, str(error), given.raw) from None
    if block.height != height:
        detail = f"the block says that its height is {block.height}"
        raise IndexingStopped(StopReason.WRONG_HEIGHT, height, detail, given.raw)
    return UnwrappedBlock(block, given.raw, None if outer is None else proposer_of(outer, parent_proposer))
