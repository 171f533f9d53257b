"""The store of the daemon: its leadership, the signing blocks, its state for metrics, health and
`/ready`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from warpseal.api.status.probe_bodies import StoreState
from warpseal.daemon.core import Core
from warpseal.metrics.samples import Sample, metric
from warpseal.ops.health.checks import database_check, signing_blocks_check
from warpseal.store.store import Store
from warpseal.store.url import OFF


class StoreSample(Sample, frozen=True):
    """The store. Its counters begin with the process.

    size_bytes, evictable_bytes: sizes that are up to half a minute old.
    """

    is_up: bool = metric(False, "warpseal_store_up", "1 while the store works, 0 while it is down")
    waiting_writes: int = metric(
        0, "warpseal_store_waiting_writes", "Writes that wait in memory to be committed"
    )
    dropped_writes: int = metric(
        0,
        "warpseal_store_dropped_writes_total",
        "Writes dropped because the store was down for too long",
    )
    size_bytes: int = metric(0, "warpseal_store_bytes", "Size of the store's database")
    evictable_bytes: int = metric(
        0, "warpseal_store_evictable_bytes", "Approximate size of what the store may evict"
    )
    evicted: int = metric(
        0, "warpseal_store_evicted_total", "Messages and addresses that the store has evicted"
    )


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
