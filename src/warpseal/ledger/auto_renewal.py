"""Validators that renew themselves (Helicon): they join, are configured, and end a cycle or all of them.

Source of truth: ACP-236, avalanchego `vms/platformvm/txs/executor/proposal_tx_executor.go`. Unlike other rewards, what
a cycle pays out carries the id of the transaction that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpseal.chains.p_components import ProofOfPossession
from warpseal.chains.p_txs import (
    AddAutoRenewedValidatorTx,
    RewardAutoRenewedValidatorTx,
    SetAutoRenewedValidatorConfigTx,
)
from warpseal.ledger.effects import PeriodClosed, PeriodRenewed, StakingPeriod
from warpseal.ledger.effects_builder import BlockEffectsBuilder, TxEffectsBuilder
from warpseal.ledger.outputs import RewardKind
from warpseal.ledger.p_state import Priority, Renewal, Staker
from warpseal.ledger.rewards import burn_potential_reward, find_due_staker, split_reward
from warpseal.ledger.staking import add_staker, check_not_validating, mint_potential_reward
from warpseal.ledger.utxo_flow import build_payment
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID


@dataclass(frozen=True, slots=True)
class _Cycle:
    """A cycle that is over: what it earned, validating and on delegations."""

    staker: Staker
    renewal: Renewal
    validation: int
    delegation: int


def add_auto_renewed(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: AddAutoRenewedValidatorTx) -> None:
    """A validator joins for its first cycle."""
    node_id = NodeID(tx.node_id)
    check_not_validating(block, draft, PRIMARY_NETWORK, node_id)
    stake = block.stake(draft, tx.stake)
    if not stake:
        raise block.fault("nothing is staked", draft.tx)
    start_s, weight = block.state.time_s, sum(output.amount for output in stake)
    end_s = start_s + tx.period_s
    period = StakingPeriod(
        tx_id=draft.tx.id,
        subnet_id=PRIMARY_NETWORK,
        node_id=node_id,
        start_s=start_s,
        end_s=end_s,
        weight=weight,
        is_delegation=False,
        shares=tx.delegation_shares,
        potential_reward=mint_potential_reward(block, PRIMARY_NETWORK, start_s, end_s, weight),
        stake_asset_id=stake[0].asset_id,
        validation_owner=tx.validator_rewards_owner,
        delegation_owner=tx.delegator_rewards_owner,
        signer=tx.signer if isinstance(tx.signer, ProofOfPossession) else None,
        auto_renewed=True,
    )
    staker = Staker(period, Priority.PRIMARY_VALIDATOR, end_s, stake, len(draft.emitted))
    add_staker(block, draft, block.state.current, staker)
    block.state.renewals[draft.tx.id] = Renewal(tx.auto_compound_reward_shares, tx.period_s)


def configure_auto_renewed(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: SetAutoRenewedValidatorConfigTx
) -> None:
    """How a validator goes on after this cycle changes."""
    renewal = block.state.renewals.get(tx.staking_tx_id)
    if renewal is None:
        if block.state.is_complete:
            raise block.fault(f"staking {tx.staking_tx_id.hex()} does not renew itself", draft.tx)
        return
    changed = replace(renewal, compound_shares=tx.auto_compound_reward_shares, next_period_s=tx.period_s)
    block.state.renewals[tx.staking_tx_id] = changed


def reward_auto_renewed(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: RewardAutoRenewedValidatorTx, *, is_committed: bool
) -> None:
    """End a cycle: committed, the next begins where one is wanted; otherwise the validator leaves."""
    state = block.state
    if tx.end_s != state.time_s:
        raise block.fault(f"it ends a cycle at {tx.end_s}, not at {state.time_s}", draft.tx)
    staker = find_due_staker(block, draft, tx.staking_tx_id, auto_renewed=True)
    if staker is None or staker.period.potential_reward is None:
        _end_unknown(block, draft, tx, staker, is_committed)
        return
    renewal = state.renewals.pop(staker.tx_id)
    cycle = _Cycle(staker, renewal, staker.potential_reward, state.delegation_rewards.pop(staker.tx_id, 0))
    state.current.remove(staker)
    if is_committed and renewal.next_period_s:
        _renew(block, draft, cycle)
        return
    block.release(draft, staker.stake)
    own = renewal.accrued_validation
    if is_committed:
        own += cycle.validation
    else:
        burn_potential_reward(block, draft, staker)
    of_delegations = cycle.delegation + renewal.accrued_delegation
    _pay(block, draft, staker, own, of_delegations)
    draft.closed = PeriodClosed(
        staker.tx_id,
        draft.tx.id,
        state.time_s,
        is_rewarded=is_committed,
        validation_reward=own,
        delegation_reward=of_delegations,
    )


def _renew(block: BlockEffectsBuilder, draft: TxEffectsBuilder, cycle: _Cycle) -> None:
    state, renewal, period = block.state, cycle.renewal, cycle.staker.period
    kept_validation, kept_delegation = _kept(cycle, state.params.max_validator_stake - period.weight)
    _pay(block, draft, cycle.staker, cycle.validation - kept_validation, cycle.delegation - kept_delegation)
    start_s, weight = period.end_s, period.weight + kept_validation + kept_delegation
    end_s = start_s + renewal.next_period_s
    reward = mint_potential_reward(block, PRIMARY_NETWORK, start_s, end_s, weight)
    renewed = replace(period, start_s=start_s, end_s=end_s, weight=weight, potential_reward=reward)
    state.current.add(replace(cycle.staker, period=renewed, next_s=end_s))
    state.renewals[period.tx_id] = replace(
        renewal,
        accrued_validation=renewal.accrued_validation + kept_validation,
        accrued_delegation=renewal.accrued_delegation + kept_delegation,
    )
    draft.renewed = PeriodRenewed(period.tx_id, draft.tx.id, start_s, end_s, weight, reward or 0)


def _kept(cycle: _Cycle, capacity: int) -> tuple[int, int]:
    """Return what of the rewards becomes weight; where not all of it fits, each gives way in proportion."""
    validation = split_reward(cycle.validation, cycle.renewal.compound_shares)[0]
    delegation = split_reward(cycle.delegation, cycle.renewal.compound_shares)[0]
    total = validation + delegation
    capacity = max(0, capacity)
    if total > capacity:
        validation = validation * capacity // total
        delegation = capacity - validation
    return validation, delegation


def _pay(block: BlockEffectsBuilder, draft: TxEffectsBuilder, staker: Staker, own: int, of_delegations: int) -> None:
    period = staker.period
    payments = (
        (own, period.validation_owner, RewardKind.VALIDATOR),
        (of_delegations, period.delegation_owner, RewardKind.VALIDATOR_FEE),
    )
    for amount, owner, kind in payments:
        if amount and owner is not None and period.stake_asset_id is not None:
            made = build_payment(period.stake_asset_id, amount, owner)
            block.grant(draft, draft.tx.id, len(draft.emitted), made, kind)


def _end_unknown(
    block: BlockEffectsBuilder,
    draft: TxEffectsBuilder,
    tx: RewardAutoRenewedValidatorTx,
    staker: Staker | None,
    is_committed: bool,
) -> None:
    """Let a validator go of whose rewards nothing is known: whether it renews itself, neither."""
    if staker is not None:
        block.release(draft, staker.stake)
        block.state.current.remove(staker)
        block.state.renewals.pop(staker.tx_id, None)
    draft.closed = PeriodClosed(
        tx.staking_tx_id, draft.tx.id, block.state.time_s, is_rewarded=is_committed, is_known=False
    )
