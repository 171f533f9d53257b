"""Validators of a simulated L1 run dry in the very blocks that the forecast names, in every regime
of the fee.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.node.recorded_node import RecordedNode, build_settings, connect
from tests.simnet.sessions import Clock, small_network
from tests.validators.fixtures import Clock as MonotonicClock
from tests.validators.fixtures import ValidatorServices
from tests.validators.forecast.fixtures import Observed, build_service
from warpseal.upstream.node import open_session
from warpseal.validators.forecast.outlook import TOP_UP_S
from warpseal.validators.forecast.service import ActiveSource, ForecastService, SubnetForecast
from warpseal.validators.settings import ValidatorSettings
from warpseal.warp.ids import SubnetID
from warpseal_simnet.fees import FeeConfig
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, parse_rule


@dataclass
class SimulatedL1:
    """An L1 of a simulated network with a clock of the test, and a service that reads it."""

    network: SimulatedNetwork
    clock: Clock
    service: ForecastService
    service_clock: MonotonicClock

    @property
    def subnet_id(self) -> SubnetID:
        return self.network.subnets[1].subnet_id

    async def forecast(self) -> SubnetForecast:
        self.service_clock.now += 60.0
        return await self.service.forecast(self.subnet_id)

    async def forecast_from_slope(self) -> SubnetForecast:
        """Forecast from two readings a second apart, which give the number of active validators."""
        await self.forecast()
        self.build_block(int(self.clock.now) + 1)
        return await self.forecast()

    def build_block(self, unix_s: int) -> None:
        self.clock.now = unix_s
        self.network.advance()

    def active_ids(self) -> set[bytes]:
        return {
            validation.id
            for validation in self.network.state.validations[self.subnet_id]
            if validation.active
        }

    def weights(self) -> tuple[int, int]:
        """Return the weight that can sign by the network's own validator set, and all weight."""
        members = self.network.state.current_set(self.subnet_id)
        signing = sum(member.weight for member in members if member.public_key is not None)
        return signing, sum(member.weight for member in members)


@asynccontextmanager
async def simulated_l1(fees: FeeConfig, *balances: int) -> AsyncIterator[SimulatedL1]:
    """Start an L1 whose validators have these balances."""
    clock, service_clock = Clock(), MonotonicClock()
    rules = tuple(
        parse_rule(f"l1-0/{place}:balance={balance}") for place, balance in enumerate(balances)
    )
    l1s = (
        L1Plan(
            validators=len(balances),
            weights="/".join(str(20 + place) for place in range(len(balances))),
        ),
    )
    network = small_network(clock, messages=0, l1s=l1s, rules=rules, fees=fees, etna_height=20)
    async with network, open_session() as session:
        upstream = connect(session, build_settings(network.node_uri, calls_per_s=10_000))
        services = ValidatorServices(RecordedNode(), upstream, ValidatorSettings())
        yield SimulatedL1(
            network, clock, build_service(services, Observed(), service_clock), service_clock
        )


async def test_validators_run_dry_in_the_forecast_blocks_however_the_fee_moves() -> None:
    fees = FeeConfig(min_price=7, excess_conversion=500, target=3, capacity=6)
    regimes: list[tuple[ActiveSource, int]] = []
    impossible: list[bool] = []
    async with simulated_l1(fees, 3_000, 9_000, 9_000, 30_000, 90_000, 160_000) as l1:
        # The excess grows from 0, which does not show how many validators pay.
        l1.build_block(int(l1.clock.now) + 1)
        while active_before := l1.active_ids():
            forecast = await l1.forecast_from_slope()
            assert forecast.fee is not None
            if forecast.fee.source is ActiveSource.SLOPE:
                assert forecast.fee.active == len(active_before)
            regimes.append((forecast.fee.source, len(active_before)))
            course = forecast.outlook.today
            is_full = len(active_before) == fees.capacity
            assert (course == forecast.outlook.at_capacity) == is_full
            loss = course.losses[0]
            l1.build_block(loss.at_s - 1)
            assert l1.active_ids() == active_before
            l1.build_block(loss.at_s)
            assert l1.active_ids() == active_before - set(loss.ids)
            assert l1.weights() == (loss.active_weight, loss.total_weight)
            signing, total = l1.weights()
            is_possible = 100 * signing >= 67 * total
            assert is_possible == (
                course.quorum_impossible_at_s is None or course.quorum_impossible_at_s > loss.at_s
            )
            impossible.append(not is_possible)
    # Above the target, equal balances in one block, at the target, below it, and at the minimum.
    slope, minimum = ActiveSource.SLOPE, ActiveSource.MINIMUM
    assert regimes == [(slope, 6), (slope, 5), (slope, 3), (slope, 2), (minimum, 1)]
    assert impossible == [False, True, True, True, True]


async def test_top_ups_keep_the_quorum_of_the_l1_for_thirty_days_and_no_second_longer() -> None:
    async with simulated_l1(FeeConfig(min_price=7, target=10), 500, 10**9, 0, 10**9) as l1:
        forecast = await l1.forecast()
        top_ups = forecast.outlook.today.top_ups
        assert top_ups
        for top_up in top_ups:
            l1.network.p_chain.increase_balance(top_up.validation_id, top_up.amount_navax)
        after = await l1.forecast()
        assert after.outlook.as_of_s == forecast.outlook.as_of_s
        assert after.outlook.today.top_ups == ()
        end_s = forecast.outlook.as_of_s + TOP_UP_S
        assert after.outlook.today.quorum_impossible_at_s == end_s + 1
        l1.build_block(end_s)
        signing, total = l1.weights()
        assert 100 * signing >= 67 * total
        l1.build_block(end_s + 1)
        signing, total = l1.weights()
        assert 100 * signing < 67 * total
