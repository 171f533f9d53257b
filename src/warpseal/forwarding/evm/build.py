"""A forwarded chain, built from its parts: its nodes, its WebSockets, and what the daemon answers itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from warpseal.forwarding.evm.forwarder import EvmForwarder, ForwardingObserver, LoadChainConfig
from warpseal.forwarding.evm.methods import DenyList
from warpseal.forwarding.evm.node import RpcNode, Sessions
from warpseal.forwarding.evm.pool import EvmPool
from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.forwarding.evm.sockets import EvmSockets
from warpseal.upstream.endpoint import EvmChain
from warpseal.warp.ids import ChainID, id_text


@dataclass(frozen=True, slots=True)
class ForwardedChain:
    """One chain, calls of which are forwarded to its nodes."""

    chain_id: ChainID
    forwarder: EvmForwarder
    sockets: EvmSockets

    @property
    def pool(self) -> EvmPool:
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
    nodes = [RpcNode(endpoint, position, sessions, settings) for position, endpoint in enumerate(chain.rpc)]
    pool = EvmPool(nodes, settings)
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
