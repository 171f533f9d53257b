"""Blocks as they come: bare, or in a container of the index API, wrapped by the proposervm or from before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.chains.proposervm import recognize_proposervm_block
from warpseal.history.blocks import Proposer
from warpseal.index.records import proposer_of
from warpseal.indexer.errors import IndexingStopped, StopReason


class HasHeight(Protocol):
    """Any chain's block."""

    @property
    def height(self) -> int:
        """Its place in the chain."""


B = TypeVar("B", bound=HasHeight)


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A block as a node gave it. is_container: it may be wrapped by the proposervm."""

    raw: bytes
    is_container: bool


@dataclass(frozen=True, slots=True)
class UnwrappedBlock(Generic[B]):
    """A decoded block, its bytes as they came, and its proposer where they tell of one."""

    block: B
    raw: bytes
    proposer: Proposer | None


def unwrap_block(
    parse: Callable[[bytes], B], given: RawBlock, height: int, before: Proposer | None
) -> UnwrappedBlock[B]:
    """Return the block of this height that was given. before: the proposer of the block in front. Raises Stopped."""
    outer = recognize_proposervm_block(given.raw) if given.is_container else None
    inner = given.raw if outer is None else outer.inner
    try:
        block = parse(inner)
    except UnknownType as fault:
        raise IndexingStopped(StopReason.UNKNOWN_TYPE, height, str(fault), given.raw) from None
    except MalformedChainBytes as fault:
        raise IndexingStopped(StopReason.UNDECODABLE_BLOCK, height, str(fault), given.raw) from None
    if block.height != height:
        told = f"the block says that its height is {block.height}"
        raise IndexingStopped(StopReason.WRONG_HEIGHT, height, told, given.raw)
    return UnwrappedBlock(block, given.raw, None if outer is None else proposer_of(outer, before))
