"""How far the indexes are, for metrics, health, status and `/ready`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import starmap
from typing import Any

from warpseal.daemon.chain_rows import describe_index
from warpseal.daemon.core import Core
from warpseal.daemon.registries import StatusRequest
from warpseal.indexer.status import IndexSample, IndexStatus
from warpseal.indexer.subprocess import HeartbeatReader
from warpseal.ops.health.chains import evm_index_check
from warpseal.ops.health.checks import indexer_check
from warpseal.resources.base import or_unset


@asynccontextmanager
async def open_index_status(core: Core, tasks: asyncio.TaskGroup) -> AsyncIterator[IndexStatus]:
    """Report the status of the indexes, which is empty until one of them is opened."""
    config, index_status = core.config, IndexStatus()
    evm = index_status.evm

    async def status(request: StatusRequest) -> Mapping[str, Any]:
        return {"chains": list(starmap(describe_index, index_status.chains().items()))}

    core.registries.refreshers.append(evm.refresh_if_old)
    core.metrics.samples.register(IndexSample, index_status.samples)
    core.ready.register("index", lambda: or_unset(index_status.states()))
    core.status.register(status)
    if config.indexer.chains or config.node.has_evm_index:
        heartbeat = HeartbeatReader(config.peers.data_dir)
        report_age_s = partial(index_status.report_age_s, config.indexer.chains)
        core.health.register(
            indexer_check(
                heartbeat.silence_s, config.health, index_status.stalled_chains, report_age_s
            )
        )
    if config.node.has_evm_index:
        core.health.register(evm_index_check(evm.refresh_if_old, evm.states, evm.stalled_chains))
    yield index_status
