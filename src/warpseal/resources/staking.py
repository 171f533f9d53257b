"""Validations and rewards."""

from __future__ import annotations

from msgspec import Struct

from warpseal.chains.ids import Address, TxID, UtxoID
from warpseal.resources.base import UNSET, RewardType, UnsetType
from warpseal.resources.outputs import Asset
from warpseal.resources.transactions import BlsCredentials
from warpseal.warp.ids import NodeID, SubnetID


class Rewards(Struct, frozen=True, gc=False):
    """The rewards of a validation: its own, and its share of its delegations' rewards."""

    validation: int
    delegation: int
    addresses: tuple[Address, ...] = ()
    reward_tx_id: TxID | None = None


class PendingState(Struct, frozen=True, gc=False):
    """The validation has not started."""


class ActiveState(Struct, frozen=True, gc=False, kw_only=True):
    """The validation is active. Amounts: nAVAX, or the subnet's asset. total_stake: of the subnet's active validations.

    delegated, capacity: None of a permissioned subnet, which has no delegations.
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
    """One validation of a subnet by a node. fee_shares: of 1,000,000; None without delegations."""

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
    """A reward that was paid. tx_id: the staking transaction; utxo_id, output_index: of the output.

    paid_at: unix seconds of the block in which it was paid.
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
