"""The metrics database of a daemon, and the usage that is recorded into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.usage.database import MetricsDatabase, metrics_database_url


@asynccontextmanager
async def open_metrics_database(config: Config, folder: Path | None) -> AsyncIterator[MetricsDatabase | None]:
    """Hold the metrics database if usage is recorded or an EVM chain is indexed; None otherwise.

    folder: of the network in data-dir; None: it is read-only. Raises StartupError if usage has no place then.
    """
    url = metrics_database_url(config.usage, config.store, folder)
    if config.usage.enabled and url is None:
        raise StartupError(
            f"data-dir {config.peers.data_dir} is read-only, so there is no place for the usage: "
            "make it writable, or set metrics-db-url"
        )
    if url is None or not (config.usage.enabled or config.node.has_evm_index):
        yield None
        return
    async with MetricsDatabase(url, config.usage) as database:
        yield database
