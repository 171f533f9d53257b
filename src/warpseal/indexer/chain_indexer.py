"""Indexes one chain: catches up with the node, reading several spans ahead of the writing, then follows new blocks.

A block that cannot be right stops the chain with a named reason. The same block is tried again at intervals, and never
skipped. Calls to nodes and to the database are repeated until they succeed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from warpseal.follow.blocks import ChainStopped, StopReason
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.errors import IndexDamaged
from warpseal.indexer.chain_sync import ChainSync
from warpseal.indexer.settings import IndexerSettings
from warpseal.runtime.rate_meter import RateMeter
from warpseal.runtime.retry import Backoff, Retrier, RetryDelays
from warpseal.runtime.ttl_cache import loop_time
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable

log = logging.getLogger(__name__)

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
# A wait below the last block of the nodes is reported after so long, and logged again at this interval.
_LONG_WAIT_S: Final = 120.0
_WAIT_LOG_INTERVAL_S: Final = 600.0
_WAITING: Final = {"nodes": "no node answers", "blocks": "no node has the next block, or its receipts"}
_TRIES_ALTERNATIVES: Final = (
    StopReason.UNKNOWN_TYPE,
    StopReason.UNDECODABLE_BLOCK,
    StopReason.WRONG_HEIGHT,
    StopReason.WRONG_PARENT,
    StopReason.WRONG_TIME,
)


class ChainIndexer(Generic[T]):
    """Indexes one chain, on one event loop.

    write_status: stores the status of the chain. check_bootstrapped: returns whether the node is bootstrapped.
    first_height: the first height to index, if a node has it.
    wait_for_block: waits for a new block, at most for the seconds of its argument.
    """

    def __init__(
        self,
        sync: ChainSync[T],
        write_status: Callable[[ChainStatus], Awaitable[None]],
        check_bootstrapped: Callable[[], Awaitable[bool]],
        retrier: Retrier,
        settings: IndexerSettings,
        first_height: int = 0,
        wait_for_block: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sync = sync
        self._write_status = write_status
        self._check_bootstrapped = check_bootstrapped
        self._retrier = retrier
        self._settings = settings
        self._first_height = first_height
        self._wait_for_block = wait_for_block
        self._rate_meter = RateMeter()
        self._next: int | None = None
        self._tips: tuple[int, ...] = ()
        self._tips_reported_at = 0
        self._is_bootstrapped = True
        self._bootstrap_checked_at = float("-inf")
        self._stopped: ChainStopped | None = None
        self._written_status: tuple[object, ...] = ()
        self._status_written_at = float("-inf")
        self._lagging_since_s: float | None = None
        self._wait_logged_at = float("-inf")

    @property
    def height(self) -> int | None:
        """The last written block; None: not known yet, or no block is written."""
        return None if self._next is None or not self._next else self._next - 1

    @property
    def remaining_blocks(self) -> int | None:
        """The number of blocks of the nodes that are not written; None: not known."""
        return None if self._next is None or not self._tips else max(0, max(self._tips) + 1 - self._next)

    @property
    def is_caught_up(self) -> bool:
        """Whether every block of the nodes is written."""
        return self.remaining_blocks == 0

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of a log line."""
        rate, eta_s = self._rate_and_eta()
        fields: dict[str, Any] = {"chain": self._sync.name, "height": self.height}
        fields |= {"node_height": max(self._tips, default=None), "waiting_for": self._retrier.blocked_on}
        fields |= {"blocks_per_s": None if rate is None else round(rate, 1)}
        fields |= {"eta_s": None if eta_s is None else round(eta_s)}
        if self._stopped is not None:
            fields |= {"stopped": self._stopped.reason.value, "stopped_at": self._stopped.height}
        return fields

    async def run(self) -> None:
        """Index until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_indexing())
            # The status is written also while a call waits for a node.
            while True:
                await asyncio.sleep(_MIN_STATUS_INTERVAL_S)
                self._log_wait()
                with suppress(StoreDown):
                    await self._update_status(force=False)

    async def _keep_indexing(self) -> None:
        delays, failure = RetryDelays(Backoff(self._settings.retry_first_s, self._settings.retry_cap_s)), ""
        while True:
            try:
                await self._index()
            except StoreDown as error:
                is_repeated, failure = str(error) == failure, str(error)
                if not is_repeated:
                    log.warning("index write failed", extra={"chain": self._sync.name, "reason": failure})
                elif isinstance(error, IndexDamaged):  # Once it may be the consequence of an earlier failure.
                    self._stopped = ChainStopped(StopReason.INDEX_DAMAGED, self._next or 0, failure)
                    with suppress(StoreDown):
                        await self._update_status(force=True)
                await asyncio.sleep(delays.next())
            except ChainStopped as stop:
                await self._report_stop(stop)
                await asyncio.sleep(self._settings.retry_stopped_s)
            except Exception:  # An internal error of one chain must not stop the others.
                log.exception("internal error, indexing stopped")
                await self._report_stop(ChainStopped(StopReason.INTERNAL_ERROR, self._next or 0, "see the log"))
                await asyncio.sleep(self._settings.retry_stopped_s)

    async def _index(self) -> None:
        """Continue behind the last written block, forever. Raises ChainStopped, StoreDown."""
        height = await self._sync.resume()
        self._next = None if height is None else height + 1
        self._rate_meter.reset()
        while True:
            tip = await self._poll()
            if self._next is None and self._first_height <= tip:
                self._next = await self._sync.begin(self._first_height, tip)
            if self._next is None or self._next > tip:
                if self.is_caught_up:
                    self._lagging_since_s = None
                elif self._lagging_since_s is None:
                    self._lagging_since_s = loop_time()
                await self._update_status(force=False)
                self._rate_meter.reset()
                await self._wait_for_block(self._settings.poll_s)
                continue
            self._lagging_since_s = None
            try:
                await self._catch_up(tip)
            except ChainStopped as stop:
                await self._try_alternatives(stop)
            self._stopped = None

    async def _poll(self) -> int:
        """Return the height of the node in use."""
        self._tips = await self._retrier.call(self._sync.source.tip_heights)
        self._tips_reported_at = int(time.time())
        if loop_time() - self._bootstrap_checked_at >= _BOOTSTRAP_CHECK_INTERVAL_S:
            self._bootstrap_checked_at = loop_time()
            with suppress(NodeUnavailable):
                self._is_bootstrapped = await self._check_bootstrapped()
        return self._tips[0]

    async def _catch_up(self, tip: int) -> None:
        """Write everything up to `tip`, or up to a block that is not read, reading ahead of the writing.

        Raises ChainStopped, StoreDown.
        """
        assert self._next is not None
        planned = self._next
        ahead: deque[tuple[int, int, asyncio.Task[_ReadBlocks[T]]]] = deque()
        failure: Exception | None = None
        async with asyncio.TaskGroup() as tasks:

            def read_ahead() -> None:
                nonlocal planned
                while planned <= tip and len(ahead) < _SPANS_AHEAD:
                    count = min(max(1, self._sync.source.span), tip + 1 - planned)
                    ahead.append((planned, count, tasks.create_task(self._read(planned, count))))
                    planned += count

            try:
                while self._next <= tip:
                    read_ahead()
                    first, count, reading = ahead.popleft()
                    blocks, failure = await reading
                    while ahead and ahead[0][2].done() and len(blocks) == count < _MAX_BLOCKS_PER_WRITE:
                        _, more, reading = ahead.popleft()
                        next_blocks, failure = await reading
                        blocks, count = blocks + next_blocks, count + more
                    # Before the writing, so that nodes are read from while it lasts.
                    read_ahead()
                    if blocks:
                        await self._write(first, blocks)
                    if len(blocks) < count:
                        break
            except (ChainStopped, StoreDown) as error:
                # Raised below, so that the task group does not wrap it.
                failure = error
            for *_, reading in ahead:
                reading.cancel()
        if failure is not None:
            raise failure

    async def _read(self, first: int, count: int) -> _ReadBlocks[T]:
        try:
            return await self._sync.source.read(first, count), None
        except ChainStopped as stop:
            return (), stop

    async def _write(self, first: int, blocks: tuple[T, ...]) -> None:
        try:
            await self._sync.write(first, blocks)
        except ChainStopped as stop:
            self._next = stop.height
            raise
        self._next = first + len(blocks)
        self._rate_meter.add(loop_time(), len(blocks))
        await self._update_status(force=False)

    async def _try_alternatives(self, stop: ChainStopped) -> None:
        """Try to write another block that the nodes return for that height. Raises ChainStopped."""
        if stop.reason not in _TRIES_ALTERNATIVES:
            raise stop
        self._sync.source.use_fallback()
        for block in await self._retrier.call(lambda: self._sync.source.alternatives(stop.height)):
            height = await self._sync.resume()
            if height is None or height + 1 != stop.height:
                break
            with suppress(ChainStopped):
                await self._sync.write(stop.height, (block,))
                self._next = stop.height + 1
                return
        raise stop

    async def _report_stop(self, stop: ChainStopped) -> None:
        # The bytes may be at fault, so the next ones are read in another way.
        self._sync.source.use_fallback()
        is_new = self._stopped is None or (self._stopped.reason, self._stopped.height) != (stop.reason, stop.height)
        self._stopped = stop
        if is_new:
            fields = {"chain": self._sync.name, "reason": stop.reason.value, "height": stop.height}
            log.error("indexing stopped", extra={**fields, "detail": stop.detail})
        with suppress(StoreDown):
            await self._update_status(force=True)

    async def _update_status(self, *, force: bool) -> None:
        """Write the chain's status if it has changed or is old, but not too often."""
        stopped = self._stopped
        stop = None if stopped is None else (stopped.reason, stopped.height)
        # The first rate after a start is news; a changed one is not.
        has_rate = self._rate_and_eta()[0] is not None
        status = (self._tips, self._is_bootstrapped, stop, self._waiting(), self._long_wait_s() > 0, has_rate)
        longest_s = _MAX_STATUS_INTERVAL_S if self.is_caught_up else _CATCHING_UP_STATUS_INTERVAL_S
        is_soon = loop_time() - self._status_written_at < _MIN_STATUS_INTERVAL_S and not self.is_caught_up
        is_old = loop_time() - self._status_written_at >= longest_s
        if not force and (is_soon or (status == self._written_status and not is_old)):
            return
        await self._write_status(self._status())
        self._written_status, self._status_written_at = status, loop_time()

    def _waiting(self) -> str:
        """Return what the chain waits for, after its notice until it is caught up; empty if for nothing."""
        if self._stopped is not None:
            return ""
        notice = "" if self.is_caught_up else self._sync.notice
        return "; ".join(filter(None, (notice, self._find_wait())))

    def _find_wait(self) -> str:
        blocked = self._retrier.blocked_call
        if blocked is not None:
            return f"{_WAITING[blocked.name]}: {_describe_replies(blocked.error)}"
        if not self._is_bootstrapped:
            return "the node is not bootstrapped yet"
        if self._next is None:
            is_early = bool(self._tips) and self._tips[0] < self._first_height
            return f"block {self._first_height} is not there yet" if is_early else "the first block is being looked for"
        if self._long_wait_s():
            return f"the node in use has no block behind {self._tips[0]}, another one has {max(self._tips)}"
        return ""

    def _long_wait_s(self) -> float:
        """Return for how long the chain waits below the last block of its nodes; 0 if it does not, or not for long."""
        if self._stopped is not None or self.is_caught_up:
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
            fields = {"chain": self._sync.name, "height": self.height, "node_height": max(self._tips, default=None)}
            log.warning("indexing waits", extra={**fields, "wait_s": round(wait_s), "reason": self._find_wait()})

    def _status(self) -> ChainStatus:
        newest = max(self._tips, default=0)
        is_lagging = bool(self._tips) and self._tips[0] + _TOLERATED_LAG_BLOCKS < newest
        is_behind = is_lagging or not self._is_bootstrapped
        now, wait_s = int(time.time()), self._long_wait_s()
        status = ChainStatus(
            self._sync.name,
            newest,
            is_behind,
            reported_at=self._tips_reported_at,
            waiting=self._waiting(),
            written_at=now,
            waiting_since=now - int(wait_s) if wait_s else 0,
        )
        stop = self._stopped
        if stop is not None:
            reason, height = stop.reason.value, stop.height
            return replace(status, stopped=reason, stopped_at=height, detail=stop.detail, raw=stop.raw)
        rate, eta_s = self._rate_and_eta()
        return replace(status, rate_blocks_s=rate, eta_s=eta_s)

    def _rate_and_eta(self) -> tuple[float | None, float | None]:
        if self._next is None or not self._tips or self.is_caught_up:
            return None, None
        rate = self._rate_meter.rate(loop_time())
        return rate, (max(self._tips) + 1 - self._next) / rate if rate else None


def _describe_replies(error: Exception) -> str:
    """Return what the nodes replied to a call that is repeated."""
    replies = error.replies if isinstance(error, NodeUnavailable) else ()
    return "; ".join(replies) or str(error)
