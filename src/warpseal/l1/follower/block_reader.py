"""Reads a batch of blocks and checks that they are one chain; a block that does not link is read from every node.

It returns only linked blocks, with the fault that ended the chain, if there was one. An unavailable node is no fault:
calls are repeated until a node responds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from warpseal.chains.codec import UnknownType
from warpseal.l1.follower.indexed_blocks import IndexedBlocks
from warpseal.l1.follower.l1_rows import DecodeBlock, FollowedBlock
from warpseal.l1.follower.ranges import BlockBatch
from warpseal.node.blocks import PBlocksClient
from warpseal.runtime.retry import Retrier
from warpseal.warp.codec import MalformedMessage


class FollowerFaultReason(StrEnum):
    """The reason why following a chain stopped."""

    UNKNOWN_TYPE = "unknown_type"
    UNDECODABLE_BLOCK = "undecodable_block"
    WRONG_PARENT = "wrong_parent"
    ANOTHER_CHAIN = "another_chain"


@dataclass(frozen=True, slots=True)
class FollowerFault:
    """The reason why following stopped at a height. detail: for the log."""

    reason: FollowerFaultReason
    height: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LinkedBlocks:
    """Blocks of consecutive heights, oldest first, each the parent of the next; fault: why no more follow."""

    blocks: tuple[FollowedBlock, ...]
    fault: FollowerFault | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The bytes for a height, decoded: a block, or the fault in its place. id: the hash of the bytes."""

    id: bytes
    block: FollowedBlock | FollowerFault


@dataclass(frozen=True, slots=True)
class _Link:
    """The id that the block above names, or the parent that the block must name; None: not known."""

    block_id: bytes | None = None
    parent_id: bytes | None = None

    def fits(self, block: FollowedBlock) -> bool:
        return self.block_id in (None, block.id) and self.parent_id in (None, block.parent_id)

    @property
    def mismatch(self) -> str:
        if self.parent_id is None:
            return "no node has the block that the one above names as its parent"
        return "no node has a block that names the one below as its parent"


class BlockReader:
    """Reads blocks of one chain, with the concurrency of `blocks`. indexed: the blocks that no node is asked for."""

    def __init__(
        self, blocks: PBlocksClient, indexed: IndexedBlocks | None, decode: DecodeBlock, retrier: Retrier
    ) -> None:
        self._blocks = blocks
        self._indexed = indexed
        self._decode = decode
        self._retrier = retrier

    async def read(self, batch: BlockBatch) -> LinkedBlocks:
        """Return the blocks of a batch, linked to each other and to the ids at its ends.

        From a known end on, the blocks before the first fault are returned. If no end is known, a fault in linking
        leaves no block, since either side of it could be the network's chain.
        """
        found = await self._fetch(batch)
        if batch.above_id is None and batch.below_id is not None:
            return await self._link_upwards(batch, found)
        linked = await self._link_downwards(batch, found, batch.above_id)
        if batch.above_id is not None or linked.fault is None:
            return linked
        return await self._try_other_tops(batch, found, linked)

    async def time_of(self, height: int) -> int | FollowerFault | None:
        """Return the time of a block, None if it carries none, or the fault of a block that cannot be decoded."""
        block = (await self._read_candidate(height)).block
        if isinstance(block, FollowerFault):
            block = await self._find_alternative(height, _Link()) or block
        return block if isinstance(block, FollowerFault) else block.time

    async def check_known(self, height: int, block_id: bytes) -> FollowerFault | None:
        """Return None if any node has this block, which was read earlier, at that height; else the fault."""
        if (await self._read_candidate(height)).id == block_id:
            return None
        if any(sha256(raw).digest() == block_id for raw in await self._blocks.block_at_each(height)):
            return None
        detail = "no node has the block that was read here earlier"
        return FollowerFault(FollowerFaultReason.ANOTHER_CHAIN, height, detail)

    async def _fetch(self, batch: BlockBatch) -> dict[int, _Candidate]:
        heights = iter(range(batch.high, batch.low - 1, -1))
        found: dict[int, _Candidate] = {}

        async def work() -> None:
            for height in heights:
                found[height] = await self._read_candidate(height)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._blocks.max_concurrency, batch.high - batch.low + 1)):
                tasks.create_task(work())
        return found

    async def _read_candidate(self, height: int) -> _Candidate:
        raw = None if self._indexed is None else await self._indexed.block_at(height)
        if raw is None:
            raw = await self._retrier.call(lambda: self._blocks.block_at(height))
        return self._decode_candidate(height, raw)

    def _decode_candidate(self, height: int, raw: bytes) -> _Candidate:
        block_id = sha256(raw).digest()
        try:
            block = self._decode(raw)
        except MalformedMessage as error:
            is_unknown = isinstance(error, UnknownType)
            reason = FollowerFaultReason.UNKNOWN_TYPE if is_unknown else FollowerFaultReason.UNDECODABLE_BLOCK
            return _Candidate(block_id, FollowerFault(reason, height, str(error)))
        if block.height != height:
            detail = f"the block says that its height is {block.height}"
            return _Candidate(block_id, FollowerFault(FollowerFaultReason.WRONG_PARENT, height, detail))
        return _Candidate(block_id, block)

    async def _link_downwards(
        self, batch: BlockBatch, found: dict[int, _Candidate], top_id: bytes | None
    ) -> LinkedBlocks:
        linked: list[FollowedBlock] = []
        expected_id = top_id
        for height in range(batch.high, batch.low - 1, -1):
            block = await self._select(height, found[height], _Link(block_id=expected_id))
            if isinstance(block, FollowerFault):
                return LinkedBlocks(tuple(reversed(linked)), block)
            linked.append(block)
            expected_id = block.parent_id
        if batch.below_id is not None and expected_id != batch.below_id:
            detail = "it is not the parent of the block above, though it was read earlier"
            fault = FollowerFault(FollowerFaultReason.ANOTHER_CHAIN, batch.low - 1, detail)
            # Without the lowest block, so that the two ranges do not touch.
            return LinkedBlocks(tuple(reversed(linked[:-1])), fault)
        return LinkedBlocks(tuple(reversed(linked)))

    async def _link_upwards(self, batch: BlockBatch, found: dict[int, _Candidate]) -> LinkedBlocks:
        linked: list[FollowedBlock] = []
        parent_id = batch.below_id or b""
        for height in range(batch.low, batch.high + 1):
            block = await self._select(height, found[height], _Link(parent_id=parent_id))
            if isinstance(block, FollowerFault):
                return LinkedBlocks(tuple(linked), await self._diagnose(batch, block))
            linked.append(block)
            parent_id = block.id
        return LinkedBlocks(tuple(linked))

    async def _diagnose(self, batch: BlockBatch, fault: FollowerFault) -> FollowerFault:
        """Return the fault; another one if no node has the block below the batch any more."""
        if fault.height != batch.low or fault.reason is not FollowerFaultReason.WRONG_PARENT or batch.below_id is None:
            return fault
        return await self.check_known(batch.low - 1, batch.below_id) or fault

    async def _try_other_tops(
        self, batch: BlockBatch, found: dict[int, _Candidate], first: LinkedBlocks
    ) -> LinkedBlocks:
        """Try the chains below the other blocks that the nodes return for the top, since the first may be wrong."""
        for raw in await self._blocks.block_at_each(batch.high):
            top = self._decode_candidate(batch.high, raw)
            if isinstance(top.block, FollowerFault) or top.id == found[batch.high].id:
                continue
            linked = await self._link_downwards(batch, {**found, batch.high: top}, top.id)
            if linked.fault is None:
                return linked
        is_top_wrong = first.fault is not None and first.fault.reason is FollowerFaultReason.WRONG_PARENT
        return LinkedBlocks((), first.fault) if is_top_wrong else first

    async def _select(self, height: int, candidate: _Candidate, link: _Link) -> FollowedBlock | FollowerFault:
        """Return the block if it fits, else the first fitting block of another node, else the fault."""
        block = candidate.block
        if isinstance(block, FollowedBlock) and link.fits(block):
            return block
        alternative = await self._find_alternative(height, link)
        if alternative is not None:
            return alternative
        if isinstance(block, FollowerFault) and link.block_id in (None, candidate.id):
            return block
        return FollowerFault(FollowerFaultReason.WRONG_PARENT, height, link.mismatch)

    async def _find_alternative(self, height: int, link: _Link) -> FollowedBlock | None:
        for raw in await self._blocks.block_at_each(height):
            block = self._decode_candidate(height, raw).block
            if isinstance(block, FollowedBlock) and link.fits(block):
                return block
        return None
