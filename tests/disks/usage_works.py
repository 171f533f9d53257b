"""Usage that is written to a metrics database, while its disk or server fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from tests.daemon.test_subsystems import NODES
from tests.disks.works import LOG_BYTES, PAUSE_S, LivingProcess, Process, Work, repeat
from tests.eventually import until
from tests.usage.test_database import database
from tests.usage.test_sums import NOW, adding_flusher, check, read_buckets
from tests.usage.traffic import Call, FakeRecorder, make_calls
from warpseal.config.keys import Config
from warpseal.config.load import load
from warpseal.daemon.usage import EarlyUsage, UsageRecording, open_metrics_database
from warpseal.store.engine import PAGE_BYTES, run_pragmas, writing_engine
from warpseal.store.errors import StoreDown
from warpseal.store.migrate import Migrations, upgrade_at_start
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.migrations import VERSIONS as USAGE_VERSIONS
from warpseal.usage.recorder import UsageRecorder


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


class EarlyUsageWork(UsageWork):
    """Starts of a daemon, each with a flush before it knows the network, and one after that.

    The first flushes go to a file of their own, from which the daemon moves them.
    """

    flushes_per_seed = 2

    @property
    def early_path(self) -> Path:
        """The file from before the network is known."""
        return self.folder / f"metrics-before-network-{base_config().api.api_port}.db"

    def _config(self) -> Config:
        base = base_config()
        return replace(
            base,
            peers=replace(base.peers, data_dir=self.folder),
            usage=replace(base.usage, url=self.server_url, flush_s=PAUSE_S),
        )

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        while len(acknowledged) < self.count and not process.is_killed:
            await self._run_daemon(process, acknowledged)

    async def _run_daemon(self, process: Process, acknowledged: list[int]) -> None:
        recorder = FakeRecorder()
        async with self._early_usage(recorder) as early:
            number = len(acknowledged)
            if number % 2 == 0:
                recorder.calls += self.parts[number]
                # A flush that fails waits, and is perhaps in the file as well.
                with suppress(StoreDown):
                    await early._flusher.flush()
                    acknowledged += [] if process.is_killed else [number]
                number += 1
            async with self._recording(early) as recording:
                if number % 4 == 1:
                    await self._move(recording, process)
                recorder.calls += self.parts[number]
                await repeat(recording._flusher.flush, process)
                if not process.is_killed:
                    acknowledged[:] = range(number + 1)
                await self._move(recording, process)
                if self.ends_killed and number + 1 == self.count:
                    process.kill()

    @asynccontextmanager
    async def _early_usage(self, recorder: FakeRecorder) -> AsyncIterator[EarlyUsage]:
        early = EarlyUsage(self._config(), cast("UsageRecorder", recorder))
        try:
            yield early
        finally:
            await early.stop()

    @asynccontextmanager
    async def _recording(self, early: EarlyUsage) -> AsyncIterator[UsageRecording]:
        config = self._config()
        flusher = await early.hand_over()
        async with open_metrics_database(config, self.folder) as metrics:
            assert metrics is not None
            try:
                yield UsageRecording(config, flusher, metrics)
            finally:
                await flusher.stop()

    @staticmethod
    async def _move(recording: UsageRecording, process: Process) -> None:
        """Add the flushes of the other file, unless the process ends before that."""
        task = asyncio.create_task(recording._add_kept_flushes())
        await until(lambda: task.done() or process.is_killed)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def read(self) -> list[int]:
        async with (
            self._early_usage(FakeRecorder()) as early,
            self._recording(early) as recording,
        ):
            await self._move(recording, LivingProcess())
        assert not self.early_path.exists()
        return await super().read()


@cache
def base_config() -> Config:
    """Return the configuration of a daemon that records usage."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_bytes(msgspec.json.encode({**NODES, "usage-enabled": True}))
        return load(file, {}, {}).config


USAGE_WORKS: Final = (UsageWork, OldUsageWork, EarlyUsageWork)
