"""The nodes of one indexed EVM chain: in which order they are called, what each one lacks, and their heads."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from warpseal.forwarding.evm.methods import head_in
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.upstream.batch import ChainNode, NodeResource
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.identity import BLOCK_NUMBER, ChainIdentity, EvmIdentity
from warpseal.upstream.jsonrpc import rpc_call
from warpseal.upstream.limits import CallRates
from warpseal.upstream.node import Sessions, UpstreamNode
from warpseal.upstream.pool import NodePool

_CHECK_S: Final = 2.0
# Other nodes are not waited for longer if one has reported its head.
_HEAD_TIMEOUT_S: Final = 0.5
_HEAD_CALL_TIMEOUT_S: Final = 5.0


class ChainNodes(NodePool[ChainIdentity]):
    """The nodes of one chain. Deny lists do not bind it. rates: of all chains; None: this chain is the only one."""

    node_type = ChainNode
    nodes: tuple[ChainNode, ...]

    def __init__(
        self, chain: EvmChain, sessions: Sessions, settings: EvmRpcSettings, rates: CallRates | None = None
    ) -> None:
        assert chain.index is not None
        rates, limits, per_s = rates or CallRates(), settings.limits, chain.index.calls_per_s
        nodes = [
            UpstreamNode(endpoint, sessions.pooled, limits, rate=rates.of(endpoint, per_s)) for endpoint in chain.rpc
        ]
        super().__init__(nodes, EvmIdentity(), limits)

    async def require_candidates(self, resource: NodeResource | None = None, height: int = 0) -> list[ChainNode]:
        """Return the nodes that may be called, best first. Raises NodeUnavailable if there is none.

        resource: nodes that are known to lack it at this height come last.
        """
        nodes = [self.nodes[node.position] for node in await self.candidates()]
        if not nodes:
            raise NodeUnavailable("eth_chainId")
        return nodes if resource is None else sorted(nodes, key=lambda node: node.lacks(resource, height))

    async def heads(self) -> tuple[int, ...]:
        """Return the heads of the nodes, the highest first. Raises NodeUnavailable if no node reports its head."""
        tasks = {asyncio.create_task(self._poll_head(node)) for node in await self.require_candidates()}
        try:
            done, _ = await asyncio.wait(tasks, timeout=_HEAD_TIMEOUT_S)
            while not any(task.result() for task in done) and (waiting := tasks - done):
                done |= (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[0]
        finally:
            for task in tasks:
                task.cancel()
        heads = [head for task in done if (head := task.result()) is not None]
        if not heads:
            raise NodeUnavailable(BLOCK_NUMBER)
        return tuple(sorted(heads, reverse=True))

    async def run(self) -> None:
        """Verify nodes again and again until cancelled: a node that was down may be up."""
        while True:
            await self.check()
            await asyncio.sleep(_CHECK_S)

    async def _poll_head(self, node: ChainNode) -> int | None:
        with suppress(CallFailure):
            (response,) = await node.call_batch([rpc_call(BLOCK_NUMBER)], timeout_s=_HEAD_CALL_TIMEOUT_S)
            if response.result is not None and (height := head_in(response.result)) is not None:
                node.set_head(height)
                return height
        return None
