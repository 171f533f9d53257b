"""Validators and blockchains from nodes alone, for callers of a daemon without an index.

Source of truth: avalanchego `vms/platformvm/service.go` (getCurrentValidators of one node lists its delegators too),
`api/info/service.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from warpseal.chains.ids import AssetID
from warpseal.chains.p_txs import CreateChainTx, parse_p_tx
from warpseal.errors import NodeUnavailable
from warpseal.history.blocks import Blockchain, p_chain
from warpseal.history.chains import PUBLIC_CHAINS, PrimaryChains
from warpseal.history.ports import Connectivity
from warpseal.history.staking import Validation
from warpseal.ledger.params import builtin_parameters
from warpseal.node.errors import RpcRefusal
from warpseal.node.json_values import u64
from warpseal.node.node_validation import NodeValidation, decode_peer_status, decode_validations
from warpseal.node.platform import P_CHAIN_PATHS, PlatformClient
from warpseal.node.pool import INFO_PATHS, NodePool
from warpseal.node.rpc import NodeCall
from warpseal.node.state import decode_asset
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID, id_text, node_id_text, parse_id

T = TypeVar("T")
_Key = tuple[NodeID, SubnetID]

CACHE_TTL_S: Final = 10.0
MAX_CACHED: Final = 1_000
STALE_CONNECTIVITY_S: Final = 3_600.0
"""For how long the last known connectivity of a validator is returned while no node answers."""
_AVM: Final = b"avm".ljust(32, b"\x00")
_EVM: Final = b"evm".ljust(32, b"\x00")


class NodeViewClient:
    """Calls nodes on demand; every method raises NodeUnavailable."""

    def __init__(self, platform: PlatformClient, p_chain: NodePool, info: NodePool) -> None:
        self._platform = platform
        self._p_chain = p_chain
        self._info = info
        self._memberships = SubnetMemberships(platform)
        self._validations_cache: TtlCache[_Key, tuple[NodeValidation, ...]] = TtlCache(MAX_CACHED)
        self._connectivity_cache: TtlCache[NodeID, Connectivity] = TtlCache(MAX_CACHED)
        self._last_connectivity: TtlCache[NodeID, Connectivity] = TtlCache(MAX_CACHED)

    async def primary_chains(self, network_id: int) -> PrimaryChains:
        """Return the ids of the primary chains: builtin ones of the public networks, else from nodes."""
        public = PUBLIC_CHAINS.get(network_id)
        if public is not None:
            return public
        listed = await self._call(_BLOCKCHAINS)
        of_primary = {chain.vm_id: chain.chain_id for chain in listed if chain.subnet_id == PRIMARY_NETWORK}
        try:
            return PrimaryChains(x=of_primary[_AVM], c=of_primary[_EVM])
        except KeyError:
            raise NodeUnavailable("the ids of the X- and C-Chain") from None

    async def staking_asset(self, network_id: int) -> AssetID:
        """Return the id of AVAX: builtin for the public networks, else from nodes."""
        known = builtin_parameters(network_id)
        return known.staking_asset_id if known is not None else await self._call(_STAKING_ASSET)

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain from its creating transaction; one from the genesis from the list of a node."""
        if chain_id == P_CHAIN:
            return p_chain()
        transaction = await self._platform.transaction(chain_id)
        if transaction is not None:
            return _created_blockchain(chain_id, transaction.raw)
        if await self._platform.validated_by(chain_id) is None:
            return None
        listed = await self._call(_BLOCKCHAINS)
        return next((chain for chain in listed if chain.chain_id == chain_id), None)

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        """Return the current validations of a node: the Primary Network's and, if it has one, those of subnets."""
        validations = await self._validations(node_id, PRIMARY_NETWORK)
        for subnet_id in await self._memberships.subnets_of(node_id) if validations else ():
            validations += await self._validations(node_id, subnet_id)
        return validations

    async def _validations(self, node_id: NodeID, subnet_id: SubnetID) -> tuple[Validation, ...]:
        current = await self._node_validations(node_id, subnet_id)
        if not current:
            return ()
        params = {} if subnet_id == PRIMARY_NETWORK else {"subnetID": id_text(subnet_id)}
        total = await self._call(NodeCall("platform.getTotalStake", params, P_CHAIN_PATHS, _decode_total))
        return tuple(validation.validation(subnet_id, total) for validation in current)

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        """Return the connectivity of a validator at a node, or the last known one if no node answers."""
        cached = self._connectivity_cache.get(node_id)
        if cached is not None:
            return cached.value
        try:
            connectivity = await self._connectivity(node_id)
        except NodeUnavailable:
            last = self._last_connectivity.get(node_id)
            if last is None:
                raise
            return last.value
        self._connectivity_cache.put(node_id, connectivity, ttl_s=CACHE_TTL_S)
        self._last_connectivity.put(node_id, connectivity, ttl_s=STALE_CONNECTIVITY_S)
        return connectivity

    async def _connectivity(self, node_id: NodeID) -> Connectivity:
        current = await self._node_validations(node_id)
        peer = await self._call(
            NodeCall("info.peers", {"nodeIDs": [node_id_text(node_id)]}, INFO_PATHS, decode_peer_status), self._info
        )
        uptime = next(
            (validation.uptime for validation in current if validation.uptime is not None), peer.observed_uptime
        )
        return Connectivity(
            uptime=uptime,
            reachability=uptime,
            benched_p=peer.benched("P"),
            benched_x=peer.benched("X"),
            benched_c=peer.benched("C"),
            version=peer.version or None,
        )

    async def _node_validations(
        self, node_id: NodeID, subnet_id: SubnetID = PRIMARY_NETWORK
    ) -> tuple[NodeValidation, ...]:
        """Return the validations of a node on a subnet, at most a few seconds old."""
        cached = self._validations_cache.get((node_id, subnet_id))
        if cached is not None:
            return cached.value
        params: dict[str, Any] = {"nodeIDs": [node_id_text(node_id)]}
        if subnet_id != PRIMARY_NETWORK:
            params["subnetID"] = id_text(subnet_id)
        listed = await self._call(
            NodeCall("platform.getCurrentValidators", params, P_CHAIN_PATHS, decode_validations, large=True)
        )
        validations = tuple(validation for validation in listed if validation.node_id == node_id)
        self._validations_cache.put((node_id, subnet_id), validations, ttl_s=CACHE_TTL_S)
        return validations

    async def _call(self, call: NodeCall[T], pool: NodePool | None = None) -> T:
        try:
            return await (pool or self._p_chain).call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None


def _blockchain(
    chain_id: ChainID, subnet_id: SubnetID, vm_id: bytes, name: str, genesis: bytes | None = None
) -> Blockchain:
    return Blockchain(chain_id=chain_id, subnet_id=subnet_id, vm_id=vm_id, name=name, genesis=genesis)


def _created_blockchain(chain_id: ChainID, raw: bytes) -> Blockchain | None:
    """Return the blockchain that a transaction creates; None if it creates none."""
    try:
        unsigned = parse_p_tx(raw).unsigned
    except MalformedMessage:
        return None
    if not isinstance(unsigned, CreateChainTx):
        return None
    return _blockchain(chain_id, unsigned.subnet_id, unsigned.vm_id, unsigned.chain_name, unsigned.genesis)


class _Listed(msgspec.Struct):
    id: str
    name: str
    subnet_id: str = msgspec.field(name="subnetID")
    vm_id: str = msgspec.field(name="vmID")


class _AllListed(msgspec.Struct):
    blockchains: list[_Listed] | None = None


class _Total(msgspec.Struct):
    weight: int | str


def _decode_blockchains(result: bytes) -> tuple[Blockchain, ...]:
    listed = msgspec.json.decode(result, type=_AllListed).blockchains or ()
    return tuple(
        _blockchain(ChainID(parse_id(chain.id)), SubnetID(parse_id(chain.subnet_id)), parse_id(chain.vm_id), chain.name)
        for chain in listed
    )


def _decode_asset(result: bytes) -> AssetID:
    return AssetID(decode_asset(result))


def _decode_total(result: bytes) -> int:
    return u64(msgspec.json.decode(result, type=_Total).weight)


_BLOCKCHAINS: Final = NodeCall("platform.getBlockchains", {}, P_CHAIN_PATHS, _decode_blockchains, large=True)
_STAKING_ASSET: Final = NodeCall("platform.getStakingAssetID", {}, P_CHAIN_PATHS, _decode_asset)


MEMBERSHIP_TTL_S: Final = 60.0
MAX_SUBNETS: Final = 64

_SubnetsByNode = dict[NodeID, tuple[SubnetID, ...]]


class SubnetMemberships:
    """The subnets that each node validates, fetched for all nodes together, at most a minute old.

    Source of truth: avalanchego `vms/platformvm/service.go` (getAllValidatorsAt). A node that is too old to have the
    method lists no subnets.
    """

    def __init__(self, platform: PlatformClient) -> None:
        self._platform = platform
        self._subnets: _SubnetsByNode = {}
        self._expires_at = float("-inf")
        self._flights: SingleFlight[None, _SubnetsByNode] = SingleFlight()

    async def subnets_of(self, node_id: NodeID) -> tuple[SubnetID, ...]:
        """Return the subnets and L1s that a node validates, at most 64. Raises NodeUnavailable."""
        if asyncio.get_running_loop().time() >= self._expires_at:
            await self._flights.run(None, self._fetch)
        return self._subnets.get(node_id, ())

    async def _fetch(self) -> _SubnetsByNode:
        try:
            sets = await self._platform.all_validators_at(await self._platform.height())
        except RpcRefusal:
            sets = {}
        by_node: dict[NodeID, list[SubnetID]] = {}
        for subnet_id, entries in sets.items():
            for entry in entries if subnet_id != PRIMARY_NETWORK else ():
                by_node.setdefault(entry.node_id, []).append(subnet_id)
        self._subnets = {node_id: tuple(sorted(subnets)[:MAX_SUBNETS]) for node_id, subnets in by_node.items()}
        self._expires_at = asyncio.get_running_loop().time() + MEMBERSHIP_TTL_S
        return self._subnets
