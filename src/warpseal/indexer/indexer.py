"""Indexes chains side by side: rebuilds dropped rows, then runs a `ChainFollower` per chain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.x_blocks import parse_x_block
from warpseal.follow.blocks import StopReason
from warpseal.follow.c_chain_source import CChainSource
from warpseal.follow.chain_follower import ChainConsumer, ChainFollower
from warpseal.follow.sources import ContainerSource, LinearSource, PChainSource
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.errors import IndexDamaged
from warpseal.index.rebuild import RebuildFailed, RowRebuilder
from warpseal.index.writer import IndexWriter
from warpseal.indexer.consumers import CChainConsumer, PChainConsumer, XChainConsumer
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.worker import Worker
from warpseal.node.blocks import Stream
from warpseal.node.upstream import Upstream
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import ChainProgress
from warpseal.runtime.retry import Backoff, Retrier, RetryDelays
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable

log = logging.getLogger(__name__)

_REBUILD_STEP_S: Final = 1.0


class Indexer:
    """All chosen chains.

    worker: worker that has opened the index.
    """

    def __init__(self, upstream: Upstream, worker: Worker, settings: IndexerSettings) -> None:
        self._upstream = upstream
        self._worker = worker
        self._settings = settings
        self.chains = {chain: self._build_follower(chain) for chain in settings.chains}

    async def run(self) -> None:
        """Index until cancelled; rebuild first the rows that a schema change has dropped."""
        await self._rebuild()
        async with asyncio.TaskGroup() as tasks:
            for chain in self.chains.values():
                tasks.create_task(chain.run())
            while True:
                await asyncio.sleep(self._settings.log_every_s)
                for chain in self.chains.values():
                    if not chain.is_caught_up:
                        log.info("indexing", extra=chain.as_fields())

    async def _rebuild(self) -> None:
        """Rebuild rows from stored blocks, before any block is read from a node."""
        clock, settings = asyncio.get_running_loop().time, self._settings
        logged_at, is_reported, failure = clock(), False, ""
        delays = RetryDelays(Backoff(settings.retry_first_s, settings.retry_stopped_s))
        while True:
            try:
                progress = await self._worker.run(RowRebuilder, RowRebuilder.step, _REBUILD_STEP_S)
            except StoreDown as error:
                if str(error) != failure:
                    log.warning("index write failed", extra={"reason": str(error)})
                    if isinstance(error, IndexDamaged):
                        # The status may be in a part of the file that is not damaged.
                        reason = StopReason.INDEX_DAMAGED.value
                        stops = (
                            ProgressRow(name, 0, False, reason, detail=error.reason)
                            for name in self.chains
                        )
                        await self._write_statuses(stops)
                failure = str(error)
                await asyncio.sleep(delays.next())
                continue
            except RebuildFailed as error:
                log.error(
                    "index rebuild failed", extra={"chain": error.chain.value, "reason": str(error)}
                )
                reason = StopReason.CONTRADICTION.value
                await self._write_statuses(
                    [ProgressRow(error.chain, 0, False, reason, error.height, str(error))]
                )
                await asyncio.sleep(settings.retry_stopped_s)
                continue
            if progress is None:
                return
            if not is_reported or clock() - logged_at >= settings.log_every_s:
                is_reported = True
                await self._report_rebuild(*progress)
            if clock() - logged_at >= settings.log_every_s:
                logged_at = clock()
                log.info(
                    "rebuilding index rows",
                    extra={"chain": progress[0].value, "height": progress[1]},
                )

    async def _report_rebuild(self, chain: PrimaryChain, height: int) -> None:
        """Say in the status of each chain that it waits for the rebuild."""
        waiting = (
            f"rows of the {chain} are being rebuilt from stored blocks, now at height {height}"
        )
        # No node has been called, so nothing proves that the index is not behind.
        now = int(time.time())
        await self._write_statuses(
            ProgressRow(name, 0, True, waiting=waiting, written_at=now) for name in self.chains
        )

    async def _report(self, progress: ChainProgress) -> None:
        await self._write_status(ProgressRow.of(progress))

    async def _write_status(self, status: ProgressRow) -> None:
        await self._worker.run(IndexWriter, IndexWriter.write_status, status)

    async def _write_statuses(self, statuses: Iterable[ProgressRow]) -> None:
        for status in statuses:
            with suppress(StoreDown):
                await self._write_status(status)

    def _build_follower(self, chain: PrimaryChain) -> ChainFollower[Any]:
        upstream, worker, settings = self._upstream, self._worker, self._settings
        retrier = Retrier(settings.pace.retry, {NodeUnavailable: "nodes"})
        consumer: ChainConsumer[Any]
        if chain is PrimaryChain.P:
            containers = ContainerSource(
                upstream.containers, Stream.P_BLOCKS, parse_p_block, retrier
            )
            consumer = PChainConsumer(
                PChainSource(upstream.blocks, containers, retrier), worker, retrier
            )
        elif chain is PrimaryChain.X:
            containers = ContainerSource(
                upstream.containers, Stream.X_BLOCKS, parse_x_block, retrier
            )
            source = LinearSource(upstream.x_chain, containers, retrier)
            consumer = XChainConsumer(
                source, upstream.x_chain, upstream.containers, worker, retrier
            )
        else:
            consumer = CChainConsumer(CChainSource(upstream.c_blocks, retrier), worker, retrier)
        # The members are named like the aliases of the chains.
        is_bootstrapped = partial(upstream.info.is_bootstrapped, chain.name)
        first_height = settings.first_heights.get(chain, 0)
        return ChainFollower(
            consumer, retrier, settings.pace, self._report, is_bootstrapped, first_height
        )
