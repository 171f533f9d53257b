"""The metrics database of a daemon, and the usage that is written to it, also before its folder is
known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from warpseal.api.status.probe_bodies import UsageState
from warpseal.config.keys import Config
from warpseal.daemon.core import Core, Upstreams
from warpseal.daemon.registries import Registries
from warpseal.errors import StartupError
from warpseal.ops.health.checks import usage_check
from warpseal.ops.health.registry import HealthCheck
from warpseal.peers.data_dir import sync_folder
from warpseal.resources.base import UNSET
from warpseal.runtime.process import running
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase, metrics_database_url
from warpseal.usage.flusher import UsageFlusher
from warpseal.usage.recorder import UsageRecorder
from warpseal.usage.retention import UsageRetention
from warpseal.usage.source import UsageSource
from warpseal.usage.sums import add_flush, add_kept_flush, read_kept_flushes, remove_flush

# Daemons of several networks may share a data-dir, but no port.
_FILE_BEFORE_NETWORK: Final = "metrics-before-network-{port}.db"


@asynccontextmanager
async def open_metrics_database(
    config: Config, folder: Path | None
) -> AsyncIterator[MetricsDatabase | None]:
    """Hold the metrics database; None if it has no place.

    Raises StartupError if it has no place and usage is recorded.

    folder: folder of the network in data-dir; None if that is read-only.
    """
    url = metrics_database_url(config.usage, config.store, folder)
    if config.records_usage and url is None:
        raise StartupError(
            f"data-dir {config.peers.data_dir} is read-only, so there is no place for the usage: "
            "make it writable, or set metrics-db-url"
        )
    if url is None:
        yield None
        return
    database = MetricsDatabase(url, config.usage)
    # Signing does not wait for a server that does not answer.
    async with running(database.prepare()):
        try:
            yield database
        finally:
            database.close()


class EarlyUsage:
    """Writes usage while no node has named the network.

    Without a setting that names the metrics database its folder is not known yet: rows go to a file
    in data-dir, from which UsageRecording moves them.
    """

    def __init__(self, config: Config, recorder: UsageRecorder) -> None:
        self._database = MetricsDatabase(_url_before_network(config), config.usage)
        self._flusher = UsageFlusher(self._database, recorder.take, config.usage)
        self._running: asyncio.Task[None] | None = None
        self._is_handed_over = False

    def start(self) -> None:
        """Begin to write."""
        self._running = asyncio.create_task(self._flusher.run())

    async def hand_over(self) -> UsageFlusher:
        """End, and return the flusher, which has the counts that are not written yet."""
        self._is_handed_over = True
        await self._end()
        return self._flusher

    async def stop(self) -> None:
        """Write the rest, unless the flusher was handed over."""
        if not self._is_handed_over:
            try:
                await self._end()
                await self._flusher.stop()
            finally:
                self._database.close()

    async def _end(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._is_handed_over:
            self._database.close()


@asynccontextmanager
async def open_early_usage(
    registries: Registries, upstreams: Upstreams, metering: UsageRecorder
) -> AsyncIterator[EarlyUsage]:
    """Write usage until `hand_over`; if the start ends before that, the rest is written."""
    early = EarlyUsage(registries.config, metering)
    early.start()
    try:
        yield early
    finally:
        await early.stop()


class Usage(Struct, frozen=True):
    """The metrics database, and the recorded usage in it.

    source: recorded usage; None if usage is not recorded.
    """

    database: MetricsDatabase | None
    source: UsageSource | None = None


@asynccontextmanager
async def open_usage(
    core: Core, tasks: asyncio.TaskGroup, early_usage: EarlyUsage | None
) -> AsyncIterator[Usage]:
    """Hold the metrics database, and write the usage to it.

    Raises StartupError if usage has no place.
    """
    async with open_metrics_database(core.config, core.folder) as database:
        if database is None or early_usage is None:
            yield Usage(database)
            return
        flusher = await early_usage.hand_over()
        try:
            recording = UsageRecording(core.config, flusher, database)
            core.health.register(recording.check())
            core.ready.register("usage", recording.state)
            core.keep_running(tasks, "usage", recording.run)
            yield Usage(database, recording.source)
        finally:
            # The end writes the rest.
            await flusher.stop()


def _url_before_network(config: Config) -> StoreUrl:
    url = metrics_database_url(config.usage, config.store, None)
    file_name = _FILE_BEFORE_NETWORK.format(port=config.api.api_port)
    return StoreUrl.for_file(config.peers.data_dir / file_name) if url is None else url


def _remove_database(path: Path) -> None:
    """Remove a SQLite file and its log."""
    for suffix in ("-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink()
    # The next file of this name cannot be used with a log that a power cut brings back.
    sync_folder(path.parent)
    with suppress(OSError):  # An empty file does no harm.
        path.unlink()


class UsageRecording:
    """Writes recorded usage to the metrics database, and removes what is too old."""

    def __init__(self, config: Config, flusher: UsageFlusher, database: MetricsDatabase) -> None:
        self._database = database
        self._settings = config.usage
        self._url_before_network = _url_before_network(config)
        self._flusher = flusher
        self._retention = UsageRetention(database, config.usage)
        self.source = UsageSource(database, config.usage)
        flusher.use(database)

    async def run(self) -> None:
        """Write, and remove what is too old, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flusher.run())
            tasks.create_task(self._retention.run())
            tasks.create_task(self._add_kept_flushes())

    async def _add_kept_flushes(self) -> None:
        """Add the flushes from before the network was known, also those of former runs, and remove
        their file.
        """
        await self._add_from(self._database)
        path = self._url_before_network.path
        if path is None or path == self._database.url.path or not path.exists():
            return
        source = MetricsDatabase(self._url_before_network, self._settings)
        try:
            await self._add_from(source)
        finally:
            source.close()
        await asyncio.to_thread(_remove_database, path)

    async def _add_from(self, source: MetricsDatabase) -> None:
        """Add the flushes that are kept in a database; those of another one are removed from it."""
        add = add_kept_flush if source is self._database else add_flush
        while True:
            try:
                while flushes := await source.write(read_kept_flushes):
                    for flush in flushes:
                        bound, now = self._settings.max_combinations, int(time.time())
                        await self._database.write(partial(add, flush=flush, now=now, bound=bound))
                        if source is not self._database:
                            await source.write(partial(remove_flush, flush=flush))
                return
            except StoreDown:
                await asyncio.sleep(self._settings.flush_s)

    def check(self) -> HealthCheck:
        """Return the check of the metrics database."""
        return usage_check(self._flusher.status)

    def state(self) -> UsageState:
        """Return the state of the recording."""
        flusher = self._flusher.status()
        is_up = flusher.reason is None
        waiting_bytes = UNSET if is_up else flusher.waiting_bytes
        return UsageState(url=self._database.url.redacted, up=is_up, waiting_bytes=waiting_bytes)
