"""Stakers join: the staking that a transaction opens, its start, its potential reward.

Source of truth: avalanchego `vms/platformvm/txs/executor/{standard_tx_executor,state_changes}.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import TxID
from warpseal.chains.p_txs import (
    AddAutoRenewedValidatorTx,
    AddDelegatorTx,
    AddPermissionlessDelegatorTx,
    AddPermissionlessValidatorTx,
    AddSubnetValidatorTx,
    AddValidatorTx,
    ProofOfPossession,
    RemoveSubnetValidatorTx,
)
from warpseal.ledger.effects import PeriodStarted, StakingPeriod, TxEffects
from warpseal.ledger.p_state import STARTED, BlockEffectsBuilder, Priority, Staker, StakerSet
from warpseal.ledger.rewards import ALL_SHARES, potential_reward, reward_config_at
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID

StakingTx = (
    AddValidatorTx
    | AddDelegatorTx
    | AddSubnetValidatorTx
    | AddPermissionlessValidatorTx
    | AddPermissionlessDelegatorTx
)

# The priority of a pending staker of the Primary Network, then of another subnet.
_PENDING: Final[Mapping[type[StakingTx], tuple[Priority, Priority]]] = {
    AddValidatorTx: (Priority.PRIMARY_VALIDATOR_PENDING,) * 2,
    AddDelegatorTx: (Priority.APRICOT_DELEGATOR_PENDING,) * 2,
    AddSubnetValidatorTx: (Priority.PERMISSIONED_VALIDATOR_PENDING,) * 2,
    AddPermissionlessValidatorTx: (
        Priority.PRIMARY_VALIDATOR_PENDING,
        Priority.ELASTIC_VALIDATOR_PENDING,
    ),
    AddPermissionlessDelegatorTx: (
        Priority.BANFF_DELEGATOR_PENDING,
        Priority.ELASTIC_DELEGATOR_PENDING,
    ),
}


def begin_staking(builder: BlockEffectsBuilder, effects: TxEffects, tx: StakingTx) -> None:
    """Add a validator or a delegator: pending before Durango, current from then on."""
    state, period = builder.state, describe_staking(effects.tx.id, tx)
    priority = _PENDING[type(tx)][period.subnet_id != PRIMARY_NETWORK]
    if not period.is_delegation:
        check_not_validating(builder, effects, period.subnet_id, period.node_id)
    stake = () if isinstance(tx, AddSubnetValidatorTx) else builder.emit_staked(effects, tx.stake)
    if not stake and not isinstance(tx, AddSubnetValidatorTx):
        raise builder.error("nothing is staked", effects.tx)
    staker = Staker(period, priority, period.start_s, stake, len(effects.emitted))
    # Before Durango a transaction names a start time, until which its staker is pending. Since
    # Durango the staker starts when the block is accepted (`standard_tx_executor.go`, putStaker).
    if state.time_s < state.params.upgrades.durango_s:
        add_staker(builder, effects, state.waiting, staker)
    else:
        started = replace(staker, period=replace(period, start_s=state.time_s))
        add_staker(builder, effects, state.current, _started(builder, started))


def describe_staking(tx_id: TxID, tx: StakingTx) -> StakingPeriod:
    """Return the staking that a transaction asks for, without its potential reward."""
    is_delegation, subnet_id = False, PRIMARY_NETWORK
    validation_owner: OutputOwners | None = None
    delegation_owner: OutputOwners | None = None
    shares: int | None = None
    match tx:
        case AddValidatorTx():
            terms, shares = tx.validator, tx.delegation_shares
            validation_owner = delegation_owner = tx.rewards_owner
        case AddDelegatorTx():
            terms, is_delegation, validation_owner = tx.validator, True, tx.rewards_owner
        case AddSubnetValidatorTx():
            terms, subnet_id = tx.validator.validator, tx.validator.subnet_id
        case AddPermissionlessValidatorTx():
            terms, subnet_id = tx.validator.validator, tx.validator.subnet_id
            shares = tx.delegation_shares
            validation_owner = tx.validator_rewards_owner
            delegation_owner = tx.delegator_rewards_owner
        case AddPermissionlessDelegatorTx():
            terms, subnet_id = tx.validator.validator, tx.validator.subnet_id
            is_delegation, validation_owner = True, tx.rewards_owner
    return StakingPeriod(
        tx_id=tx_id,
        subnet_id=subnet_id,
        node_id=terms.node_id,
        start_s=terms.start_s,
        end_s=terms.end_s,
        weight=terms.weight,
        is_delegation=is_delegation,
        shares=shares,
        stake_asset_id=(
            tx.stake[0].asset_id if not isinstance(tx, AddSubnetValidatorTx) and tx.stake else None
        ),
        validation_owner=validation_owner,
        delegation_owner=delegation_owner,
        signer=signer_of(tx) if isinstance(tx, AddPermissionlessValidatorTx) else None,
    )


def signer_of(
    tx: AddPermissionlessValidatorTx | AddAutoRenewedValidatorTx,
) -> ProofOfPossession | None:
    """Return the validator's BLS key and its proof; None without a key."""
    return tx.signer if isinstance(tx.signer, ProofOfPossession) else None


def remove_subnet_validator(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: RemoveSubnetValidatorTx
) -> None:
    """Remove a validator of a permissioned subnet, started or not."""
    place = (tx.subnet_id, tx.node_id)
    for stakers in (builder.state.current, builder.state.waiting):
        staker = stakers.validators.get(place)
        if staker is None:
            continue
        if not staker.is_permissioned:
            raise builder.error(f"{tx.node_id.hex()} was not added by the owner", effects.tx)
        stakers.remove(staker)
        effects.removed = staker.tx_id
        return
    if builder.state.is_complete:
        raise builder.error(f"{tx.node_id.hex()} is no validator of the subnet", effects.tx)


def start_staker(builder: BlockEffectsBuilder, staker: Staker) -> None:
    """Start a pending staker."""
    started = _started(builder, staker)
    builder.state.waiting.remove(staker)
    builder.state.current.add(started)
    period = started.period
    builder.started.append(PeriodStarted(period.tx_id, period.start_s, period.potential_reward))


def _started(builder: BlockEffectsBuilder, staker: Staker) -> Staker:
    period = staker.period
    reward = 0 if staker.is_permissioned else mint_potential_reward(builder, period)
    started = replace(period, potential_reward=reward)
    return replace(staker, period=started, priority=STARTED[staker.priority], next_s=period.end_s)


def mint_potential_reward(builder: BlockEffectsBuilder, period: StakingPeriod) -> int | None:
    """Add a potential reward to the subnet's supply, and return it; None without a supply.

    Raises LedgerError for a subnet without rewards.
    """
    state, subnet_id, start_s, end_s = builder.state, period.subnet_id, period.start_s, period.end_s
    if subnet_id == PRIMARY_NETWORK:
        config = reward_config_at(state.params.rewards, start_s, state.params.upgrades.helicon_s)
    else:
        subnet = state.subnets.get(subnet_id)
        if subnet is None or subnet.transformation is None:
            if state.is_complete:
                raise builder.error(f"subnet {subnet_id.hex()} has no rewards")
            return None
        config = subnet.transformation.rewards
    supply = state.supplies.get(subnet_id)
    if supply is None:
        return None
    if not supply or end_s <= start_s:
        raise builder.error(
            f"a staking of subnet {subnet_id.hex()} from {start_s} to {end_s} on a supply of"
            f" {supply}"
        )
    reward = potential_reward(config, end_s - start_s, period.weight, supply)
    state.supplies[subnet_id] = supply + reward
    builder.supplies.add(subnet_id)
    return reward


def add_staker(
    builder: BlockEffectsBuilder, effects: TxEffects, stakers: StakerSet, staker: Staker
) -> None:
    """Add a staker that a transaction opens.

    Raises LedgerError if it exists already, or takes more than all of its delegators' rewards.
    """
    if (staker.period.shares or 0) > ALL_SHARES:
        raise builder.error(f"delegation shares of {staker.period.shares}", effects.tx)
    if staker.tx_id in builder.state.current.by_tx or staker.tx_id in builder.state.waiting.by_tx:
        raise builder.error("the same staking twice", effects.tx)
    stakers.add(staker)
    effects.opened = staker.period


def check_not_validating(
    builder: BlockEffectsBuilder, effects: TxEffects, subnet_id: SubnetID, node_id: NodeID
) -> None:
    """Raise LedgerError if a node validates a subnet already, or will."""
    place = (subnet_id, node_id)
    if place in builder.state.current.validators or place in builder.state.waiting.validators:
        raise builder.error(f"{node_id.hex()} validates already", effects.tx)
