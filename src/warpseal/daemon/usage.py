"""The metrics database of a daemon, and the usage that is recorded into it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from warpseal.api.status.probe_bodies import UsageState
from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.ops.health.checks import usage_check
from warpseal.ops.health.registry import HealthCheck
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
async def open_metrics_database(config: Config, folder: Path | None) -> AsyncIterator[MetricsDatabase | None]:
    """Hold the metrics database; None if it has no place.

    folder: of the network in data-dir; None: it is read-only. Raises StartupError if usage has no place then.
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


@asynccontextmanager
async def recording_before_network(config: Config, recorder: UsageRecorder) -> AsyncIterator[UsageFlusher]:
    """Write usage while no node has named the network; yield its flusher.

    Without a setting that names the metrics database its folder is not known yet: rows go to a file in data-dir, from
    which UsageRecording moves them. If the start ends before that, the rest is written.
    """
    database = MetricsDatabase(_url_before_network(config), config.usage)
    flusher = UsageFlusher(database, recorder.take, config.usage)
    try:
        async with running(flusher.run()):
            yield flusher
    except BaseException:
        await flusher.stop()
        raise
    finally:
        database.close()


def _url_before_network(config: Config) -> StoreUrl:
    url = metrics_database_url(config.usage, config.store, None)
    file_name = _FILE_BEFORE_NETWORK.format(port=config.api.api_port)
    return StoreUrl.for_file(config.peers.data_dir / file_name) if url is None else url


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
        """Add the flushes from before the network was known, also those of former runs, and remove their file."""
        await self._add_from(self._database)
        path = self._url_before_network.path
        if path is None or path == self._database.url.path or not path.exists():
            return
        source = MetricsDatabase(self._url_before_network, self._settings)
        try:
            await self._add_from(source)
        finally:
            source.close()
        for suffix in ("-wal", "-shm", ""):
            with suppress(OSError):  # An empty file does no harm.
                path.with_name(path.name + suffix).unlink()

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
