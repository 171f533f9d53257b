"""A forwarded chain, built from its parts: its nodes, its WebSockets, and what the daemon answers itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from warpseal.forwarding.evm.forwarder import EvmForwarder, ForwardingObserver, LoadChainConfig
from warpseal.forwarding.evm.methods import DenyList
from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.forwarding.evm.sockets import EvmSockets
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.identity import ChainIdentity, EvmIdentity
from warpseal.upstream.node import Sessions, UpstreamNode
from warpseal.upstream.pool import NodePool
from warpseal.warp.ids import ChainID, id_text


@dataclass(frozen=True, slots=True)
class ForwardedChain:
    """One chain, calls of which are forwarded to its nodes."""

    chain_id: ChainID
    forwarder: EvmForwarder
    sockets: EvmSockets

    @property
    def pool(self) -> NodePool[ChainIdentity]:
        """Its nodes."""
        return self.forwarder.pool


def forward_chain(
    chain: EvmChain,
    sessions: Sessions,
    settings: EvmRpcSettings,
    load_config: LoadChainConfig,
    observer: ForwardingObserver | None = None,
) -> ForwardedChain:
    """Build a chain; no node is called yet."""
    nodes = [
        UpstreamNode(endpoint, sessions.pooled, settings.limits, write_session=sessions.single_use)
        for endpoint in chain.rpc
    ]
    pool = NodePool(nodes, EvmIdentity(), settings.limits)
    denied = DenyList((*settings.deny_methods, *chain.deny_methods))
    forwarder = EvmForwarder(id_text(chain.blockchain_id), pool, denied, settings, load_config, observer)
    sockets = EvmSockets(chain.ws, sessions.websockets, pool, settings)
    return ForwardedChain(chain.blockchain_id, forwarder, sockets)


async def run_chain(chain: ForwardedChain) -> None:
    """Check the nodes of a chain until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(chain.pool.run())
        if chain.sockets.is_configured:
            tasks.create_task(chain.sockets.run())
