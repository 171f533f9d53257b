"""Staking rewards: their calculation, and their payment when stakers leave. Integers only.

Source of truth: avalanchego `vms/platformvm/reward/calculator.go`, for Helicon ACP-285;
`vms/platformvm/txs/executor/proposal_tx_executor.go`. Paid outputs have the id of the staking
transaction, and indices behind its own outputs and its stake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import TxID
from warpseal.chains.p_txs import RewardType, RewardValidatorTx
from warpseal.ledger.effects import PeriodClosed, StakingPeriod, TxEffects
from warpseal.ledger.p_state import BlockEffectsBuilder, Staker
from warpseal.ledger.params import DAY_S, RewardConfig

ALL_SHARES: Final = 1_000_000

_MOST: Final = 2**64 - 1
_HELICON_MIN_RATE: Final = 75_000
_HELICON_RAMP_S: Final = 90 * DAY_S


def potential_reward(config: RewardConfig, duration_s: int, stake: int, supply: int) -> int:
    """Return the reward of a staking.

    supply: supply just before the staking begins, above 0.
    """
    remaining = config.supply_cap - supply
    period = config.minting_period_s
    rate = (config.max_rate - config.min_rate) * duration_s + config.min_rate * period
    minted = remaining * rate * stake * duration_s // (period * ALL_SHARES) // supply // period
    return min(remaining, minted)


def split_reward(total: int, shares: int) -> tuple[int, int]:
    """Return (the part of `shares` parts per million, the rest); rounding favours the first.

    The rest is rounded after the multiplication if the product fits 64 bits, before it otherwise.
    """
    rest_shares = ALL_SHARES - shares
    product = rest_shares * total
    rest = product // ALL_SHARES if product <= _MOST else rest_shares * (total // ALL_SHARES)
    return total - rest, rest


def reward_config_at(config: RewardConfig, start_s: int, helicon_s: int) -> RewardConfig:
    """Return the Primary Network's config at `start_s`: Helicon changes the minimum rate."""
    if start_s < helicon_s or config.max_rate < _HELICON_MIN_RATE:
        return config
    change = abs(config.min_rate - _HELICON_MIN_RATE)
    elapsed_s = start_s - helicon_s
    if elapsed_s < _HELICON_RAMP_S:
        change = change * elapsed_s // _HELICON_RAMP_S
    towards = change if config.min_rate < _HELICON_MIN_RATE else -change
    return replace(config, min_rate=config.min_rate + towards)


Payment = tuple[int, OutputOwners | None, RewardType]


def validator_payments(
    period: StakingPeriod, validation_reward: int, delegation_rewards: int
) -> tuple[Payment, ...]:
    """Return the payments of a validator's own reward and of its part of delegations."""
    fee = (delegation_rewards, period.delegation_owner, RewardType.VALIDATOR_FEE)
    return (validation_reward, period.validation_owner, RewardType.VALIDATOR), fee


def pay_rewards(
    builder: BlockEffectsBuilder,
    effects: TxEffects,
    period: StakingPeriod,
    first_output: tuple[TxID, int],
    payments: Iterable[Payment],
) -> None:
    """Emit an output for each amount above 0.

    first_output: transaction and index of the first reward output.
    """
    tx_id, index = first_output
    for amount, owner, kind in payments:
        if amount and owner is not None and period.stake_asset_id is not None:
            builder.emit_payment(effects, tx_id, index, period.stake_asset_id, amount, owner, kind)
            index += 1


def reward_validator(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: RewardValidatorTx, *, is_committed: bool
) -> None:
    """End the staking whose turn it is.

    Raises LedgerError if it is another staking's turn, or too early.
    """
    staker = find_due_staker(builder, effects, tx.staking_tx_id, auto_renewed=False)
    if staker is None:
        effects.closed = PeriodClosed(
            tx.staking_tx_id,
            effects.tx.id,
            builder.state.time_s,
            is_rewarded=is_committed,
            is_known=False,
        )
        return
    builder.release(effects, staker.stake)
    if not is_committed:
        burn_potential_reward(builder, effects, staker)
    if staker.period.is_delegation:
        _end_delegation(builder, effects, staker, is_committed)
    else:
        _end_validation(builder, effects, staker, is_committed)
    builder.state.current.remove(staker)


def find_due_staker(
    builder: BlockEffectsBuilder, effects: TxEffects, staking: TxID, *, auto_renewed: bool
) -> Staker | None:
    """Return the staker that leaves now; None if it joined before the first indexed block.

    Raises LedgerError.
    """
    state = builder.state
    if not state.is_complete and staking not in state.current.by_tx:
        return None
    staker = state.current.first()
    if staker is None or staker.tx_id != staking or staker.is_permissioned:
        raise builder.error(f"staking {staking.hex()} is not the next to end", effects.tx)
    if staker.period.auto_renewed != auto_renewed:
        raise builder.error(
            f"staking {staking.hex()} ends by another type of transaction", effects.tx
        )
    if staker.next_s != state.time_s:
        raise builder.error(
            f"staking {staking.hex()} ends at {staker.next_s}, not at {state.time_s}", effects.tx
        )
    return staker


def burn_potential_reward(builder: BlockEffectsBuilder, effects: TxEffects, staker: Staker) -> None:
    """Remove a reward that a staker does not earn from the supply. Raises LedgerError."""
    subnet_id = staker.period.subnet_id
    supply = builder.state.supplies.get(subnet_id)
    if supply is None:
        return
    if supply < staker.potential_reward:
        raise builder.error("a reward is more than the supply", effects.tx)
    builder.state.supplies[subnet_id] = supply - staker.potential_reward
    builder.supplies.add(subnet_id)


def _end_validation(
    builder: BlockEffectsBuilder, effects: TxEffects, staker: Staker, is_committed: bool
) -> None:
    period = staker.period
    validation_reward = staker.potential_reward if is_committed else 0
    delegation_rewards = builder.state.delegation_rewards.pop(staker.tx_id, 0)
    # The delegations were rewarded, so their part is paid even if the validation is not.
    payments = validator_payments(period, validation_reward, delegation_rewards)
    pay_rewards(builder, effects, period, (staker.tx_id, staker.first_free_index), payments)
    effects.closed = PeriodClosed(
        staker.tx_id,
        effects.tx.id,
        builder.state.time_s,
        is_rewarded=is_committed,
        validation_reward=validation_reward,
        delegation_reward=delegation_rewards,
        is_known=period.potential_reward is not None,
    )


def _end_delegation(
    builder: BlockEffectsBuilder, effects: TxEffects, staker: Staker, is_committed: bool
) -> None:
    state, period = builder.state, staker.period
    validator = state.current.validators.get((period.subnet_id, period.node_id))
    is_known = (
        period.potential_reward is not None
        and validator is not None
        and validator.period.shares is not None
    )
    reward = share = 0
    is_deferred = False
    if is_committed and is_known and validator is not None and validator.period.shares is not None:
        share, reward = split_reward(staker.potential_reward, validator.period.shares)
        # Since Cortina a validator gets its part of all delegations at once, when it leaves itself.
        # The start of its own staking decides (`proposal_tx_executor.go`, rewardDelegatorTx).
        is_deferred = validator.period.start_s >= state.params.upgrades.cortina_s
        payments = [(reward, period.validation_owner, RewardType.DELEGATOR)]
        if not is_deferred:
            payments.append((share, validator.period.delegation_owner, RewardType.VALIDATOR_FEE))
        elif share:
            state.delegation_rewards[validator.tx_id] = (
                state.delegation_rewards.get(validator.tx_id, 0) + share
            )
        pay_rewards(builder, effects, period, (staker.tx_id, staker.first_free_index), payments)
    elif is_committed and state.is_complete:
        raise builder.error(
            f"{period.node_id.hex()}, the validator of a delegation, is no validator", effects.tx
        )
    effects.closed = PeriodClosed(
        staker.tx_id,
        effects.tx.id,
        state.time_s,
        is_rewarded=is_committed,
        delegator_reward=reward,
        validator_share=share,
        is_deferred=is_deferred and share > 0,
        is_known=is_known,
    )
