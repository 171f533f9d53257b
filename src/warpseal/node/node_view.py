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
"""For how long the last known connectivity of a validator is returned while no node answers."""
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
        """Return the ids of the primary chains: builtin ones of the public networks, else from
        nodes.
        """
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
        created = [await self.blockchain(chain_id) for chain_id in chain_ids[:_MAX_PRIMARY_CHAINS]]
        of_primary = {
            chain.vm_id: chain.chain_id
            for chain in created
            if chain is not None and chain.subnet_id == PRIMARY_NETWORK
        }
        try:
            return PrimaryChains(x=of_primary[_AVM], c=of_primary[_EVM])
        except KeyError:
            raise NodeUnavailable("the ids of the X- and C-Chain") from None

    async def staking_asset(self, network_id: int) -> AssetID:
        """Return the id of AVAX: builtin for the public networks, else from nodes."""
        parameters = builtin_parameters(network_id)
        if parameters is not None:
            return parameters.staking_asset_id
        return await self._p_chain.require_checked(_STAKING_ASSET, compare_fixed)

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain from the transaction that created it, which nodes also have of those
        of the genesis.
        """
        if chain_id == P_CHAIN:
            return p_chain()
        transaction = await self._platform.transaction(chain_id)
        return None if transaction is None else _created_blockchain(chain_id, transaction.raw)

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        """Return the current validations of a node: the Primary Network's and, if it has one, those
        of subnets.
        """
        validations = await self._validations(node_id, PRIMARY_NETWORK)
        if validations:
            # They are fetched for all nodes together.
            cached = self._memberships.get(None)
            subnets = (
                cached.value
                if cached
                else await self._membership_flights.run(None, self._fetch_memberships)
            )
            for subnet_id in subnets.get(node_id, ()):
                validations += await self._validations(node_id, subnet_id)
        return validations

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
            for entry in entries if subnet_id != PRIMARY_NETWORK else ():
                by_node.setdefault(entry.node_id, []).append(subnet_id)
        subnets = {
            node_id: tuple(sorted(of_node)[:MAX_SUBNETS]) for node_id, of_node in by_node.items()
        }
        self._memberships.put(None, subnets, ttl_s=MEMBERSHIP_TTL_S)
        return subnets

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        """Return the connectivity of a validator at a node, or the last known one if no node
        answers.
        """
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
        peer = await self._info.require(
            NodeCall("info.peers", params, INFO_PATHS, decode_connectivity)
        )
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

    uptime: percent, as the node sees it.
    """

    validation: Validation
    uptime: float | None

    def with_total_stake(self, total_stake: int) -> Validation:
        """Return the validation as the Data API describes it.

        total_stake: the stake of all validations of the subnet.
        """
        return replace(
            self.validation, state=replace(self.validation.state, total_stake=total_stake)
        )


def _compare_validations(
    first: Sequence[NodeValidation], second: Sequence[NodeValidation]
) -> Difference:
    """Compare validations of a node at two nodes, in any order; each node has observed an uptime of
    its own.
    """
    return compare_amounts(
        {entry.validation for entry in first}, {entry.validation for entry in second}
    )


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
    # Of an auto-renewed validator since 1.15.2: rewards of ended cycles, which it gets when it
    # leaves.
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
    return tuple(
        _validation(subnet_id, validator)
        for validator in _decode_validators(result)
        if validator.tx_id
    )


def decode_connectivity(result: bytes) -> Connectivity:
    """Return the peer's status in the result of info.peers, empty if it is not connected.

    Raises ValueError.
    """
    peer, *_ = *_decode_peers(result), _Peer()
    uptime, version = (
        float(min(100, u64(peer.observed_uptime))),
        peer.version.removeprefix("avalanchego/")[:_MAX_TEXT],
    )
    benched_p, benched_x, benched_c = (
        100.0 if chain in (peer.benched or ()) else 0.0 for chain in "PXC"
    )
    return Connectivity(uptime, uptime, benched_p, benched_x, benched_c, version or None)


def _validation(subnet_id: SubnetID, validator: _Validator) -> NodeValidation:
    shares = None if validator.delegation_fee is None else _shares(validator.delegation_fee)
    delegator_shares = _SHARES - (shares or 0)
    rewards = [u64(delegator.potential_reward) for delegator in validator.delegators or ()]
    fees = sum(reward - delegator_shares * reward // _SHARES for reward in rewards)
    own = u64(validator.potential_reward) + u64(validator.restaked_validation_rewards)
    of_delegations = (
        u64(validator.accrued_delegatee_reward) + u64(validator.restaked_delegatee_rewards) + fees
    )
    owner, delegated = (
        validator.validation_reward_owner or _Owner(),
        u64(validator.delegator_weight),
    )
    addresses = tuple(parse_address(text)[1] for text in owner.addresses)
    state = ActiveState(
        delegator_count=u64(validator.delegator_count),
        total_stake=0,
        delegated=None if shares is None else delegated,
        potential=Rewards(own, of_delegations, addresses),
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
    return NodeValidation(
        validation, None if validator.uptime is None else float(_percent(validator.uptime))
    )


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
    key, proof = (
        bytes.fromhex(text.removeprefix("0x")) for text in (signer.public_key, signer.proof)
    )
    if (len(key), len(proof)) != (_KEY_BYTES, _PROOF_BYTES):
        raise ValueError("a BLS key or its proof has a wrong length")
    return BlsCredentials(public_key=hex_text(key), proof_of_possession=hex_text(proof))


_decode_validators: Final = list_decoder("validators", _Validator, lambda validator: validator)
_decode_peers: Final = list_decoder("peers", _Peer, lambda peer: peer)
_decode_total_stake: Final = field_decoder("weight", NUMBER, u64)
_STAKING_ASSET: Final = NodeCall("platform.getStakingAssetID", {}, P_CHAIN_PATHS, decode_asset)
