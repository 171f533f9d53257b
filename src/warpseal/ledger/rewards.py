"""How much a staker may earn, and how a delegator shares it with the validator. Integers only.

Source of truth: avalanchego `vms/platformvm/reward/calculator.go`; for Helicon ACP-285.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from warpseal.chains.components import OutputOwners
from warpseal.chains.ids import TxID
from warpseal.chains.p_txs import RewardValidatorTx
from warpseal.ledger.effects import PeriodClosed
from warpseal.ledger.effects_builder import BlockEffectsBuilder, TxEffectsBuilder
from warpseal.ledger.outputs import RewardKind
from warpseal.ledger.p_state import Staker
from warpseal.ledger.params import DAY_S, RewardConfig
from warpseal.ledger.utxo_flow import build_payment

ALL_SHARES: Final = 1_000_000

_MOST: Final = 2**64 - 1
_HELICON_MIN_RATE: Final = 75_000
_HELICON_RAMP_S: Final = 90 * DAY_S


def potential_reward(config: RewardConfig, duration_s: int, stake: int, supply: int) -> int:
    """Return what staking `stake` for `duration_s` earns when `supply` (above 0) is there just before it."""
    remaining = config.supply_cap - supply
    period = config.minting_period_s
    rate = (config.max_rate - config.min_rate) * duration_s + config.min_rate * period
    minted = remaining * rate * stake * duration_s // (period * ALL_SHARES) // supply // period
    return min(remaining, minted)


def split_reward(total: int, shares: int) -> tuple[int, int]:
    """Return (the part of `shares` parts per million, the rest); rounding favours the first.

    The rest is rounded late where the product fits 64 bits, early where it does not.
    """
    rest_shares = ALL_SHARES - shares
    product = rest_shares * total
    rest = product // ALL_SHARES if product <= _MOST else rest_shares * (total // ALL_SHARES)
    return total - rest, rest


def reward_config_at(config: RewardConfig, start_s: int, helicon_s: int) -> RewardConfig:
    """Return the Primary Network's config for a staking that starts at `start_s`: Helicon moves the minimum rate."""
    if start_s < helicon_s or config.max_rate < _HELICON_MIN_RATE:
        return config
    change = abs(config.min_rate - _HELICON_MIN_RATE)
    elapsed_s = start_s - helicon_s
    if elapsed_s < _HELICON_RAMP_S:
        change = change * elapsed_s // _HELICON_RAMP_S
    towards = change if config.min_rate < _HELICON_MIN_RATE else -change
    return replace(config, min_rate=config.min_rate + towards)


class _Payments:
    """The reward outputs of one staking, at consecutive indices."""

    def __init__(self, block: BlockEffectsBuilder, draft: TxEffectsBuilder, staker: Staker) -> None:
        self._block = block
        self._draft = draft
        self._period = staker.period
        self._index = staker.first_free_index

    def pay(self, amount: int, owner: OutputOwners | None, reward: RewardKind) -> None:
        """Pay an amount above 0; nothing else makes an output."""
        asset_id = self._period.stake_asset_id
        if amount and owner is not None and asset_id is not None:
            made = build_payment(asset_id, amount, owner)
            self._block.grant(self._draft, self._period.tx_id, self._index, made, reward)
            self._index += 1


def reward_validator(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: RewardValidatorTx, *, is_committed: bool
) -> None:
    """End the staking whose turn it is. Raises LedgerFault where it is another's turn, or too early."""
    staker = find_due_staker(block, draft, tx.staking_tx_id, auto_renewed=False)
    if staker is None:
        draft.closed = PeriodClosed(
            tx.staking_tx_id, draft.tx.id, block.state.time_s, is_rewarded=is_committed, is_known=False
        )
        return
    block.release(draft, staker.stake)
    if not is_committed:
        burn_potential_reward(block, draft, staker)
    if staker.period.is_delegation:
        _end_delegation(block, draft, staker, is_committed)
    else:
        _end_validation(block, draft, staker, is_committed)
    block.state.current.remove(staker)


def find_due_staker(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, staking: TxID, *, auto_renewed: bool
) -> Staker | None:
    """Return the staker that is to leave now; None where it came before what was indexed. Raises LedgerFault."""
    state = block.state
    if not state.is_complete and staking not in state.current.by_tx:
        return None
    staker = state.current.first()
    if staker is None or staker.tx_id != staking or staker.is_permissioned:
        raise block.fault(f"staking {staking.hex()} is not the next to end", draft.tx)
    if staker.period.auto_renewed != auto_renewed:
        raise block.fault(f"staking {staking.hex()} ends by another type of transaction", draft.tx)
    if staker.next_s != state.time_s:
        raise block.fault(f"staking {staking.hex()} ends at {staker.next_s}, not at {state.time_s}", draft.tx)
    return staker


def burn_potential_reward(block: BlockEffectsBuilder, draft: TxEffectsBuilder, staker: Staker) -> None:
    """Take what a staker will not earn out of the supply again. Raises LedgerFault."""
    subnet_id = staker.period.subnet_id
    supply = block.state.supplies.get(subnet_id)
    if supply is None:
        return
    if supply < staker.potential_reward:
        raise block.fault("a reward is more than the supply", draft.tx)
    block.state.supplies[subnet_id] = supply - staker.potential_reward
    block.supplies.add(subnet_id)


def _end_validation(block: BlockEffectsBuilder, draft: TxEffectsBuilder, staker: Staker, is_committed: bool) -> None:
    period = staker.period
    own = staker.potential_reward if is_committed else 0
    of_delegations = block.state.delegation_rewards.pop(staker.tx_id, 0)
    payments = _Payments(block, draft, staker)
    payments.pay(own, period.validation_owner, RewardKind.VALIDATOR)
    # Earned on delegations that were rewarded, so it is paid whatever became of the validator itself.
    payments.pay(of_delegations, period.delegation_owner, RewardKind.VALIDATOR_FEE)
    draft.closed = PeriodClosed(
        staker.tx_id,
        draft.tx.id,
        block.state.time_s,
        is_rewarded=is_committed,
        validation_reward=own,
        delegation_reward=of_delegations,
        is_known=period.potential_reward is not None,
    )


def _end_delegation(block: BlockEffectsBuilder, draft: TxEffectsBuilder, staker: Staker, is_committed: bool) -> None:
    state, period = block.state, staker.period
    validator = state.current.validators.get((period.subnet_id, period.node_id))
    is_known = period.potential_reward is not None and validator is not None and validator.period.shares is not None
    own = share = 0
    is_deferred = False
    if is_committed and is_known and validator is not None and validator.period.shares is not None:
        share, own = split_reward(staker.potential_reward, validator.period.shares)
        is_deferred = validator.period.start_s >= state.params.upgrades.cortina_s
        _pay_delegation(block, draft, staker, (own, share), validator)
    elif is_committed and state.is_complete:
        raise block.fault(f"{period.node_id.hex()}, which was delegated to, is no validator", draft.tx)
    draft.closed = PeriodClosed(
        staker.tx_id,
        draft.tx.id,
        state.time_s,
        is_rewarded=is_committed,
        delegator_reward=own,
        validator_share=share,
        is_deferred=is_deferred and share > 0,
        is_known=is_known,
    )


def _pay_delegation(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, staker: Staker, amounts: tuple[int, int], validator: Staker
) -> None:
    state = block.state
    own, share = amounts
    payments = _Payments(block, draft, staker)
    payments.pay(own, staker.period.validation_owner, RewardKind.DELEGATOR)
    if not share:
        return
    if validator.period.start_s >= state.params.upgrades.cortina_s:
        state.delegation_rewards[validator.tx_id] = state.delegation_rewards.get(validator.tx_id, 0) + share
    else:
        payments.pay(share, validator.period.delegation_owner, RewardKind.VALIDATOR_FEE)
