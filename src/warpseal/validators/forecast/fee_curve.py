"""The fee of one active L1 validator from now on, while the number of active validators stays the same. Pure.

Source of truth: `ledger/chain_time.py`, avalanchego `vms/platformvm/validators/fee/fee.go`. The excess moves by a
constant each second, so that the price only rises or only falls. The curve sums it over stretches of equal price,
whose ends are found by bisection, and, while the price changes every few seconds, over blocks of seconds. In a block,
a cubic through four prices gives the others, with a bound of its error; the seconds at which the bound leaves two
prices are computed one by one. The sums therefore equal the P-Chain's exactly. The parameters are those of a
node, which may lie: exact sums end after a number of steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, islice, repeat
from math import exp
from typing import Final

from warpseal.ledger.chain_time import advance_excess, l1_fee_price, scaled_l1_fee_price
from warpseal.ledger.params import DAY_S, L1FeeConfig
from warpseal.runtime.locks import ThreadLock

HORIZON_S: Final = 3_652 * DAY_S
"""Ten years: the curve ends there."""

_MOST: Final = 2**64 - 1
# A price that lasts this long is a stretch of its own.
_STRETCH_S: Final = 64
_LONGEST_STEP_S: Final = 1_024
# Steps before the curve becomes coarse: terms of the series of prices, and seconds of blocks, which take as long.
_EXACT_STEPS: Final = 7_000_000
# Approximate number of terms of a price, and the additional terms for each power of e.
_LEAST_TERMS: Final = 16
_TERMS_PER_POWER: Final = 4
# At this power of e every price but 0 is the largest.
_LARGEST_POWER: Final = 45
# A block that no cubic fits is short, as each of its prices is computed.
_SHORT_BLOCK_S: Final = 63
# Rounding of floats misses a price by far less.
_FLOAT_MARGIN: Final = 1 + 1e-9
# Coarse stretches end when the price has changed by about this part.
_COARSE_PARTS: Final = 1_024
# In a block, the cubic may miss a price by about this part of 1 nAVAX.
_CERTAIN_PARTS: Final = 500
# The loss by rounding of the last terms of the series; see `_spread`.
_LOST_AT_MOST: Final = 700
# The curves of the present fee state and of the previous one.
_SHARED_CURVES: Final = 4


def no_step() -> None:
    """Go on: the step of a computation that is not throttled."""


class FeeCurve:
    """The fee of an active validator, with `active` validators of all L1s from now on, and `excess` now.

    Exact for thirty days at the capacity of mainnet, and for as many steps with any parameters; behind them a fee is
    too high by a thousandth at most, and never too low. The curve grows as far as it is asked for, which takes a second
    or two at most. Threads may share it. `step` of a method is called after each small part; if it raises, the curve
    stays whole. Raises ValueError if the excess conversion is not positive.
    """

    def __init__(self, config: L1FeeConfig, active: int, excess: int) -> None:
        if config.excess_conversion < 1:
            raise ValueError(f"expected a positive excess conversion, got {config.excess_conversion}")
        self.config = config
        self.active = active
        self.excess = excess
        # Pieces: the second at which each one begins, the fee until then, and its price; None if the price changes.
        self._starts: list[int] = []
        self._costs: list[int] = []
        self._prices: list[int | None] = []
        self._end_s = 0
        self._total = 0
        self._last_stretch_s = _STRETCH_S
        self._last_step_s = 1
        self._computed_terms = 0
        self._exact_steps_left = _EXACT_STEPS
        # The block that was added or searched last, and the sums of its prices: balances come in order.
        self._last_block: tuple[int, list[int]] = -1, []
        self._lock = ThreadLock()

    @property
    def price(self) -> int:
        """The price now, nAVAX a second."""
        return l1_fee_price(self.config, self.excess)

    def cost(self, seconds: int, step: Callable[[], None] = no_step) -> int:
        """Return the fee of the next `seconds`, nAVAX, at most 2^64 - 1. Raises ValueError beyond the horizon."""
        if seconds > HORIZON_S:
            raise ValueError(f"expected at most {HORIZON_S} seconds, got {seconds}")
        half = seconds // 2
        with self._lock:
            if self._slope > 0 and self._price_at(half + 1) * (seconds - half) >= _MOST:
                return _MOST
            while self._end_s < seconds and self._total <= _MOST:
                self._extend()
                step()
            if self._end_s <= seconds:
                return min(_MOST, self._total)
            piece = bisect_right(self._starts, seconds) - 1
            start, cost, price = self._starts[piece], self._costs[piece], self._prices[piece]
            if price is not None:
                return min(_MOST, cost + price * (seconds - start))
            return min(_MOST, cost + sum(self._block_prices(start, self._length_of(piece))[: seconds - start]))

    def seconds_covered(self, balance: int, step: Callable[[], None] = no_step) -> int | None:
        """Return the seconds that a balance of at most 2^64 - 1 nAVAX pays for; None for longer than ten years.

        A block of exactly that second deactivates the validator: at once if nothing is left, otherwise behind its
        transactions, as the rest does not pay for another second. An earlier block does not.
        """
        step()
        with self._lock:
            while self._total <= balance:
                if self._end_s >= HORIZON_S:
                    return None
                self._extend()
                step()
            piece = bisect_right(self._costs, balance) - 1
            start, rest, price = self._starts[piece], balance - self._costs[piece], self._prices[piece]
            if price is not None:
                return start + rest // price
            if self._last_block[0] != piece:
                self._last_block = piece, list(accumulate(self._block_prices(start, self._length_of(piece))))
            return start + bisect_right(self._last_block[1], rest)

    def _extend(self) -> None:
        """Add a piece behind the end."""
        start, most = self._end_s, HORIZON_S - self._end_s
        if self._excess_at(start + 1) == self._excess_at(HORIZON_S):
            self._add_stretch(most, self._price_at(start + 1))
            return
        if self._exact_steps_left <= 0:
            seconds = min(most, max(1, self.config.excess_conversion // (_COARSE_PARTS * abs(self._slope))))
            self._add_stretch(seconds, self._bound_price(start + seconds if self._slope > 0 else start + 1))
            return
        terms_before = self._computed_terms
        first = self._scaled_at(start + 1)
        price = first // self.config.excess_conversion
        if most > _STRETCH_S and self._price_at(start + _STRETCH_S) == price:
            self._add_stretch(self._find_stretch(price, most), price)
        else:
            self._add_block(min(most, 3 * self._choose_step(first)))
        self._exact_steps_left -= self._computed_terms - terms_before

    def _add_stretch(self, seconds: int, price: int) -> None:
        self._add(seconds, price, seconds * price)

    def _add_block(self, seconds: int) -> None:
        sums = list(accumulate(self._block_prices(self._end_s, seconds)))
        self._exact_steps_left -= seconds
        # The caller extends the curve up to the block that it searches.
        self._last_block = len(self._starts), sums
        self._add(seconds, None, sums[-1])

    def _add(self, seconds: int, price: int | None, cost: int) -> None:
        self._starts.append(self._end_s)
        self._costs.append(self._total)
        self._prices.append(price)
        self._end_s += seconds
        self._total += cost

    def _length_of(self, piece: int) -> int:
        ends = self._starts[piece + 1] if piece + 1 < len(self._starts) else self._end_s
        return ends - self._starts[piece]

    @property
    def _slope(self) -> int:
        return self.active - self.config.target

    def _excess_at(self, second: int) -> int:
        return advance_excess(self.config, self.active, self.excess, second)

    def _price_at(self, second: int) -> int:
        """Return the price of a second; the first is number 1."""
        return self._scaled_at(second) // self.config.excess_conversion

    def _scaled_at(self, second: int) -> int:
        excess = self._excess_at(second)
        powers = min(_LARGEST_POWER, excess // self.config.excess_conversion)
        self._computed_terms += _LEAST_TERMS + _TERMS_PER_POWER * powers
        return scaled_l1_fee_price(self.config, excess)

    def _bound_price(self, second: int) -> int:
        """Return the price of a second or a little more, without the series."""
        power = self._excess_at(second) / self.config.excess_conversion
        if power >= _LARGEST_POWER:
            return _MOST if self.config.min_price else 0
        return min(_MOST, int(self.config.min_price * exp(power) * _FLOAT_MARGIN))

    def _find_stretch(self, price: int, most: int) -> int:
        """Return for how long the price stays, at most `most`: a search that begins at the length of the last one."""
        start = self._end_s
        # The price is the same up to low, and not at high.
        low, high, step = _STRETCH_S, most + 1, 1
        probe = min(max(self._last_stretch_s, low), most)
        if self._price_at(start + probe) == price:
            low = probe
            while low + step < high and self._price_at(start + low + step) == price:
                low, step = low + step, 2 * step
            high = min(high, low + step)
        else:
            high = probe
            while high - step > low and self._price_at(start + high - step) != price:
                high, step = high - step, 2 * step
            low = max(low, high - step)
        while high - low > 1:
            middle = (low + high) // 2
            if self._price_at(start + middle) == price:
                low = middle
            else:
                high = middle
        self._last_stretch_s = low
        return low

    def _choose_step(self, first: int) -> int:
        """Return seconds between the four prices of the next block: as many as leave few prices uncertain.

        first: the first scaled price of the block.
        """
        start, highest = self._end_s, first
        step = min(_LONGEST_STEP_S, 2 * self._last_step_s)
        while step > 1:
            highest = max(first, self._scaled_at(start + 1 + 3 * step))
            if self._curvature(highest, step) <= self.config.excess_conversion // _CERTAIN_PARTS:
                break
            step //= 2
        self._last_step_s = step
        if self._spread(start, step, highest) is None:
            return min(step, _SHORT_BLOCK_S // 3)
        return step

    def _curvature(self, highest: int, step: int) -> int:
        """Return a bound of the distance between unrounded scaled prices and the cubic; see `_spread`."""
        span = abs(step * self._slope)
        return highest * span**4 // (23 * self.config.excess_conversion**4) + 1

    def _spread(self, start: int, step: int, highest: int) -> int | None:
        """Return a bound of the difference between the scaled price and the cubic; None if no cubic fits.

        highest: the highest scaled price of the block.

        Without rounding, the scaled price is F = min_price * K * e^y with y = excess / K, and a cubic through four
        points in steps of h seconds differs from it by at most F * (h * slope / K)^4 / 24. The series loses less than 1
        with each term but the first two, and the loss of term j grows in the later ones to at most the sum over k of
        y^k (j-1)! / (j-1+k)!. Together that is less than 700 + e^y * min(1, 8 / y^2), for less than 400 terms and y
        below 45. It counts thrice: once in the price, and up to 1.64 times in the cubic.
        """
        config = self.config
        divisor = config.excess_conversion
        scale = config.min_price * divisor
        ends = (self.excess + self._slope * (start + 1), self.excess + self._slope * (start + 1 + 3 * step))
        if scale < 2**10 or min(ends) < 0 or max(ends) > _MOST:
            return None
        if highest >= divisor * _MOST:
            return None
        loss = (highest + _LOST_AT_MOST) * 513 // 512 // scale + 1
        if max(ends) ** 2 > 8 * divisor**2:
            loss = loss * 8 * divisor**2 // max(ends) ** 2 + 1
        spread = self._curvature(highest, step) + 3 * (loss + _LOST_AT_MOST)
        return spread if 4 * spread <= divisor else None

    def _block_prices(self, start: int, seconds: int) -> list[int]:
        """Return the prices of the seconds start + 1 to start + seconds."""
        step, spread = seconds // 3, None
        if seconds == 3 * step and step > 1:
            points = [self._scaled_at(start + 1 + place * step) for place in range(4)]
            spread = self._spread(start, step, max(points[0], points[3]))
        if spread is None:
            return [self._price_at(second) for second in range(start + 1, start + seconds + 1)]
        scale, divisor = 6 * step**3, self.config.excess_conversion
        values = islice(_cubic(points, step), seconds)
        spread, divisor = spread * scale, divisor * scale
        highest_rest = divisor - spread
        prices: list[int] = []
        for value in values:
            price, rest = divmod(value, divisor)
            if not spread <= rest < highest_rest:
                price = self._price_at(start + 1 + len(prices))
            prices.append(price)
        return prices


@lru_cache(_SHARED_CURVES)
def share_fee_curve(config: L1FeeConfig, active: int, excess: int) -> FeeCurve:
    """Return the curve, the same for equal arguments: forecasts of several subnets at one fee state grow it once."""
    return FeeCurve(config, active, excess)


def _cubic(points: list[int], step: int) -> accumulate[int]:
    """Yield 6 * step^3 times the cubic through four points that lie `step` apart, at 0, 1, 2 and so on."""
    first, second, third, fourth = points
    rise, bend, twist = second - first, third - 2 * second + first, fourth - 3 * third + 3 * second - first

    def value(place: int) -> int:
        to_second, to_third = place * (place - step), place * (place - step) * (place - 2 * step)
        return 6 * step**3 * first + 6 * step**2 * rise * place + 3 * step * bend * to_second + twist * to_third

    differences = [value(place) for place in range(4)]
    for order in range(1, 4):
        for place in range(3, order - 1, -1):
            differences[place] -= differences[place - 1]
    bends = accumulate(repeat(differences[3]), initial=differences[2])
    rises = accumulate(bends, initial=differences[1])
    return accumulate(rises, initial=differences[0])
