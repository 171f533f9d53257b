"""Removes usage that is too old or beyond the size; the leading daemon of a database does it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from warpseal.store.connection import Connection, marks
from warpseal.store.errors import StoreDown
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.page_tokens import remove_expired
from warpseal.usage.periods import DAY_S, Level, bucket_start
from warpseal.usage.settings import FOREVER, UsageSettings

log = logging.getLogger(__name__)

_REMOVED_BUCKETS: Final = 8
_NO_END: Final = 2**63 - 1
_REMOVE_FLUSHES: Final = "DELETE FROM usage_flushes WHERE written_at < ? AND sums IS NULL"
_OLDEST_BUCKETS: Final = """\
SELECT start
FROM usage_buckets
WHERE level = ? AND start < ?
ORDER BY start
LIMIT ?
"""
_CLOCK_STEP_S: Final = 60.0
_PATIENCE_AFTER_STEP_S: Final = 3_600.0


class UsageRetention:
    """Removes rows.

    now: clock of Unix time.
    monotonic: clock that is never set, seconds.
    """

    def __init__(
        self,
        database: MetricsDatabase,
        settings: UsageSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._settings = settings
        self._now = now
        self._monotonic = monotonic
        self._leadership = database.leadership("usage")
        self._clock_offset_s = now() - monotonic()
        # The clock of a machine that was just started may be wrong.
        self._remove_at = monotonic() + settings.prune_interval_s

    async def run(self) -> None:
        """Take part in the election, and remove rows while this daemon leads, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leadership.run())
            tasks.create_task(self._lead())

    async def remove(self) -> None:
        """Remove usage beyond its retention or the size, and expired page tokens.

        Raises StoreDown.
        """
        remove_tokens = partial(remove_expired, now=int(self._now()))
        for remove in (remove_tokens, self._remove_old, self._remove_beyond_size):
            # A write removes a few rows, so that no other write waits long.
            while await self._database.write(remove):
                pass

    def may_remove(self) -> bool:
        """Return whether it is time to remove rows.

        For an hour after the clock was set it is not: it may be wrong.
        """
        offset_s = self._now() - self._monotonic()
        if abs(offset_s - self._clock_offset_s) > _CLOCK_STEP_S:
            log.warning("clock was set, usage is not removed for an hour")
            self._clock_offset_s = offset_s
            self._remove_at = self._monotonic() + _PATIENCE_AFTER_STEP_S
        return self._monotonic() >= self._remove_at

    async def _lead(self) -> NoReturn:
        while True:
            await self._leadership.wait_until_held()
            try:
                if self.may_remove():
                    await self.remove()
                    self._remove_at = self._monotonic() + self._settings.prune_interval_s
            except StoreDown:
                pass  # It is logged already.
            await asyncio.sleep(self._settings.flush_s)

    def _remove_old(self, connection: Connection) -> bool:
        """Remove some rows that are too old; return whether there may be more."""
        # A daemon repeats a write of unknown outcome within less than a day.
        connection.run(_REMOVE_FLUSHES, int(self._now()) - DAY_S)
        for level in Level:
            oldest = oldest_kept(self._settings, level, self._now())
            if _remove_buckets(connection, level, oldest):
                return True
        return False

    def _remove_beyond_size(self, connection: Connection) -> bool:
        """Remove the oldest buckets if the database is too big; return whether to go on.

        Hours are removed first, then days, weeks and months.
        """
        if stored_bytes(connection) <= self._settings.max_bytes:
            return False
        return any(_remove_buckets(connection, level, _NO_END) for level in Level)


def _remove_buckets(connection: Connection, level: Level, before: int) -> bool:
    """Remove some of a level's oldest buckets; return whether there were any.

    before: time before which the buckets begin.
    """
    rows = connection.fetch(_OLDEST_BUCKETS, int(level), before, _REMOVED_BUCKETS)
    if not rows:
        return False
    starts = [start for (start,) in rows]
    for table in ("usage", "usage_buckets"):
        text = f"DELETE FROM {table} WHERE level = ? AND start IN {marks(len(starts))}"
        connection.run(text, int(level), *starts)
    return True


def oldest_kept(settings: UsageSettings, level: Level, now: float) -> int:
    """Return the start of the oldest bucket that is kept; 0 if buckets are kept for ever."""
    kept_s = {
        Level.HOUR: settings.hour_retention_s,
        Level.DAY: settings.day_retention_s,
        Level.WEEK: settings.week_retention_s,
        Level.MONTH: settings.month_retention_s,
    }[level]
    if kept_s == FOREVER:
        return 0
    return bucket_start(level, max(0, int(now - kept_s)))


def stored_bytes(connection: Connection) -> int:
    """Return the approximate size of all rows of usage, in bytes."""
    return int(connection.value("SELECT sum(size_bytes) FROM usage_buckets") or 0)
