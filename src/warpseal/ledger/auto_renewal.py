"""Auto-renewed validators (Helicon): joining, configuration, the end of a cycle.

Source of truth: ACP-236, avalanchego `vms/platformvm/txs/executor/proposal_tx_executor.go`. Unlike
other rewards, the outputs of a cycle have the id of the transaction that ends it.
"""

from __future__ import annotations

from msgspec.structs import replace

from warpseal.chains.p_txs import (
    AddAutoRenewedValidatorTx,
    RewardAutoRenewedValidatorTx,
    SetAutoRenewedValidatorConfigTx,
)
from warpseal.ledger.effects import PeriodClosed, PeriodRenewed, StakingPeriod, TxEffects
from warpseal.ledger.p_state import BlockEffectsBuilder, Priority, Renewal, Staker
from warpseal.ledger.rewards import (
    burn_potential_reward,
    find_due_staker,
    pay_rewards,
    split_reward,
    validator_payments,
)
from warpseal.ledger.staking import (
    add_staker,
    check_not_validating,
    mint_potential_reward,
    signer_of,
)
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID


def add_auto_renewed(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: AddAutoRenewedValidatorTx
) -> None:
    """Add a validator for its first cycle."""
    node_id = NodeID(tx.node_id)
    check_not_validating(builder, effects, PRIMARY_NETWORK, node_id)
    stake = builder.emit_staked(effects, tx.stake)
    if not stake:
        raise builder.error("nothing is staked", effects.tx)
    start_s, weight = builder.state.time_s, sum(output.amount for output in stake)
    end_s = start_s + tx.period_s
    period = StakingPeriod(
        tx_id=effects.tx.id,
        subnet_id=PRIMARY_NETWORK,
        node_id=node_id,
        start_s=start_s,
        end_s=end_s,
        weight=weight,
        is_delegation=False,
        shares=tx.delegation_shares,
        stake_asset_id=stake[0].asset_id,
        validation_owner=tx.validator_rewards_owner,
        delegation_owner=tx.delegator_rewards_owner,
        signer=signer_of(tx),
        auto_renewed=True,
    )
    period = replace(period, potential_reward=mint_potential_reward(builder, period))
    staker = Staker(period, Priority.PRIMARY_VALIDATOR, end_s, stake, len(effects.emitted))
    add_staker(builder, effects, builder.state.current, staker)
    builder.state.renewals[effects.tx.id] = Renewal(tx.auto_compound_reward_shares, tx.period_s)


def configure_auto_renewed(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: SetAutoRenewedValidatorConfigTx
) -> None:
    """Change the cycles of a validator after the current one."""
    renewal = builder.state.renewals.get(tx.staking_tx_id)
    if renewal is None:
        if builder.state.is_complete:
            raise builder.error(
                f"staking {tx.staking_tx_id.hex()} does not renew itself", effects.tx
            )
        return
    changed = replace(
        renewal, compound_shares=tx.auto_compound_reward_shares, next_period_s=tx.period_s
    )
    builder.state.renewals[tx.staking_tx_id] = changed


def reward_auto_renewed(
    builder: BlockEffectsBuilder,
    effects: TxEffects,
    tx: RewardAutoRenewedValidatorTx,
    *,
    is_committed: bool,
) -> None:
    """End a cycle: begin the next one if it is configured and the reward committed, else leave."""
    state = builder.state
    if tx.end_s != state.time_s:
        raise builder.error(f"it ends a cycle at {tx.end_s}, not at {state.time_s}", effects.tx)
    staker = find_due_staker(builder, effects, tx.staking_tx_id, auto_renewed=True)
    if staker is None or staker.period.potential_reward is None:
        _end_unknown(builder, effects, tx, staker, is_committed)
        return
    renewal = state.renewals.pop(staker.tx_id)
    validation, delegation = staker.potential_reward, state.delegation_rewards.pop(staker.tx_id, 0)
    # Removed first: the next cycle is another entry of the same transaction (ACP-236), and a
    # removal after it would remove the new entry.
    state.current.remove(staker)
    if is_committed and renewal.next_period_s:
        _renew(builder, effects, staker, renewal, (validation, delegation))
        return
    builder.release(effects, staker.stake)
    validation_reward = renewal.accrued_validation
    if is_committed:
        validation_reward += validation
    else:
        burn_potential_reward(builder, effects, staker)
    delegation_rewards = delegation + renewal.accrued_delegation
    _pay(builder, effects, staker.period, validation_reward, delegation_rewards)
    effects.closed = PeriodClosed(
        staker.tx_id,
        effects.tx.id,
        state.time_s,
        is_rewarded=is_committed,
        validation_reward=validation_reward,
        delegation_reward=delegation_rewards,
    )


def _renew(
    builder: BlockEffectsBuilder,
    effects: TxEffects,
    staker: Staker,
    renewal: Renewal,
    rewards: tuple[int, int],
) -> None:
    """Begin the next cycle.

    rewards: rewards of the ended cycle, for validating and of delegations.
    """
    state, period = builder.state, staker.period
    kept_validation, kept_delegation = _kept(
        renewal, rewards, state.params.max_validator_stake - period.weight
    )
    _pay(builder, effects, period, rewards[0] - kept_validation, rewards[1] - kept_delegation)
    start_s, weight = period.end_s, period.weight + kept_validation + kept_delegation
    end_s = start_s + renewal.next_period_s
    renewed = replace(period, start_s=start_s, end_s=end_s, weight=weight)
    renewed = replace(renewed, potential_reward=mint_potential_reward(builder, renewed))
    state.current.add(replace(staker, period=renewed, next_s=end_s))
    state.renewals[period.tx_id] = replace(
        renewal,
        accrued_validation=renewal.accrued_validation + kept_validation,
        accrued_delegation=renewal.accrued_delegation + kept_delegation,
    )
    effects.renewed = PeriodRenewed(
        period.tx_id,
        effects.tx.id,
        start_s,
        end_s,
        weight,
        renewed.potential_reward or 0,
        kept_validation,
        kept_delegation,
    )


def _kept(renewal: Renewal, rewards: tuple[int, int], capacity: int) -> tuple[int, int]:
    """Return the rewards of validation and delegation that become weight, within `capacity`."""
    validation, delegation = (
        split_reward(reward, renewal.compound_shares)[0] for reward in rewards
    )
    total = validation + delegation
    capacity = max(0, capacity)
    if total > capacity:
        validation = validation * capacity // total
        delegation = capacity - validation
    return validation, delegation


def _pay(
    builder: BlockEffectsBuilder,
    effects: TxEffects,
    period: StakingPeriod,
    validation_reward: int,
    delegation_rewards: int,
) -> None:
    payments = validator_payments(period, validation_reward, delegation_rewards)
    pay_rewards(builder, effects, period, (effects.tx.id, len(effects.emitted)), payments)


def _end_unknown(
    builder: BlockEffectsBuilder,
    effects: TxEffects,
    tx: RewardAutoRenewedValidatorTx,
    staker: Staker | None,
    is_committed: bool,
) -> None:
    """Remove a validator whose rewards, and whether it renews itself, are unknown."""
    if staker is not None:
        builder.release(effects, staker.stake)
        builder.state.current.remove(staker)
        builder.state.renewals.pop(staker.tx_id, None)
    effects.closed = PeriodClosed(
        tx.staking_tx_id,
        effects.tx.id,
        builder.state.time_s,
        is_rewarded=is_committed,
        is_known=False,
    )
