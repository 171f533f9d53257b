"""Rewards and validations as resources."""

from __future__ import annotations

from typing import Any

from warpseal.api.data.encoding.outputs import encode_amount
from warpseal.api.data.encoding.text import NetworkText, node_text, shared_id_text
from warpseal.api.data.encoding.transactions import bls_credentials, fee_text
from warpseal.api.data.schema.base import UNSET
from warpseal.api.data.schema.enums import RewardType
from warpseal.api.data.schema.outputs import HistoricalPrice, RewardAsset
from warpseal.api.data.schema.staking import (
    ActiveValidatorDetails,
    CompletedValidatorDetails,
    HistoricalReward,
    PendingValidatorDetails,
    RemovedValidatorDetails,
    ValidationRewards,
    ValidatorDetails,
    ValidatorHealth,
)
from warpseal.history.ports import Connectivity
from warpseal.history.staking import Active, Completed, Removed, Reward, Rewards, Validation
from warpseal.warp.ids import id_text


def encode_reward(reward: Reward, price: HistoricalPrice | None, words: NetworkText) -> HistoricalReward:
    """Return a reward that was paid, with what it was worth where that is known."""
    amount = encode_amount(reward.reward.asset, reward.reward.amount)
    return HistoricalReward(
        addresses=words.addresses(reward.addresses),
        tx_hash=id_text(reward.tx_id),
        amount_staked=str(reward.staked),
        node_id=node_text(reward.node_id),
        start_timestamp=reward.start,
        end_timestamp=reward.end,
        reward_type=RewardType(reward.kind.value),
        utxo_id=id_text(reward.utxo_id),
        output_index=reward.output_index,
        reward=RewardAsset(
            asset_id=amount.asset_id,
            name=amount.name,
            symbol=amount.symbol,
            denomination=amount.denomination,
            type=amount.type,
            amount=amount.amount,
            historical_price=price or UNSET,
        ),
        reward_tx_hash=id_text(reward.reward_tx_id),
    )


def encode_validation(one: Validation, seen: Connectivity | None, words: NetworkText) -> ValidatorDetails:
    """Return a validation in its state. seen: how the validator is reached, which active ones need."""
    common: dict[str, Any] = {
        "tx_hash": id_text(one.tx_id),
        "node_id": node_text(one.node_id),
        "subnet_id": shared_id_text(one.subnet_id),
        "amount_staked": str(one.staked),
        "start_timestamp": one.start,
        "end_timestamp": one.end,
        "delegation_fee": fee_text(one.fee_shares),
        "bls_credentials": bls_credentials(one.bls),
    }
    state = one.state
    if isinstance(state, Active):
        assert seen is not None
        return _active(one, state, seen, common, words)
    if isinstance(state, Completed):
        return CompletedValidatorDetails(
            **common,
            delegator_count=state.delegator_count,
            amount_delegated=UNSET if state.delegated is None else str(state.delegated),
            rewards=_rewards(state.rewards, words),
        )
    if isinstance(state, Removed):
        return RemovedValidatorDetails(**common, remove_tx_hash=id_text(state.tx_id), remove_timestamp=state.time)
    return PendingValidatorDetails(**common)


def _active(
    one: Validation, state: Active, seen: Connectivity, common: dict[str, Any], words: NetworkText
) -> ActiveValidatorDetails:
    rewards = _rewards(state.potential, words)
    return ActiveValidatorDetails(
        **common,
        delegator_count=state.delegator_count,
        amount_delegated=UNSET if state.delegated is None else str(state.delegated),
        delegation_capacity=UNSET if state.capacity is None else str(state.capacity),
        stake_percentage=_percent(one.staked, state.total_stake),
        uptime_performance=seen.uptime,
        avalanche_go_version=seen.version or UNSET,
        potential_rewards=rewards,
        rewards=rewards,
        validator_health=ValidatorHealth(
            reachability_percent=seen.reachability,
            benched_p_chain_requests_percent=seen.benched_p,
            benched_x_chain_requests_percent=seen.benched_x,
            benched_c_chain_requests_percent=seen.benched_c,
        ),
        geolocation=None,
    )


def _rewards(rewards: Rewards, words: NetworkText) -> ValidationRewards:
    return ValidationRewards(
        validation_reward_amount=str(rewards.validation),
        delegation_reward_amount=str(rewards.delegation),
        reward_addresses=words.addresses(rewards.addresses) or UNSET,
        reward_tx_hash=UNSET if rewards.reward_tx_id is None else id_text(rewards.reward_tx_id),
    )


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 8) if whole else 0.0
