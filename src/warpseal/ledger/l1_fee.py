"""What active L1 validators pay, second by second.

Source of truth: ACP-77, avalanchego `vms/platformvm/validators/fee/fee.go`, `vms/components/gas/gas.go`.
"""

from __future__ import annotations

from typing import Final

from warpseal.ledger.params import DAY_S, L1FeeConfig

# Beyond, a second-by-second sum is no block's but somebody's attempt to keep this program busy.
LONGEST_SUM_S: Final = 366 * DAY_S

_MOST: Final = 2**64 - 1


def advance_excess(config: L1FeeConfig, active: int, excess: int, seconds: int) -> int:
    """Return the excess after `seconds` with `active` validators; it stays within 0 and 2^64 - 1."""
    return min(_MOST, max(0, excess + (active - config.target) * seconds))


def price(config: L1FeeConfig, excess: int) -> int:
    """Return nAVAX a second: min_price * e^(excess / excess_conversion), by the series that every node sums."""
    if not excess:
        return config.min_price
    divisor = config.excess_conversion
    index, total, term = 1, 0, config.min_price * divisor
    most = divisor * _MOST
    while term > 0:
        total += term
        if total >= most:
            return _MOST
        term = term * excess // divisor // index
        index += 1
    return total // divisor


def cost(config: L1FeeConfig, active: int, excess: int, seconds: int) -> int:
    """Return what one validator pays for the next `seconds`; each second's price follows from the excess after it.

    At most 2^64 - 1. Raises ValueError where more than LONGEST_SUM_S would have to be summed one by one.
    """
    if active == config.target:
        return min(_MOST, seconds * price(config, excess))
    falling = config.target - active
    # Once zero, the excess stays zero where it falls; where it grows, it never is.
    summed = seconds if falling < 0 else min(seconds, max(0, -(-excess // falling) - 1))
    if summed > LONGEST_SUM_S:
        raise ValueError(f"{summed} seconds are too many to sum")
    total = config.min_price * (seconds - summed)
    for _ in range(summed):
        excess = advance_excess(config, active, excess, 1)
        total += price(config, excess)
    return min(_MOST, total)
