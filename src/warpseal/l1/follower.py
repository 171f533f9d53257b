"""Follows the accepted P-Chain blocks for L1 transactions while this process leads; `consumer.py`
stores them.

Signing does not depend on the follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from warpseal.follow.blocks import ChainStopped
from warpseal.follow.chain_follower import ChainFollower
from warpseal.follow.sources import PChainSource
from warpseal.l1.consumer import FollowerStore, L1Consumer, Listener
from warpseal.l1.errors import FollowerProgress
from warpseal.l1.followed_block import DecodeBlock, parse_followed_block
from warpseal.l1.settings import FollowerSettings
from warpseal.metrics.samples import Sample, metric
from warpseal.node.blocks import PBlocksClient
from warpseal.resources.base import UNSET, UnsetType, or_unset
from warpseal.resources.progress import (
    Backfill,
    ChainProgress,
    FollowerState,
    log_fields,
    rounded_eta_s,
)
from warpseal.runtime.retry import Retrier
from warpseal.store.errors import StoreDown
from warpseal.store.locks import Leadership
from warpseal.upstream.errors import NodeUnavailable

if TYPE_CHECKING:
    from warpseal.follow.index_source import IndexedBlocks

log = logging.getLogger(__name__)

_MIN_BATCH: Final = 8
_MAX_BATCH: Final = 256
# The progress of a process that does not lead.
_STATUS_INTERVAL_S: Final = 5.0


class PChainFollower:
    """Reads the P-Chain while this process leads, and notifies of L1 transactions.

    Used from one event loop.
    """

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
        self._consumer = L1Consumer(
            source, blocks, store, retrier, settings.follow_from_height, decode
        )
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
        """Call `listener` with each new L1 transaction once it is committed; return the function
        that ends that.

        A transaction is new if it is above the newest block that was known when this process began
        to lead, or above the first tip if none was known. That includes transactions accepted while
        no daemon followed, but not the backfill. They come in the order of their blocks. A crash
        between commit and call loses the call, not the row.
        """
        self._consumer.listeners.append(listener)
        return lambda: self._consumer.listeners.remove(listener)

    def progress(self) -> ChainProgress:
        """Return how far the P-Chain is read; of the leader, as far as the store has it, if that is
        another process.
        """
        progress = self._follower.progress()
        if self._leadership.is_leader:
            return progress
        return replace(progress, node_height=self._watched_tip, is_leader=False)

    async def run(self) -> None:
        """Follow while this process leads, until cancelled; return at once if following is switched
        off.
        """
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


def follower_state(follower: PChainFollower) -> FollowerState:
    """Return the known fields for the body of /ready."""
    return FollowerState(off=True) if follower.is_off else FollowerState.of(follower.progress())


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
        eta=or_unset(rounded_eta_s(progress)),
        stopped=or_unset(progress.stopped),
    )


class FollowerSample(Sample, frozen=True):
    """A followed chain. A value that is not known is None.

    height: height of the newest block that was read.
    node_height: height of the newest block of the node.
    remaining_blocks: number of blocks of the backfill that are not read yet.
    blocks_read: number of blocks that this process has read.
    stopped: reason why the follower stopped.
    """

    labels = ("chain",)

    chain: str
    height: int | None = metric(
        None, "warpseal_follower_height", "Newest block of a chain that was read"
    )
    node_height: int | None = metric(
        None,
        "warpseal_follower_node_height",
        "Newest accepted block of a chain, as a node reports it",
    )
    lag_blocks: int | None = metric(
        None, "warpseal_follower_lag_blocks", "Accepted blocks above the newest one that was read"
    )
    remaining_blocks: int | None = metric(
        None,
        "warpseal_follower_remaining_blocks",
        "Blocks that the backfill still has to read; absent until its end is known",
    )
    blocks_read: int = metric(
        0, "warpseal_follower_blocks_read_total", "Blocks that this process has read"
    )
    is_leader: bool = metric(
        False,
        "warpseal_follower_leader",
        "1 if this process follows the chain, 0 if another one may",
    )
    stopped: str | None = metric(
        None,
        "warpseal_follower_stopped",
        "Always 1; its label is why following stopped; absent while it goes on",
        by="reason",
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
