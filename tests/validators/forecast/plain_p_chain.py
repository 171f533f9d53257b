"""The P-Chain's L1 validators second by second: a block a second, a sum, no shortcuts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from warpseal.ledger.params import L1FeeConfig
from warpseal.validators.forecast.fee_curve import FeeCurve


@cache
def plain_price(config: L1FeeConfig, excess: int) -> int:
    """Return min_price * e^(excess / K), the sum of EIP-4844's `fake_exponential`."""
    step, output = 1, 0
    accumulator = config.min_price * config.excess_conversion
    while accumulator > 0:
        output += accumulator
        if output >= config.excess_conversion * 2**64:
            break
        accumulator = (accumulator * excess) // (config.excess_conversion * step)
        step += 1
    return min(2**64 - 1, output // config.excess_conversion)


def plain_prices(config: L1FeeConfig, active: int, excess: int) -> Iterator[int]:
    """Yield the price of every second from now on."""
    while True:
        if active > config.target:
            excess = min(2**64 - 1, excess + (active - config.target))
        else:
            excess = max(0, excess - (config.target - active))
        yield plain_price(config, excess)


class PlainFeeCurve(FeeCurve):
    """The fee of an active validator by plain sums, which takes a price above 0."""

    def __init__(self, config: L1FeeConfig, active: int, excess: int) -> None:
        self._unsummed = plain_prices(config, active, excess)
        self._sums = [0]

    def cost(self, seconds: int) -> int:
        while len(self._sums) <= seconds:
            self._sums.append(self._sums[-1] + next(self._unsummed))
        return min(2**64 - 1, self._sums[seconds])

    def seconds_covered(self, balance: int) -> int:
        while self._sums[-1] <= balance:
            self._sums.append(self._sums[-1] + next(self._unsummed))
        return bisect_right(self._sums, balance) - 1


@dataclass(frozen=True)
class PlainRun:
    """A run of validators.

    deactivated_after: seconds after which each validator was deactivated.
    paid: fees that each validator paid until then.
    left: rest of its balance.
    """

    deactivated_after: Mapping[bytes, int]
    paid: Mapping[bytes, int]
    left: Mapping[bytes, int]


def run_plainly(
    config: L1FeeConfig, active: int, excess: int, balances: Mapping[bytes, int], seconds: int
) -> PlainRun:
    """Run a block at each second from 0 to `seconds`.

    active: active validators of the network, whose number stays.
    balances: balances of the validators, by any key.
    """
    prices = plain_prices(config, active, excess)
    left = dict(balances)
    paid = dict.fromkeys(balances, 0)
    deactivated_after: dict[bytes, int] = {}
    paying = {key for key, balance in balances.items() if balance > 0}
    price_of_next = next(prices)
    for second in range(seconds + 1):
        if second:
            for key in paying:
                paid[key] += price_of_next
                left[key] -= price_of_next
            price_of_next = next(prices)
        # Time passed: nothing is left. Behind the transactions: the rest does not pay for another
        # second.
        gone = {key for key in paying if left[key] <= 0 or left[key] < price_of_next}
        deactivated_after |= dict.fromkeys(gone, second)
        paying -= gone
    return PlainRun(deactivated_after, paid, left)
