"""The gateway, built from its parts: for each primary chain the nodes that serve it, and the C-Chain's EVM at them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpseal.forwarding.evm.node import RpcNode, Sessions
from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.forwarding.primary.forwarder import GatewayForwarder
from warpseal.forwarding.primary.methods import AllowedMethods
from warpseal.forwarding.primary.pool import PrimaryPool
from warpseal.forwarding.primary.routes import C_CHAIN_RPC, C_CHAIN_WS
from warpseal.forwarding.primary.settings import GatewaySettings
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.limits import RetryAfter
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class Gateway:
    """The forwarders by chain, and the allowed methods. A node that fails for one chain may serve the others."""

    forwarders: Mapping[PrimaryChain, GatewayForwarder]
    methods: AllowedMethods

    async def run(self) -> None:
        """Check the nodes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for forwarder in self.forwarders.values():
                tasks.create_task(forwarder.pool.run())


def build_gateway(
    settings: GatewaySettings, sessions: Sessions, forwarding: EvmRpcSettings, network_id: int
) -> Gateway:
    """Build the gateway of a network; no node is called yet."""
    pauses = [RetryAfter() for _ in settings.nodes]

    def forwarder(chain: PrimaryChain) -> GatewayForwarder:
        nodes = [
            RpcNode(endpoint, position, sessions, forwarding, pause)
            for position, (endpoint, pause) in enumerate(zip(settings.nodes, pauses, strict=True))
        ]
        return GatewayForwarder(PrimaryPool(nodes, forwarding, chain, network_id), forwarding)

    methods = AllowedMethods(settings.allow_methods, settings.deny_methods)
    return Gateway({chain: forwarder(chain) for chain in PrimaryChain}, methods)


def c_chain_at(nodes: Sequence[NodeEndpoint], chain_id: ChainID) -> EvmChain:
    """Return the C-Chain's EVM as these nodes serve it."""
    sockets = [node.below(C_CHAIN_WS, "wss" if node.base_url.startswith("https:") else "ws") for node in nodes]
    return EvmChain(chain_id, tuple(node.below(C_CHAIN_RPC) for node in nodes), tuple(sockets))
