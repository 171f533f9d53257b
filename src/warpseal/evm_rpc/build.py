"""All forwarded chains, built together: their nodes, their WebSockets, and what is derived for each.

Sessions are opened by `forwarded_chains` and live as long as it is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from warpseal.evm_rpc.forwarder import Configured, EvmForwarder, ForwardingObserver
from warpseal.evm_rpc.methods import DenyList
from warpseal.evm_rpc.node import EvmNode, Sessions, open_sessions
from warpseal.evm_rpc.pool import EvmPool
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.evm_rpc.sockets import EvmSockets
from warpseal.node.endpoint import EvmChain
from warpseal.warp.ids import ChainID, id_text


@dataclass(frozen=True, slots=True)
class ForwardedChain:
    """One chain that calls are forwarded to."""

    chain_id: ChainID
    forwarder: EvmForwarder
    sockets: EvmSockets

    @property
    def pool(self) -> EvmPool:
        """Its nodes."""
        return self.forwarder.pool


@asynccontextmanager
async def open_forwarded_chains(
    chains: Iterable[EvmChain],
    settings: EvmRpcSettings,
    configured: Callable[[EvmChain], Configured],
    observer: ForwardingObserver | None = None,
) -> AsyncIterator[tuple[ForwardedChain, ...]]:
    """Hold the sessions to all nodes of these chains; nothing is asked before it is needed, or `follow` runs."""
    async with open_sessions(settings) as sessions:
        yield tuple(_forwarded(chain, sessions, settings, configured(chain), observer) for chain in chains)


async def run_chains(chains: Iterable[ForwardedChain]) -> None:
    """Watch the nodes of these chains until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for chain in chains:
            tasks.create_task(chain.pool.run())
            if chain.sockets.is_configured:
                tasks.create_task(chain.sockets.run())


def _forwarded(
    chain: EvmChain,
    sessions: Sessions,
    settings: EvmRpcSettings,
    configured: Configured,
    observer: ForwardingObserver | None,
) -> ForwardedChain:
    nodes = [EvmNode(endpoint, position, sessions, settings) for position, endpoint in enumerate(chain.rpc)]
    pool = EvmPool(nodes, settings)
    denied = DenyList((*settings.deny_methods, *chain.deny_methods))
    forwarder = EvmForwarder(id_text(chain.blockchain_id), pool, denied, settings, configured, observer)
    return ForwardedChain(chain.blockchain_id, forwarder, EvmSockets(chain.ws, sessions.sockets, pool, settings))
