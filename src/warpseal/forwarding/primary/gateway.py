"""The gateway: a forwarder for each primary chain, with the nodes that serve it.

docs/gateway.md has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.forwarding.evm.forwarder import ERRORS, NOT_ANSWERED
from warpseal.forwarding.primary.methods import (
    C_CHAIN_RPC,
    C_CHAIN_WS,
    HEIGHT_METHODS,
    READS,
    AllowedMethods,
)
from warpseal.forwarding.settings import EvmRpcSettings, GatewaySettings
from warpseal.node.p_chain import decode_height
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.identity import HEAD, PrimaryNetwork
from warpseal.upstream.jsonrpc import MALFORMED, RpcError, decode_result
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import INLINE_BYTES, NodeCall, NodeReply, Sessions, UpstreamNode
from warpseal.upstream.pool import NodePool, PoolNode
from warpseal.warp.ids import ChainID

_HEIGHTS: Final = {
    PrimaryChain.P: NodeCall(
        "platform.getHeight", {}, ("/ext/bc/P",), decode_height, CallOrigin.DAEMON
    ),
    PrimaryChain.X: NodeCall("avm.getHeight", {}, ("/ext/bc/X",), decode_height, CallOrigin.DAEMON),
    PrimaryChain.C: replace(HEAD, paths=(C_CHAIN_RPC,)),
}
_NOT_FOUND: Final = 404


class GatewayForwarder:
    """Forwards the calls of one chain."""

    def __init__(self, pool: NodePool[int], settings: EvmRpcSettings) -> None:
        self.pool = pool
        self._settings = settings

    async def forward(self, method: str, body: bytes, path: str) -> NodeReply | RpcError:
        """Return a node's unchanged reply to a call, or the error of a call that no node answered.

        path: path of the route at a node. A read goes on if a node lacks the route: another node
            may have it.
        """
        is_read = method in READS
        send = partial(self.pool.post, body=body, is_write=not is_read, path=path, method=method)

        shows_height = self.pool.compares_heads and method in HEIGHT_METHODS

        def is_final(node: PoolNode, reply: NodeReply) -> bool:
            if shows_height and len(reply.body) <= INLINE_BYTES:
                result = decode_result(reply.body)
                if result is not None:
                    with suppress(*MALFORMED):
                        self.pool.note_head(node, decode_height(bytes(result)))
            return not is_read or not (reply.is_busy or reply.status == _NOT_FOUND)

        nodes, timeout_s = await self.pool.candidates(), self._settings.call_timeout_s
        reply = await self.pool.forward(nodes, timeout_s, send, is_final, is_read=is_read)
        if isinstance(reply, NodeReply):
            return reply
        return ERRORS.get(reply, NOT_ANSWERED)


class Gateway(Struct, frozen=True):
    """The forwarders by chain, and the allowed methods.

    A node that fails for one chain may serve the others.
    """

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
    # A node that fails for one chain may serve the others: it has a state in each pool.
    nodes = [
        UpstreamNode(endpoint, sessions.pooled, limits, write_session=sessions.single_use)
        for endpoint in settings.nodes
    ]

    def forwarder(chain: PrimaryChain) -> GatewayForwarder:
        identity = PrimaryNetwork(network_id, _HEIGHTS[chain])
        return GatewayForwarder(NodePool(nodes, identity, limits), forwarding)

    allowed = [name for name in settings.methods if not name.startswith("!")]
    denied = [name[1:] for name in settings.methods if name.startswith("!")]
    methods = AllowedMethods(allowed, denied)
    return Gateway({chain: forwarder(chain) for chain in PrimaryChain}, methods)


def c_chain_at(nodes: Sequence[NodeEndpoint], chain_id: ChainID) -> EvmChain:
    """Return the C-Chain's EVM as these nodes serve it."""
    rpc: list[NodeEndpoint] = []
    sockets: list[NodeEndpoint] = []
    for node in nodes:
        scheme = "wss" if node.base_url.startswith("https:") else "ws"
        rpc.append(node.below(C_CHAIN_RPC))
        sockets.append(node.below(C_CHAIN_WS, scheme))
    return EvmChain(chain_id, tuple(rpc), tuple(sockets))
