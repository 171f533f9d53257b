"""The subnet that validates a chain, and which subnets are L1s.

Permanent facts stay cached, others for seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warpseal.node.p_chain import Subnet
from warpseal.node.platform import PlatformClient
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.upstream.errors import RpcRefusal
from warpseal.validators.errors import UnknownChain, UnknownSubnet
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, ValidationID, id_text

_MAX_CHAINS: Final = 16_384
_MAX_SUBNETS: Final = 16_384
# Unknown ids have caches of their own, so that made-up ids never push out known ones.
_MAX_UNKNOWN: Final = 4_096
_UNKNOWN_TTL_S: Final = 2.0
_NOT_AN_L1_TTL_S: Final = 2.0
_BLOCKCHAINS_TTL_S: Final = 60.0


class ChainLookup:
    """Facts about chains and subnets; concurrent callers share one call to a node.

    Used from one event loop.
    has_index: the platform reads an index. The index then decides the subnet of a chain,
        and no list of a node does.
    """

    def __init__(
        self,
        platform: PlatformClient,
        *,
        has_index: bool = False,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._platform = platform
        self._has_index = has_index
        self._subnet_of: TtlCache[ChainID, SubnetID] = TtlCache(_MAX_CHAINS, now)
        self._subnets: TtlCache[SubnetID, Subnet] = TtlCache(_MAX_SUBNETS, now)
        self._blockchains: TtlCache[SubnetID, tuple[ChainID, ...]] = TtlCache(_MAX_UNKNOWN, now)
        self._unknown_chains: TtlCache[ChainID, None] = TtlCache(_MAX_UNKNOWN, now)
        self._unknown_subnets: TtlCache[SubnetID, None] = TtlCache(_MAX_UNKNOWN, now)
        self._chain_flights: SingleFlight[ChainID, SubnetID] = SingleFlight()
        self._subnet_flights: SingleFlight[SubnetID, Subnet] = SingleFlight()
        self._blockchains_flights: SingleFlight[SubnetID, tuple[ChainID, ...]] = SingleFlight()

    def cached_subnet_of(self, chain_id: ChainID) -> SubnetID | None:
        """Return the subnet that validates a chain if no call to a node is needed, else None."""
        if chain_id == P_CHAIN:
            return PRIMARY_NETWORK
        cached = self._subnet_of.get(chain_id)
        return None if cached is None else cached.value

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        """Return the subnet that validates a chain. Raises UnknownChain, NodeUnavailable."""
        subnet_id = self.cached_subnet_of(chain_id)
        if subnet_id is not None:
            return subnet_id
        if self._unknown_chains.get(chain_id) is not None:
            raise UnknownChain(id_text(chain_id))
        return await self._chain_flights.run(chain_id, lambda: self._fetch_subnet_of(chain_id))

    async def subnet(self, subnet_id: SubnetID) -> Subnet:
        """Return the P-Chain's record of a subnet. Raises UnknownSubnet, NodeUnavailable."""
        if subnet_id == PRIMARY_NETWORK:
            return Subnet(PRIMARY_NETWORK)
        cached = self._subnets.get(subnet_id)
        if cached is not None:
            return cached.value
        if self._unknown_subnets.get(subnet_id) is not None:
            raise UnknownSubnet(id_text(subnet_id))
        return await self._subnet_flights.run(subnet_id, lambda: self._fetch_subnet(subnet_id))

    async def subnet_of_validation(self, validation_id: ValidationID) -> SubnetID | None:
        """Return the L1 of a validation that exists, else None. Raises NodeUnavailable."""
        try:
            validator = await self._platform.l1_validator(validation_id)
        except RpcRefusal:
            return None
        return None if validator is None or validator.state is None else validator.state.subnet_id

    async def blockchains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        """Return the chains of a subnet, at most a minute old. Raises NodeUnavailable."""
        cached = self._blockchains.get(subnet_id)
        if cached is not None:
            return cached.value
        return await self._blockchains_flights.run(
            subnet_id, lambda: self._fetch_blockchains(subnet_id)
        )

    async def _fetch_blockchains(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        chain_ids = await self._platform.blockchains_of(subnet_id)
        self._blockchains.put(subnet_id, chain_ids, ttl_s=_BLOCKCHAINS_TTL_S)
        for chain_id in () if self._has_index else chain_ids:
            self._subnet_of.put(chain_id, subnet_id)
        return chain_ids

    async def _fetch_subnet_of(self, chain_id: ChainID) -> SubnetID:
        subnet_id = await self._platform.validated_by(chain_id)
        if subnet_id is None:
            self._unknown_chains.put(chain_id, None, ttl_s=_UNKNOWN_TTL_S)
            raise UnknownChain(id_text(chain_id))
        self._subnet_of.put(chain_id, subnet_id)
        return subnet_id

    async def _fetch_subnet(self, subnet_id: SubnetID) -> Subnet:
        subnet = await self._platform.subnet(subnet_id)
        if subnet is None:
            self._unknown_subnets.put(subnet_id, None, ttl_s=_UNKNOWN_TTL_S)
            raise UnknownSubnet(id_text(subnet_id))
        self._subnets.put(
            subnet_id, subnet, ttl_s=float("inf") if subnet.is_l1 else _NOT_AN_L1_TTL_S
        )
        return subnet
