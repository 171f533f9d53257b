"""Fixtures of forecasts: a service over a loopback node, and L1s that a test makes up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pytest

from tests.node.recorded_node import L1, RecordedNode, recorded_result
from tests.validators.fixtures import Clock, ValidatorServices, started_services
from warpseal.ledger.chain_time import l1_fee_price
from warpseal.ledger.params import L1FeeConfig
from warpseal.validators.forecast import fee_curve
from warpseal.validators.forecast.service import ForecastReader, ForecastService
from warpseal.warp.ids import NodeID, id_text, node_id_text

STATE = "platform.getValidatorFeeState"
CONFIG = "platform.getValidatorFeeConfig"
CURRENT = "platform.getCurrentValidators"
AT = 1_795_226_807
# With a capacity at which the price stays.
FUJI_FEE = {
    "capacity": 10_000,
    "target": 10_000,
    "minPrice": 512,
    "excessConversionConstant": 51_937_021,
}
AT_MINIMUM = {"excess": 0, "price": 512, "timestamp": "2026-11-21T02:06:47Z"}
# Steps of one fee curve. A logarithm takes less than 1 us, a term of a price 0.1 us.
MOST_STRETCHES = 39_000
MOST_TERMS = 100_000
RECORDED = recorded_result(CURRENT, subnetID=id_text(L1))["validators"]


@dataclass
class Observed:
    """The nodes that a test lets the daemon observe, and whether it tracks their subnet.

    connecting: the nodes that may connect in a moment.
    """

    connected: dict[NodeID, bool] = field(default_factory=dict)
    is_tracked: bool = True
    connecting: frozenset[NodeID] = frozenset()
    since: list[float] = field(default_factory=list)

    async def connected_since(
        self, node_ids: Iterable[NodeID], since_unix_s: float
    ) -> Mapping[NodeID, bool]:
        self.since.append(since_unix_s)
        return {
            node_id: self.connected[node_id] for node_id in node_ids if node_id in self.connected
        }


@dataclass
class Steps:
    """The steps that fee curves took.

    stretches: stretches of seconds, each of which takes a logarithm.
    terms: terms of the prices that curves summed as nodes do.
    """

    stretches: int = 0
    terms: int = 0


@contextmanager
def counted_steps() -> Iterator[Steps]:
    """Count the steps of fee curves."""
    steps = Steps()

    def count_stretch(config: L1FeeConfig, price: int) -> float:
        steps.stretches += 1
        return find_excess(config, price)

    def count_terms(config: L1FeeConfig, excess: int) -> int:
        steps.terms += number_of_terms(config, excess)
        return l1_fee_price(config, excess)

    find_excess = fee_curve._excess_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fee_curve, "_excess_of", count_stretch)
        patch.setattr(fee_curve, "l1_fee_price", count_terms)
        yield steps


def number_of_terms(config: L1FeeConfig, excess: int) -> int:
    """Return how many terms of min_price * e^(excess / K) count, as nodes sum them."""
    number, total, term = 0, 0, config.min_price * config.excess_conversion
    most = config.excess_conversion * (2**64 - 1)
    while term and total < most:
        number += 1
        total += term
        term = term * excess // config.excess_conversion // number
    return number


@asynccontextmanager
async def forecasting(
    node: RecordedNode,
    observed: Observed | None = None,
    clock: Clock | None = None,
    executor: Executor | None = None,
    **settings: Any,
) -> AsyncIterator[ForecastService]:
    observed, clock = observed or Observed(), clock or Clock()
    async with started_services(node, **settings) as services:
        await services.heights.poll()
        yield build_service(services, observed, clock, executor)


def build_service(
    services: ValidatorServices,
    observed: Observed,
    clock: Clock,
    executor: Executor | None = None,
    **timing: Any,
) -> ForecastService:
    return ForecastService(
        ForecastReader(services.upstream.platform, lambda: None),
        services.chains,
        services.heights,
        services.sets,
        observed.connected_since,
        lambda node_id, _: observed.is_tracked and node_id not in observed.connecting,
        services.settings,
        executor=executor,
        unix_clock=lambda: AT + 0.5,
        now=clock,
        **timing,
    )


@dataclass
class BusyTime:
    """A clock that moves only while the background rests, and while a forecast is computed, for
    `computing_s` each.

    starts: the time at which each computation began.
    """

    computing_s: float
    clock: Clock = field(default_factory=Clock)
    starts: list[float] = field(default_factory=list)
    rests: list[tuple[float, asyncio.Future[None]]] = field(default_factory=list)
    _is_computing: bool = False

    def cpu_clock(self) -> float:
        """Return the CPU time, first at the beginning of a computation, then at its end."""
        if self._is_computing:
            self.clock.now += self.computing_s
        else:
            self.starts.append(self.clock.now)
        self._is_computing = not self._is_computing
        return self.clock.now

    async def sleep(self, seconds: float) -> None:
        """Rest until `end_rest` ends it."""
        rest = self.clock.now + seconds, asyncio.get_running_loop().create_future()
        self.rests.append(rest)
        await rest[1]

    def end_rest(self) -> None:
        """Let the time pass until the end of the shortest rest."""
        shortest = min(self.rests, key=itemgetter(0))
        self.rests.remove(shortest)
        ends_at, ended = shortest
        self.clock.now = max(self.clock.now, ends_at)
        ended.set_result(None)


def l1_node(*validators: dict[str, Any], **replies: Any) -> RecordedNode:
    """Return a node with the fee of Fuji and these validators, as changes of a recorded one."""
    listed = {"validators": [{**RECORDED[1], **change} for change in validators]}
    return RecordedNode({CONFIG: FUJI_FEE, STATE: AT_MINIMUM, CURRENT: listed, **replies})


def ids_of(number: int) -> dict[str, str]:
    """Return the ids of a made-up validator."""
    return {
        "nodeID": node_id_text(NodeID(number.to_bytes(20, "big"))),
        "validationID": id_text(number.to_bytes(32, "big")),
    }
