"""The fee that active L1 validators pay each second, and the sum that they have paid.

Source of truth: ACP-77, avalanchego `vms/platformvm/validators/fee/fee.go`,
`vms/components/gas/gas.go`. Prices and fees are in nAVAX.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final

from warpseal_simnet.ledger import Heights


@dataclass(frozen=True, slots=True)
class FeeConfig:
    """The parameters of a network; the defaults are the parameters of local networks.

    target: the number of active validators beyond which the price rises from `min_price`.
    """

    min_price: int = 1
    excess_conversion: int = 865_617
    target: int = 10_000
    capacity: int = 20_000

    def price(self, excess: int) -> int:
        """Return the fee of one second, min_price * e^(excess / excess_conversion).

        The series is summed in integers, as nodes do.
        """
        step, total, term = 1, 0, self.min_price * self.excess_conversion
        while term:
            total += term
            term = term * excess // (self.excess_conversion * step)
            step += 1
        return total // self.excess_conversion


_PUBLIC: Final = {1: FeeConfig(512, 1_246_488_515), 5: FeeConfig(512, 51_937_021)}


def fee_config(network_id: int) -> FeeConfig:
    """Return the parameters of a network."""
    return _PUBLIC.get(network_id, FeeConfig())


@dataclass(frozen=True, slots=True)
class FeeState:
    """The state of the fees at a time.

    accrued: the sum that a validator has paid which was active since the start of the fees.
    active: the number of validators that pay.
    """

    accrued: int = 0
    excess: int = 0
    active: int = 0

    def after(self, config: FeeConfig, seconds: int) -> FeeState:
        """Return the state after some seconds, in which no validator becomes active or inactive."""
        surplus = self.active - config.target
        if not self.excess and surplus <= 0:
            return replace(self, accrued=self.accrued + seconds * config.min_price)
        accrued, excess, stretch = self.accrued, self.excess, 1
        while seconds > 0:
            stretch = min(stretch, seconds)
            price = config.price(max(0, excess + surplus))
            # The price never turns: if it is the same in the first and the last second, it is the
            # same in between.
            while stretch > 1 and config.price(max(0, excess + stretch * surplus)) != price:
                stretch //= 2
            accrued += stretch * price
            excess = max(0, excess + stretch * surplus)
            seconds -= stretch
            stretch *= 2
        return FeeState(accrued, excess, self.active)


class FeeHistory:
    """The fee state after every block since the start of the fees.

    Blocks between recorded ones only let time pass.
    """

    def __init__(self, config: FeeConfig, heights: Heights) -> None:
        self.config = config
        self._heights = heights
        self._recorded_at: list[int] = []
        self._states: list[FeeState] = []

    def record(self, height: int, active: int) -> None:
        """Record the number of active validators after a block.

        The fees start with the first recorded block.
        """
        state = self.at(height)
        if self._recorded_at and self._recorded_at[-1] == height:
            del self._recorded_at[-1], self._states[-1]
        self._recorded_at.append(height)
        self._states.append(replace(state, active=active))

    def at(self, height: int) -> FeeState:
        """Return the state after the block at `height`."""
        place = bisect_right(self._recorded_at, height) - 1
        if place < 0:
            return FeeState()
        return self._after(place, self._heights.time_of(height))

    def at_time(self, unix_s: int) -> FeeState:
        """Return the state when the time of the next block is reached."""
        return self._after(-1, unix_s) if self._states else FeeState()

    def _after(self, place: int, unix_s: int) -> FeeState:
        return self._states[place].after(
            self.config, unix_s - self._heights.time_of(self._recorded_at[place])
        )
