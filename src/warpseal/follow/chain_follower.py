"""Reads one chain for a consumer: catches up with the nodes, several spans ahead of the writing,
then reads new blocks.

New blocks come before the older ones of a backfill, since callers ask for new ones, and both are
read upwards, so that each block has a stored parent. A block that cannot be right stops the chain
with a named reason. The same block is tried again at intervals, and never skipped: a row that
depends on it would be wrong. Calls to nodes and to the database are repeated until they succeed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from warpseal.follow.blocks import ChainStopped, StopReason
from warpseal.follow.sources import BlockSource
from warpseal.index.errors import IndexDamaged
from warpseal.resources.progress import ChainProgress, ChainStop, log_fields
from warpseal.runtime.rate_meter import RateMeter
from warpseal.runtime.retry import Pace, Retrier, RetryDelays
from warpseal.runtime.ttl_cache import loop_time
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable

T = TypeVar("T")

_ReadBlocks = tuple[tuple[T, ...], ChainStopped | None]

_SPANS_AHEAD: Final = 6
# The larger a transaction, the fewer pages of the database are written more than once.
_MAX_BLOCKS_PER_WRITE: Final = 8_192
_MIN_STATUS_INTERVAL_S: Final = 2.0
# An unchanged status is written as well, because readers do not trust an old one.
_MAX_STATUS_INTERVAL_S: Final = 15.0
# While a chain catches up, its height, rate and ETA change all the time.
_CATCHING_UP_STATUS_INTERVAL_S: Final = 5.0
_BOOTSTRAP_CHECK_INTERVAL_S: Final = 15.0
# Of two nodes that follow the same chain one may have a block a moment earlier.
_TOLERATED_LAG_BLOCKS: Final = 1
# A wait below the last block of the nodes is reported after so long, and logged again at this
# interval.
_LONG_WAIT_S: Final = 120.0
_WAIT_LOG_INTERVAL_S: Final = 600.0
_WAITING: Final = {
    "nodes": "no node answers",
    "blocks": "no node has the next block, or its receipts",
    "store": "the store does not answer",
}
_TRIES_ALTERNATIVES: Final = (
    StopReason.UNKNOWN_TYPE,
    StopReason.UNDECODABLE_BLOCK,
    StopReason.WRONG_HEIGHT,
    StopReason.WRONG_PARENT,
    StopReason.WRONG_TIME,
)


class ChainConsumer(ABC, Generic[T]):
    """Writes the blocks of one chain that a `ChainFollower` reads for it.

    name: name of the chain in its progress and in log lines.
    activity: subject of log lines.
    log: logger of those lines.
    notice: sentence that the progress has until the chain is caught up, or empty.
    """

    name: str
    log: logging.Logger
    activity = "indexing"
    notice = ""

    def __init__(self, source: BlockSource[T], retrier: Retrier) -> None:
        self.source = source
        self._retrier = retrier

    @abstractmethod
    async def resume(self) -> int | None:
        """Return to the last written block and return its height, None without a block.

        Raises ChainStopped, StoreDown.
        """

    async def begin(self, min_height: int, tip: int) -> int | None:
        """Begin at `min_height`, or at the lowest height above it that a node has.

        Returns the next height to write, None if it is above `tip`. Raises ChainStopped, StoreDown.
        """
        return await self._retrier.call(partial(self.source.find_first, min_height, tip))

    @abstractmethod
    async def write(self, first_height: int, blocks: Sequence[T]) -> None:
        """Write the next blocks, of the newest ones or of the backfill.

        Raises ChainStopped after writing the blocks before the one that is the reason; StoreDown.
        """

    async def prepare_backfill(self, tip: int) -> None:
        """Find the range of the backfill, once all new blocks are written.

        Raises ChainStopped, StoreDown.
        """

    def missing(self) -> range:
        """Return the heights of the backfill that are to be written; empty without any."""
        return range(0)

    def describe(self, progress: ChainProgress) -> ChainProgress:
        """Return the progress with what only the consumer knows."""
        return progress


class ChainFollower(Generic[T]):
    """Reads one chain for its consumer, on one event loop.

    report: stores the progress of the chain, None if it is only read.
    check_bootstrapped: returns whether the node is bootstrapped.
    first_height: lowest height to write, if a node has it.
    wait_for_block: waits for a new block, at most for the seconds of its argument.
    """

    def __init__(
        self,
        consumer: ChainConsumer[T],
        retrier: Retrier,
        pace: Pace,
        report: Callable[[ChainProgress], Awaitable[None]] | None = None,
        check_bootstrapped: Callable[[], Awaitable[bool]] | None = None,
        first_height: int = 0,
        wait_for_block: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._consumer = consumer
        self._retrier = retrier
        self._pace = pace
        self._report = report
        self._check_bootstrapped = check_bootstrapped
        self._first_height = first_height
        self._wait_for_block = wait_for_block
        self._rate_meter = RateMeter()
        self._next: int | None = None
        self._tips: tuple[int, ...] = ()
        self._tips_reported_at = 0
        self._is_bootstrapped = True
        self._bootstrap_checked_at = float("-inf")
        self._stopped: ChainStopped | None = None
        self._stopped_since = 0.0
        # The tip when the chain stopped: no newer block is written while it is stopped.
        self._stopped_tip = 0
        self._written_status: tuple[object, ...] = ()
        self._status_written_at = float("-inf")
        self._lagging_since_s: float | None = None
        self._wait_logged_at = float("-inf")

    @property
    def height(self) -> int | None:
        """The last written block; None before the consumer has resumed, or without a block."""
        return self._next - 1 if self._next else None

    @property
    def remaining_blocks(self) -> int | None:
        """The number of blocks of the nodes above the last written one; None: not known."""
        if self._next is None or not self._tips:
            return None
        return max(0, max(self._tips) + 1 - self._next)

    @property
    def is_caught_up(self) -> bool:
        """Whether every new block of the nodes is written."""
        return self.remaining_blocks == 0

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of a log line."""
        return log_fields(self.progress())

    def progress(self) -> ChainProgress:
        """Return how far the chain is read, and what it waits for or why it stopped."""
        newest = max(self._tips, default=None)
        is_lagging = newest is not None and self._tips[0] + _TOLERATED_LAG_BLOCKS < newest
        now, wait_s = int(time.time()), self._long_wait_s()
        rate, eta_s = self._rate_and_eta()
        progress = ChainProgress(
            chain=self._consumer.name,
            height=self.height,
            node_height=newest,
            is_node_behind=is_lagging or not self._is_bootstrapped,
            reported_at=self._tips_reported_at,
            updated_at=now,
            blocks_per_s=rate,
            eta_s=eta_s,
            waiting_for=self._retrier.blocked_on,
            waiting=self._waiting(),
            waiting_since=now - int(wait_s) if wait_s else None,
            stop=self._stop(),
        )
        return self._consumer.describe(progress)

    def reset(self) -> None:
        """Forget why the chain stopped or waits, because this process follows it no more."""
        self._next, self._stopped, self._lagging_since_s = None, None, None

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_following())
            # The progress is reported also while a call waits for a node.
            while True:
                await asyncio.sleep(_MIN_STATUS_INTERVAL_S)
                self._log_wait()
                with suppress(StoreDown):
                    await self._update_status(force=False)

    async def _keep_following(self) -> None:
        delays, failure = RetryDelays(self._pace.retry), ""
        log, activity = self._consumer.log, self._consumer.activity
        while True:
            try:
                await self._follow()
            except StoreDown as error:
                is_repeated, failure = str(error) == failure, str(error)
                if not is_repeated:
                    log.warning(
                        "index write failed",
                        extra={"chain": self._consumer.name, "reason": failure},
                    )
                elif isinstance(error, IndexDamaged):
                    # A first report may be the consequence of an earlier failure, so that only the
                    # second one in a row stops the chain.
                    self._note_stop(
                        ChainStopped(StopReason.INDEX_DAMAGED, self._next or 0, failure)
                    )
                    with suppress(StoreDown):
                        await self._update_status(force=True)
                await asyncio.sleep(delays.next())
            except ChainStopped as stop:
                await self._report_stop(stop)
                await asyncio.sleep(self._pace.stopped_s)
            except Exception:
                # An internal error of one chain must not stop the others, or signing.
                log.exception(f"internal error, {activity} stopped")
                await self._report_stop(
                    ChainStopped(StopReason.INTERNAL_ERROR, self._next or 0, "see the log")
                )
                await asyncio.sleep(self._pace.stopped_s)

    async def _follow(self) -> None:
        """Continue behind the last written block, forever. Raises ChainStopped, StoreDown."""
        height = await self._consumer.resume()
        self._next = None if height is None else height + 1
        self._rate_meter.reset()
        while True:
            tip = await self._poll()
            if self._next is None and self._first_height <= tip:
                self._next = await self._consumer.begin(self._first_height, tip)
            # New blocks first. The tip is polled again after each span of the backfill, so that a
            # long one does not delay them.
            span = self._new_blocks(tip) or await self._older_blocks(tip)
            if not span:
                await self._wait()
                continue
            self._lagging_since_s = None
            try:
                await self._catch_up(span)
            except ChainStopped as stop:
                await self._try_alternatives(stop)
            # Only here: a chain that is tried again counts as stopped until a block is written.
            self._stopped = None

    async def _poll(self) -> int:
        """Return the height up to which blocks are written: that of the node in use, or of the time
        of a stop.
        """
        self._tips = await self._retrier.call(self._consumer.source.tip_heights)
        self._tips_reported_at = int(time.time())
        is_due = loop_time() - self._bootstrap_checked_at >= _BOOTSTRAP_CHECK_INTERVAL_S
        if self._check_bootstrapped is not None and is_due:
            self._bootstrap_checked_at = loop_time()
            with suppress(NodeUnavailable):
                self._is_bootstrapped = await self._check_bootstrapped()
        tip = self._tips[0]
        if self._next is None or self._stopped is None:
            return tip
        # A newer block that is written would clear a stop of the backfill.
        return min(tip, self._stopped_tip)

    def _new_blocks(self, tip: int) -> range:
        return range(0) if self._next is None else range(self._next, tip + 1)

    async def _older_blocks(self, tip: int) -> range:
        """Return the next heights of the backfill, so few that new blocks do not wait long."""
        if self._next is None:
            return range(0)
        await self._consumer.prepare_backfill(tip)
        return self._consumer.missing()[: self._consumer.source.span]

    async def _wait(self) -> None:
        """Wait for new blocks: everything else is written."""
        if self.is_caught_up:
            self._lagging_since_s = None
        elif self._lagging_since_s is None:
            self._lagging_since_s = loop_time()
        if self._stopped is not None and self._next is not None:
            is_about_process = self._stopped.reason in (
                StopReason.INTERNAL_ERROR,
                StopReason.INDEX_DAMAGED,
            )
            if is_about_process or self._stopped.height < self._next:
                # The block was written in the meantime, and no later one writes and clears this.
                self._stopped = None
        await self._update_status(force=False)
        self._rate_meter.reset()
        await self._wait_for_block(self._pace.poll_s)

    async def _catch_up(self, span: range) -> None:
        """Write a span, or what is before a block that is not read, reading ahead of the writing.

        Raises ChainStopped, StoreDown.
        """
        written = planned = span.start
        ahead: deque[tuple[int, int, asyncio.Task[_ReadBlocks[T]]]] = deque()
        failure: Exception | None = None
        async with asyncio.TaskGroup() as tasks:

            def read_ahead() -> None:
                nonlocal planned
                while planned < span.stop and len(ahead) < _SPANS_AHEAD:
                    count = min(self._consumer.source.span, span.stop - planned)
                    ahead.append((planned, count, tasks.create_task(self._read(planned, count))))
                    planned += count

            try:
                while written < span.stop:
                    read_ahead()
                    first, count, reading = ahead.popleft()
                    blocks, failure = await reading
                    while (
                        ahead
                        and ahead[0][2].done()
                        and len(blocks) == count < _MAX_BLOCKS_PER_WRITE
                    ):
                        _, more, reading = ahead.popleft()
                        next_blocks, failure = await reading
                        blocks, count = blocks + next_blocks, count + more
                    # Before the writing, so that nodes are read from while it lasts.
                    read_ahead()
                    if blocks:
                        await self._write(first, blocks)
                        written = first + len(blocks)
                    if len(blocks) < count:
                        break
            except (ChainStopped, StoreDown) as error:
                # Raised below, so that the task group does not wrap it.
                failure = error
            # Before the group ends, which would wait for them.
            for *_, reading in ahead:
                reading.cancel()
        if failure is not None:
            raise failure

    async def _read(self, first: int, count: int) -> _ReadBlocks[T]:
        try:
            return await self._consumer.source.read(first, count), None
        except ChainStopped as stop:
            return (), stop

    async def _write(self, first: int, blocks: tuple[T, ...]) -> None:
        try:
            await self._consumer.write(first, blocks)
        except ChainStopped as stop:
            if first <= stop.height:
                self._note_written(first, stop.height)
            raise
        self._note_written(first, first + len(blocks))
        self._rate_meter.add(loop_time(), len(blocks))
        await self._update_status(force=False)

    def _note_written(self, first: int, end: int) -> None:
        """Move the cursor of the new blocks; the consumer knows that of its backfill."""
        if first == self._next:
            self._next = end

    async def _try_alternatives(self, stop: ChainStopped) -> None:
        """Try to write another block that the nodes return for that height. Raises ChainStopped."""
        if stop.reason not in _TRIES_ALTERNATIVES:
            raise stop
        consumer = self._consumer
        # First, so that the next reads do not return the same bytes from the same container.
        consumer.source.use_fallback()
        for block in await self._retrier.call(lambda: consumer.source.alternatives(stop.height)):
            # An earlier attempt may have failed after its commit, so that the consumer reads its
            # height again.
            height = await consumer.resume()
            is_new = height is not None and height + 1 == stop.height
            if not is_new and stop.height not in consumer.missing()[:1]:
                break
            with suppress(ChainStopped):
                await consumer.write(stop.height, (block,))
                if is_new:
                    self._next = stop.height + 1
                return
        raise stop

    async def _report_stop(self, stop: ChainStopped) -> None:
        # The bytes may be at fault, so the next ones are read in another way.
        self._consumer.source.use_fallback()
        if self._note_stop(stop):
            fields = {
                "chain": self._consumer.name,
                "reason": stop.reason.value,
                "height": stop.height,
            }
            self._consumer.log.error(
                f"{self._consumer.activity} stopped", extra={**fields, "detail": stop.detail}
            )
        with suppress(StoreDown):
            await self._update_status(force=True)

    def _note_stop(self, stop: ChainStopped) -> bool:
        """Return whether the chain did not stop before for the same reason at the same height."""
        before, self._stopped = self._stopped, stop
        if before is None:
            # Not moved by a repeated stop. The chain may stop before the nodes were polled.
            self._stopped_tip = max((stop.height, *self._tips[:1]))
        if before is not None and (before.reason, before.height) == (stop.reason, stop.height):
            return False
        self._stopped_since = time.time()
        return True

    def _stop(self) -> ChainStop | None:
        stop = self._stopped
        if stop is None:
            return None
        return ChainStop(stop.reason.value, stop.height, stop.detail, stop.raw, self._stopped_since)

    async def _update_status(self, *, force: bool) -> None:
        """Report the chain's progress if it has changed or is old, but not too often."""
        if self._report is None:
            return
        stop = None if self._stopped is None else (self._stopped.reason, self._stopped.height)
        # The first rate after a start is news; a changed one is not.
        has_rate = self._rate_and_eta()[0] is not None
        status = (
            self._tips,
            self._is_bootstrapped,
            stop,
            self._waiting(),
            self._long_wait_s() > 0,
            has_rate,
        )
        longest_s = _MAX_STATUS_INTERVAL_S if self.is_caught_up else _CATCHING_UP_STATUS_INTERVAL_S
        is_soon = (
            loop_time() - self._status_written_at < _MIN_STATUS_INTERVAL_S and not self.is_caught_up
        )
        is_old = loop_time() - self._status_written_at >= longest_s
        if not force and (is_soon or (status == self._written_status and not is_old)):
            return
        await self._report(self.progress())
        self._written_status, self._status_written_at = status, loop_time()

    def _waiting(self) -> str:
        """Return the notice until the chain is caught up, and the reason of a wait; empty without
        both.
        """
        if self._stopped is not None:
            return ""
        notice = "" if self.is_caught_up else self._consumer.notice
        return "; ".join(filter(None, (notice, self._find_wait())))

    def _find_wait(self) -> str:
        blocked = self._retrier.blocked_call
        if blocked is not None:
            return f"{_WAITING[blocked.name]}: {_describe_replies(blocked.error)}"
        if not self._is_bootstrapped:
            return "the node is not bootstrapped yet"
        if self._next is None:
            if self._tips and self._tips[0] < self._first_height:
                return f"block {self._first_height} is not there yet"
            return "the first block is being looked for"
        if self._long_wait_s():
            own, newest = self._tips[0], max(self._tips)
            return f"the node in use has no block behind {own}, another one has {newest}"
        return ""

    def _long_wait_s(self) -> float:
        """Return the seconds for which the chain waits below the last block of its nodes; 0 in the
        first two minutes.
        """
        has_all = self.is_caught_up and not self._consumer.missing()
        if self._stopped is not None or has_all:
            return 0.0
        blocked = self._retrier.blocked_call
        since_s = self._lagging_since_s if blocked is None else blocked.since_s
        if since_s is None or (blocked is None and self._next is None):
            return 0.0
        wait_s = loop_time() - since_s
        return wait_s if wait_s >= _LONG_WAIT_S else 0.0

    def _log_wait(self) -> None:
        """Log a long wait once, and again after a while."""
        wait_s = self._long_wait_s()
        if not wait_s:
            self._wait_logged_at = float("-inf")
        elif loop_time() - self._wait_logged_at >= _WAIT_LOG_INTERVAL_S:
            self._wait_logged_at = loop_time()
            fields = {
                "chain": self._consumer.name,
                "height": self.height,
                "node_height": max(self._tips, default=None),
                "wait_s": round(wait_s),
                "reason": self._find_wait(),
            }
            self._consumer.log.warning(f"{self._consumer.activity} waits", extra=fields)

    def _rate_and_eta(self) -> tuple[float | None, float | None]:
        if self._next is None or not self._tips:
            return None, None
        remaining = max(0, max(self._tips) + 1 - self._next) + len(self._consumer.missing())
        if not remaining:
            return None, None
        rate = self._rate_meter.rate(loop_time())
        return rate, remaining / rate if rate else None


def _describe_replies(error: Exception) -> str:
    """Return what the nodes replied to a call that is repeated."""
    replies = error.replies if isinstance(error, NodeUnavailable) else ()
    return "; ".join(replies) or str(error)
