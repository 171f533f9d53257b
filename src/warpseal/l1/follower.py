"""Follows the accepted P-Chain blocks, and stores the L1 transactions in them and where validations began.

Two cursors rise: that of the new blocks, from the tip of the first start on, and that of the backfill, from the first
block of Etna to where the other one began. When they meet they become one. Each is a range of blocks in the store,
committed together with the rows of its blocks. Signing does not depend on the follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from warpseal.follow.blocks import ChainStopped, RawBlock, StopReason, check_parent, decode_block
from warpseal.follow.chain_follower import ChainConsumer, ChainFollower
from warpseal.follow.progress import Backfill, ChainProgress, log_fields
from warpseal.follow.sources import PChainSource
from warpseal.l1.errors import FollowerProgress
from warpseal.l1.followed_block import DecodeBlock, FollowedBlock, parse_followed_block
from warpseal.l1.settings import FollowerSettings
from warpseal.metrics.samples import FollowerSample
from warpseal.node.blocks import PBlocksClient
from warpseal.resources.base import UNSET, UnsetType, or_unset
from warpseal.resources.chains import FollowerState, PrimaryChain
from warpseal.runtime.retry import Retrier
from warpseal.runtime.ttl_cache import loop_time
from warpseal.store.errors import BlockRangesMismatch, StoreDown
from warpseal.store.locks import Leadership
from warpseal.store.values import BlockRange, L1Transaction, Origin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, ChainID

if TYPE_CHECKING:
    from warpseal.follow.index_source import IndexedBlocks

log = logging.getLogger(__name__)

_MIN_BATCH: Final = 8
_MAX_BATCH: Final = 256
# The progress of a process that does not lead.
_STATUS_INTERVAL_S: Final = 5.0
# The heights of all nodes show whether the one in use lags.
_COMPARE_INTERVAL_S: Final = 15.0

Listener = Callable[[L1Transaction], None]


class FollowerStore(Protocol):
    """L1 transactions and the ranges of blocks that were read (`store.l1_records.L1Records`). Raises StoreDown."""

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]: ...
    async def append(
        self, chain_id: ChainID, read: BlockRange, transactions: Sequence[L1Transaction], origins: Sequence[Origin]
    ) -> None: ...


class PChainFollower:
    """Reads the P-Chain while this process leads, and notifies of L1 transactions. Used from one event loop."""

    def __init__(
        self,
        blocks: PBlocksClient,
        store: FollowerStore,
        leadership: Leadership,
        settings: FollowerSettings,
        *,
        indexed: IndexedBlocks | None = None,
        decode: DecodeBlock = parse_followed_block,
    ) -> None:
        self._blocks = blocks
        self._leadership = leadership
        self._settings = settings
        retrier = Retrier(settings.pace.retry, {StoreDown: "store", NodeUnavailable: "nodes"})
        # About a second of calls, so that new blocks wait no longer for the backfill.
        batch = max(_MIN_BATCH, min(_MAX_BATCH, blocks.max_calls_per_s))
        source = PChainSource(blocks, None, retrier, indexed, batch)
        self._consumer = L1Consumer(source, blocks, store, retrier, settings.follow_from_height, decode)
        self._follower = ChainFollower(self._consumer, retrier, settings.pace)
        # What a node reported while another process led.
        self._watched_tip: int | None = None

    @property
    def is_off(self) -> bool:
        """Whether following is switched off."""
        return not self._settings.follow_p_chain

    @property
    def blocks_read(self) -> int:
        """The number of blocks that this process has read."""
        return self._consumer.blocks_read

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each new L1 transaction once it is committed; return the function that ends that.

        A transaction is new if it is above the newest block that was known when this process began to lead, or above
        the first tip if none was known. That includes transactions accepted while no daemon followed, but not the
        backfill. They come in the order of their blocks. A crash between commit and call loses the call, not the row.
        """
        self._consumer.listeners.append(listener)
        return lambda: self._consumer.listeners.remove(listener)

    def progress(self) -> ChainProgress:
        """Return how far the P-Chain is read; of the leader, as far as the store has it, if that is another process."""
        progress = self._follower.progress()
        if self._leadership.is_leader:
            return progress
        return replace(progress, node_height=self._watched_tip, is_leader=False)

    async def run(self) -> None:
        """Follow while this process leads, until cancelled; return at once if following is switched off."""
        if self.is_off:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._log_progress())
            while True:
                await _run_until(self._watch_leader(), self._leadership.wait_until_held())
                self._consumer.reset()
                await _run_until(self._follower.run(), self._leadership.wait_until_lost())
                self._follower.reset()
                log.warning("lost leadership, stopped following the P-Chain")

    async def _watch_leader(self) -> None:
        """Load what the leader has read, for the progress."""
        while True:
            with suppress(StoreDown, NodeUnavailable, ChainStopped):
                await self._consumer.load()
                self._watched_tip = await self._blocks.tip()
                await self._consumer.prepare_backfill(self._watched_tip)
            await asyncio.sleep(max(self._settings.follow_poll_s, _STATUS_INTERVAL_S))

    async def _log_progress(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log_every_s)
            progress = self.progress()
            backfill = progress.backfill
            if progress.is_leader and backfill is not None and backfill.remaining_blocks:
                log.info("reading P-Chain blocks", extra=backfill_fields(progress, backfill))


async def _run_until(work: Coroutine[Any, Any, None], end: Awaitable[None]) -> None:
    """Run `work`, which never ends by itself, until `end` does."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        await end
        working.cancel()


class L1Consumer(ChainConsumer[RawBlock]):
    """Stores the L1 transactions of P-Chain blocks. blocks_read: since the start.

    first_height: the first block of the backfill; None: the first block of Etna.
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
        # Those of the two cursors, lowest first; more only after another first block, or an earlier version.
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
        # A node that lags does not have the block yet.
        if not self._is_same_chain and tip >= newest.high:
            await self._check_known(newest)
            self._is_same_chain = True
        return newest.high

    async def begin(self, min_height: int, tip: int) -> int | None:
        """Begin at the tip, with a block that the next one names as its parent if there is a next one."""
        await self.prepare_backfill(tip)
        assert self._first is not None
        if tip < self._first:
            return None
        if self._fresh_above is None:
            self._fresh_above = tip
        height = max(self._first, tip - 1)
        (block,) = await self.source.read(height, 1)
        if height < tip:
            block = await self._choose_first(height, block)
        await self.write(height, (block,))
        return height + 1

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        newest = self._newest
        parent_id = next((below.high_block_id for below in self._ranges if below.high + 1 == first_height), None)
        is_between = newest is not None and not any(first_height + 1 == above.low for above in self._ranges)
        if parent_id is None and is_between:
            # The first block of the backfill: only the block above it says which one is right.
            blocks = (await self._choose_first(first_height, blocks[0]), *blocks[1:])
        linked, stop = self._link(first_height, blocks, parent_id)
        if linked:
            await self._commit(linked)
        if stop is None:
            return
        is_above_newest = newest is not None and stop.height == newest.high + 1
        if newest is not None and is_above_newest and stop.reason is StopReason.WRONG_PARENT:
            await self._check_known(newest)
        raise stop

    async def prepare_backfill(self, tip: int) -> None:
        """Find the first block of Etna, before which there were no L1s; block 0 if its time is not known."""
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
            counts = (max(0, stored.high + 1 - max(stored.low, self._first)) for stored in self._ranges)
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
        """Return the height of the node in service, and those that all nodes reported a moment ago."""
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

    async def _check_known(self, newest: BlockRange) -> None:
        """Raise ChainStopped if no node has the newest known block any more."""
        raw = await self._blocks.read_block(newest.high)
        if sha256(raw).digest() == newest.high_block_id:
            return
        others = await self._retrier.call(partial(self._client.block_at_each, newest.high))
        if all(sha256(other).digest() != newest.high_block_id for other in others):
            detail = "no node has the block that was read here earlier"
            raise ChainStopped(StopReason.ANOTHER_CHAIN, newest.high, detail)

    async def _choose_first(self, height: int, block: RawBlock) -> RawBlock:
        """Return the first block of a cursor: one that a block above it names as its parent. Raises ChainStopped.

        Its own parent is not known, so that a node could return any block.
        """
        children = await self.source.read(height + 1, 1)
        candidates: Sequence[RawBlock] = (block,)
        parent_ids: set[bytes] = set()
        for _ in range(2):
            parent_ids = {child.parent_id for child in self._decodable(height + 1, children)}
            for candidate in candidates:
                if sha256(candidate.raw).digest() in parent_ids:
                    return candidate
            candidates = (block, *await self._retrier.call(partial(self.source.alternatives, height)))
            children = (*children, *await self._retrier.call(partial(self.source.alternatives, height + 1)))
        decode_block(self._decode, block.raw, height, block.raw)
        if not parent_ids:
            decode_block(self._decode, children[0].raw, height + 1, children[0].raw)
        detail = "no node has the block that the one above names as its parent"
        raise ChainStopped(StopReason.WRONG_PARENT, height, detail)

    async def _decode_alternatives(self, height: int) -> Iterator[FollowedBlock]:
        return self._decodable(height, await self._retrier.call(partial(self.source.alternatives, height)))

    def _decodable(self, height: int, blocks: Sequence[RawBlock]) -> Iterator[FollowedBlock]:
        for block in blocks:
            with suppress(ChainStopped):
                yield decode_block(self._decode, block.raw, height, block.raw)

    def _link(
        self, first_height: int, blocks: Sequence[RawBlock], parent_id: bytes | None
    ) -> tuple[list[FollowedBlock], ChainStopped | None]:
        """Return the blocks up to the first that cannot follow its parent, and the reason for that one."""
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
        if any(block.height == above.low - 1 and block.id != above.low_parent_id for above in self._ranges):
            detail = "it is not the parent of the block above, which was read earlier"
            raise ChainStopped(StopReason.WRONG_PARENT, block.height, detail)

    async def _commit(self, linked: Sequence[FollowedBlock]) -> None:
        """Commit linked blocks, then notify the listeners of new transactions. Raises ChainStopped."""
        lowest, highest = linked[0], linked[-1]
        read = BlockRange(lowest.height, highest.height, lowest.parent_id, highest.id)
        transactions = tuple(tx for block in linked for tx in block.transactions)
        origins = tuple(origin for block in linked for origin in block.origins)
        try:
            await self._retrier.call(partial(self._store.append, P_CHAIN, read, transactions, origins))
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
        apart = []
        for stored in self._ranges:
            if stored.high + 1 == read.low:
                read = _join(stored, read)
            elif read.high + 1 == stored.low:
                read = _join(read, stored)
            else:
                apart.append(stored)
        self._ranges = sorted((*apart, read), key=lambda stored: stored.low)

    def _notify(self, tx: L1Transaction) -> None:
        for listener in tuple(self.listeners):
            try:
                listener(tx)
            except Exception:  # The blocks are stored: no error of a listener may make them be read again.
                log.exception("internal error, a listener of L1 transactions failed")


def _join(lower: BlockRange, upper: BlockRange) -> BlockRange:
    return BlockRange(lower.low, upper.high, lower.low_parent_id, upper.high_block_id)


async def find_first_block(time_s: int, tip: int, time_of: Callable[[int], Awaitable[int | None]]) -> int:
    """Return the lowest height whose block is not before `time_s` (Unix seconds), or tip + 1 if all blocks are.

    time_of: returns the time of the block at a height, never decreasing; None for the oldest blocks, which have none.
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


def follower_state(follower: PChainFollower) -> FollowerState:
    """Return the known fields for the body of /ready."""
    if follower.is_off:
        return FollowerState(off=True)
    progress = follower.progress()
    backfill, rate = progress.backfill, progress.blocks_per_s
    return FollowerState(
        height=_text(progress.height),
        node_height=_text(progress.node_height),
        lag_blocks=or_unset(progress.lag_blocks),
        first_height=_text(progress.first_height),
        target_height=_text(None if backfill is None else backfill.target_height),
        backfilled=0.0 if backfill is None else round(backfill.fraction, 4),
        blocks_per_second=UNSET if rate is None else round(rate, 1),
        eta_seconds=UNSET if progress.eta_s is None else round(progress.eta_s),
        leader=progress.is_leader,
        stopped=or_unset(progress.stopped),
        stopped_at=_text(progress.stopped_at),
        waiting_for=or_unset(progress.waiting_for),
    )


def follower_detail(follower: PChainFollower) -> FollowerProgress:
    """Return the progress of the backfill, for the detail of an error."""
    if follower.is_off:
        return FollowerProgress(off=True)
    progress = follower.progress()
    backfill = progress.backfill
    return FollowerProgress(
        from_=_text(progress.first_height),
        to=_text(None if backfill is None else backfill.target_height),
        percent=0.0 if backfill is None else round(100 * backfill.fraction, 1),
        eta=UNSET if progress.eta_s is None else round(progress.eta_s),
        stopped=or_unset(progress.stopped),
    )


def follower_sample(follower: PChainFollower) -> FollowerSample:
    """Return the metrics of the follower."""
    progress = follower.progress()
    return FollowerSample(
        chain="p",
        height=progress.height,
        node_height=progress.node_height,
        lag_blocks=progress.lag_blocks,
        remaining_blocks=None if progress.backfill is None else progress.backfill.remaining_blocks,
        blocks_read=follower.blocks_read,
        is_leader=progress.is_leader,
        stopped=progress.stopped,
    )


def backfill_fields(progress: ChainProgress, backfill: Backfill) -> dict[str, Any]:
    """Return the fields of a log line about the backfill."""
    fields = {"from": progress.first_height, "to": backfill.target_height}
    return {**log_fields(progress), **fields, "remaining_blocks": backfill.remaining_blocks}


def _text(height: int | None) -> str | UnsetType:
    return UNSET if height is None else str(height)
