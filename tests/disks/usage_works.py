"""Usage that is written to a metrics database, while its disk or server fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from tests.disks.works import LOG_BYTES, Process, Work, repeat
from tests.usage.test_database import database
from tests.usage.test_sums import NOW, adding_flusher, check, read_buckets
from tests.usage.traffic import Call, FakeRecorder, make_calls
from warpseal.store.engine import PAGE_BYTES, run_pragmas, writing_engine
from warpseal.store.migrate import Migrations, upgrade_at_start
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.migrations import VERSIONS as USAGE_VERSIONS


def metrics_at(work: Work) -> MetricsDatabase:
    """Return the metrics database of a work, to be opened by `async with`."""
    metrics = database(work.url)
    if not work.server_url:
        pages = LOG_BYTES // PAGE_BYTES
        run_pragmas(metrics._engine, [f"wal_autocheckpoint = {pages}"])
    return metrics


class UsageWork(Work):
    """Flushes of calls."""

    parts = tuple(make_calls(Random(number), 10, NOW - 60, NOW) for number in range(Work.count))

    @property
    def path(self) -> Path:
        return self.folder / "metrics.db"

    def prepare(self) -> None:
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with metrics_at(self):
            pass

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        async with metrics_at(self) as metrics:
            recorder = FakeRecorder()
            flusher = adding_flusher(metrics, recorder)
            while len(acknowledged) < self.count and not process.is_killed:
                number = len(acknowledged)
                recorder.calls += self.parts[number]
                # The daemon tries again with the same flusher, which numbers what it writes.
                await repeat(flusher.flush, process)
                if not process.is_killed:
                    acknowledged.append(number)
            if self.ends_killed:
                process.kill()

    async def read(self) -> list[int]:
        async with metrics_at(self) as metrics:
            buckets = await metrics.read(read_buckets)
        calls: list[Call] = []
        for number in range(self.count + 1):
            with suppress(AssertionError):
                check(buckets, calls)
                return list(range(number))
            calls += self.parts[number] if number < self.count else []
        raise AssertionError("the sums are those of no number of flushes")


class OldUsageWork(UsageWork):
    """The same in a database of the first version."""

    def prepare(self) -> None:
        engine = writing_engine(StoreUrl.parse(self.url))
        upgrade_at_start(engine, "here", Migrations(USAGE_VERSIONS[:1]))
        engine.dispose()


USAGE_WORKS: Final = (UsageWork, OldUsageWork)
