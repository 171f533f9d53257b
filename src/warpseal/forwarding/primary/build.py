"""The gateway, built from its parts: for each primary chain the nodes that serve it, and the C-Chain's EVM at them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.forwarding.primary.forwarder import GatewayForwarder, decode_height
from warpseal.forwarding.primary.methods import AllowedMethods
from warpseal.forwarding.primary.routes import C_CHAIN_RPC, C_CHAIN_WS
from warpseal.forwarding.primary.settings import GatewaySettings
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.identity import HEAD, PrimaryNetwork
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall, Sessions, UpstreamNode
from warpseal.upstream.pool import NodePool
from warpseal.warp.ids import ChainID

_HEIGHTS: Final = {
    PrimaryChain.P: NodeCall("platform.getHeight", {}, ("/ext/bc/P",), decode_height, CallOrigin.DAEMON),
    PrimaryChain.X: NodeCall("avm.getHeight", {}, ("/ext/bc/X",), decode_height, CallOrigin.DAEMON),
    PrimaryChain.C: replace(HEAD, paths=(C_CHAIN_RPC,)),
}


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
    limits = forwarding.limits
    # A node that fails for one chain may serve the others, so the state of a node is that of each pool.
    nodes = [
        UpstreamNode(endpoint, sessions.pooled, limits, write_session=sessions.single_use)
        for endpoint in settings.nodes
    ]

    def forwarder(chain: PrimaryChain) -> GatewayForwarder:
        return GatewayForwarder(NodePool(nodes, PrimaryNetwork(network_id, _HEIGHTS[chain]), limits), forwarding)

    methods = AllowedMethods(settings.allow_methods, settings.deny_methods)
    return Gateway({chain: forwarder(chain) for chain in PrimaryChain}, methods)


def c_chain_at(nodes: Sequence[NodeEndpoint], chain_id: ChainID) -> EvmChain:
    """Return the C-Chain's EVM as these nodes serve it."""
    sockets = [node.below(C_CHAIN_WS, "wss" if node.base_url.startswith("https:") else "ws") for node in nodes]
    return EvmChain(chain_id, tuple(node.below(C_CHAIN_RPC) for node in nodes), tuple(sockets))
