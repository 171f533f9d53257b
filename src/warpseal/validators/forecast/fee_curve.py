"""The fee of one active L1 validator from now on, at a constant number of active validators.

Pure. Source of truth: `ledger/chain_time.py`, avalanchego `vms/platformvm/validators/fee/fee.go`.

The excess moves by a constant each second, so the price only rises or only falls, along
min_price * e^(excess / K). The curve is a table of stretches of seconds whose prices differ by a
thousandth at most. It counts the highest of them for each second.

**Accuracy.** While the price is below 1,000 nAVAX a second, stretches have one price, and a fee is
the P-Chain's to the nAVAX. Beyond that, a fee is at most 0.1 % too high, and never too low. Only a
logarithm says there when the price leaves a stretch, but nodes sum a series of rounded terms: these
bounds take a min_price * K of 2^18 or more. Local networks have 2^19, Fuji 2^34, and Mainnet 2^39.

**Bounded time.** Prices from 1 nAVAX to 2^64 have 38,000 stretches, whatever parameters a node
returns. A stretch takes a logarithm, and one of the lowest 1,000 prices a few sums of the series.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import ceil, floor, log
from typing import Final

from warpseal.ledger.chain_time import advance_excess, l1_fee_price
from warpseal.ledger.params import DAY_S, L1FeeConfig

HORIZON_S: Final = 3_652 * DAY_S
"""Ten years: the curve ends there."""

_MOST: Final = 2**64 - 1
# Prices of a stretch differ by at most this part.
_PRICE_PARTS: Final = 1_000
# The rounded series reaches a price at an excess that is at most so many units higher than the
# exponential's: it loses less than 1 with each of its terms.
_MOST_LAG: Final = 32
# Today's curve and the one at capacity, of the present fee state and of the previous one.
_SHARED_CURVES: Final = 4


class FeeCurve:
    """The fee of an active validator, with `active` validators of all L1s from now on.

    A curve does not change, so threads may share it. The module says how accurate a fee is.
    Raises ValueError if the excess conversion is not positive.
    excess: excess of the fee state now.
    """

    def __init__(self, config: L1FeeConfig, active: int, excess: int) -> None:
        if config.excess_conversion < 1:
            raise ValueError(
                f"expected a positive excess conversion, got {config.excess_conversion}"
            )
        # Of each stretch: the second behind which it begins, the fee until then, and its price.
        self._starts_s: list[int] = []
        self._fees: list[int] = []
        self._prices: list[int] = []
        start_s = fee = 0
        for end_s, price in _price_stretches(config, active, excess):
            self._starts_s.append(start_s)
            self._fees.append(fee)
            self._prices.append(price)
            fee += price * (end_s - start_s)
            start_s = end_s
            # No balance pays for more.
            if fee > _MOST:
                break

    def cost(self, seconds: int) -> int:
        """Return the fee of the next `seconds`, nAVAX, at most 2^64 - 1.

        Raises ValueError beyond the horizon.
        """
        if seconds > HORIZON_S:
            raise ValueError(f"expected at most {HORIZON_S} seconds, got {seconds}")
        stretch = bisect_right(self._starts_s, seconds) - 1
        paid_seconds = seconds - self._starts_s[stretch]
        return min(_MOST, self._fees[stretch] + self._prices[stretch] * paid_seconds)

    def seconds_covered(self, balance: int) -> int | None:
        """Return the seconds that a balance pays for; None for longer than ten years.

        A block of exactly that second deactivates the validator: at once if nothing is left,
        otherwise behind its transactions, as the rest does not pay for another second. An earlier
        block does not.
        balance: nAVAX, up to 2^64 - 1.
        """
        stretch = bisect_right(self._fees, balance) - 1
        price = self._prices[stretch]
        if not price:
            return None
        seconds = self._starts_s[stretch] + (balance - self._fees[stretch]) // price
        return seconds if seconds < HORIZON_S else None


@lru_cache(_SHARED_CURVES)
def share_fee_curve(config: L1FeeConfig, active: int, excess: int) -> FeeCurve:
    """Return a curve, the same one for equal arguments: forecasts at one fee state share it."""
    return FeeCurve(config, active, excess)


def _price_stretches(config: L1FeeConfig, active: int, excess: int) -> Iterator[tuple[int, int]]:
    """Yield the last second and the highest price of each stretch, up to the horizon.

    The first second is number 1; its price is that of the excess after it.
    """

    def price_at(second: int) -> int:
        return l1_fee_price(config, advance_excess(config, active, excess, second))

    slope = active - config.target
    if not slope or not config.min_price:
        yield HORIZON_S, price_at(1)
    elif slope > 0:
        yield from _rising_stretches(config, slope, excess, price_at)
    else:
        yield from _falling_stretches(config, -slope, excess, price_at)


def _rising_stretches(
    config: L1FeeConfig, slope: int, excess: int, price_at: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Yield the stretches of an excess that rises by `slope` a second."""
    lowest, end_s = price_at(1), 0
    while end_s < HORIZON_S:
        highest = lowest + lowest // _PRICE_PARTS
        next_excess = _excess_of(config, highest + 1)
        last_s = HORIZON_S
        # Neither prices nor the excess rise beyond 64 bits.
        if highest < _MOST and next_excess <= _MOST:
            before_next_s = ceil((next_excess - excess) / slope) - 1
            last_s = min(HORIZON_S, max(end_s, before_next_s))
        if highest == lowest:
            latest_s = min(HORIZON_S, last_s + _MOST_LAG)
            while last_s < latest_s and price_at(last_s + 1) == highest:
                last_s += 1
        # Prices that a second passes over have no stretch.
        if last_s > end_s:
            yield last_s, min(_MOST, highest)
            end_s = last_s
        lowest = highest + 1


def _falling_stretches(
    config: L1FeeConfig, slope: int, excess: int, price_at: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Yield the stretches of an excess that falls by `slope` a second."""
    highest, end_s = price_at(1), 0
    while highest > config.min_price and end_s < HORIZON_S:
        # The minimum lasts for ever, so it is a stretch of its own.
        lowest = max(config.min_price + 1, highest - highest // (_PRICE_PARTS + 1))
        last_s = floor((excess - _excess_of(config, lowest)) / slope)
        last_s = min(HORIZON_S, max(end_s, last_s))
        if highest == lowest:
            earliest_s = max(end_s, last_s - _MOST_LAG)
            while last_s > earliest_s and price_at(last_s) < lowest:
                last_s -= 1
        if last_s > end_s:
            yield last_s, highest
            end_s = last_s
        highest = lowest - 1
    if end_s < HORIZON_S:
        yield HORIZON_S, config.min_price


def _excess_of(config: L1FeeConfig, price: int) -> float:
    """Return the excess from which on the price is at least `price`, by the exponential."""
    return config.excess_conversion * log(price / config.min_price)
