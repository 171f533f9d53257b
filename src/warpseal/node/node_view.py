"""Validators and blockchains from nodes alone, for callers of a daemon without an index.

Source of truth: avalanchego `vms/platformvm/service.go` (getCurrentValidators of one node also
lists its delegators, getAllValidatorsAt), `vms/platformvm/state/state.go` (syncGenesis adds the
transactions of the genesis), `vms/platformvm/reward/calculator.go` (Split), `api/info/service.go`,
`network/peer/info.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from warpseal.chains.ids import AssetID, TxID, parse_address
from warpseal.chains.p_txs import CreateChainTx, parse_p_tx
from warpseal.ledger.params import builtin_parameters
from warpseal.node.p_chain import P_CHAIN_PATHS
from warpseal.node.platform import PlatformClient
from warpseal.node.state import decode_asset
from warpseal.resources.blocks import Blockchain, p_chain
from warpseal.resources.chains import PUBLIC_CHAINS, PrimaryChains
from warpseal.resources.interfaces import Connectivity
from warpseal.resources.text import hex_text
from warpseal.resources.transactions import ActiveState, BlsCredentials, Rewards, Validation
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.upstream.agreement import NodeAgreement
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.identity import INFO_PATHS
from warpseal.upstream.json_values import NUMBER, field_decoder, list_decoder, u64, unix_s
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool
from warpseal.upstream.replies import Difference, compare_amounts, compare_fixed
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    NodeID,
    SubnetID,
    id_text,
    node_id_text,
    parse_id,
    parse_node_id,
)

_Key = tuple[NodeID, SubnetID]
_SubnetsByNode = dict[NodeID, tuple[SubnetID, ...]]

CACHE_TTL_S: Final = 10.0
MEMBERSHIP_TTL_S: Final = 60.0
MAX_CACHED: Final = 1_000
MAX_SUBNETS: Final = 64
STALE_CONNECTIVITY_S: Final = 3_600.0
"""Time for which the last connectivity of a validator is returned while no node answers."""
_AVM: Final = b"avm".ljust(32, b"\x00")
_EVM: Final = b"evm".ljust(32, b"\x00")
_SHARES: Final = 1_000_000
_SHARES_OF_A_PERCENT: Final = 10_000
_KEY_BYTES: Final = 48
_PROOF_BYTES: Final = 96
_MAX_TEXT: Final = 64
# There are two besides the P-Chain.
_MAX_PRIMARY_CHAINS: Final = 8


class NodeViewClient:
    """Calls nodes on demand; every method raises NodeUnavailable."""

    def __init__(
        self, platform: PlatformClient, p_chain: NodeAgreement, info: NodePool[int]
    ) -> None:
        self._platform = platform
        self._p_chain = p_chain
        self._info = info
        self._primary_chains: PrimaryChains | None = None
        self._memberships: TtlCache[None, _SubnetsByNode] = TtlCache(1)
        self._membership_flights: SingleFlight[None, _SubnetsByNode] = SingleFlight()
        self._validations_cache: TtlCache[_Key, tuple[NodeValidation, ...]] = TtlCache(MAX_CACHED)
        self._connectivity_cache: TtlCache[NodeID, tuple[Connectivity, float]] = TtlCache(
            MAX_CACHED
        )

    async def primary_chains(self, network_id: int) -> PrimaryChains:
        """Return the ids of the primary chains, which are builtin for the public networks."""
        public = PUBLIC_CHAINS.get(network_id)
        if public is not None:
            return public
        if self._primary_chains is None:
            self._primary_chains = await self._created_primary_chains()
        return self._primary_chains

    async def _created_primary_chains(self) -> PrimaryChains:
        """Return the ids of the X- and C-Chain by the transactions that created them.

        An id is the hash of its transaction, so that no node can say that a chain runs another
        virtual machine.
        """
        chain_ids = await self._platform.blockchains_of(PRIMARY_NETWORK)
        ids_by_vm: dict[bytes, ChainID] = {}
        for chain_id in chain_ids[:_MAX_PRIMARY_CHAINS]:
            chain = await self.blockchain(chain_id)
            if chain is not None and chain.subnet_id == PRIMARY_NETWORK:
                ids_by_vm[chain.vm_id] = chain.chain_id
        try:
            return PrimaryChains(x=ids_by_vm[_AVM], c=ids_by_vm[_EVM])
        except KeyError:
            raise NodeUnavailable("the ids of the X- and C-Chain") from None

    async def staking_asset(self, network_id: int) -> AssetID:
        """Return the id of AVAX: builtin for the public networks, else from nodes."""
        parameters = builtin_parameters(network_id)
        if parameters is not None:
            return parameters.staking_asset_id
        return await self._p_chain.require_checked(_STAKING_ASSET, compare_fixed)

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain from the transaction that created it.

        Nodes have the transactions of the genesis as well.
        """
        if chain_id == P_CHAIN:
            return p_chain()
        transaction = await self._platform.transaction(chain_id)
        if transaction is None:
            return None
        return _created_blockchain(chain_id, transaction.raw)

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        """Return the current validations of a node.

        A node without a validation of the Primary Network has none of subnets either.
        """
        validations = await self._validations(node_id, PRIMARY_NETWORK)
        if validations:
            subnets = await self._subnets_by_node()
            for subnet_id in subnets.get(node_id, ()):
                validations += await self._validations(node_id, subnet_id)
        return validations

    async def _subnets_by_node(self) -> _SubnetsByNode:
        """Return the subnets and L1s of all nodes, read together and at most a minute old."""
        cached = self._memberships.get(None)
        if cached is not None:
            return cached.value
        return await self._membership_flights.run(None, self._fetch_memberships)

    async def _validations(self, node_id: NodeID, subnet_id: SubnetID) -> tuple[Validation, ...]:
        current = await self._node_validations(node_id, subnet_id)
        if not current:
            return ()
        params = {} if subnet_id == PRIMARY_NETWORK else {"subnetID": id_text(subnet_id)}
        call = NodeCall("platform.getTotalStake", params, P_CHAIN_PATHS, _decode_total_stake)
        total = await self._p_chain.require_checked(call, compare_amounts)
        return tuple(listed.with_total_stake(total) for listed in current)

    async def _fetch_memberships(self) -> _SubnetsByNode:
        """Return the subnets and L1s that each node validates, at most 64."""
        try:
            sets = await self._platform.all_validators_at(await self._platform.height())
        except RpcRefusal:  # The node is too old to have the method.
            sets = {}
        by_node: dict[NodeID, list[SubnetID]] = {}
        for subnet_id, entries in sets.items():
            if subnet_id == PRIMARY_NETWORK:
                continue
            for entry in entries:
                by_node.setdefault(entry.node_id, []).append(subnet_id)
        subnets: _SubnetsByNode = {}
        for node_id, subnet_ids in by_node.items():
            subnets[node_id] = tuple(sorted(subnet_ids)[:MAX_SUBNETS])
        self._memberships.put(None, subnets, ttl_s=MEMBERSHIP_TTL_S)
        return subnets

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        """Return the connectivity of a validator at a node; the last one if no node answers."""
        now = asyncio.get_running_loop().time()
        cached = self._connectivity_cache.get(node_id)
        if cached is not None and now - cached.value[1] < CACHE_TTL_S:
            return cached.value[0]
        try:
            connectivity = await self._connectivity(node_id)
        except NodeUnavailable:
            if cached is None:
                raise
            return cached.value[0]
        self._connectivity_cache.put(node_id, (connectivity, now), ttl_s=STALE_CONNECTIVITY_S)
        return connectivity

    async def _connectivity(self, node_id: NodeID) -> Connectivity:
        current = await self._node_validations(node_id)
        params = {"nodeIDs": [node_id_text(node_id)]}
        call = NodeCall("info.peers", params, INFO_PATHS, decode_connectivity)
        peer = await self._info.require(call)
        for listed in current:
            if listed.uptime is not None:
                return replace(peer, uptime=listed.uptime, reachability=listed.uptime)
        return peer

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
        decode = partial(decode_validations, subnet_id)
        call = NodeCall("platform.getCurrentValidators", params, P_CHAIN_PATHS, decode, large=True)
        listed = await self._p_chain.require_checked(call, _compare_validations)
        validations = tuple(entry for entry in listed if entry.validation.node_id == node_id)
        self._validations_cache.put((node_id, subnet_id), validations, ttl_s=CACHE_TTL_S)
        return validations


class NodeValidation(NamedTuple):
    """An active validation at a node, whose total stake is not known yet.

    uptime: uptime that the node has observed, percent.
    """

    validation: Validation
    uptime: float | None

    def with_total_stake(self, total_stake: int) -> Validation:
        """Return the validation as the Data API describes it.

        total_stake: stake of all validators of the subnet.
        """
        state = replace(self.validation.state, total_stake=total_stake)
        return replace(self.validation, state=state)


def _compare_validations(
    first: Sequence[NodeValidation], second: Sequence[NodeValidation]
) -> Difference:
    """Compare validations of a node at two nodes, in any order and without observed uptimes."""
    before = {entry.validation for entry in first}
    after = {entry.validation for entry in second}
    return compare_amounts(before, after)


def _created_blockchain(chain_id: ChainID, raw: bytes) -> Blockchain | None:
    """Return the blockchain that a transaction creates; None if it creates none."""
    try:
        unsigned = parse_p_tx(raw).unsigned
    except MalformedMessage:
        return None
    if not isinstance(unsigned, CreateChainTx):
        return None
    return Blockchain(
        chain_id=chain_id,
        subnet_id=unsigned.subnet_id,
        vm_id=unsigned.vm_id,
        name=unsigned.chain_name,
        genesis=unsigned.genesis,
    )


class _Owner(msgspec.Struct):
    addresses: list[str] = msgspec.field(default_factory=list)


class _Signer(msgspec.Struct):
    public_key: str = msgspec.field(name="publicKey")
    proof: str = msgspec.field(name="proofOfPossession")


class _Delegator(msgspec.Struct, rename="camel"):
    potential_reward: int | str = 0


class _Validator(msgspec.Struct, rename="camel", kw_only=True):
    start_time: int | str
    end_time: int | str = 0
    weight: int | str
    tx_id: str = msgspec.field(name="txID", default="")
    node_id: str = msgspec.field(name="nodeID")
    validation_reward_owner: _Owner | None = None
    potential_reward: int | str = 0
    accrued_delegatee_reward: int | str = 0
    # Since 1.15.2: rewards of ended cycles, which an auto-renewed validator gets when it leaves.
    restaked_validation_rewards: int | str = 0
    restaked_delegatee_rewards: int | str = 0
    delegation_fee: str | None = None
    uptime: str | None = None
    signer: _Signer | None = None
    delegator_count: int | str = 0
    delegator_weight: int | str = 0
    delegators: list[_Delegator] | None = None


class _Peer(msgspec.Struct):
    version: str = ""
    observed_uptime: int | str = msgspec.field(name="observedUptime", default=0)
    benched: list[str] | None = None


def decode_validations(subnet_id: SubnetID, result: bytes) -> tuple[NodeValidation, ...]:
    """Return the validations of getCurrentValidators without those of L1s, which have no stake.

    Raises ValueError.
    """
    stakers = [validator for validator in _decode_validators(result) if validator.tx_id]
    return tuple(_validation(subnet_id, staker) for staker in stakers)


def decode_connectivity(result: bytes) -> Connectivity:
    """Return the peer's status in the result of info.peers, empty if it is not connected.

    Raises ValueError.
    """
    peers = _decode_peers(result)
    peer = peers[0] if peers else _Peer()
    uptime = float(min(100, u64(peer.observed_uptime)))
    version = peer.version.removeprefix("avalanchego/")[:_MAX_TEXT]
    benched = peer.benched or ()
    benched_p, benched_x, benched_c = (100.0 if chain in benched else 0.0 for chain in "PXC")
    return Connectivity(uptime, uptime, benched_p, benched_x, benched_c, version or None)


def _validation(subnet_id: SubnetID, validator: _Validator) -> NodeValidation:
    shares = None if validator.delegation_fee is None else _shares(validator.delegation_fee)
    delegator_shares = _SHARES - (shares or 0)
    rewards = [u64(delegator.potential_reward) for delegator in validator.delegators or ()]
    delegation_rewards = sum(reward - delegator_shares * reward // _SHARES for reward in rewards)
    delegation_rewards += u64(validator.accrued_delegatee_reward)
    delegation_rewards += u64(validator.restaked_delegatee_rewards)
    validation_rewards = u64(validator.potential_reward)
    validation_rewards += u64(validator.restaked_validation_rewards)
    owner = validator.validation_reward_owner or _Owner()
    addresses = tuple(parse_address(text)[1] for text in owner.addresses)
    delegated = u64(validator.delegator_weight)
    state = ActiveState(
        delegator_count=u64(validator.delegator_count),
        total_stake=0,
        delegated=None if shares is None else delegated,
        potential=Rewards(validation_rewards, delegation_rewards, addresses),
    )
    validation = Validation(
        tx_id=TxID(parse_id(validator.tx_id)),
        node_id=parse_node_id(validator.node_id),
        subnet_id=subnet_id,
        staked=u64(validator.weight),
        start=unix_s(validator.start_time),
        end=unix_s(validator.end_time),
        fee_shares=shares,
        bls=_bls(validator.signer),
        state=state,
    )
    uptime = None if validator.uptime is None else float(_percent(validator.uptime))
    return NodeValidation(validation, uptime)


def _shares(percent: str) -> int:
    return min(_SHARES, int(_percent(percent) * _SHARES_OF_A_PERCENT))


def _percent(text: str) -> Decimal:
    """Return a percentage of 0..100. Raises ValueError."""
    # Raised for text without a number, and by the comparison of a NaN.
    with suppress(InvalidOperation):
        if 0 <= (number := Decimal(text)) <= 100:
            return number
    raise ValueError(f"no percentage: {text[:_MAX_TEXT]!r}")


def _bls(signer: _Signer | None) -> BlsCredentials | UnsetType:
    if signer is None:
        return UNSET
    key = bytes.fromhex(signer.public_key.removeprefix("0x"))
    proof = bytes.fromhex(signer.proof.removeprefix("0x"))
    if (len(key), len(proof)) != (_KEY_BYTES, _PROOF_BYTES):
        raise ValueError("a BLS key or its proof has a wrong length")
    return BlsCredentials(public_key=hex_text(key), proof_of_possession=hex_text(proof))


_decode_validators: Final = list_decoder("validators", _Validator, lambda validator: validator)
_decode_peers: Final = list_decoder("peers", _Peer, lambda peer: peer)
_decode_total_stake: Final = field_decoder("weight", NUMBER, u64)
_STAKING_ASSET: Final = NodeCall("platform.getStakingAssetID", {}, P_CHAIN_PATHS, decode_asset)
