"""Reads a batch of blocks and proves that they are one chain: what does not link is asked of every node once more.

Only linked blocks come out, together with the fault that ended the chain, if one did. A node that does not answer is
waited for; only answers can be faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from warpseal.chains.codec import UnknownType
from warpseal.l1.follower.ports import Decode, FollowedBlock, FollowerBlocks
from warpseal.l1.follower.ranges import BlockBatch
from warpseal.runtime.retry import Retrier
from warpseal.warp.codec import MalformedMessage


class FollowerFaultReason(StrEnum):
    """Why a chain cannot be followed any further."""

    UNKNOWN_TYPE = "unknown_type"
    UNDECODABLE_BLOCK = "undecodable_block"
    WRONG_PARENT = "wrong_parent"
    ANOTHER_CHAIN = "another_chain"


@dataclass(frozen=True, slots=True)
class FollowerFault:
    """At which height following ended, and why. detail: for the log."""

    reason: FollowerFaultReason
    height: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LinkedBlocks:
    """Blocks of consecutive heights, oldest first, each the parent of the next; fault: why there are no more."""

    blocks: tuple[FollowedBlock, ...]
    fault: FollowerFault | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the bytes for a height are: a block, or a fault in its place. id: of the bytes, whatever they are."""

    id: bytes
    block: FollowedBlock | None
    fault: FollowerFault | None


class BlockReader:
    """Blocks of one chain from nodes, as many at a time as `blocks` lets through."""

    def __init__(self, blocks: FollowerBlocks, decode: Decode, retrier: Retrier) -> None:
        self._blocks = blocks
        self._decode = decode
        self._retrier = retrier

    async def read(self, batch: BlockBatch) -> LinkedBlocks:
        """Return the blocks of a batch, linked to each other and to what it has to fit to.

        From a known end on, the blocks before the first fault are returned. Where no end is known, a fault in
        linking leaves none: nobody can tell on which side of it the network's chain is.
        """
        found = await self._fetch(batch)
        if batch.above_id is None and batch.below_id is not None:
            return await self._linked_upwards(batch, found)
        reading = await self._linked_downwards(batch, found, batch.above_id)
        if batch.above_id is not None or reading.fault is None:
            return reading
        return await self._from_another_top(batch, found, reading)

    async def time_of(self, height: int) -> int | FollowerFault | None:
        """Return the time of one block, None where it carries none, or the fault of a block that cannot be read."""
        answer = await self._answer_at(height)
        block = answer.block or await self._another(height, lambda block: True)
        return block.time if block is not None else answer.fault

    async def is_known(self, height: int, block_id: bytes) -> bool:
        """Tell whether any node has this block at that height."""
        answer = await self._answer_at(height)
        return answer.id == block_id or any(
            sha256(raw).digest() == block_id for raw in await self._blocks.block_at_each(height)
        )

    async def _fetch(self, batch: BlockBatch) -> dict[int, _Answer]:
        heights = iter(range(batch.high, batch.low - 1, -1))
        found: dict[int, _Answer] = {}

        async def work() -> None:
            for height in heights:
                found[height] = await self._answer_at(height)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._blocks.at_once, batch.high - batch.low + 1)):
                tasks.create_task(work())
        return found

    async def _answer_at(self, height: int) -> _Answer:
        return self._judged(height, await self._retrier.call(lambda: self._blocks.block_at(height)))

    def _judged(self, height: int, raw: bytes) -> _Answer:
        block_id = sha256(raw).digest()
        try:
            block = self._decode(raw)
        except UnknownType as error:
            return _Answer(block_id, None, FollowerFault(FollowerFaultReason.UNKNOWN_TYPE, height, str(error)))
        except MalformedMessage as error:
            return _Answer(block_id, None, FollowerFault(FollowerFaultReason.UNDECODABLE_BLOCK, height, str(error)))
        if block.height != height:
            told = f"the block says that its height is {block.height}"
            return _Answer(block_id, None, FollowerFault(FollowerFaultReason.WRONG_PARENT, height, told))
        return _Answer(block_id, block, None)

    async def _linked_downwards(
        self, batch: BlockBatch, found: dict[int, _Answer], top_id: bytes | None
    ) -> LinkedBlocks:
        linked: list[FollowedBlock] = []
        wanted = top_id
        for height in range(batch.high, batch.low - 1, -1):
            block = await self._fitting(height, found[height], _HasID(wanted))
            if isinstance(block, FollowerFault):
                return LinkedBlocks(tuple(reversed(linked)), block)
            linked.append(block)
            wanted = block.parent_id
        if batch.below_id is not None and wanted != batch.below_id:
            told = "it is not the parent of the block above, though it was read earlier"
            fault = FollowerFault(FollowerFaultReason.ANOTHER_CHAIN, batch.low - 1, told)
            # Without the lowest one, so that the two ranges do not touch.
            return LinkedBlocks(tuple(reversed(linked[:-1])), fault)
        return LinkedBlocks(tuple(reversed(linked)))

    async def _linked_upwards(self, batch: BlockBatch, found: dict[int, _Answer]) -> LinkedBlocks:
        linked: list[FollowedBlock] = []
        parent_id = batch.below_id or b""
        for height in range(batch.low, batch.high + 1):
            block = await self._fitting(height, found[height], _HasParent(parent_id))
            if isinstance(block, FollowerFault):
                return LinkedBlocks(tuple(linked), await self._explained(batch, block))
            linked.append(block)
            parent_id = block.id
        return LinkedBlocks(tuple(linked))

    async def _explained(self, batch: BlockBatch, fault: FollowerFault) -> FollowerFault:
        """Return the fault, or a better one where no node has the block any more that the batch has to fit to."""
        if fault.height != batch.low or fault.reason is not FollowerFaultReason.WRONG_PARENT or batch.below_id is None:
            return fault
        if await self.is_known(batch.low - 1, batch.below_id):
            return fault
        return FollowerFault(
            FollowerFaultReason.ANOTHER_CHAIN, batch.low - 1, "no node has the block that was read here earlier"
        )

    async def _from_another_top(
        self, batch: BlockBatch, found: dict[int, _Answer], first: LinkedBlocks
    ) -> LinkedBlocks:
        """Try the chains below the blocks that the nodes give for the top: the first one may have been a lie."""
        for raw in await self._blocks.block_at_each(batch.high):
            top = self._judged(batch.high, raw)
            if top.block is None or top.id == found[batch.high].id:
                continue
            reading = await self._linked_downwards(batch, {**found, batch.high: top}, top.id)
            if reading.fault is None:
                return reading
        is_lie = first.fault is not None and first.fault.reason is FollowerFaultReason.WRONG_PARENT
        return LinkedBlocks((), first.fault) if is_lie else first

    async def _fitting(self, height: int, answer: _Answer, fits: _HasID | _HasParent) -> FollowedBlock | FollowerFault:
        """Return the block where it fits, else the first that another node gives and that does, else the fault."""
        if answer.block is not None and fits(answer.block):
            return answer.block
        another = await self._another(height, fits)
        if another is not None:
            return another
        is_of_the_chain = not isinstance(fits, _HasID) or fits.block_id in (None, answer.id)
        if answer.fault is not None and is_of_the_chain:
            return answer.fault
        return FollowerFault(FollowerFaultReason.WRONG_PARENT, height, fits.complaint)

    async def _another(self, height: int, fits: Callable[[FollowedBlock], bool]) -> FollowedBlock | None:
        answers: Sequence[bytes] = await self._blocks.block_at_each(height)
        blocks = (self._judged(height, raw).block for raw in answers)
        return next((block for block in blocks if block is not None and fits(block)), None)


@dataclass(frozen=True, slots=True)
class _HasID:
    """Whether a block is the one that the block above names as its parent; None: nobody knows yet."""

    block_id: bytes | None
    complaint = "no node has the block that the one above names as its parent"

    def __call__(self, block: FollowedBlock) -> bool:
        return self.block_id is None or block.id == self.block_id


@dataclass(frozen=True, slots=True)
class _HasParent:
    """Whether a block names the one below as its parent."""

    parent_id: bytes
    complaint = "no node has a block that names the one below as its parent"

    def __call__(self, block: FollowedBlock) -> bool:
        return block.parent_id == self.parent_id
