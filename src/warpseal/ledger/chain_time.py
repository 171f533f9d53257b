"""The effects of time on the P-Chain: stakers start and end, L1 validators pay their fee.

Source of truth: ACP-77, avalanchego `vms/platformvm/txs/executor/state_changes.go`,
`block/executor/verifier.go`, `vms/platformvm/validators/fee/fee.go`, `vms/components/gas/gas.go`.
"""

from __future__ import annotations

from typing import Final

from warpseal.ledger.effects import L1Deactivated
from warpseal.ledger.p_state import BlockEffectsBuilder, Priority
from warpseal.ledger.params import DAY_S, L1FeeConfig
from warpseal.ledger.staking import start_staker

# No real block needs a longer sum; a hostile one could keep this program busy.
LONGEST_SUM_S: Final = 366 * DAY_S

_MOST: Final = 2**64 - 1


def advance_excess(config: L1FeeConfig, active: int, excess: int, seconds: int) -> int:
    """Return the excess after `seconds` with `active` validators, within 0 and 2^64 - 1."""
    return min(_MOST, max(0, excess + (active - config.target) * seconds))


def l1_fee_price(config: L1FeeConfig, excess: int) -> int:
    """Return min_price * e^(excess / excess_conversion), nAVAX a second, by the series of nodes."""
    return scaled_l1_fee_price(config, excess) // config.excess_conversion


def scaled_l1_fee_price(config: L1FeeConfig, excess: int) -> int:
    """Return excess_conversion times the price, at most 2^64 - 1, before it is rounded down."""
    divisor = config.excess_conversion
    if not excess:
        return config.min_price * divisor
    index, total, term = 1, 0, config.min_price * divisor
    most = divisor * _MOST
    while term > 0:
        total += term
        if total >= most:
            return most
        term = term * excess // divisor // index
        index += 1
    return total


def l1_fee_cost(config: L1FeeConfig, active: int, excess: int, seconds: int) -> int:
    """Return a validator's fee for `seconds`; a second's price follows from the excess after it.

    At most 2^64 - 1. Raises ValueError if it takes a sum over more than LONGEST_SUM_S seconds.
    """
    if active == config.target:
        return min(_MOST, seconds * l1_fee_price(config, excess))
    falling = config.target - active
    # A falling excess that reached zero stays zero; a growing one never is zero.
    summed = seconds if falling < 0 else min(seconds, -(-excess // falling))
    if summed > LONGEST_SUM_S:
        raise ValueError(f"{summed} seconds are too many to sum")
    total = config.min_price * (seconds - summed)
    for _ in range(summed):
        excess = advance_excess(config, active, excess, 1)
        total += l1_fee_price(config, excess)
    return min(_MOST, total)


def advance_time(builder: BlockEffectsBuilder, time_s: int) -> None:
    """Move chain time forward to `time_s`. Raises LedgerError if that lies in the past."""
    state = builder.state
    if time_s < state.time_s:
        raise builder.error(f"time goes back from {state.time_s} to {time_s}")
    # Pending stakers start before current ones leave: a period may begin and end within the time
    # that passes (`state_changes.go`, advanceTimeTo).
    while (waiting := state.waiting.first()) is not None and waiting.next_s <= time_s:
        start_staker(builder, waiting)
    while (current := state.current.first()) is not None and current.next_s <= time_s:
        if current.priority != Priority.PERMISSIONED_VALIDATOR:
            # Other stakers leave by a RewardValidatorTx.
            break
        state.current.remove(current)
        builder.ended.append(current.tx_id)
    # Fees come last and with the validators that were active until now: a transaction of the block
    # pays from the new time on (ACP-77, continuous fee).
    if time_s >= state.params.upgrades.etna_s:
        _pay_fees(builder, time_s - state.time_s)
    state.time_s = time_s


def deactivate_unfunded(builder: BlockEffectsBuilder) -> None:
    """Deactivate the L1 validators that cannot pay for another second after a block."""
    state = builder.state
    if state.l1.active:
        next_second = l1_fee_cost(state.params.l1_fee, state.l1.active, state.l1_excess, 1)
        _deactivate(builder, state.l1_accrued_fees + next_second, after_transactions=True)


def _pay_fees(builder: BlockEffectsBuilder, seconds: int) -> None:
    state, config = builder.state, builder.state.params.l1_fee
    if not seconds:
        return
    try:
        state.l1_accrued_fees += l1_fee_cost(config, state.l1.active, state.l1_excess, seconds)
    except ValueError as refused:
        raise builder.error(str(refused)) from None
    state.l1_excess = advance_excess(config, state.l1.active, state.l1_excess, seconds)
    # A balance that the fees have used up exactly is empty, so the bound is included.
    _deactivate(builder, state.l1_accrued_fees + 1, after_transactions=False)


def _deactivate(builder: BlockEffectsBuilder, below: int, *, after_transactions: bool) -> None:
    for validator in builder.state.l1.deactivate_below(below):
        deactivated = L1Deactivated(
            validator.validation_id, validator.subnet_id, after_transactions
        )
        builder.deactivated.append(deactivated)
