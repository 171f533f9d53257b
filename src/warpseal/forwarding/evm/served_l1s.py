"""The EVM chains of tracked subnets that one node serves, found by asking it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from msgspec.structs import replace

from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, L1sNode
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.identity import CHAIN_ID, read_value
from warpseal.upstream.node import Sessions, UpstreamNode
from warpseal.warp.ids import ChainID, SubnetID, id_text

log = logging.getLogger(__name__)

BlockchainsOf = Callable[[SubnetID], Awaitable[tuple[ChainID, ...]]]
"""Returns the blockchains of a subnet. Raises NodeUnavailable."""

INTERVAL_S: Final = 20.0


def served_chain(node: L1sNode, chain_id: ChainID) -> EvmChain:
    """Return the entry of an indexed chain that a node serves."""
    url = f"{node.endpoint.base_url}/ext/bc/{id_text(chain_id)}/rpc"
    indexing = EvmIndexing(has_holders=node.has_holders)
    return EvmChain(chain_id, (replace(node.endpoint, base_url=url),), index=indexing)


class ServedL1s:
    """Finds chains until cancelled.

    listed_ids: chains that have entries of their own, and are left out.
    """

    def __init__(
        self,
        node: L1sNode,
        subnet_ids: Collection[SubnetID],
        blockchains_of: BlockchainsOf,
        listed_ids: Iterable[ChainID],
        sessions: Sessions,
        settings: EvmRpcSettings,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._node = node
        self._subnet_ids = tuple(subnet_ids)
        self._blockchains_of = blockchains_of
        self._listed_ids = set(listed_ids)
        self._sessions = sessions
        self._settings = settings
        self._interval_s = interval_s

    async def run(self, on_chain: Callable[[EvmChain], None]) -> None:
        """Call `on_chain` with each chain once, within a minute after the node serves it."""
        while True:
            chains = await self.find()
            if chains:
                names = ", ".join(id_text(chain.blockchain_id) for chain in chains)
                fields = {"node": self._node.endpoint.display, "chains": names}
                log.info("found EVM chains", extra=fields)
            for chain in chains:
                on_chain(chain)
            await asyncio.sleep(self._interval_s)

    async def find(self) -> list[EvmChain]:
        """Return the chains that the node serves now, each once."""
        chains: list[EvmChain] = []
        for subnet_id in self._subnet_ids:
            try:
                chain_ids = await self._blockchains_of(subnet_id)
            except NodeUnavailable:
                continue
            new_ids = [chain_id for chain_id in chain_ids if chain_id not in self._listed_ids]
            entries = [served_chain(self._node, chain_id) for chain_id in new_ids]
            is_served = await asyncio.gather(*map(self._is_served, entries))
            chains += [entry for entry, served in zip(entries, is_served, strict=True) if served]
            self._listed_ids.update(chain.blockchain_id for chain in chains)
        return chains

    async def _is_served(self, entry: EvmChain) -> bool:
        """Return whether the node answers as an EVM chain does."""
        node = UpstreamNode(entry.rpc[0], self._sessions.pooled, self._settings.limits)
        try:
            return await read_value(node, CHAIN_ID, self._settings.connect_timeout_s) is not None
        except CallFailure:
            return False
