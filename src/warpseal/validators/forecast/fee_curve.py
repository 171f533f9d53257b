"""The fee of one active L1 validator from now on, while the number of active validators stays the
same.

Pure.

Source of truth: `ledger/chain_time.py`, avalanchego `vms/platformvm/validators/fee/fee.go`. The
excess moves by a constant each second, so that the price only rises or only falls. The curve sums
it over stretches of equal price, whose ends are found by bisection, and, while the price changes
every few seconds, over blocks of seconds. In a block, a cubic through four prices gives the others,
with a bound of its error; the seconds at which the bound leaves two prices are computed one by one.
The sums therefore equal the P-Chain's exactly. The parameters are those of a node, which may lie: a
forecast takes a number of exact steps, behind which the curve is coarse. The next forecast of the
same curve goes on there.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, islice, repeat
from math import exp, expm1
from typing import Final

from warpseal.ledger.chain_time import advance_excess, l1_fee_price, scaled_l1_fee_price
from warpseal.ledger.params import DAY_S, L1FeeConfig

HORIZON_S: Final = 3_652 * DAY_S
"""Ten years: the curve ends there."""

_MOST: Final = 2**64 - 1
# A price that lasts this long is a stretch of its own.
_STRETCH_S: Final = 64
_LONGEST_STEP_S: Final = 1_024
# Steps before the curve becomes coarse, in all and in one forecast: terms of the series of prices,
# and seconds of blocks, which take as long.
_EXACT_STEPS: Final = 7_000_000
_FORECAST_STEPS: Final = 50_000
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
_COARSE_PARTS: Final = 512
# Coarse stretches that are added together.
_COARSE_STRETCHES: Final = 256
# Spreads in 1 nAVAX of a block: few of its prices are computed.
_LEAST_SPREADS: Final = 16
# In a block, the cubic may miss a price by about this part of 1 nAVAX.
_CERTAIN_PARTS: Final = 500
# The loss by rounding of the last terms of the series; see `_spread`.
_LOST_AT_MOST: Final = 700
# The curves of the present fee state and of the previous one.
_SHARED_CURVES: Final = 4


def no_step() -> None:
    """Go on: the step of a computation that is not throttled."""


class FeeCurve:
    """The fee of an active validator, with `active` validators of all L1s from now on, and `excess`
    now.

    Exact for thirty days at the capacity of mainnet, and for as many steps with any parameters, of
    which each forecast takes some. Beyond them a fee is too high by a thousandth, or 1 nAVAX a
    second, at most, and never too low. The curve grows as far as it is asked for. Threads may share
    it. `step` of a method is called after each small part; if it raises, the curve stays whole.
    Raises ValueError if the excess conversion is not positive.
    """

    def __init__(self, config: L1FeeConfig, active: int, excess: int) -> None:
        if config.excess_conversion < 1:
            raise ValueError(
                f"expected a positive excess conversion, got {config.excess_conversion}"
            )
        self.config = config
        self.active = active
        self.excess = excess
        # Pieces: the second at which each one begins, the fee until then, and its price; None if
        # the price changes.
        self._starts: list[int] = []
        self._costs: list[int] = []
        self._prices: list[int | None] = []
        self._end_s = 0
        self._total = 0
        self._last_stretch_s = _STRETCH_S
        self._last_step_s = 1
        self._exact_steps_left = _EXACT_STEPS
        self._forecast_steps_left = _MOST
        # Exact pieces, their end and their fee, once coarse ones follow.
        self._exact_part: tuple[int, int, int] | None = None
        # The block that was added or searched last, and the sums of its prices: balances come in
        # order.
        self._last_block: tuple[int, list[int]] = -1, []
        self._lock = threading.Lock()

    @property
    def price(self) -> int:
        """The price now, nAVAX a second."""
        return l1_fee_price(self.config, self.excess)

    def begin_forecast(self) -> None:
        """Limit the steps to those of one more forecast, and drop the coarse pieces that exact ones
        may replace.
        """
        with self._lock:
            self._forecast_steps_left = _FORECAST_STEPS
            if self._exact_part is not None and self._exact_steps_left > 0:
                pieces, self._end_s, self._total = self._exact_part
                del self._starts[pieces:], self._costs[pieces:], self._prices[pieces:]
                self._exact_part = None

    def cost(self, seconds: int, step: Callable[[], None] = no_step) -> int:
        """Return the fee of the next `seconds`, nAVAX, at most 2^64 - 1.

        Raises ValueError beyond the horizon.
        """
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
            if price is None and seconds > start:
                sums = self._block_sums(piece)
                if sums is not None:
                    return min(_MOST, cost + sums[seconds - start - 1])
                return min(_MOST, cost + self._bound_sum(piece, seconds - start))
            # A price that stands for others is never too low; their fee until the end may be less
            # than its product.
            return min(_MOST, self._cost_at_end(piece), cost + (price or 0) * (seconds - start))

    def seconds_covered(self, balance: int, step: Callable[[], None] = no_step) -> int | None:
        """Return the seconds that a balance of at most 2^64 - 1 nAVAX pays for; None for longer
        than ten years.

        A block of exactly that second deactivates the validator: at once if nothing is left,
        otherwise behind its transactions, as the rest does not pay for another second. An earlier
        block does not.
        """
        step()
        with self._lock:
            while self._total <= balance:
                if self._end_s >= HORIZON_S:
                    return None
                self._extend()
                step()
            piece = bisect_right(self._costs, balance) - 1
            start, rest, price = (
                self._starts[piece],
                balance - self._costs[piece],
                self._prices[piece],
            )
            if price is not None:
                return start + rest // price
            sums = self._block_sums(piece)
            if sums is not None:
                return start + bisect_right(sums, rest)
            seconds = range(1, self._length_of(piece) + 1)
            return start + bisect_right(
                seconds, rest, key=lambda second: self._bound_sum(piece, second)
            )

    def _extend(self) -> None:
        """Add a piece behind the end."""
        start, most = self._end_s, HORIZON_S - self._end_s
        if self._excess_at(start + 1) == self._excess_at(HORIZON_S):
            self._add_stretch(most, self._price_at(start + 1))
            return
        if self._exact_steps_left <= 0 or self._forecast_steps_left <= 0:
            self._add_coarse_stretches()
            return
        steps_before = self._forecast_steps_left
        first = self._scaled_at(start + 1)
        price = first // self.config.excess_conversion
        if most > _STRETCH_S and self._price_at(start + _STRETCH_S) == price:
            self._add_stretch(self._find_stretch(price, most), price)
        else:
            self._add_block(min(most, 3 * self._choose_step(first)))
        self._exact_steps_left -= steps_before - self._forecast_steps_left

    def _add_stretch(self, seconds: int, price: int) -> None:
        self._add(seconds, price, seconds * price)

    def _add_block(self, seconds: int) -> None:
        sums = list(accumulate(self._block_prices(self._end_s, seconds)))
        # The caller extends the curve up to the block that it searches.
        self._last_block = len(self._starts), sums
        self._add(seconds, None, sums[-1])

    def _add_coarse_stretches(self) -> None:
        """Add stretches with the mean price if it rises, with the first if it falls, and the
        trapezoid as their fee.

        The price is convex, so that its sum is at most the trapezoid's. Hostile parameters take
        tens of thousands of stretches: the loop is tight.
        """
        if self._exact_part is None:
            self._exact_part = len(self._starts), self._end_s, self._total
        slope, divisor, min_price = (
            self._slope,
            self.config.excess_conversion,
            self.config.min_price,
        )
        length = max(1, divisor // (_COARSE_PARTS * abs(slope)))
        starts, costs, prices, end_s, total = (
            self._starts,
            self._costs,
            self._prices,
            self._end_s,
            self._total,
        )
        most_excess = min(_MOST, divisor * _LARGEST_POWER)
        count = 0
        while count < _COARSE_STRETCHES and end_s + length <= HORIZON_S and total <= _MOST:
            first, last = self.excess + slope * (end_s + 1), self.excess + slope * (end_s + length)
            if min(first, last) < 0 or max(first, last) > most_excess:
                break
            first_price = min_price * exp(first / divisor) * _FLOAT_MARGIN
            last_price = min_price * exp(last / divisor) * _FLOAT_MARGIN
            mean = (first_price + last_price) / 2
            price = int(min(mean + 1, last_price) if slope > 0 else first_price)
            starts.append(end_s)
            costs.append(total)
            prices.append(price)
            end_s += length
            total += min(length * price, int(length * mean))
            count += 1
        self._end_s, self._total = end_s, total
        if not count:
            # The last stretch before the horizon, or before the largest or the least price.
            seconds = min(length, HORIZON_S - end_s)
            self._add_stretch(
                seconds, self._bound_price(end_s + seconds if slope > 0 else end_s + 1)
            )

    def _add(self, seconds: int, price: int | None, cost: int) -> None:
        self._starts.append(self._end_s)
        self._costs.append(self._total)
        self._prices.append(price)
        self._end_s += seconds
        self._total += cost

    def _length_of(self, piece: int) -> int:
        ends = self._starts[piece + 1] if piece + 1 < len(self._starts) else self._end_s
        return ends - self._starts[piece]

    def _cost_at_end(self, piece: int) -> int:
        return self._costs[piece + 1] if piece + 1 < len(self._costs) else self._total

    def _bound_sum(self, piece: int, seconds: int) -> int:
        """Return the sum of the first prices of a block or a little more: that of the unrounded
        ones.
        """
        start, divisor = self._starts[piece], self.config.excess_conversion
        rate = self._slope / divisor
        highest = self._bound_price(start + (seconds if self._slope > 0 else 1))
        bound = min(seconds * highest, self._cost_at_end(piece) - self._costs[piece])
        first, last = (
            self.excess + self._slope * (start + second) for second in (1, self._length_of(piece))
        )
        if min(first, last) < 0 or max(first, last) >= _LARGEST_POWER * divisor:
            return bound
        price = self.config.min_price * exp(first / divisor) * _FLOAT_MARGIN
        return min(bound, int(price * expm1(rate * seconds) / expm1(rate)))

    def _block_sums(self, piece: int) -> list[int] | None:
        """Return the sums of the prices of a block; None if this forecast may take no more steps."""
        if self._last_block[0] != piece:
            if self._forecast_steps_left <= 0:
                return None
            prices = self._block_prices(self._starts[piece], self._length_of(piece))
            self._last_block = piece, list(accumulate(prices))
        return self._last_block[1]

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
        self._forecast_steps_left -= _LEAST_TERMS + _TERMS_PER_POWER * powers
        return scaled_l1_fee_price(self.config, excess)

    def _bound_price(self, second: int) -> int:
        """Return the price of a second or a little more, without the series."""
        power = self._excess_at(second) / self.config.excess_conversion
        if power >= _LARGEST_POWER:
            return _MOST if self.config.min_price else 0
        return min(_MOST, int(self.config.min_price * exp(power) * _FLOAT_MARGIN))

    def _find_stretch(self, price: int, most: int) -> int:
        """Return for how long the price stays, at most `most`: a search that begins at the length
        of the last one.
        """
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
        """Return seconds between the four prices of the next block: as many as leave few prices
        uncertain.

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
        """Return a bound of the distance between unrounded scaled prices and the cubic; see
        `_spread`.
        """
        span = abs(step * self._slope)
        return highest * span**4 // (23 * self.config.excess_conversion**4) + 1

    def _spread(self, start: int, step: int, highest: int) -> int | None:
        """Return a bound of the difference between the scaled price and the cubic; None if no cubic
        fits.

        highest: the highest scaled price of the block.

        Without rounding, the scaled price is F = min_price * K * e^y with y = excess / K, and a
        cubic through four points in steps of h seconds differs from it by at most F * (h * slope /
        K)^4 / 24. The series loses less than 1 with each term but the first two, and the loss of
        term j grows in the later ones to at most the sum over k of y^k (j-1)! / (j-1+k)!. Together
        that is less than 700 + e^y * min(1, 8 / y^2), for less than 400 terms and y below 45. It
        counts thrice: once in the price, and up to 1.64 times in the cubic.
        """
        config = self.config
        divisor = config.excess_conversion
        scale = config.min_price * divisor
        ends = (
            self.excess + self._slope * (start + 1),
            self.excess + self._slope * (start + 1 + 3 * step),
        )
        if scale < 2**10 or min(ends) < 0 or max(ends) > _MOST:
            return None
        if highest >= divisor * _MOST:
            return None
        loss = (highest + _LOST_AT_MOST) * 513 // 512 // scale + 1
        if max(ends) ** 2 > 8 * divisor**2:
            loss = loss * 8 * divisor**2 // max(ends) ** 2 + 1
        spread = self._curvature(highest, step) + 3 * (loss + _LOST_AT_MOST)
        return spread if _LEAST_SPREADS * spread <= divisor else None

    def _block_prices(self, start: int, seconds: int) -> list[int]:
        """Return the prices of the seconds start + 1 to start + seconds."""
        self._forecast_steps_left -= seconds
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


def share_fee_curve(config: L1FeeConfig, active: int, excess: int) -> FeeCurve:
    """Return the curve for a forecast, the same one for equal arguments: forecasts at one fee state
    grow it.
    """
    curve = _cached_curve(config, active, excess)
    curve.begin_forecast()
    return curve


_cached_curve = lru_cache(_SHARED_CURVES)(FeeCurve)


def _cubic(points: list[int], step: int) -> accumulate[int]:
    """Yield 6 * step^3 times the cubic through four points that lie `step` apart, at 0, 1, 2 and so
    on.
    """
    first, second, third, fourth = points
    rise, bend, twist = (
        second - first,
        third - 2 * second + first,
        fourth - 3 * third + 3 * second - first,
    )

    def value(place: int) -> int:
        to_second, to_third = place * (place - step), place * (place - step) * (place - 2 * step)
        return (
            6 * step**3 * first
            + 6 * step**2 * rise * place
            + 3 * step * bend * to_second
            + twist * to_third
        )

    differences = [value(place) for place in range(4)]
    for order in range(1, 4):
        for place in range(3, order - 1, -1):
            differences[place] -= differences[place - 1]
    bends = accumulate(repeat(differences[3]), initial=differences[2])
    rises = accumulate(bends, initial=differences[1])
    return accumulate(rises, initial=differences[0])
