"""The stakings and rewards that the index should return, found by going through all of them each
time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from warpseal.chains.ids import Address, AssetID, TxID
from warpseal.ledger.effects import PeriodClosed, StakingPeriod, TxEffects
from warpseal.ledger.outputs import LedgerOutput
from warpseal.ledger.params import Parameters
from warpseal.ledger.rewards import split_reward
from warpseal.resources.base import UNSET, RewardType
from warpseal.resources.outputs import Asset
from warpseal.resources.transactions import (
    ActiveState,
    BlsCredentials,
    CompletedState,
    PendingState,
    RemovedState,
    Reward,
    Rewards,
    Validation,
)
from warpseal.warp.ids import SubnetID


@dataclass
class Stake:
    """A staking, and what became of it."""

    period: StakingPeriod
    state: str
    potential: int | None
    closed: PeriodClosed | None = None
    removed: tuple[TxID, int] | None = None
    paid_fees: int = 0


@dataclass
class StakingModel:
    """All stakings, in the order in which they were given."""

    params: Parameters
    txs: list[tuple[Any, Any]] = field(default_factory=list)
    stakes: dict[TxID, Stake] = field(default_factory=dict)
    assets: dict[AssetID, tuple[Asset, int, bool]] = field(default_factory=dict)
    max_stakes: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    def _asset(self, asset_id: AssetID) -> Asset:
        asset = self.assets.get(asset_id)
        return asset[0] if asset is not None else Asset(asset_id, "", "", 0)

    def reward(self, tx: TxEffects, output: LedgerOutput, stake: Stake, paid_at: int) -> Reward:
        period = stake.period
        assert output.reward is not None
        return Reward(
            addresses=output.addresses,
            tx_id=period.tx_id,
            node_id=period.node_id,
            staked=period.weight,
            start=period.start_s,
            end=period.end_s,
            kind=RewardType(output.reward.value),
            utxo_id=output.id,
            output_index=output.output_index,
            asset=self._asset(output.asset_id),
            amount=output.amount,
            reward_tx_id=tx.tx.id,
            paid_at=paid_at,
        )

    def validations(self) -> list[Validation]:
        ordered = sorted(
            (place, tx.tx.id)
            for place, (tx, _) in enumerate(self.txs)
            if isinstance(tx, TxEffects) and tx.tx.id in self.stakes
        )
        own = [self.stakes[tx_id] for _, tx_id in ordered]
        own.sort(key=lambda stake: stake.period.start_s)
        return [self._validation(stake) for stake in own if not stake.period.is_delegation]

    def _delegations(self, stake: Stake) -> list[Stake]:
        """Return those that delegated to a validator: of its place, within its time."""
        one = stake.period
        return [
            other
            for other in self.stakes.values()
            if other.period.is_delegation
            and (other.period.subnet_id, other.period.node_id) == (one.subnet_id, one.node_id)
            and one.start_s <= other.period.start_s
            and other.period.end_s <= one.end_s
        ]

    def _validation(self, stake: Stake) -> Validation:
        period = stake.period
        bls = (
            UNSET
            if period.signer is None
            else bls_credentials(period.signer.public_key, period.signer.proof)
        )
        return Validation(
            tx_id=period.tx_id,
            node_id=period.node_id,
            subnet_id=period.subnet_id,
            staked=period.weight,
            start=period.start_s,
            end=period.end_s,
            state=self._state(stake),
            fee_shares=period.shares,
            bls=bls,
        )

    def _state(self, stake: Stake) -> PendingState | ActiveState | CompletedState | RemovedState:
        period, shares = stake.period, stake.period.shares
        delegations = [
            delegation for delegation in self._delegations(stake) if delegation.state != "pending"
        ]
        if stake.state == "pending":
            return PendingState()
        if stake.removed is not None:
            return RemovedState(*stake.removed)
        paid = sum(
            delegation.closed.validator_share
            for delegation in delegations
            if delegation.closed and not delegation.closed.is_deferred
        )
        if stake.state == "completed":
            closed = stake.closed
            fees = paid + (closed.delegation_reward if closed else 0)
            earned = closed.validation_reward if closed else 0
            rewards = Rewards(
                earned,
                fees,
                reward_owners(period),
                closed.reward_tx_id if closed and (earned or fees) else None,
            )
            total = sum(delegation.period.weight for delegation in delegations)
            return CompletedState(
                delegator_count=len(delegations),
                rewards=rewards,
                delegated=None if shares is None else total,
            )
        active = [delegation for delegation in delegations if delegation.state == "active"]
        weight = sum(delegation.period.weight for delegation in active)
        would_pay = [
            delegation
            for delegation in delegations
            if delegation.state == "active" or (delegation.closed and delegation.closed.is_rewarded)
        ]
        due = sum(
            split_reward(delegation.potential or 0, shares or 0)[0] for delegation in would_pay
        )
        return ActiveState(
            delegator_count=len(active),
            total_stake=self._total(period.subnet_id),
            potential=Rewards(stake.potential or 0, due, reward_owners(period)),
            delegated=None if shares is None else weight,
            capacity=None if shares is None else self._capacity(period, weight),
        )

    def _capacity(self, period: StakingPeriod, delegated: int) -> int:
        most, factor = self.max_stakes[period.subnet_id]
        return max(0, min(most, factor * period.weight) - period.weight - delegated)

    def _total(self, subnet_id: SubnetID) -> int:
        active = [stake.period for stake in self.stakes.values() if stake.state == "active"]
        return sum(period.weight for period in active if period.subnet_id == subnet_id)


def reward_owners(period: StakingPeriod) -> tuple[Address, ...]:
    owners = [
        owner for owner in (period.validation_owner, period.delegation_owner) if owner is not None
    ]
    return tuple(dict.fromkeys(address for owner in owners for address in owner.addresses))


def bls_credentials(public_key: bytes, proof: bytes) -> BlsCredentials:
    """Return a public key and its proof of possession as a resource."""
    return BlsCredentials(
        public_key="0x" + public_key.hex(), proof_of_possession="0x" + proof.hex()
    )
