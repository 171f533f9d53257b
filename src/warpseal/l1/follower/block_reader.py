"""Chooses the next batch of blocks, reads it and checks that it is one chain; a stray block is read from every node.

New blocks come first, then gaps, then the backfill. A few new blocks are read upwards; of more than one batch the
newest are read first, downwards until they meet the range below. Only linked blocks are returned, with the failure that
ended the chain, if there was one. An unavailable node is no failure: calls are repeated until a node responds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.codec import UnknownType
from warpseal.chains.p_blocks import PBlock, parse_p_block
from warpseal.chains.p_txs import (
    ConvertSubnetToL1Tx,
    DisableL1ValidatorTx,
    IncreaseL1ValidatorBalanceTx,
    PSignedTx,
    RegisterL1ValidatorTx,
    SetL1ValidatorWeightTx,
)
from warpseal.follow.blocks import StopReason
from warpseal.node.blocks import PBlocksClient
from warpseal.runtime.retry import Retrier
from warpseal.store.values import BlockRange, BootstrapOrigin, L1Transaction, Origin, RegistrationOrigin
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import SubnetID, ValidationID

if TYPE_CHECKING:
    from warpseal.follow.index_source import IndexedBlocks


class FollowerFailure(Struct, frozen=True):
    """The reason why following stopped at a height. detail: for the log."""

    reason: StopReason
    height: int
    detail: str = ""


class LinkedBlocks(Struct, frozen=True):
    """Blocks of consecutive heights, oldest first, each the parent of the next; failure: why no more follow."""

    blocks: tuple[FollowedBlock, ...]
    failure: FollowerFailure | None = None


class _Candidate(Struct, frozen=True):
    """The bytes for a height, decoded: a block, or the failure in its place. id: the hash of the bytes."""

    id: bytes
    block: FollowedBlock | FollowerFailure


class _Link(Struct, frozen=True):
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


class BlockReader(Struct, eq=False):
    """Reads blocks of one chain, with the concurrency of `blocks`. indexed: the blocks that no node is asked for."""

    _blocks: PBlocksClient
    _indexed: IndexedBlocks | None
    _decode: DecodeBlock
    _retrier: Retrier

    async def read(self, batch: BlockBatch) -> LinkedBlocks:
        """Return the blocks of a batch, linked to each other and to the ids at its ends.

        From a known end on, the blocks before the first failure are returned. If no end is known, a failure in linking
        leaves no block, since either side of it could be the network's chain.
        """
        candidates = await self._fetch(batch)
        if batch.above_id is None and batch.below_id is not None:
            linked = await self._link_upwards(batch, candidates)
            return await self._check_top(batch, candidates, linked) if self._blocks.must_agree else linked
        if batch.above_id is None and self._blocks.must_agree:
            top = candidates[batch.high] = await self._read_agreed(batch.high)
            return await self._link_downwards(batch, candidates, top.id)
        linked = await self._link_downwards(batch, candidates, batch.above_id)
        if batch.above_id is not None or linked.failure is None:
            return linked
        return await self._try_other_tops(batch, candidates, linked)

    async def time_of(self, height: int) -> int | FollowerFailure | None:
        """Return the time of a block, None if it carries none, or the failure of a block that cannot be decoded."""
        read = self._read_agreed if self._blocks.must_agree else self._read_candidate
        block = (await read(height)).block
        if isinstance(block, FollowerFailure):
            block = await self._find_alternative(height, _Link()) or block
        return block if isinstance(block, FollowerFailure) else block.time

    async def check_known(self, height: int, block_id: bytes) -> FollowerFailure | None:
        """Return None if any node has this block, which was read earlier, at that height; else the failure."""
        if (await self._read_candidate(height)).id == block_id:
            return None
        if any(sha256(raw).digest() == block_id for raw in await self._blocks.block_at_each(height)):
            return None
        detail = "no node has the block that was read here earlier"
        return FollowerFailure(StopReason.ANOTHER_CHAIN, height, detail)

    async def _fetch(self, batch: BlockBatch) -> dict[int, _Candidate]:
        heights = iter(range(batch.high, batch.low - 1, -1))
        candidates: dict[int, _Candidate] = {}

        async def work() -> None:
            for height in heights:
                candidates[height] = await self._read_candidate(height)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._blocks.max_concurrency, batch.high - batch.low + 1)):
                tasks.create_task(work())
        return candidates

    async def _read_candidate(self, height: int) -> _Candidate:
        raw = None if self._indexed is None else await self._indexed.block_at(height)
        if raw is None:
            raw = await self._retrier.call(lambda: self._blocks.block_at(height))
        return self._decode_candidate(height, raw)

    async def _read_agreed(self, height: int) -> _Candidate:
        return self._decode_candidate(height, await self._retrier.call(lambda: self._blocks.agreed_block_at(height)))

    async def _check_top(
        self, batch: BlockBatch, candidates: dict[int, _Candidate], linked: LinkedBlocks
    ) -> LinkedBlocks:
        """Return the linked blocks, if nodes agree about the newest one; else the chain below the block of the nodes.

        A block names its parent, so that the newest one proves all others. A single node may add any block to a chain.
        """
        if not linked.blocks:
            return linked
        newest = linked.blocks[-1]
        top = await self._read_agreed(newest.height)
        if top.id == newest.id:
            return linked
        checked = replace(batch, high=newest.height)
        return await self._link_downwards(checked, {**candidates, newest.height: top}, top.id)

    def _decode_candidate(self, height: int, raw: bytes) -> _Candidate:
        block_id = sha256(raw).digest()
        try:
            block = self._decode(raw)
        except MalformedMessage as error:
            is_unknown = isinstance(error, UnknownType)
            reason = StopReason.UNKNOWN_TYPE if is_unknown else StopReason.UNDECODABLE_BLOCK
            return _Candidate(block_id, FollowerFailure(reason, height, str(error)))
        if block.height != height:
            detail = f"the block says that its height is {block.height}"
            return _Candidate(block_id, FollowerFailure(StopReason.WRONG_PARENT, height, detail))
        return _Candidate(block_id, block)

    async def _link_downwards(
        self, batch: BlockBatch, candidates: dict[int, _Candidate], top_id: bytes | None
    ) -> LinkedBlocks:
        linked: list[FollowedBlock] = []
        expected_id = top_id
        for height in range(batch.high, batch.low - 1, -1):
            block = await self._select(height, candidates[height], _Link(block_id=expected_id))
            if isinstance(block, FollowerFailure):
                return LinkedBlocks(tuple(reversed(linked)), block)
            linked.append(block)
            expected_id = block.parent_id
        if batch.below_id is not None and expected_id != batch.below_id:
            detail = "it is not the parent of the block above, though it was read earlier"
            failure = FollowerFailure(StopReason.ANOTHER_CHAIN, batch.low - 1, detail)
            # Without the lowest block, so that the two ranges do not touch.
            return LinkedBlocks(tuple(reversed(linked[:-1])), failure)
        return LinkedBlocks(tuple(reversed(linked)))

    async def _link_upwards(self, batch: BlockBatch, candidates: dict[int, _Candidate]) -> LinkedBlocks:
        linked: list[FollowedBlock] = []
        parent_id = batch.below_id or b""
        for height in range(batch.low, batch.high + 1):
            block = await self._select(height, candidates[height], _Link(parent_id=parent_id))
            if isinstance(block, FollowerFailure):
                return LinkedBlocks(tuple(linked), await self._diagnose(batch, block))
            linked.append(block)
            parent_id = block.id
        return LinkedBlocks(tuple(linked))

    async def _diagnose(self, batch: BlockBatch, failure: FollowerFailure) -> FollowerFailure:
        """Return the failure; another one if no node has the block below the batch any more."""
        if failure.height != batch.low or failure.reason is not StopReason.WRONG_PARENT or batch.below_id is None:
            return failure
        return await self.check_known(batch.low - 1, batch.below_id) or failure

    async def _try_other_tops(
        self, batch: BlockBatch, candidates: dict[int, _Candidate], first: LinkedBlocks
    ) -> LinkedBlocks:
        """Try the chains below the other blocks that the nodes return for the top, since the first may be wrong."""
        for raw in await self._blocks.block_at_each(batch.high):
            top = self._decode_candidate(batch.high, raw)
            if isinstance(top.block, FollowerFailure) or top.id == candidates[batch.high].id:
                continue
            linked = await self._link_downwards(batch, {**candidates, batch.high: top}, top.id)
            if linked.failure is None:
                return linked
        is_top_wrong = first.failure is not None and first.failure.reason is StopReason.WRONG_PARENT
        return LinkedBlocks((), first.failure) if is_top_wrong else first

    async def _select(self, height: int, candidate: _Candidate, link: _Link) -> FollowedBlock | FollowerFailure:
        """Return the block if it fits, else the first fitting block of another node, else the failure."""
        block = candidate.block
        if isinstance(block, FollowedBlock) and link.fits(block):
            return block
        alternative = await self._find_alternative(height, link)
        if alternative is not None:
            return alternative
        if isinstance(block, FollowerFailure) and link.block_id in (None, candidate.id):
            return block
        return FollowerFailure(StopReason.WRONG_PARENT, height, link.mismatch)

    async def _find_alternative(self, height: int, link: _Link) -> FollowedBlock | None:
        for raw in await self._blocks.block_at_each(height):
            block = self._decode_candidate(height, raw).block
            if isinstance(block, FollowedBlock) and link.fits(block):
                return block
        return None


class FollowedBlock(Struct, frozen=True):
    """A decoded block with its L1 transactions. time: Unix seconds, None if the block carries none."""

    height: int
    id: bytes
    parent_id: bytes
    time: int | None
    transactions: tuple[L1Transaction, ...] = ()
    origins: tuple[Origin, ...] = ()


DecodeBlock = Callable[[bytes], FollowedBlock]
"""Decodes the bytes of a block. Raises MalformedMessage; for an unknown type its subclass UnknownType."""


def parse_followed_block(raw: bytes) -> FollowedBlock:
    """Decode a block. Raises MalformedMessage; for an unknown type its subclass UnknownType."""
    block = parse_p_block(raw)
    rows = tuple(_rows(block))
    origins = tuple(origin for tx in block.txs for origin in _origins(tx))
    return FollowedBlock(block.height, block.id, block.parent_id, block.time, rows, origins)


def _rows(block: PBlock) -> Iterator[L1Transaction]:
    for position, tx in enumerate(block.txs):
        subjects = _find_subjects(tx)
        if subjects is not None:
            yield L1Transaction(tx.id, block.height, position, block.id, block.time or 0, tx.kind, tx.raw, *subjects)


def _find_subjects(tx: PSignedTx) -> tuple[SubnetID | None, ValidationID | None] | None:
    """Return the subnet and the validation as far as the transaction names them; None: it is no L1 transaction."""
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id):
            return subnet_id, None
        case RegisterL1ValidatorTx() as unsigned:
            registration = unsigned.registration()
            return registration.subnet_id, registration.validation_id
        case SetL1ValidatorWeightTx() as unsigned:
            return None, unsigned.change().validation_id
        case IncreaseL1ValidatorBalanceTx() | DisableL1ValidatorTx() as unsigned:
            return None, unsigned.validation_id
    return None


def _origins(tx: PSignedTx) -> Iterator[Origin]:
    match tx.unsigned:
        case ConvertSubnetToL1Tx(subnet_id=subnet_id, validators=validators):
            yield from (BootstrapOrigin(subnet_id, index) for index in range(len(validators)))
        case RegisterL1ValidatorTx() as unsigned:
            yield RegistrationOrigin(unsigned.registration().encode())


class BlockBatch(Struct, frozen=True):
    """Heights to read, both ends included, and the ids at their ends.

    below_id: the id of block low - 1; above_id: the id that block high + 1 names as its parent; None: not known.
    """

    low: int
    high: int
    below_id: bytes | None = None
    above_id: bytes | None = None


class KnownRanges:
    """Disjoint ranges of one chain that do not touch each other, newest first."""

    def __init__(self, ranges: Iterable[BlockRange] = ()) -> None:
        self._ranges: list[BlockRange] = []
        for item in ranges:
            self.add(item)

    def __iter__(self) -> Iterator[BlockRange]:
        return iter(self._ranges)

    @property
    def newest(self) -> BlockRange | None:
        """The highest range."""
        return self._ranges[0] if self._ranges else None

    @property
    def oldest(self) -> BlockRange | None:
        """The lowest range."""
        return self._ranges[-1] if self._ranges else None

    def add(self, read: BlockRange) -> None:
        """Add a range, merged with the ranges that it touches."""
        low, high = read, read
        ranges = []
        for item in self._ranges:
            if item.high + 1 < read.low or item.low > read.high + 1:
                ranges.append(item)
                continue
            low = item if item.low < low.low else low
            high = item if item.high > high.high else high
        ranges.append(BlockRange(low.low, high.high, low.low_parent_id, high.high_block_id))
        self._ranges = sorted(ranges, key=lambda item: -item.high)

    def count(self, low: int, high: int) -> int:
        """Return the number of known blocks in low..high."""
        return sum(max(0, min(high, item.high) - max(low, item.low) + 1) for item in self._ranges)


def newer_batch(ranges: KnownRanges, tip: int, size: int) -> BlockBatch | None:
    """Return the next batch above the oldest range, newest first; None: no block is missing there, or none is known."""
    top = ranges.newest
    if top is None:
        return None
    if tip - top.high > size:
        return BlockBatch(tip - size + 1, tip)
    if tip > top.high:
        return BlockBatch(top.high + 1, tip, below_id=top.high_block_id)
    _, *older = ranges
    return _batch_below(top, older[0].high + 1, size, older[0].high_block_id) if older else None


def older_batch(ranges: KnownRanges, tip: int, first: int, size: int) -> BlockBatch | None:
    """Return the next batch below the oldest range, down to `first`; None: no block is missing there."""
    oldest = ranges.oldest
    if oldest is None:
        return BlockBatch(max(first, tip - size + 1), tip) if tip >= first else None
    return _batch_below(oldest, first, size, None) if oldest.low > first else None


def _batch_below(upper: BlockRange, lowest: int, size: int, below_id: bytes | None) -> BlockBatch:
    low = max(lowest, upper.low - size)
    return BlockBatch(low, upper.low - 1, below_id if low == lowest else None, upper.low_parent_id)
