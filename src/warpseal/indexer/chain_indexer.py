"""Indexes one chain: catches up with the node, several requests ahead of the writing, then follows new blocks.

What cannot be right stops the chain with a named reason; it looks again now and then, and never skips. Nodes and a
database that do not answer are waited for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final, Generic, TypeVar

from warpseal.errors import NodeUnavailable, StoreDown
from warpseal.index.checkpoint import ChainStatus
from warpseal.indexer.chain_sync import ChainSync
from warpseal.indexer.errors import IndexingStopped, StopReason
from warpseal.indexer.settings import IndexerSettings
from warpseal.runtime.backoff import Backoff
from warpseal.runtime.rate_meter import RateMeter
from warpseal.runtime.retry import Retrier

log = logging.getLogger(__name__)

T = TypeVar("T")

_SPANS_AHEAD: Final = 6
# The more is written at once, the fewer places of the database are written to more than once.
_MOST_WRITTEN: Final = 8_192
_NOTE_EVERY_S: Final = 2.0
# Also when there is no news: readers take the height of a node that was told long ago for doubtful.
_NOTE_AT_LEAST_EVERY_S: Final = 15.0
_BOOTSTRAPPED_EVERY_S: Final = 15.0
# Of two nodes that follow the same chain one may have a block a moment earlier.
_BEHIND_BLOCKS: Final = 1
_TAKES_ANOTHER: Final = (
    StopReason.UNKNOWN_TYPE,
    StopReason.UNDECODABLE_BLOCK,
    StopReason.WRONG_HEIGHT,
    StopReason.WRONG_PARENT,
)


class ChainIndexer(Generic[T]):
    """Used from one event loop. note: keeps how the chain stands; bootstrapped: whether the node is."""

    def __init__(
        self,
        driver: ChainSync[T],
        note: Callable[[ChainStatus], Awaitable[None]],
        bootstrapped: Callable[[], Awaitable[bool]],
        retrier: Retrier,
        settings: IndexerSettings,
    ) -> None:
        self._driver = driver
        self._note = note
        self._bootstrapped = bootstrapped
        self._retrier = retrier
        self._settings = settings
        self._rate_meter = RateMeter()
        self._next: int | None = None
        self._tips: tuple[int, ...] = ()
        self._told_at = 0
        self._is_bootstrapped = True
        self._asked_bootstrapped_at = float("-inf")
        self._stopped: IndexingStopped | None = None
        self._noted: tuple[object, ...] = ()
        self._noted_at = float("-inf")

    @property
    def height(self) -> int | None:
        """The last block that is written; None: not known yet, or none."""
        return None if self._next is None or not self._next else self._next - 1

    @property
    def is_caught_up(self) -> bool:
        """Whether all that the node has is written."""
        return self._next is not None and bool(self._tips) and self._next > max(self._tips)

    def as_fields(self) -> dict[str, Any]:
        """Return how it stands, for a log line."""
        rate, eta_s = self._rate_and_eta()
        shown: dict[str, Any] = {"chain": self._driver.chain.value, "height": self.height}
        shown |= {"node_height": max(self._tips, default=None), "waiting_for": self._retrier.blocked_on}
        shown |= {"blocks_per_s": None if rate is None else round(rate, 1)}
        shown |= {"eta_s": None if eta_s is None else round(eta_s)}
        if self._stopped is not None:
            shown |= {"stopped": self._stopped.reason.value, "stopped_at": self._stopped.height}
        return shown

    async def run(self) -> None:
        """Index until cancelled."""
        backoff, delay_s, random = Backoff(self._settings.retry_first_s, self._settings.retry_cap_s), 0.0, Random()
        while True:
            try:
                await self._index()
            except StoreDown as error:
                delay_s = backoff.next_delay(delay_s, random)
                log.warning("the index cannot be written", extra={"chain": self._driver.chain.value, "why": str(error)})
                await asyncio.sleep(delay_s)
            except IndexingStopped as fault:
                await self._stop(fault)
                await asyncio.sleep(self._settings.retry_stopped_s)
            except Exception:  # The other chains go on, whatever is wrong with this one.
                log.exception("a chain cannot be indexed")
                await self._stop(IndexingStopped(StopReason.INTERNAL_ERROR, self._next or 0, "see the log"))
                await asyncio.sleep(self._settings.retry_stopped_s)

    async def _index(self) -> None:
        """Go on from what is written, for ever. Raises Stopped, StoreDown."""
        place = await self._driver.resume()
        self._next = None if place is None else place.height + 1
        self._rate_meter.start(_now())
        while True:
            tip = await self._poll()
            if self._next is None:
                wanted = self._settings.first_heights.get(self._driver.chain, 0)
                self._next = await self._driver.begin(wanted, tip)
            if self._next > tip:
                await self._tell(force=False)
                self._rate_meter.start(_now())
                await asyncio.sleep(self._settings.poll_s)
                continue
            try:
                await self._catch_up(tip)
            except IndexingStopped as fault:
                await self._take_another(fault)
            self._stopped = None

    async def _poll(self) -> int:
        """Return the height of the node in use."""
        self._tips = await self._retrier.call(self._driver.source.tips)
        self._told_at = int(time.time())
        if _now() - self._asked_bootstrapped_at >= _BOOTSTRAPPED_EVERY_S:
            self._asked_bootstrapped_at = _now()
            with suppress(NodeUnavailable):
                self._is_bootstrapped = await self._bootstrapped()
        return self._tips[0]

    async def _catch_up(self, tip: int) -> None:
        """Write everything up to `tip`, reading ahead of the writing. Raises Stopped, StoreDown."""
        assert self._next is not None
        planned = self._next
        ahead: deque[tuple[int, asyncio.Task[tuple[T, ...]]]] = deque()
        fault: Exception | None = None
        async with asyncio.TaskGroup() as tasks:

            def read_ahead() -> None:
                nonlocal planned
                while planned <= tip and len(ahead) < _SPANS_AHEAD:
                    count = min(max(1, self._driver.source.span), tip + 1 - planned)
                    ahead.append((planned, tasks.create_task(self._driver.source.read(planned, count))))
                    planned += count

            try:
                while self._next <= tip:
                    read_ahead()
                    first, reading = ahead.popleft()
                    blocks = await reading
                    while ahead and ahead[0][1].done() and len(blocks) < _MOST_WRITTEN:
                        blocks += await ahead.popleft()[1]
                    # Before the writing, so that none of it goes by without reading.
                    read_ahead()
                    await self._write(first, blocks)
            except (IndexingStopped, StoreDown) as error:
                # Raised outside, so that it is not wrapped into a group.
                fault = error
                for _, reading in ahead:
                    reading.cancel()
        if fault is not None:
            raise fault

    async def _write(self, first: int, blocks: tuple[T, ...]) -> None:
        try:
            await self._driver.write(first, blocks)
        except IndexingStopped as fault:
            self._next = fault.height
            raise
        self._next = first + len(blocks)
        self._rate_meter.add(_now(), len(blocks))
        await self._tell(force=False)

    async def _take_another(self, fault: IndexingStopped) -> None:
        """Try the bytes that other nodes, or another way of asking, give for that height. Raises Stopped."""
        if fault.reason not in _TAKES_ANOTHER:
            raise fault
        self._driver.source.distrust()
        for block in await self._retrier.call(lambda: self._driver.source.others(fault.height)):
            place = await self._driver.resume()
            if place is None or place.height + 1 != fault.height:
                break
            with suppress(IndexingStopped):
                await self._driver.write(fault.height, (block,))
                self._next = fault.height + 1
                return
        raise fault

    async def _stop(self, fault: IndexingStopped) -> None:
        # Whatever is wrong with the bytes, the next ones come another way.
        self._driver.source.distrust()
        is_news = self._stopped is None or (self._stopped.reason, self._stopped.height) != (fault.reason, fault.height)
        self._stopped = fault
        if is_news:
            told = {"chain": self._driver.chain.value, "reason": fault.reason.value, "height": fault.height}
            log.error("indexing a chain stopped", extra={**told, "detail": fault.detail})
        with suppress(StoreDown):
            await self._tell(force=True)

    async def _tell(self, *, force: bool) -> None:
        """Write how the chain stands, when that is news and not too often."""
        stopped = self._stopped
        news = (self._tips, self._is_bootstrapped, None if stopped is None else (stopped.reason, stopped.height))
        is_soon = _now() - self._noted_at < _NOTE_EVERY_S and not self.is_caught_up
        is_old = _now() - self._noted_at >= _NOTE_AT_LEAST_EVERY_S
        if not force and (is_soon or (news == self._noted and not is_old)):
            return
        await self._note(self._standing())
        self._noted, self._noted_at = news, _now()

    def _standing(self) -> ChainStatus:
        """Return how the chain stands."""
        is_behind = not self._is_bootstrapped or (bool(self._tips) and self._tips[0] + _BEHIND_BLOCKS < max(self._tips))
        note = ChainStatus(self._driver.chain, max(self._tips, default=0), is_behind, reported_at=self._told_at)
        fault = self._stopped
        if fault is not None:
            reason, height = fault.reason.value, fault.height
            return replace(note, stopped=reason, stopped_at=height, detail=fault.detail, raw=fault.raw)
        rate, eta_s = self._rate_and_eta()
        return replace(note, rate_blocks_s=rate, eta_s=eta_s)

    def _rate_and_eta(self) -> tuple[float | None, float | None]:
        if self._next is None or not self._tips or self.is_caught_up:
            return None, None
        rate = self._rate_meter.rate()
        return rate, (max(self._tips) + 1 - self._next) / rate if rate else None


def _now() -> float:
    return asyncio.get_running_loop().time()
