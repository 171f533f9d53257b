"""Which subnet validates a chain, and which subnets are L1s: what never changes is kept, what may change is not."""

from __future__ import annotations

from collections.abc import Callable

from warpseal.errors import UnknownChain, UnknownSubnet
from warpseal.node.limits import CallOrigin
from warpseal.node.platform import PlatformClient, Subnet
from warpseal.runtime.single_flight import SingleFlight
from warpseal.validators.recent import RecentCache
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, id_text

_MAX_CHAINS = 16_384
_MAX_SUBNETS = 16_384
# "Unknown" is kept in a place of its own, so that made-up ids never push out known ones.
_MAX_UNKNOWN = 4_096
_UNKNOWN_KEPT_S = 2.0
_NOT_AN_L1_KEPT_S = 2.0
_BLOCKCHAINS_KEPT_S = 60.0


class ChainLookup:
    """Answers about chains and subnets; one call upstream whoever asks. Used from one event loop."""

    def __init__(self, platform: PlatformClient, *, now: Callable[[], float] | None = None) -> None:
        self._platform = platform
        self._subnet_of: RecentCache[ChainID, SubnetID] = RecentCache(_MAX_CHAINS, now)
        self._subnets: RecentCache[SubnetID, Subnet] = RecentCache(_MAX_SUBNETS, now)
        self._blockchains: RecentCache[SubnetID, tuple[ChainID, ...]] = RecentCache(_MAX_UNKNOWN, now)
        self._unknown_chains: RecentCache[ChainID, None] = RecentCache(_MAX_UNKNOWN, now)
        self._unknown_subnets: RecentCache[SubnetID, None] = RecentCache(_MAX_UNKNOWN, now)
        self._chain_flights: SingleFlight[ChainID, SubnetID] = SingleFlight()
        self._subnet_flights: SingleFlight[SubnetID, Subnet] = SingleFlight()
        self._blockchains_flights: SingleFlight[SubnetID, tuple[ChainID, ...]] = SingleFlight()

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        """Return the subnet that validates a chain. Raises UnknownChain, NodeUnavailable."""
        if chain_id == P_CHAIN:
            return PRIMARY_NETWORK
        known = self._subnet_of.get(chain_id)
        if known is not None:
            return known.value
        if self._unknown_chains.get(chain_id) is not None:
            raise UnknownChain(id_text(chain_id))
        return await self._chain_flights.run(chain_id, lambda: self._ask_chain(chain_id))

    async def subnet(self, subnet_id: SubnetID) -> Subnet:
        """Return what is recorded of a subnet. Raises UnknownSubnet, NodeUnavailable."""
        if subnet_id == PRIMARY_NETWORK:
            return Subnet(PRIMARY_NETWORK)
        known = self._subnets.get(subnet_id)
        if known is not None:
            return known.value
        if self._unknown_subnets.get(subnet_id) is not None:
            raise UnknownSubnet(id_text(subnet_id))
        return await self._subnet_flights.run(subnet_id, lambda: self._ask_subnet(subnet_id))

    async def blockchains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        """Return the chains that a subnet validates, as of a minute ago at most. Raises NodeUnavailable."""
        known = self._blockchains.get(subnet_id)
        if known is not None:
            return known.value
        return await self._blockchains_flights.run(subnet_id, lambda: self._ask_blockchains(subnet_id))

    async def _ask_blockchains(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        chain_ids = await self._platform.blockchains_of(subnet_id, origin=CallOrigin.CALLER)
        self._blockchains.put(subnet_id, chain_ids, keep_s=_BLOCKCHAINS_KEPT_S)
        return chain_ids

    async def _ask_chain(self, chain_id: ChainID) -> SubnetID:
        subnet_id = await self._platform.validated_by(chain_id)
        if subnet_id is None:
            self._unknown_chains.put(chain_id, None, keep_s=_UNKNOWN_KEPT_S)
            raise UnknownChain(id_text(chain_id))
        self._subnet_of.put(chain_id, subnet_id)
        return subnet_id

    async def _ask_subnet(self, subnet_id: SubnetID) -> Subnet:
        subnet = await self._platform.subnet(subnet_id)
        if subnet is None:
            self._unknown_subnets.put(subnet_id, None, keep_s=_UNKNOWN_KEPT_S)
            raise UnknownSubnet(id_text(subnet_id))
        self._subnets.put(subnet_id, subnet, keep_s=float("inf") if subnet.is_l1 else _NOT_AN_L1_KEPT_S)
        return subnet
