"""Which subnets a node validates beside the Primary Network, as nodes list all members of all subnets.

Source of truth: avalanchego `vms/platformvm/service.go` (getAllValidatorsAt). Nodes that are too old to know it
tell none.
"""

from __future__ import annotations

import asyncio
from typing import Final

from warpseal.node.platform import PlatformClient
from warpseal.node.refusals import RpcRefusal
from warpseal.runtime.single_flight import SingleFlight
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID

REMEMBERED_S: Final = 60.0
MOST_SUBNETS: Final = 64

Members = dict[NodeID, tuple[SubnetID, ...]]


class SubnetMembers:
    """Asks once for everybody, and again when that is a minute old."""

    def __init__(self, platform: PlatformClient) -> None:
        self._platform = platform
        self._known: Members = {}
        self._until = float("-inf")
        self._flights: SingleFlight[None, Members] = SingleFlight()

    async def subnets_of(self, node_id: NodeID) -> tuple[SubnetID, ...]:
        """Return the subnets and L1s that a node validates, at most 64. Raises NodeUnavailable."""
        if asyncio.get_running_loop().time() >= self._until:
            await self._flights.run(None, self._learn)
        return self._known.get(node_id, ())

    async def _learn(self) -> Members:
        try:
            sets = await self._platform.all_validators_at(await self._platform.height())
        except RpcRefusal:
            sets = {}
        found: dict[NodeID, list[SubnetID]] = {}
        for subnet_id, entries in sets.items():
            for entry in entries if subnet_id != PRIMARY_NETWORK else ():
                found.setdefault(entry.node_id, []).append(subnet_id)
        self._known = {node_id: tuple(sorted(subnets)[:MOST_SUBNETS]) for node_id, subnets in found.items()}
        self._until = asyncio.get_running_loop().time() + REMEMBERED_S
        return self._known
