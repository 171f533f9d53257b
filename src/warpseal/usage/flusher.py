"""Writes recorded usage to the metrics database, and keeps it in memory while that is down.

Flushes are numbered and encoded once, so that a write of unknown outcome can be repeated. While a
flush waits for such a write, newer sums wait behind it, without numbers and added up by minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

from msgspec import Struct

from warpseal.runtime.throttle import Throttle
from warpseal.store.errors import StoreDown
from warpseal.usage.calls import UsageLabels, UsageTotals
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.fold import fold
from warpseal.usage.periods import DAY_S, HOUR_S, MINUTE_S
from warpseal.usage.settings import UsageSettings
from warpseal.usage.sums import Flush, add_flush, keep_flush

log = logging.getLogger(__name__)

MinuteSums = Mapping[int, Mapping[UsageLabels, UsageTotals]]
"""Sums by labels, by Unix minute."""

_RUN_BYTES: Final = 16
# Memory of a combination besides the counts of its sketch.
_COMBINATION_BYTES: Final = 700
# Part of the bound, so that not every flush folds.
_FOLDED_SHARE: Final = 0.5
# Combinations of a flush: its encoding holds the interpreter for less than a millisecond.
_FLUSHED_COMBINATIONS: Final = 1_000


class FlusherStatus(Struct, frozen=True):
    """The state of the writing.

    waiting_bytes: approximate size of sums that are not written.
    reason: reason why the database is down; None while it is up.
    """

    waiting_bytes: int
    reason: str | None


class UsageFlusher:
    """Writes recorded sums.

    database: database that keeps the flushes until `use` names that of the buckets.
    take: function that returns the sums since its last call, called on the event loop.
    """

    def __init__(
        self, database: MetricsDatabase, take: Callable[[], MinuteSums], settings: UsageSettings
    ) -> None:
        self._database = database
        self._write: Callable[..., object] = keep_flush
        self._take = take
        self._settings = settings
        self._run = os.urandom(_RUN_BYTES)
        self._sequence = 0
        # By the first second of the minute, later perhaps of the hour or day.
        self._waiting: dict[int, dict[UsageLabels, UsageTotals]] = {}
        self._numbered: tuple[Flush, ...] = ()
        self._waiting_bytes = 0
        # One thread, since a flush whose task was cancelled may still work in it.
        self._thread = ThreadPoolExecutor(1, "usage-flusher")

    def use(self, database: MetricsDatabase) -> None:
        """Add flushes to the buckets of a database, also the flushes whose writes have failed."""
        self._database = database
        self._write = partial(add_flush, bound=self._settings.max_combinations)

    async def run(self) -> None:
        """Write until cancelled; `stop` writes the rest."""
        while True:
            await asyncio.sleep(self._settings.flush_s)
            with suppress(StoreDown):
                await self.flush()

    async def stop(self) -> None:
        """Write the rest, for a bounded time."""
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await self.flush()
        except (StoreDown, TimeoutError):
            fields = {"bytes": self._waiting_bytes}
            log.error("metrics database was down at shutdown, usage is lost", extra=fields)
        finally:
            self._thread.shutdown(wait=False)

    async def flush(self) -> None:
        """Write all recorded sums. Raises StoreDown; the sums are kept then."""
        await self._in_thread(partial(self._gather, self._take()))
        while self._numbered:
            write = partial(self._write, flush=self._numbered[0], now=int(time.time()))
            await self._database.write(write)
            self._numbered = self._numbered[1:]
            if not self._numbered:
                await self._in_thread(self._number)

    def status(self) -> FlusherStatus:
        """Return the state of the writing."""
        return FlusherStatus(self._waiting_bytes, self._database.reason)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        # Work that was cancelled before it begins would lose the sums that were taken for it.
        await asyncio.shield(asyncio.wrap_future(self._thread.submit(work)))

    def _gather(self, minute_sums: MinuteSums) -> None:
        """Add sums to the waiting ones, and number them unless others are numbered already."""
        throttle = Throttle()
        for minute, sums in minute_sums.items():
            _add(self._waiting.setdefault(minute * MINUTE_S, {}), sums, throttle)
        if not self._numbered:
            self._number()
        elif self._measure() > self._settings.max_waiting_bytes:
            self._fold()

    def _number(self) -> None:
        flushes = []
        for minute, sums in sorted(self._waiting.items()):
            pairs = iter(sums.items())
            while part := list(islice(pairs, _FLUSHED_COMBINATIONS)):
                flushes.append(Flush.of(self._run, self._sequence, minute, part))
                self._sequence += 1
        self._numbered, self._waiting = tuple(flushes), {}
        self._measure()

    def _measure(self) -> int:
        """Return the approximate size of the waiting sums."""
        numbered_bytes = sum(len(flush.sums) for flush in self._numbered)
        self._waiting_bytes = numbered_bytes + sum(map(_size, self._waiting.values()))
        return self._waiting_bytes

    def _fold(self) -> None:
        """Make the sums small enough.

        Minutes become hours first, since that loses no label; then labels are folded. If that is
        not enough, hours become days, and labels are folded again.
        """
        throttle, bound = Throttle(), self._settings.max_waiting_bytes * _FOLDED_SHARE
        for period_s in (HOUR_S, DAY_S):
            self._regroup(period_s)
            size, count = self._measure(), sum(map(len, self._waiting.values()))
            if size > bound and count:
                bound_per_period = int(bound / size * count / len(self._waiting))
                for start, sums in self._waiting.items():
                    self._waiting[start] = fold(sums, bound_per_period, throttle)
            if self._measure() <= self._settings.max_waiting_bytes:
                return

    def _regroup(self, period_s: int) -> None:
        throttle, regrouped = Throttle(), dict[int, dict[UsageLabels, UsageTotals]]()
        for start, sums in self._waiting.items():
            _add(regrouped.setdefault(start - start % period_s, {}), sums, throttle)
        self._waiting = regrouped


def _add(
    sums: dict[UsageLabels, UsageTotals],
    added: Mapping[UsageLabels, UsageTotals],
    throttle: Throttle,
) -> None:
    for labels, totals in added.items():
        if labels in sums:
            sums[labels].add(totals)
        else:
            sums[labels] = totals
        throttle.step()


def _size(sums: Mapping[UsageLabels, UsageTotals]) -> int:
    return sum(_COMBINATION_BYTES + sys.getsizeof(totals.times) for totals in sums.values())
