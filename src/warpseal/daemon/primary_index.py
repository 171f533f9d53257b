"""The index of the primary chains, which the index process fills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.daemon.core import Core
from warpseal.index.database import index_url
from warpseal.index.index import Index
from warpseal.indexer.network import load_genesis
from warpseal.indexer.status import IndexStatus


@asynccontextmanager
async def open_primary_index(
    core: Core, tasks: asyncio.TaskGroup, index_status: IndexStatus
) -> AsyncIterator[Index]:
    """Open the index before any subsystem reads a validator set: a set of a node stays in the
    caches.

    Raises StartupError for what the index process could not use.
    """
    config = core.config
    if config.indexer.genesis_file is not None:
        await asyncio.to_thread(load_genesis, core.network_id, config.indexer.genesis_file)
    async with Index(index_url(config.index, core.folder), None, config.index) as index:
        index_status.index = index
        if core.upstreams.indexed is not None:
            core.upstreams.indexed.index = index
        core.keep_running(tasks, "heights of the index", index.run)
        yield index
