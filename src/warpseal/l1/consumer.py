"""Stores the L1 transactions of accepted P-Chain blocks, and where validations began.

Two cursors rise: that of the new blocks, from the tip of the first start on, and that of the
backfill, from the first block of Etna to where the other one began. When they meet they become one.
Each is a range of blocks in the store, committed together with the rows of its blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final, Protocol

from msgspec.structs import replace

from warpseal.follow.blocks import ChainStopped, RawBlock, StopReason, check_parent, decode_block
from warpseal.follow.chain_follower import ChainConsumer
from warpseal.follow.sources import PChainSource
from warpseal.l1.followed_block import DecodeBlock, FollowedBlock
from warpseal.node.blocks import PBlocksClient
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import Backfill, ChainProgress
from warpseal.runtime.retry import Retrier
from warpseal.runtime.ttl_cache import loop_time
from warpseal.store.errors import BlockRangesMismatch
from warpseal.store.values import BlockRange, L1Transaction, Origin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, ChainID

# The logger of the follower, whose level an operator sets as that of the P-Chain.
log = logging.getLogger("warpseal.l1.follower")

# The heights of all nodes show whether the one in use lags.
_COMPARE_INTERVAL_S: Final = 15.0

Listener = Callable[[L1Transaction], None]


class FollowerStore(Protocol):
    """L1 transactions and the ranges of blocks that were read (`store.l1_records.L1Records`).

    Raises StoreDown.
    """

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]: ...
    async def append(
        self,
        chain_id: ChainID,
        read: BlockRange,
        transactions: Sequence[L1Transaction],
        origins: Sequence[Origin],
    ) -> None: ...


class L1Consumer(ChainConsumer[RawBlock]):
    """Stores the L1 transactions of P-Chain blocks.

    blocks_read: number of blocks that were read since the start.
    first_height: lowest height of the backfill; None: that of the first block of Etna.
    """

    name = PrimaryChain.P.value
    activity = "following the P-Chain"
    log = log

    def __init__(
        self,
        source: PChainSource,
        client: PBlocksClient,
        store: FollowerStore,
        retrier: Retrier,
        first_height: int | None,
        decode: DecodeBlock,
    ) -> None:
        super().__init__(source, retrier)
        source.tip_heights = self._tip_heights
        self.listeners: list[Listener] = []
        self.blocks_read = 0
        self._blocks = source
        self._client = client
        self._store = store
        self._decode = decode
        self._first = first_height
        # The ranges below the two cursors, lowest first. There are more only after the first block
        # was changed, or in a store of an earlier version.
        self._ranges: list[BlockRange] = []
        self._is_same_chain = False
        self._fresh_above: int | None = None
        self._other_tips: tuple[int, ...] = ()
        self._compared_at = float("-inf")

    @property
    def _newest(self) -> BlockRange | None:
        """The range of the new blocks."""
        return self._ranges[-1] if self._ranges else None

    def reset(self) -> None:
        """Trust nothing that was read: another process may have followed until now."""
        self._is_same_chain = False
        self._fresh_above = None

    async def load(self) -> None:
        """Load the cursors from the store. Raises StoreDown."""
        self._ranges = sorted(await self._store.ranges(P_CHAIN), key=lambda stored: stored.low)

    async def resume(self) -> int | None:
        await self._retrier.call(self.load)
        newest = self._newest
        if newest is None:
            return None
        if self._fresh_above is None:
            self._fresh_above = newest.high
        tip = await self._retrier.call(self._client.tip)
        # The node is compared with the store before any block is appended, since a store may hold
        # the blocks of another chain. A node that lags does not have the block yet.
        if not self._is_same_chain and tip >= newest.high:
            await self._check_stored(newest)
            self._is_same_chain = True
        return newest.high

    async def begin(self, min_height: int, tip: int) -> int | None:
        """Begin just below the tip, with a block that the one above it names as its parent.

        A chain whose tip is the first block of the backfill begins with its next block: a node can
        return any bytes for a block that no other one names.
        """
        await self.prepare_backfill(tip)
        assert self._first is not None
        if tip < self._first:
            return None
        if self._fresh_above is None:
            self._fresh_above = tip
        if tip == self._first:
            return None
        await self.write(tip - 1, await self.source.read(tip - 1, 1))
        return tip

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        newest = self._newest
        parent_id = next(
            (below.high_block_id for below in self._ranges if below.high + 1 == first_height), None
        )
        has_child = any(first_height + 1 == above.low for above in self._ranges)
        if parent_id is None and not has_child:
            # A cursor starts here, between no neighbours: only the block above says which block is
            # right.
            blocks = (await self._choose_first(first_height, blocks[0]), *blocks[1:])
        linked, stop = self._link(first_height, blocks, parent_id)
        if linked:
            await self._commit(linked)
        if stop is None:
            return
        is_wrong_parent = stop.reason is StopReason.WRONG_PARENT
        if newest is not None and is_wrong_parent and stop.height == newest.high + 1:
            # Either the block or the store is of another chain: the two have different remedies.
            await self._check_stored(newest)
        raise stop

    async def prepare_backfill(self, tip: int) -> None:
        """Find the first block of Etna, before which there were no L1s; block 0 if its time is not
        known.
        """
        if self._first is not None:
            return
        etna_s = (await self._retrier.call(self._client.upgrades)).get("etna")
        if etna_s is None:
            self._first = 0
            return
        self._first = await find_first_block(etna_s, tip, self._time_of)
        log.info("found the first block of Etna", extra={"height": self._first})

    def missing(self) -> range:
        if self._first is None:
            return range(0)
        start = self._first
        for stored in self._ranges:
            if start < stored.low:
                return range(start, stored.low)
            start = max(start, stored.high + 1)
        return range(0)

    def describe(self, progress: ChainProgress) -> ChainProgress:
        newest = self._newest
        if newest is None:
            target = None if self._first is None else Backfill(self._first, None, 0.0)
            return replace(progress, height=None, backfill=target)
        backfill = None
        if self._first is not None:
            total = max(0, newest.high - self._first + 1)
            counts = (
                max(0, stored.high + 1 - max(stored.low, self._first)) for stored in self._ranges
            )
            remaining = total - sum(counts)
            fraction = (total - remaining) / total if total else 1.0
            backfill = Backfill(self._first, remaining, fraction)
        return replace(
            progress,
            first_height=newest.low,
            height=newest.high,
            block_id=newest.high_block_id,
            backfill=backfill,
        )

    async def _tip_heights(self) -> tuple[int, ...]:
        """Return the height of the node in use, and those that all nodes reported a moment ago."""
        tip = await self._client.tip()
        if loop_time() - self._compared_at >= _COMPARE_INTERVAL_S:
            self._compared_at = loop_time()
            with suppress(NodeUnavailable):
                self._other_tips = await self._client.tips()
        return (tip, *self._other_tips)

    async def _time_of(self, height: int) -> int | None:
        (raw_block,) = await self.source.read(height, 1)
        try:
            return decode_block(self._decode, raw_block.raw, height, raw_block.raw).time
        except ChainStopped as stop:
            for block in await self._decode_alternatives(height):
                return block.time
            raise stop from None

    async def _check_stored(self, newest: BlockRange) -> None:
        """Raise ChainStopped if no node has the newest stored block any more."""
        raw = await self._blocks.read_block(newest.high)
        if sha256(raw).digest() == newest.high_block_id:
            return
        others = await self._retrier.call(partial(self._client.block_at_each, newest.high))
        if all(sha256(other).digest() != newest.high_block_id for other in others):
            detail = "no node has the block that was read here earlier"
            raise ChainStopped(StopReason.ANOTHER_CHAIN, newest.high, detail)

    async def _choose_first(self, height: int, block: RawBlock) -> RawBlock:
        """Return the first block of a cursor: a block that the one above it names as its parent.

        The parent of the first block is not stored, so that a node could return any bytes.
        Raises ChainStopped.
        """
        children = await self.source.read(height + 1, 1)
        candidates: Sequence[RawBlock] = (block,)
        parent_ids: set[bytes] = set()
        # The blocks that were read decide. Only if they do not fit are those of all nodes compared,
        # which costs a call to each node.
        for _ in range(2):
            parent_ids = {child.parent_id for child in self._decodable(height + 1, children)}
            for candidate in candidates:
                if sha256(candidate.raw).digest() in parent_ids:
                    return candidate
            candidates = (
                block,
                *await self._retrier.call(partial(self.source.alternatives, height)),
            )
            children = (
                *children,
                *await self._retrier.call(partial(self.source.alternatives, height + 1)),
            )
        decode_block(self._decode, block.raw, height, block.raw)
        if not parent_ids:
            decode_block(self._decode, children[0].raw, height + 1, children[0].raw)
        detail = "no node has the block that the one above names as its parent"
        raise ChainStopped(StopReason.WRONG_PARENT, height, detail)

    async def _decode_alternatives(self, height: int) -> Iterator[FollowedBlock]:
        return self._decodable(
            height, await self._retrier.call(partial(self.source.alternatives, height))
        )

    def _decodable(self, height: int, blocks: Sequence[RawBlock]) -> Iterator[FollowedBlock]:
        for block in blocks:
            with suppress(ChainStopped):
                yield decode_block(self._decode, block.raw, height, block.raw)

    def _link(
        self, first_height: int, blocks: Sequence[RawBlock], parent_id: bytes | None
    ) -> tuple[list[FollowedBlock], ChainStopped | None]:
        """Return the blocks up to the first that cannot follow its parent, and the reason for that
        one.
        """
        linked: list[FollowedBlock] = []
        try:
            for height, raw_block in enumerate(blocks, first_height):
                block = decode_block(self._decode, raw_block.raw, height, raw_block.raw)
                check_parent(block.parent_id, parent_id, height, raw_block.raw)
                self._check_child(block)
                linked.append(block)
                parent_id = block.id
        except ChainStopped as stop:
            return linked, stop
        return linked, None

    def _check_child(self, block: FollowedBlock) -> None:
        """Raise ChainStopped if the block above was read, and names another parent."""
        if any(
            block.height == above.low - 1 and block.id != above.low_parent_id
            for above in self._ranges
        ):
            detail = "it is not the parent of the block above, which was read earlier"
            raise ChainStopped(StopReason.WRONG_PARENT, block.height, detail)

    async def _commit(self, linked: Sequence[FollowedBlock]) -> None:
        """Commit linked blocks, then notify the listeners of new transactions.

        Raises ChainStopped.
        """
        lowest, highest = linked[0], linked[-1]
        read = BlockRange(lowest.height, highest.height, lowest.parent_id, highest.id)
        transactions = tuple(tx for block in linked for tx in block.transactions)
        origins = tuple(origin for block in linked for origin in block.origins)
        try:
            await self._retrier.call(
                partial(self._store.append, P_CHAIN, read, transactions, origins)
            )
        except BlockRangesMismatch as error:
            raise ChainStopped(StopReason.ANOTHER_CHAIN, read.low, str(error)) from None
        self._note_read(read)
        self.blocks_read += len(linked)
        above = read.high if self._fresh_above is None else self._fresh_above
        for tx in transactions:
            if tx.height > above:
                self._notify(tx)

    def _note_read(self, read: BlockRange) -> None:
        """Move the cursor that read these blocks; the two become one when they meet."""
        others = []
        for stored in self._ranges:
            if stored.high + 1 == read.low:
                read = _join(stored, read)
            elif read.high + 1 == stored.low:
                read = _join(read, stored)
            else:
                others.append(stored)
        self._ranges = sorted((*others, read), key=lambda stored: stored.low)

    def _notify(self, tx: L1Transaction) -> None:
        for listener in tuple(self.listeners):
            try:
                listener(tx)
            except Exception:
                # The blocks are stored: no error of a listener may make them be read again.
                log.exception("internal error, a listener of L1 transactions failed")


def _join(lower: BlockRange, upper: BlockRange) -> BlockRange:
    return BlockRange(lower.low, upper.high, lower.low_parent_id, upper.high_block_id)


async def find_first_block(
    time_s: int, tip: int, time_of: Callable[[int], Awaitable[int | None]]
) -> int:
    """Return the lowest height whose block is not before `time_s` (Unix seconds), or tip + 1 if all
    blocks are.

    time_of: returns the time of the block at a height, never decreasing; None for the oldest
        blocks, which have none.
    """
    low, high = 0, tip + 1
    while low < high:
        middle = (low + high) // 2
        time = await time_of(middle)
        if time is None or time < time_s:
            low = middle + 1
        else:
            high = middle
    return low
