"""Rewards that were paid, and validations in their four states."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from warpseal.resources.base import UNSET, Resource, RewardType, UnsetType
from warpseal.resources.interfaces import Connectivity
from warpseal.resources.outputs import HistoricalPrice, RewardAsset, asset_amount
from warpseal.resources.text import NetworkText, node_text, percent_text, shared_id_text
from warpseal.resources.transactions import (
    ActiveState,
    BlsCredentials,
    CompletedState,
    RemovedState,
    Reward,
    Rewards,
    Validation,
)
from warpseal.warp.ids import id_text


class HistoricalReward(Resource, frozen=True, gc=False, kw_only=True):
    """A reward that was paid."""

    addresses: tuple[str, ...]
    tx_hash: str
    amount_staked: str
    node_id: str
    start_timestamp: int
    end_timestamp: int
    reward_type: RewardType
    utxo_id: str
    output_index: int
    reward: RewardAsset
    reward_tx_hash: str


class ValidationRewards(Resource, frozen=True, gc=False, kw_only=True):
    """The reward of a validation, paid or estimated."""

    validation_reward_amount: str
    delegation_reward_amount: str
    reward_addresses: tuple[str, ...] | UnsetType = UNSET
    reward_tx_hash: str | UnsetType = UNSET


class ValidatorHealth(Resource, frozen=True, gc=False, kw_only=True):
    """How the validator is reached, in percent."""

    reachability_percent: float
    benched_p_chain_requests_percent: float
    benched_x_chain_requests_percent: float
    benched_c_chain_requests_percent: float


class Geolocation(Resource, frozen=True, gc=False, kw_only=True):
    """The location of the validator, which this service does not know."""

    city: str
    country: str
    country_code: str
    latitude: float
    longitude: float


class _Validation(Resource, frozen=True, gc=False, kw_only=True, tag_field="validationStatus"):
    """The fields of every validation. delegationFee: percent; absent without delegations."""

    tx_hash: str
    node_id: str
    subnet_id: str
    amount_staked: str
    start_timestamp: int
    end_timestamp: int
    delegation_fee: str | UnsetType = UNSET
    bls_credentials: BlsCredentials | UnsetType = UNSET


class PendingValidatorDetails(_Validation, frozen=True, gc=False, kw_only=True, tag="pending"):
    """A validation that has not begun."""


class ActiveValidatorDetails(_Validation, frozen=True, gc=False, kw_only=True, tag="active"):
    """An active validation. rewards and potentialRewards are the same."""

    stake_percentage: float
    delegator_count: int
    uptime_performance: float
    potential_rewards: ValidationRewards
    rewards: ValidationRewards
    validator_health: ValidatorHealth
    amount_delegated: str | UnsetType = UNSET
    delegation_capacity: str | UnsetType = UNSET
    avalanche_go_version: str | UnsetType = UNSET
    geolocation: Geolocation | None


class CompletedValidatorDetails(_Validation, frozen=True, gc=False, kw_only=True, tag="completed"):
    """A validation that ended at its time; without a reward its amounts are "0"."""

    delegator_count: int
    rewards: ValidationRewards
    amount_delegated: str | UnsetType = UNSET


class RemovedValidatorDetails(_Validation, frozen=True, gc=False, kw_only=True, tag="removed"):
    """A validation that a subnet's owner ended."""

    remove_tx_hash: str
    remove_timestamp: int


ValidatorDetails = (
    PendingValidatorDetails
    | ActiveValidatorDetails
    | CompletedValidatorDetails
    | RemovedValidatorDetails
)


def reward_resource(
    reward: Reward, price: HistoricalPrice | None, text: NetworkText
) -> HistoricalReward:
    """Return a reward that was paid, with its price if that is known."""
    amount = asset_amount(reward.asset, reward.amount)
    return HistoricalReward(
        addresses=text.addresses(reward.addresses),
        tx_hash=id_text(reward.tx_id),
        amount_staked=str(reward.staked),
        node_id=node_text(reward.node_id),
        start_timestamp=reward.start,
        end_timestamp=reward.end,
        reward_type=reward.kind,
        utxo_id=id_text(reward.utxo_id),
        output_index=reward.output_index,
        reward=RewardAsset(**asdict(amount), historical_price=price or UNSET),
        reward_tx_hash=id_text(reward.reward_tx_id),
    )


def validation_resource(
    validation: Validation, connectivity: Connectivity | None, text: NetworkText
) -> ValidatorDetails:
    """Return a validation in its state.

    connectivity: an active one needs it.
    """
    fee_shares, state = validation.fee_shares, validation.state
    common: dict[str, Any] = {
        "tx_hash": id_text(validation.tx_id),
        "node_id": node_text(validation.node_id),
        "subnet_id": shared_id_text(validation.subnet_id),
        "amount_staked": str(validation.staked),
        "start_timestamp": validation.start,
        "end_timestamp": validation.end,
        "delegation_fee": UNSET if fee_shares is None else percent_text(fee_shares),
        "bls_credentials": validation.bls,
    }
    if isinstance(state, ActiveState):
        assert connectivity is not None
        rewards = _rewards(state.potential, text)
        stake_percentage = 0.0
        if state.total_stake:
            stake_percentage = round(100 * validation.staked / state.total_stake, 8)
        return ActiveValidatorDetails(
            **common,
            delegator_count=state.delegator_count,
            amount_delegated=UNSET if state.delegated is None else str(state.delegated),
            delegation_capacity=UNSET if state.capacity is None else str(state.capacity),
            stake_percentage=stake_percentage,
            uptime_performance=connectivity.uptime,
            avalanche_go_version=connectivity.version or UNSET,
            potential_rewards=rewards,
            rewards=rewards,
            validator_health=ValidatorHealth(
                reachability_percent=connectivity.reachability,
                benched_p_chain_requests_percent=connectivity.benched_p,
                benched_x_chain_requests_percent=connectivity.benched_x,
                benched_c_chain_requests_percent=connectivity.benched_c,
            ),
            geolocation=None,
        )
    if isinstance(state, CompletedState):
        return CompletedValidatorDetails(
            **common,
            delegator_count=state.delegator_count,
            amount_delegated=UNSET if state.delegated is None else str(state.delegated),
            rewards=_rewards(state.rewards, text),
        )
    if isinstance(state, RemovedState):
        return RemovedValidatorDetails(
            **common, remove_tx_hash=id_text(state.tx_id), remove_timestamp=state.time
        )
    return PendingValidatorDetails(**common)


def _rewards(rewards: Rewards, text: NetworkText) -> ValidationRewards:
    return ValidationRewards(
        validation_reward_amount=str(rewards.validation),
        delegation_reward_amount=str(rewards.delegation),
        reward_addresses=text.addresses(rewards.addresses) or UNSET,
        reward_tx_hash=UNSET if rewards.reward_tx_id is None else id_text(rewards.reward_tx_id),
    )
