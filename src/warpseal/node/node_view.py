"""What a node tells of validators and blockchains by itself, for callers of a daemon that indexes nothing.

Source of truth: avalanchego `vms/platformvm/service.go` (getCurrentValidators of one node lists its delegators too),
`api/info/service.go`.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
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
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID, id_text, node_id_text, parse_id

T = TypeVar("T")
_Key = tuple[NodeID, SubnetID]

REMEMBERED_S: Final = 10.0
MAX_REMEMBERED: Final = 1_000
LAST_WORD_S: Final = 3_600.0
"""For how long what a node said last of how it reaches a validator stands in for a node that does not answer."""
_AVM: Final = b"avm".ljust(32, b"\x00")
_EVM: Final = b"evm".ljust(32, b"\x00")


class NodeViewClient:
    """Asks nodes as callers want it; every method raises NodeUnavailable."""

    def __init__(self, platform: PlatformClient, p_chain: NodePool, info: NodePool) -> None:
        self._platform = platform
        self._p_chain = p_chain
        self._info = info
        self._members = SubnetMemberships(platform)
        self._remembered: OrderedDict[_Key, tuple[float, tuple[NodeValidation, ...]]] = OrderedDict()
        self._reached: OrderedDict[NodeID, tuple[float, Connectivity]] = OrderedDict()

    async def primary_chains(self, network_id: int) -> PrimaryChains:
        """Return the ids of the primary chains: known ones of the public networks, else as nodes list them."""
        known = PUBLIC_CHAINS.get(network_id)
        if known is not None:
            return known
        of_primary = {
            one.vm_id: one.chain_id for one in await self._ask(_BLOCKCHAINS) if one.subnet_id == PRIMARY_NETWORK
        }
        try:
            return PrimaryChains(x=of_primary[_AVM], c=of_primary[_EVM])
        except KeyError:
            raise NodeUnavailable("the ids of the X- and C-Chain") from None

    async def staking_asset(self, network_id: int) -> AssetID:
        """Return the id of AVAX: known for the public networks, else as nodes tell it."""
        known = builtin_parameters(network_id)
        return known.staking_asset_id if known is not None else await self._ask(_STAKING_ASSET)

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain: its creation, and where that is older than transactions, what nodes list of it."""
        if chain_id == P_CHAIN:
            return p_chain()
        found = await self._platform.transaction(chain_id)
        if found is not None:
            return _created(chain_id, found.raw)
        if await self._platform.validated_by(chain_id) is None:
            return None
        listed = await self._ask(_BLOCKCHAINS)
        return next((chain for chain in listed if chain.chain_id == chain_id), None)

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        """Return what a node validates now: the Primary Network, and, which needs that, subnets; L1s are apart."""
        found = await self._validations(node_id, PRIMARY_NETWORK)
        for subnet_id in await self._members.subnets_of(node_id) if found else ():
            found += await self._validations(node_id, subnet_id)
        return found

    async def _validations(self, node_id: NodeID, subnet_id: SubnetID) -> tuple[Validation, ...]:
        told = await self._told(node_id, subnet_id)
        if not told:
            return ()
        params = {} if subnet_id == PRIMARY_NETWORK else {"subnetID": id_text(subnet_id)}
        total = await self._ask(NodeCall("platform.getTotalStake", params, P_CHAIN_PATHS, _decode_total))
        return tuple([one.validation(subnet_id, total) for one in told])

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        """Return how the asked node reaches a validator, or what it said last where it does not answer."""
        now = asyncio.get_running_loop().time()
        asked_at, last = self._reached.get(node_id, (-math.inf, None))
        if last is not None and now - asked_at < REMEMBERED_S:
            return last
        try:
            seen = await self._connectivity(node_id)
        except NodeUnavailable:
            if last is not None and now - asked_at < LAST_WORD_S:
                return last
            raise
        self._reached[node_id] = now, seen
        self._reached.move_to_end(node_id)
        if len(self._reached) > MAX_REMEMBERED:
            self._reached.popitem(last=False)
        return seen

    async def _connectivity(self, node_id: NodeID) -> Connectivity:
        told = await self._told(node_id)
        peer = await self._ask(
            NodeCall("info.peers", {"nodeIDs": [node_id_text(node_id)]}, INFO_PATHS, decode_peer_status), self._info
        )
        uptime = next((one.uptime for one in told if one.uptime is not None), peer.observed_uptime)
        return Connectivity(
            uptime=uptime,
            reachability=uptime,
            benched_p=peer.benched("P"),
            benched_x=peer.benched("X"),
            benched_c=peer.benched("C"),
            version=peer.version or None,
        )

    async def _told(self, node_id: NodeID, subnet_id: SubnetID = PRIMARY_NETWORK) -> tuple[NodeValidation, ...]:
        """Return what nodes say of a validator, or said a moment ago."""
        now = asyncio.get_running_loop().time()
        known = self._remembered.get((node_id, subnet_id))
        if known is not None and known[0] > now:
            return known[1]
        params: dict[str, Any] = {"nodeIDs": [node_id_text(node_id)]}
        if subnet_id != PRIMARY_NETWORK:
            params["subnetID"] = id_text(subnet_id)
        told = await self._ask(
            NodeCall("platform.getCurrentValidators", params, P_CHAIN_PATHS, decode_validations, large=True)
        )
        of_node = tuple(one for one in told if one.node_id == node_id)
        self._remembered[node_id, subnet_id] = now + REMEMBERED_S, of_node
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return of_node

    async def _ask(self, call: NodeCall[T], pool: NodePool | None = None) -> T:
        try:
            return await (pool or self._p_chain).call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None


def _blockchain(
    chain_id: ChainID, subnet_id: SubnetID, vm_id: bytes, name: str, genesis: bytes | None = None
) -> Blockchain:
    return Blockchain(chain_id=chain_id, subnet_id=subnet_id, vm_id=vm_id, name=name, genesis=genesis)


def _created(chain_id: ChainID, raw: bytes) -> Blockchain | None:
    """Return the blockchain that a transaction creates; None where it creates none."""
    try:
        made = parse_p_tx(raw).unsigned
    except MalformedMessage:
        return None
    if not isinstance(made, CreateChainTx):
        return None
    return _blockchain(chain_id, made.subnet_id, made.vm_id, made.chain_name, made.genesis)


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
        _blockchain(ChainID(parse_id(one.id)), SubnetID(parse_id(one.subnet_id)), parse_id(one.vm_id), one.name)
        for one in listed
    )


def _decode_asset(result: bytes) -> AssetID:
    return AssetID(decode_asset(result))


def _decode_total(result: bytes) -> int:
    return u64(msgspec.json.decode(result, type=_Total).weight)


_BLOCKCHAINS: Final = NodeCall("platform.getBlockchains", {}, P_CHAIN_PATHS, _decode_blockchains, large=True)
_STAKING_ASSET: Final = NodeCall("platform.getStakingAssetID", {}, P_CHAIN_PATHS, _decode_asset)


MEMBERSHIP_TTL_S: Final = 60.0
MOST_SUBNETS: Final = 64

Members = dict[NodeID, tuple[SubnetID, ...]]


class SubnetMemberships:
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
        self._until = asyncio.get_running_loop().time() + MEMBERSHIP_TTL_S
        return self._known
