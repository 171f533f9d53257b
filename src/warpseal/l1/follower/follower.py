"""Follows the accepted P-Chain blocks: new blocks first, then gaps, then the backfill down to the first block of Etna.

Only blocks that link to known blocks are stored; their rows and their range are committed together. A block that cannot
be right stops the follower with a named failure. The same block is tried again at intervals, and never skipped. Calls
to nodes and the store are repeated until they succeed. Signing does not depend on the follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from warpseal.follow.blocks import StopReason
from warpseal.l1.errors import FollowerProgress
from warpseal.l1.follower.block_reader import (
    BlockBatch,
    BlockReader,
    DecodeBlock,
    FollowerFailure,
    KnownRanges,
    LinkedBlocks,
    newer_batch,
    older_batch,
    parse_followed_block,
)
from warpseal.l1.settings import FollowerSettings
from warpseal.metrics.samples import FollowerSample
from warpseal.node.blocks import PBlocksClient
from warpseal.resources.base import UNSET, UnsetType, or_unset
from warpseal.resources.chains import FollowerState
from warpseal.runtime.rate_meter import RateMeter
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.errors import BlockRangesMismatch, StoreDown
from warpseal.store.locks import Leadership
from warpseal.store.values import BlockRange, L1Transaction, Origin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, ChainID

if TYPE_CHECKING:
    from warpseal.follow.index_source import IndexedBlocks


class FollowerStatus(FollowerSample, frozen=True):
    """The status of a follower: its metrics and what else operators see of it.

    first_height: all blocks from there to `height` were read; target_height: the end of the backfill.
    backfilled: 0..1. rate_blocks_s, eta_s: of the backfill, None if there is none or if they are not known.
    stopped_at: the height of the failure. waiting_for: the unavailable "nodes" or "store". is_off: following is
    switched off, and the other fields have no meaning. block_id: ID of the block at `height`.
    """

    first_height: int | None = None
    target_height: int | None = None
    backfilled: float = 0.0
    rate_blocks_s: float | None = None
    eta_s: float | None = None
    stopped_at: int | None = None
    waiting_for: str | None = None
    is_off: bool = False
    block_id: bytes | None = None

    def state(self) -> FollowerState:
        """Return the known fields for the body of /ready."""
        if self.is_off:
            return FollowerState(off=True)
        return FollowerState(
            height=_text(self.height),
            node_height=_text(self.node_height),
            lag_blocks=or_unset(self.lag_blocks),
            first_height=_text(self.first_height),
            target_height=_text(self.target_height),
            backfilled=round(self.backfilled, 4),
            blocks_per_second=UNSET if self.rate_blocks_s is None else round(self.rate_blocks_s, 1),
            eta_seconds=UNSET if self.eta_s is None else round(self.eta_s),
            leader=self.is_leader,
            stopped=or_unset(self.stopped),
            stopped_at=_text(self.stopped_at),
            waiting_for=or_unset(self.waiting_for),
        )

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of a log line about the backfill."""
        return {
            "height": self.height,
            "from": self.first_height,
            "to": self.target_height,
            "remaining_blocks": self.remaining_blocks,
            "blocks_per_s": None if self.rate_blocks_s is None else round(self.rate_blocks_s, 1),
            "eta_s": None if self.eta_s is None else round(self.eta_s),
        }

    def progress(self) -> FollowerProgress:
        """Return the progress of the backfill, for the detail of an error."""
        if self.is_off:
            return FollowerProgress(off=True)
        return FollowerProgress(
            from_=_text(self.first_height),
            to=_text(self.target_height),
            percent=round(100 * self.backfilled, 1),
            eta=UNSET if self.eta_s is None else round(self.eta_s),
            stopped=or_unset(self.stopped),
        )


def _text(height: int | None) -> str | UnsetType:
    return UNSET if height is None else str(height)


log = logging.getLogger(__name__)

INTERNAL_ERROR: Final = "internal_error"
_MIN_BATCH: Final = 8
_MAX_BATCH: Final = 256
# The progress of a process that does not lead.
_STATUS_INTERVAL_S: Final = 5.0

Listener = Callable[[L1Transaction], None]


class FollowerStore(Protocol):
    """L1 transactions and the ranges of blocks that were read (`store.l1_records.L1Records`). Raises StoreDown."""

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]: ...
    async def append(
        self, chain_id: ChainID, read: BlockRange, transactions: Sequence[L1Transaction], origins: Sequence[Origin]
    ) -> None: ...


class _Stopped(Exception):
    def __init__(self, failure: FollowerFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


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
        self._store = store
        self._leadership = leadership
        self._settings = settings
        backoff = Backoff(settings.retry_first_s, settings.retry_cap_s)
        self._retrier = Retrier(backoff, {StoreDown: "store", NodeUnavailable: "nodes"})
        self._reader = BlockReader(blocks, indexed, decode, self._retrier)
        # About a second of calls, so that new blocks wait no longer for the backfill.
        self._batch_blocks = max(_MIN_BATCH, min(_MAX_BATCH, blocks.max_calls_per_s))
        self._listeners: list[Listener] = []
        self._ranges = KnownRanges()
        self._is_loaded = False
        self._is_same_chain = False
        self._rate_meter = RateMeter()
        self._tip: int | None = None
        self._planned_tip: int | None = None
        self._polled_at = float("-inf")
        self._first: int | None = settings.follow_from_height
        self._fresh_above: int | None = None
        self._stopped: tuple[str, int | None] | None = None
        self._blocks_read = 0

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each new L1 transaction once it is committed; return the function that ends that.

        A transaction is new if it is above the oldest range that was known when this process began to lead, or above
        the first tip if no range was known. That includes transactions accepted while no daemon followed, but not the
        backfill. They come in the order in which blocks are read: in a gap, the newest batch first. A crash between
        commit and call loses the call, not the row.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def status(self) -> FollowerStatus:
        """Return the current status."""
        newest, tip = self._ranges.newest, self._tip
        height = newest.high if newest else None
        remaining, backfilled = self._backfill()
        rate = self._rate_meter.rate(_now()) if remaining else None
        reason, stopped_at = self._stopped or (None, None)
        return FollowerStatus(
            chain="p",
            height=height,
            node_height=tip,
            lag_blocks=None if tip is None or height is None else max(0, tip - height),
            first_height=newest.low if newest else None,
            target_height=self._first,
            backfilled=backfilled,
            rate_blocks_s=rate,
            eta_s=remaining / rate if remaining and rate else None,
            is_leader=self._leadership.is_leader,
            stopped=reason,
            stopped_at=stopped_at,
            waiting_for=self._retrier.blocked_on,
            remaining_blocks=remaining,
            blocks_read=self._blocks_read,
            block_id=newest.high_block_id if newest else None,
            is_off=not self._settings.follow_p_chain,
        )

    async def run(self) -> None:
        """Follow while this process leads, until cancelled; return at once if following is switched off."""
        if not self._settings.follow_p_chain:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._log_progress())
            while True:
                async with asyncio.TaskGroup() as waiting:
                    watching = waiting.create_task(self._repeat(self._watch_leader))
                    await self._leadership.wait_until_held()
                    watching.cancel()
                self._reset()
                async with asyncio.TaskGroup() as leading:
                    following = leading.create_task(self._repeat(self._step))
                    await self._leadership.wait_until_lost()
                    following.cancel()
                log.warning("lost leadership, stopped following the P-Chain")

    def _reset(self) -> None:
        """Forget the known ranges, because another process may have followed until now."""
        self._is_loaded = False
        self._is_same_chain = False
        self._fresh_above = None
        self._stopped = None
        self._rate_meter.start(_now())

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except _Stopped as error:
                self._note_failure(error.failure.reason.value, error.failure.height, error.failure.detail)
                await asyncio.sleep(self._settings.retry_stopped_s)
            except Exception:  # An internal error here must not stop the daemon from signing.
                log.exception("internal error, stopped following the P-Chain")
                self._note_failure(INTERNAL_ERROR, None, "see the log")
                await asyncio.sleep(self._settings.retry_stopped_s)

    def _note_failure(self, reason: str, height: int | None, detail: str) -> None:
        if self._stopped != (reason, height):
            fields = {"reason": reason, "height": height, "detail": detail}
            log.error("following the P-Chain stopped", extra=fields)
        self._stopped = (reason, height)

    async def _watch_leader(self) -> None:
        """Load the ranges that the leader has read, for the status."""
        try:
            self._ranges = KnownRanges(await self._store.ranges(P_CHAIN))
            self._tip = await self._blocks.tip()
            if self._first is None:
                self._first = await self._find_first(self._tip)
        except (StoreDown, NodeUnavailable, _Stopped):
            pass
        await asyncio.sleep(max(self._settings.follow_poll_s, _STATUS_INTERVAL_S))

    async def _step(self) -> None:
        """Read the next batch, or wait for new blocks. Raises _Stopped."""
        if not self._is_loaded:
            self._ranges = KnownRanges(await self._retrier.call(lambda: self._store.ranges(P_CHAIN)))
            self._is_loaded = True
            if self._fresh_above is None and self._ranges.oldest is not None:
                self._fresh_above = self._ranges.oldest.high
        tip = await self._poll_tip()
        await self._check_chain(tip)
        batch = await self._next_batch(tip)
        if batch is None:
            self._stopped = None
            self._rate_meter.start(_now())
            await asyncio.sleep(self._settings.follow_poll_s)
        else:
            await self._read(batch)
            self._stopped = None

    async def _read(self, batch: BlockBatch) -> None:
        oldest = self._ranges.oldest
        linked = await self._reader.read(batch)
        if linked.blocks:
            await self._commit(linked)
            if oldest is None or batch.high < oldest.low:
                self._rate_meter.add(_now(), len(linked.blocks))
        if linked.failure is not None:
            raise _Stopped(linked.failure)

    async def _poll_tip(self) -> int:
        """Return the height up to which blocks are read: the node's tip, but after a failure the tip of before it.

        So the same batch is read again, and a faulty block is never skipped for newer blocks.
        """
        if self._tip is None or _now() - self._polled_at >= self._settings.follow_poll_s:
            self._tip = await self._retrier.call(self._blocks.tip)
            self._polled_at = _now()
        if self._planned_tip is None or self._stopped is None:
            self._planned_tip = self._tip
        if self._fresh_above is None:
            self._fresh_above = self._planned_tip
        return self._planned_tip

    async def _check_chain(self, tip: int) -> None:
        """Check, once, that the newest known block is still on the network's chain. Raises _Stopped."""
        newest = self._ranges.newest
        if self._is_same_chain or newest is None or tip < newest.high:
            return
        failure = await self._reader.check_known(newest.high, newest.high_block_id)
        if failure is not None:
            raise _Stopped(failure)
        self._is_same_chain = True

    async def _next_batch(self, tip: int) -> BlockBatch | None:
        newer = newer_batch(self._ranges, tip, self._batch_blocks)
        if newer is not None:
            return newer
        if self._first is None:
            self._first = await self._find_first(tip)
        return older_batch(self._ranges, tip, self._first, self._batch_blocks)

    async def _find_first(self, tip: int) -> int:
        """Return the height of the first block of Etna; 0 if the nodes do not report its activation."""
        etna_s = (await self._retrier.call(self._blocks.upgrades)).get("etna")
        if etna_s is None:
            return 0
        first = await find_first_block(etna_s, tip, self._time_of)
        log.info("found the first block of Etna", extra={"height": first})
        return first

    async def _time_of(self, height: int) -> int | None:
        time = await self._reader.time_of(height)
        if isinstance(time, FollowerFailure):
            raise _Stopped(time)
        return time

    async def _commit(self, linked: LinkedBlocks) -> None:
        """Commit linked blocks, then notify the listeners of new transactions. Raises _Stopped."""
        lowest, highest = linked.blocks[0], linked.blocks[-1]
        read = BlockRange(lowest.height, highest.height, lowest.parent_id, highest.id)
        transactions = tuple(tx for block in linked.blocks for tx in block.transactions)
        origins = tuple(origin for block in linked.blocks for origin in block.origins)
        try:
            await self._retrier.call(lambda: self._store.append(P_CHAIN, read, transactions, origins))
        except BlockRangesMismatch as error:
            self._is_loaded = False
            raise _Stopped(FollowerFailure(StopReason.ANOTHER_CHAIN, read.low, str(error))) from None
        self._ranges.add(read)
        self._blocks_read += len(linked.blocks)
        above = read.high if self._fresh_above is None else self._fresh_above
        for tx in transactions:
            if tx.height > above:
                self._notify(tx)

    def _notify(self, tx: L1Transaction) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(tx)
            except Exception:  # The blocks are stored: no error of a listener may make them be read again.
                log.exception("internal error, a listener of L1 transactions failed")

    def _backfill(self) -> tuple[int | None, float]:
        """Return the number of missing blocks below the newest known one, and the fraction of known blocks."""
        newest = self._ranges.newest
        if newest is None or self._first is None:
            return None, 0.0
        total = newest.high - self._first + 1
        if total <= 0:
            return 0, 1.0
        count = self._ranges.count(self._first, newest.high)
        return total - count, count / total

    async def _log_progress(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log_every_s)
            status = self.status()
            if status.is_leader and status.remaining_blocks:
                log.info("reading P-Chain blocks", extra=status.as_fields())


def _now() -> float:
    return asyncio.get_running_loop().time()


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
