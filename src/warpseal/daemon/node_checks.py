"""What the node API knows of the network: the state of the nodes, the followed chains, the names of
the chains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from warpseal.api.status.document import NodeStatus
from warpseal.daemon.core import Core
from warpseal.daemon.l1 import L1
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.registries import StatusRequest
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.indexer.status import IndexStatus
from warpseal.l1.follower import PChainFollower
from warpseal.ops.health.chains import P_CHAIN_API, FollowedChain, NodeMonitor, chain_check
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.warp.ids import PRIMARY_NETWORK


@asynccontextmanager
async def open_node_checks(
    core: Core,
    tasks: asyncio.TaskGroup,
    node_api: NodeApi,
    validators: ValidatorNetwork,
    l1: L1,
    index_status: IndexStatus,
) -> AsyncIterator[NodeMonitor]:
    """Check the nodes and the followed chains, and name our node id in responses."""
    config = core.config
    now, tracker = asyncio.get_running_loop().time, validators.subnet_tracker
    monitor = NodeMonitor(
        core.platform,
        core.upstream.info,
        validators.heights,
        config.health,
        now,
        config.node.p_chain_quorum,
    )
    node_api.open(core.upstream.info, core.identity.identity.node_id, tracker)
    chains = [
        *_followed_chains(l1.follower, node_api),
        *_indexed_chains(core, index_status, node_api),
    ]
    indexed_names = (PRIMARY_NAMES[chain][0] for chain in config.indexer.chains)
    core.registries.loggers.add_chains((*node_api.followed_chains, *indexed_names))
    core.health.register(
        monitor.check(),
        *(chain_check(chain, tracker, config.health.max_lag_s, now) for chain in chains),
    )

    async def status(request: StatusRequest) -> Mapping[str, Any]:
        return {"nodes": list(_describe_nodes(monitor, with_addresses=request.with_addresses))}

    core.status.register(status)
    core.keep_running(tasks, "checks of nodes", partial(monitor.run, core.health.trigger))
    core.keep_running(
        tasks,
        "names of chains",
        partial(node_api.add_primary_chains, core.upstream, core.network_id),
    )
    yield monitor


def _describe_nodes(monitor: NodeMonitor, *, with_addresses: bool) -> Iterator[NodeStatus]:
    for setting, results in monitor.results.items():
        for result in results:
            has_height = setting == P_CHAIN_API and result.value is not None
            yield NodeStatus(
                setting=setting,
                position=result.position,
                is_up=result.failure is None,
                address=result.display if with_addresses else None,
                error=None if result.failure is None else result.failure.value,
                height=str(result.value) if has_height else None,
                behind_seconds=int(monitor.behind_s(result.position)) or None
                if has_height
                else None,
                disagrees=result.disagrees,
            )


def _followed_chains(follower: PChainFollower, node_api: NodeApi) -> Iterator[FollowedChain]:
    """Yield the chain that the daemon follows itself, for which readiness waits."""
    if not follower.is_off:
        chain = FollowedChain("P", PRIMARY_NETWORK, follower.progress)
        node_api.followed_chains[chain.name] = chain
        yield chain


def _indexed_chains(
    core: Core, index_status: IndexStatus, node_api: NodeApi
) -> Iterator[FollowedChain]:
    """Yield the chains that only the index follows.

    Readiness does not wait for them: they may take days.
    """
    for chain in core.config.indexer.chains:
        name = PRIMARY_NAMES[chain][0]
        if name not in node_api.followed_chains:
            yield FollowedChain(name, PRIMARY_NETWORK, partial(index_status.progress, chain))
