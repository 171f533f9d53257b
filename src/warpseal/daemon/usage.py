"""The metrics database of a daemon, and the usage that is recorded into it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.runtime.process import running
from warpseal.usage.database import MetricsDatabase, metrics_database_url
from warpseal.usage.flusher import UsageFlusher
from warpseal.usage.queries import UsageSource
from warpseal.usage.recorder import UsageRecorder
from warpseal.usage.rollup import UsageRollup


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


class UsageRecording:
    """Writes recorded usage to the metrics database and merges it there. Its end writes the rest."""

    def __init__(self, config: Config, recorder: UsageRecorder, database: MetricsDatabase) -> None:
        self._database = database
        self._flusher = UsageFlusher(database, recorder.take, config.usage)
        self._rollup = UsageRollup(database, config.usage)
        self.source = UsageSource(database, config.usage)

    async def __aenter__(self) -> UsageRecording:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._flusher.stop()

    async def run(self) -> None:
        """Write and merge until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flusher.run())
            tasks.create_task(self._rollup.run())

    def extend(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the background work with that of the recording, JSON-ready."""
        flusher = self._flusher.status()
        state: dict[str, Any] = {"url": self._database.url.redacted, "up": flusher.reason is None}
        degraded = list(status.get("degraded", ()))
        if self._rollup.damaged:
            state["damagedRows"] = self._rollup.damaged
            degraded.append(f"{self._rollup.damaged} rows of the metrics database are damaged and set aside")
        if flusher.reason is None:
            return {**status, "usage": state, **({"degraded": degraded} if degraded else {})}
        reason = f"the metrics database is down: {flusher.reason}; usage is kept in memory until it is up"
        state["waitingBytes"] = flusher.waiting_bytes
        return {**status, "usage": state, "degraded": [*degraded, reason]}
