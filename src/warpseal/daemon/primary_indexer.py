"""Indexes the primary chains: reads blocks from nodes; the worker process writes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from warpseal.chains.p_blocks import PGenesis
from warpseal.config.keys import Config
from warpseal.daemon.index_core import IndexCore, node_retrier
from warpseal.errors import StartupError
from warpseal.index.database import index_url, rebuild_hint
from warpseal.index.errors import IndexDamaged
from warpseal.indexer.indexer import Indexer
from warpseal.indexer.network import fetch_network, load_genesis
from warpseal.indexer.worker import IndexOpener, Worker, open_worker
from warpseal.runtime.process import hangup_signal
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.url import StoreUrl

log = logging.getLogger(__name__)

_DAMAGED_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)


@asynccontextmanager
async def open_primary_indexer(core: IndexCore, tasks: asyncio.TaskGroup) -> AsyncIterator[None]:
    """Open the index in the worker process, and index. Raises StartupError."""
    config, upstream, run = core.config, core.upstream, core.run
    assert run.worker_process is not None
    ended = partial(
        core.fail, StartupError("the worker process of the index ended by itself: its log says why")
    )
    genesis = read_genesis(config, core.network_id)
    network = await node_retrier().call(lambda: fetch_network(upstream, core.network_id, genesis))
    url = index_url(config.index, core.folder)
    raw_genesis = None if genesis is None else genesis.raw
    opener = IndexOpener(url, config.index, config.indexer, network.params, raw_genesis)
    async with open_worker(run.worker_process, ended) as worker:
        await _open_index(worker, opener, url)
        # Only now: the processes that the worker has started ignore SIGHUP, as this one did until
        # here.
        with hangup_signal(run.loggers.reopen):
            run.announce(f"warpseal is indexing: network={core.network_id} index={url.redacted}")
            tasks.create_task(Indexer(upstream, worker, config.indexer).run())
            yield


def read_genesis(config: Config, network_id: int) -> PGenesis | None:
    """Return the genesis of a network; None, and a warning, if it is not known."""
    genesis = load_genesis(network_id, config.indexer.genesis_file)
    if genesis is None:
        log.warning(
            "the genesis is not known: set genesis-file, or the P- and X-Chain are incomplete"
        )
    return genesis


async def _open_index(worker: Worker, opener: IndexOpener, url: StoreUrl) -> None:
    """Open the index in the worker, a damaged one as soon as the operator has replaced it.

    Raises StartupError.
    """
    logged = set[str]()

    def on_damage(error: Exception, delay_s: float) -> None:
        assert isinstance(error, IndexDamaged)
        if error.reason not in logged:
            logged.add(error.reason)
            log.error("index is damaged", extra={"reason": error.reason, "hint": rebuild_hint(url)})

    await Retrier(_DAMAGED_RETRY, {IndexDamaged: "index"}, on_damage).call(
        partial(worker.start, opener)
    )
