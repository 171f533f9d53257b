"""The metrics database of a daemon, and the usage that is recorded into it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.ops.health.checks import usage_check
from warpseal.ops.health.registry import HealthCheck
from warpseal.runtime.process import running
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase, metrics_database_url
from warpseal.usage.flusher import UsageFlusher, insert_minute_rows, read_minute_rows, remove_minute_rows
from warpseal.usage.recorder import UsageRecorder
from warpseal.usage.rollup import UsageRollup
from warpseal.usage.source import UsageSource

# Daemons of several networks may share a data-dir, but no port.
_FILE_BEFORE_NETWORK: Final = "metrics-before-network-{port}.db"


@asynccontextmanager
async def open_metrics_database(config: Config, folder: Path | None) -> AsyncIterator[MetricsDatabase | None]:
    """Hold the metrics database if usage is recorded or an EVM chain is indexed; None otherwise.

    folder: of the network in data-dir; None: it is read-only. Raises StartupError if usage has no place then.
    """
    url = metrics_database_url(config.usage, config.store, folder)
    if config.records_usage and url is None:
        raise StartupError(
            f"data-dir {config.peers.data_dir} is read-only, so there is no place for the usage: "
            "make it writable, or set metrics-db-url"
        )
    if url is None or not (config.records_usage or config.node.has_evm_index):
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
async def recording_before_network(
    config: Config, recorder: UsageRecorder | None
) -> AsyncIterator[UsageFlusher | None]:
    """Write usage while no node has named the network; yield its flusher, None if no usage is recorded.

    Without a setting that names the metrics database its folder is not known yet: rows go to a file in data-dir, from
    which UsageRecording moves them. If the start ends before that, the rest is written.
    """
    if recorder is None:
        yield None
        return
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
    """Writes recorded usage to the metrics database and merges it there."""

    def __init__(self, config: Config, flusher: UsageFlusher, database: MetricsDatabase) -> None:
        self._database = database
        self._settings = config.usage
        self._url_before_network = _url_before_network(config)
        self._flusher = flusher
        self._rollup = UsageRollup(database, config.usage)
        self.source = UsageSource(database, config.usage)
        flusher.use(database)

    async def run(self) -> None:
        """Write and merge until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flusher.run())
            tasks.create_task(self._rollup.run())
            tasks.create_task(self._move_rows())

    async def _move_rows(self) -> None:
        """Move the rows from before the network was known, also those of former runs, and remove their file."""
        path = self._url_before_network.path
        if path is None or path == self._database.url.path or not path.exists():
            return
        source = MetricsDatabase(self._url_before_network, self._settings)
        try:
            while True:
                try:
                    while rows := await source.write(read_minute_rows):
                        await self._database.write(partial(insert_minute_rows, rows=rows))
                        await source.write(partial(remove_minute_rows, rows=rows))
                    break
                except StoreDown:
                    await asyncio.sleep(self._settings.merge_interval_s)
        finally:
            source.close()
        for suffix in ("-wal", "-shm", ""):
            with suppress(OSError):  # An empty file does no harm.
                path.with_name(path.name + suffix).unlink()

    def check(self) -> HealthCheck:
        """Return the check of the metrics database."""
        return usage_check(self._flusher.status, lambda: self._rollup.damaged)

    def extend(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of the background work with that of the recording, JSON-ready."""
        flusher = self._flusher.status()
        state: dict[str, Any] = {"url": self._database.url.redacted, "up": flusher.reason is None}
        if self._rollup.damaged:
            state["damagedRows"] = self._rollup.damaged
        if flusher.reason is not None:
            state["waitingBytes"] = flusher.waiting_bytes
        return {**status, "usage": state}
