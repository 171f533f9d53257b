"""The store of the daemon: its leadership, the signing blocks, its state for metrics, health and
`/ready`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from warpseal.api.status.probe_bodies import StoreState
from warpseal.daemon.core import Core
from warpseal.metrics.samples import StoreSample
from warpseal.ops.health.checks import database_check, signing_blocks_check
from warpseal.store.store import Store
from warpseal.store.url import OFF


@asynccontextmanager
async def open_store(core: Core, tasks: asyncio.TaskGroup) -> AsyncIterator[Store]:
    """Report the state of the store, and keep leadership and signing blocks up to date."""
    store = core.store

    def state() -> StoreState:
        now = store.status()
        return StoreState(url=now.url, up=now.is_up)

    core.metrics.samples.register(StoreSample, lambda: _samples(store))
    core.ready.register("store", state)
    core.health.register(
        database_check(store.status), signing_blocks_check(store.signing_blocks.blocking_error)
    )
    if core.has_store:
        core.keep_running(tasks, "leadership", core.leadership.run)
        core.keep_running(tasks, "signing blocks", store.signing_blocks.run)
    yield store


def _samples(store: Store) -> Iterator[StoreSample]:
    now = store.status()
    if now.url != OFF:
        waiting = (now.waiting_writes, now.dropped_writes)
        yield StoreSample(now.is_up, *waiting, now.size_bytes, now.evictable_bytes, now.evicted)
