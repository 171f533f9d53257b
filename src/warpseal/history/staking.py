"""Validations and rewards, as they are told to callers."""

from __future__ import annotations

from msgspec import Struct

from warpseal.chains.ids import Address, TxID, UtxoID
from warpseal.history.outputs import Amount
from warpseal.history.resources import RewardType
from warpseal.warp.ids import NodeID, SubnetID


class BlsKey(Struct, frozen=True, gc=False):
    """A compressed public key (48 bytes) and the proof that its secret is known (96 bytes)."""

    public_key: bytes
    proof_of_possession: bytes


class Rewards(Struct, frozen=True, gc=False):
    """What a validation earned or would earn, for itself and as its share of its delegations' rewards."""

    validation: int
    delegation: int
    addresses: tuple[Address, ...] = ()
    reward_tx_id: TxID | None = None


class Pending(Struct, frozen=True, gc=False):
    """It has not begun."""


class Active(Struct, frozen=True, gc=False, kw_only=True):
    """It is under way. amounts: nAVAX, or the subnet's asset. total_stake: of all active validations of the subnet.

    delegated, capacity: None of a permissioned subnet, which has no delegations.
    """

    delegator_count: int
    total_stake: int
    potential: Rewards
    delegated: int | None = None
    capacity: int | None = None


class Completed(Struct, frozen=True, gc=False, kw_only=True):
    """It ended at its time; without a reward, `rewards` holds zeros."""

    delegator_count: int
    rewards: Rewards
    delegated: int | None = None


class Removed(Struct, frozen=True, gc=False):
    """A subnet's owner ended it."""

    tx_id: TxID
    time: int


class Validation(Struct, frozen=True, gc=False, kw_only=True):
    """One time of one node as validator of one subnet. fee_shares: of 1,000,000; None where there is no delegation."""

    tx_id: TxID
    node_id: NodeID
    subnet_id: SubnetID
    staked: int
    start: int
    end: int
    state: Pending | Active | Completed | Removed
    fee_shares: int | None = None
    bls: BlsKey | None = None


class Reward(Struct, frozen=True, gc=False, kw_only=True):
    """A reward that was paid. tx_id: the staking transaction; the output is told by its id and index.

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
    reward: Amount
    reward_tx_id: TxID
    paid_at: int
