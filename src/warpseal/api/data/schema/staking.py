"""Rewards that were paid, and validations in their four states."""

from __future__ import annotations

from warpseal.api.data.schema.base import UNSET, Resource, UnsetType
from warpseal.api.data.schema.enums import RewardType
from warpseal.api.data.schema.outputs import RewardAsset
from warpseal.api.data.schema.transactions import BlsCredentials


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
    """What a validation earned, or would earn."""

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
    """Where the validator stands; this service never tells."""

    city: str
    country: str
    country_code: str
    latitude: float
    longitude: float


class _Validation(Resource, frozen=True, gc=False, kw_only=True, tag_field="validationStatus"):
    """What every validation has. delegationFee: percent; absent where nobody can delegate."""

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
    """A validation that is under way. rewards and potentialRewards are the same: what it would earn."""

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
    PendingValidatorDetails | ActiveValidatorDetails | CompletedValidatorDetails | RemovedValidatorDetails
)
