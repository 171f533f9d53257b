"""What the passing of time does on the P-Chain: stakers start, permissioned ones end, L1 validators pay.

Source of truth: avalanchego `vms/platformvm/txs/executor/state_changes.go`, `block/executor/verifier.go`.
"""

from __future__ import annotations

from warpseal.ledger.effects import L1Deactivated
from warpseal.ledger.effects_builder import BlockDraft
from warpseal.ledger.l1_fee import advance_excess, cost
from warpseal.ledger.stakers import Priority
from warpseal.ledger.staking import promote


def advance_time(block: BlockDraft, time_s: int) -> None:
    """Move chain time on to `time_s`. Raises LedgerFault where it would go back."""
    state = block.state
    if time_s < state.time_s:
        raise block.fault(f"time goes back from {state.time_s} to {time_s}")
    while (waiting := state.waiting.first()) is not None and waiting.next_s <= time_s:
        promote(block, waiting)
    while (current := state.current.first()) is not None and current.next_s <= time_s:
        if current.priority != Priority.PERMISSIONED_VALIDATOR:
            # Those who staked leave by a RewardValidatorTx.
            break
        state.current.remove(current)
        block.ended.append(current.tx_id)
    if time_s >= state.params.upgrades.etna_s:
        _pay_fees(block, time_s - state.time_s)
    state.time_s = time_s


def deactivate_low(block: BlockDraft) -> None:
    """Deactivate, after the transactions of a block, the L1 validators that cannot pay for another second."""
    state = block.state
    if state.l1.active:
        next_second = cost(state.params.l1_fee, state.l1.active, state.l1_excess, 1)
        _deactivate(block, state.l1_accrued_fees + next_second, after_transactions=True)


def _pay_fees(block: BlockDraft, seconds: int) -> None:
    state, config = block.state, block.state.params.l1_fee
    if not seconds:
        return
    try:
        state.l1_accrued_fees += cost(config, state.l1.active, state.l1_excess, seconds)
    except ValueError as refused:
        raise block.fault(str(refused)) from None
    state.l1_excess = advance_excess(config, state.l1.active, state.l1_excess, seconds)
    _deactivate(block, state.l1_accrued_fees + 1, after_transactions=False)


def _deactivate(block: BlockDraft, below: int, *, after_transactions: bool) -> None:
    accrued = block.state.l1_accrued_fees
    for validator in block.state.l1.deactivate_below(below):
        gone = L1Deactivated(
            validator.validation_id, validator.subnet_id, after_transactions, forfeited=validator.balance(accrued)
        )
        block.deactivated.append(gone)
