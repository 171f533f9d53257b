"""Blocks with their proposers, which containers of the index API name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from msgspec import Struct

from warpseal.chains.proposervm import recognize_proposervm_block
from warpseal.follow.blocks import B, ChainStopped, RawBlock, decode_block
from warpseal.index.records import proposer_of
from warpseal.resources.blocks import Proposer


class UnwrappedBlock(Struct, Generic[B], frozen=True):
    """A decoded block, the bytes that a node returned, and the proposer in its wrapping."""

    block: B
    raw: bytes
    proposer: Proposer | None


def unwrap_blocks(
    parse: Callable[[bytes], B],
    raw_blocks: Sequence[RawBlock],
    first_height: int,
    parent_proposer: Proposer | None,
) -> tuple[list[UnwrappedBlock[B]], ChainStopped | None]:
    """Return the decoded blocks up to the first impossible one, and the reason for that one."""
    blocks: list[UnwrappedBlock[B]] = []
    for height, raw in enumerate(raw_blocks, first_height):
        try:
            blocks.append(unwrap_block(parse, raw, height, parent_proposer))
        except ChainStopped as stop:
            return blocks, stop
        parent_proposer = blocks[-1].proposer
    return blocks, None


def unwrap_block(
    parse: Callable[[bytes], B], raw_block: RawBlock, height: int, parent_proposer: Proposer | None
) -> UnwrappedBlock[B]:
    """Return a decoded block, which must be of this height. Raises ChainStopped."""
    outer = recognize_proposervm_block(raw_block.raw) if raw_block.is_container else None
    inner = raw_block.raw if outer is None else outer.inner
    block = decode_block(parse, inner, height, raw_block.raw)
    proposer = None if outer is None else proposer_of(outer, parent_proposer)
    return UnwrappedBlock(block, raw_block.raw, proposer)
