"""Transactions of the three primary chains as resources; validations and rewards as plain values.

A resource has the keys of the specification and those of the SDKs.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from warpseal.chains.ids import Address, TxID, UtxoID
from warpseal.resources.base import (
    UNSET,
    PrimaryNetworkAssetCap,
    PrimaryNetworkAssetType,
    PrimaryNetworkTxType,
    Resource,
    RewardType,
    UnsetType,
)
from warpseal.resources.evm_genesis import GenesisData
from warpseal.resources.outputs import (
    Asset,
    AssetAmount,
    AvmUtxo,
    PrimaryNetworkUtxo,
    UtxoCredential,
)
from warpseal.warp.ids import NodeID, SubnetID


class BlsCredentials(Resource, frozen=True, gc=False, kw_only=True):
    """A BLS public key and the proof of its possession, hex with 0x."""

    public_key: str
    proof_of_possession: str


class L1ValidatorManagerDetails(Resource, frozen=True, gc=False, kw_only=True):
    """The contract that manages an L1's validators."""

    blockchain_id: str
    contract_address: str


class L1ValidatorDetails(Resource, frozen=True, gc=False, kw_only=True):
    """An L1 validator as of one transaction; balances in nAVAX."""

    validation_id: str
    validation_id_hex: str
    node_id: str
    subnet_id: str
    weight: int
    remaining_balance: int
    balance_change: int | UnsetType = UNSET
    bls_credentials: BlsCredentials | UnsetType = UNSET


class SubnetOwnershipInfo(Resource, frozen=True, gc=False, kw_only=True):
    """The owner of a subnet."""

    locktime: int
    threshold: int
    addresses: tuple[str, ...]


class BlockchainInfo(Resource, frozen=True, gc=False, kw_only=True):
    """A blockchain that a transaction creates.

    genesisData: a text unless the blockchain is an EVM chain.
    """

    chain_name: str
    vm_id: str
    genesis_data: GenesisData | str | UnsetType = UNSET


class _Transaction(Resource, frozen=True, gc=False, kw_only=True):
    """The keys that the specification gives every transaction."""

    tx_hash: str
    tx_type: PrimaryNetworkTxType
    block_timestamp: int
    value: tuple[AssetAmount, ...]
    amount_burned: tuple[AssetAmount, ...]
    amount_staked: tuple[AssetAmount, ...]
    amount_l1_validator_balance_burned: tuple[AssetAmount, ...]
    source_chain: str | UnsetType = UNSET
    destination_chain: str | UnsetType = UNSET
    memo: str | UnsetType = UNSET


class PChainTransaction(_Transaction, frozen=True, gc=False, kw_only=True):
    """A transaction of the P-Chain."""

    block_number: str
    block_hash: str
    consumed_utxos: tuple[PrimaryNetworkUtxo, ...]
    emitted_utxos: tuple[PrimaryNetworkUtxo, ...]
    start_timestamp: int | UnsetType = UNSET
    end_timestamp: int | UnsetType = UNSET
    delegation_fee_percent: str | UnsetType = UNSET
    node_id: str | UnsetType = UNSET
    subnet_id: str | UnsetType = UNSET
    l1_validator_manager_details: L1ValidatorManagerDetails | UnsetType = UNSET
    l1_validator_details: tuple[L1ValidatorDetails, ...] | UnsetType = UNSET
    estimated_reward: str | UnsetType = UNSET
    reward_tx_hash: str | UnsetType = UNSET
    staking_tx_hash: str | UnsetType = UNSET
    reward_addresses: tuple[str, ...] | UnsetType = UNSET
    subnet_ownership_info: SubnetOwnershipInfo | UnsetType = UNSET
    bls_credentials: BlsCredentials | UnsetType = UNSET
    blockchain_info: BlockchainInfo | UnsetType = UNSET


class AssetCreated(Resource, frozen=True, gc=False, kw_only=True):
    """An asset that a transaction created."""

    asset_id: str
    name: str
    symbol: str
    denomination: int
    type: PrimaryNetworkAssetType
    created_at_timestamp: int
    cap: PrimaryNetworkAssetCap


class XChainVertex(Resource, frozen=True, gc=False, kw_only=True):
    """A vertex of the time before blocks."""

    hash: str
    height: int
    timestamp: int


ChainFormat = Literal["linear", "non-linear"]


class XChainTransaction(_Transaction, frozen=True, gc=False, kw_only=True):
    """A transaction of the X-Chain.

    The block is absent before the chain had any; `approximate` marks such times.
    """

    chain_format: ChainFormat
    timestamp: int
    consumed_utxos: tuple[AvmUtxo, ...]
    emitted_utxos: tuple[AvmUtxo, ...]
    amount_unlocked: tuple[AssetAmount, ...]
    amount_created: tuple[AssetAmount, ...]
    block_number: str | UnsetType = UNSET
    block_hash: str | UnsetType = UNSET
    block_height: int | UnsetType = UNSET
    vertices: tuple[XChainVertex, ...] | UnsetType = UNSET
    asset_created: AssetCreated | UnsetType = UNSET
    approximate: bool | UnsetType = UNSET


class EvmInput(Resource, frozen=True, gc=False, kw_only=True):
    """An amount that an export takes from an account."""

    from_address: str
    asset: AssetAmount
    credentials: tuple[UtxoCredential, ...]


class EvmOutput(Resource, frozen=True, gc=False, kw_only=True):
    """An amount that an import adds to an account."""

    to_address: str
    asset: AssetAmount


class CChainTransaction(_Transaction, frozen=True, gc=False, kw_only=True):
    """An atomic transaction of the C-Chain."""

    block_number: str
    block_hash: str
    block_height: int
    timestamp: int
    consumed_utxos: tuple[AvmUtxo, ...]
    emitted_utxos: tuple[AvmUtxo, ...]
    amount_unlocked: tuple[AssetAmount, ...]
    amount_created: tuple[AssetAmount, ...]
    evm_inputs: tuple[EvmInput, ...] | UnsetType = UNSET
    evm_outputs: tuple[EvmOutput, ...] | UnsetType = UNSET


Transaction = PChainTransaction | XChainTransaction | CChainTransaction


class Rewards(Struct, frozen=True, gc=False):
    """The rewards of a validation: its own, and its share of its delegations' rewards."""

    validation: int
    delegation: int
    addresses: tuple[Address, ...] = ()
    reward_tx_id: TxID | None = None


class PendingState(Struct, frozen=True, gc=False):
    """The validation has not started."""


class ActiveState(Struct, frozen=True, gc=False, kw_only=True):
    """The validation is active. Amounts are in nAVAX, or in units of the subnet's asset.

    total_stake: the stake of all active validations of the subnet.
    delegated, capacity: None for a permissioned subnet, which has no delegations.
    """

    delegator_count: int
    total_stake: int
    potential: Rewards
    delegated: int | None = None
    capacity: int | None = None


class CompletedState(Struct, frozen=True, gc=False, kw_only=True):
    """The validation ended at its end time; without a reward, `rewards` has zeros."""

    delegator_count: int
    rewards: Rewards
    delegated: int | None = None


class RemovedState(Struct, frozen=True, gc=False):
    """The subnet's owner ended the validation."""

    tx_id: TxID
    time: int


class Validation(Struct, frozen=True, gc=False, kw_only=True):
    """A validation of a subnet by a node.

    fee_shares: the fee for delegations in shares of 1,000,000; None without delegations.
    """

    tx_id: TxID
    node_id: NodeID
    subnet_id: SubnetID
    staked: int
    start: int
    end: int
    state: PendingState | ActiveState | CompletedState | RemovedState
    fee_shares: int | None = None
    bls: BlsCredentials | UnsetType = UNSET


class Reward(Struct, frozen=True, gc=False, kw_only=True):
    """A reward that was paid.

    tx_id: ID of the staking transaction.
    utxo_id, output_index: ID and index of the output that pays the reward.
    paid_at: unix seconds of the block in which the reward was paid.
    """

    addresses: tuple[Address, ...]
    tx_id: TxID
    node_id: NodeID
    staked: int
    start: int
    end: int
    kind: RewardType
    utxo_id: UtxoID
    output_index: int
    asset: Asset
    amount: int
    reward_tx_id: TxID
    paid_at: int
