"""Forecasts of recorded subnets, on request and in the background, and of faulty nodes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from tests.eventually import until
from tests.node.recorded_node import (
    L1,
    PERMISSIONED,
    RecordedNode,
    RefusedCall,
    node_id,
    recorded_result,
)
from tests.validators.fixtures import Clock, started_services
from tests.validators.forecast.fixtures import (
    AT,
    AT_MINIMUM,
    CONFIG,
    CURRENT,
    FUJI_FEE,
    MOST_STRETCHES,
    MOST_TERMS,
    RECORDED,
    STATE,
    BusyTime,
    Observed,
    build_service,
    counted_steps,
    forecasting,
    ids_of,
    l1_node,
)
from warpseal.api.status.document import utc_text
from warpseal.daemon.forecast import MAX_SERIES, forecast_status, quorum_samples, validator_samples
from warpseal.ledger.chain_time import l1_fee_cost, l1_fee_price
from warpseal.ledger.params import DAY_S, L1FeeConfig
from warpseal.runtime.process import running
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import UnknownSubnet
from warpseal.validators.forecast import service as forecast_service
from warpseal.validators.forecast.service import (
    ActiveSource,
    ForecastReader,
    ForecastService,
    SubnetKind,
)
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text, parse_node_id

TTL_S = 5.0
HEAVY, OTHER_HEAVY = (
    node_id("83a7v34gAYeeF3TAczJJa3mNSZDGSrqVV"),
    node_id("CvXTKynipgz4Z4JubmHGBWqYimuJs8T9H"),
)


async def test_the_recorded_l1_lasts_for_more_than_ten_years() -> None:
    observed = Observed({HEAVY: True, OTHER_HEAVY: False})
    async with forecasting(RecordedNode(), observed) as service:
        forecast = await service.forecast(L1)
    outlook = forecast.outlook
    assert forecast.kind is SubnetKind.L1
    assert forecast.fee is not None
    assert (forecast.fee.state.price, forecast.fee.source) == (1, ActiveSource.MINIMUM)
    assert (outlook.as_of_s, outlook.total_weight, outlook.required_weight) == (
        AT,
        99_024_926,
        66_346_701,
    )
    assert (outlook.active_weight, outlook.answering_weight) == (98_975_463, 49_463_000)
    assert outlook.margin == Fraction(98_975_463 - 66_346_701, 99_024_926)
    assert [row.seconds_left for row in outlook.validators] == [None, None, None, 0]
    assert (outlook.today.losses, outlook.today.quorum_impossible_at_s, outlook.today.top_ups) == (
        (),
        None,
        (),
    )
    assert forecast.is_answering_known
    assert observed.since == [AT + 0.5 - DAY_S]


async def test_a_permissioned_subnet_and_the_primary_network_end_with_their_stakes() -> None:
    async with forecasting(RecordedNode()) as service:
        permissioned, primary = (
            await service.forecast(PERMISSIONED),
            await service.forecast(PRIMARY_NETWORK),
        )
    assert (permissioned.kind, primary.kind) == (SubnetKind.PERMISSIONED, SubnetKind.PRIMARY)
    assert (permissioned.fee, permissioned.outlook.at_capacity) == (None, None)
    (loss,) = permissioned.outlook.today.losses
    assert (loss.at_s, loss.weight_lost, loss.active_weight, loss.total_weight) == (
        1_826_757_159,
        49_463,
        0,
        0,
    )
    assert permissioned.outlook.today.quorum_impossible_at_s == 1_826_757_159
    listed = recorded_result(CURRENT, subnetID=id_text(PRIMARY_NETWORK))["validators"]
    assert primary.outlook.total_weight == sum(
        int(row["weight"]) + int(row["delegatorWeight"]) for row in listed
    )
    assert primary.outlook.active_weight == primary.outlook.total_weight
    assert {row.validator.end_s for row in primary.outlook.validators} == {
        int(row["endTime"]) for row in listed
    }


async def test_a_stake_without_a_key_in_the_validator_set_cannot_sign() -> None:
    keyless = {
        name: {**member, "publicKey": None} for name, member in _set_of(PERMISSIONED).items()
    }
    async with forecasting(RecordedNode({"platform.getValidatorsAt": keyless})) as service:
        outlook = (await service.forecast(PERMISSIONED)).outlook
    assert (outlook.total_weight, outlook.active_weight) == (49_463, 0)
    assert outlook.today.quorum_impossible_at_s == AT


async def test_half_of_the_weight_with_a_tenth_of_an_avax_is_forecast() -> None:
    node = l1_node({**ids_of(1), "balance": "100000000"}, {**ids_of(2), "balance": "99000000000"})
    async with forecasting(node) as service:
        forecast = await service.forecast(L1)
    # At 512 nAVAX a second.
    assert [row.seconds_left for row in forecast.outlook.validators] == [195_312, 193_359_375]
    assert forecast.outlook.today.quorum_impossible_at_s == AT + 195_312
    assert forecast.outlook.today.top_ups is not None
    (top_up,) = forecast.outlook.today.top_ups
    assert (top_up.validation_id, top_up.amount_navax) == (
        (1).to_bytes(32, "big"),
        512 * (30 * DAY_S + 1) - 10**8,
    )
    assert forecast.outlook.at_capacity == forecast.outlook.today
    status = forecast_status(forecast)
    assert (status.quorum_impossible_at, status.first_loss_weight) == (
        "2026-11-23T08:21:59Z",
        "49463000",
    )
    assert [
        (loss.at, loss.node_ids, loss.active_weight, loss.required_weight) for loss in status.losses
    ] == [
        (utc_text(AT + 195_312), [ids_of(1)["nodeID"]], "49463000", "66280420"),
        (utc_text(AT + 193_359_375), [ids_of(2)["nodeID"]], "0", "66280420"),
    ]
    assert [(line.node_id, line.amount) for line in status.top_ups] == [
        (ids_of(1)["nodeID"], "1227104512")
    ]


async def test_with_the_capacity_of_the_network_balances_last_shorter() -> None:
    node = l1_node({**ids_of(1), "balance": "100000000"}, {**ids_of(2), "balance": "0"})
    # The price doubles each minute.
    config = L1FeeConfig(10_000, 512, 865_617, 20_000)
    node.replies[CONFIG] = {
        **FUJI_FEE,
        "capacity": 20_000,
        "excessConversionConstant": config.excess_conversion,
    }
    async with forecasting(node) as service:
        outlook = (await service.forecast(L1)).outlook
    assert outlook.today.losses[0].at_s == AT + 195_312
    assert outlook.at_capacity is not None
    seconds = outlook.at_capacity.losses[0].at_s - AT
    assert (
        l1_fee_cost(config, 20_000, 0, seconds)
        <= 10**8
        < l1_fee_cost(config, 20_000, 0, seconds + 1)
    )


async def test_a_price_that_cannot_be_foreseen_stays_as_it_is() -> None:
    price = 615  # 512 * e^(9524000 / 51937021)
    node = l1_node({**ids_of(1), "balance": str(price * 1_000)})
    node.replies[STATE] = {**AT_MINIMUM, "excess": 9_524_000, "price": price}
    async with forecasting(node) as service:
        forecast = await service.forecast(L1)
    assert forecast.fee is not None
    assert (forecast.fee.source, forecast.fee.active) == (ActiveSource.UNKNOWN, None)
    assert forecast.outlook.validators[0].seconds_left == 1_000


async def is_known(observed: Observed) -> bool:
    """Return whether the forecast of the recorded L1 says which validators answered."""
    async with forecasting(RecordedNode(), observed) as service:
        return (await service.forecast(L1)).is_answering_known


async def test_responses_of_validators_are_unknown_while_a_connection_may_come() -> None:
    assert not await is_known(Observed({HEAVY: True}, connecting=frozenset({OTHER_HEAVY})))
    assert await is_known(
        Observed({HEAVY: True, OTHER_HEAVY: False}, connecting=frozenset({OTHER_HEAVY}))
    )
    inactive = next(parse_node_id(row["nodeID"]) for row in RECORDED if row["balance"] == "0")
    assert await is_known(Observed({HEAVY: True}, connecting=frozenset({inactive})))


async def test_responses_of_validators_of_an_untracked_subnet_are_unknown() -> None:
    third = node_id("3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK")
    some, everyone = {HEAVY: True}, {HEAVY: True, OTHER_HEAVY: False, third: True}
    assert await is_known(Observed(some))
    assert not await is_known(Observed(some, is_tracked=False))
    assert await is_known(Observed(everyone, is_tracked=False))
    assert not await is_known(Observed())


async def test_callers_share_one_reading_for_a_few_seconds() -> None:
    node, clock = RecordedNode(), Clock()
    async with forecasting(node, clock=clock) as service:
        forecasts = await asyncio.gather(*(service.forecast(L1) for _ in range(5)))
        assert len(set(map(id, forecasts))) == 1
        clock.now += TTL_S - 0.1
        assert await service.forecast(L1) is forecasts[0]
        assert node.calls[CURRENT] == 1
        clock.now += 0.2
        assert await service.forecast(L1) is not forecasts[0]
        assert node.calls[CURRENT] == 2


async def test_forecasts_are_computed_one_at_a_time_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute, threads = forecast_service._outlook, []

    def computed(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return compute(*arguments)

    monkeypatch.setattr(forecast_service, "_outlook", computed)
    with ThreadPoolExecutor(1, "forecast") as executor:
        async with forecasting(RecordedNode(), executor=executor) as service:
            await asyncio.gather(
                *(service.forecast(subnet) for subnet in (L1, PERMISSIONED, PRIMARY_NETWORK))
            )
    assert threads == ["forecast_0"] * 3


async def test_a_forecast_whose_callers_have_left_is_not_computed_to_its_end() -> None:
    has_begun, may_go_on, jobs = threading.Event(), threading.Event(), list[Future[Any]]()

    def wait_once() -> float:
        has_begun.set()
        may_go_on.wait()
        return 0.0

    class RecordedThreads(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            jobs.append(super().submit(*args, **kwargs))
            return jobs[-1]

    node, clock, observed = l1_node(ids_of(1) | {"balance": "1000000000"}), Clock(), Observed()
    with RecordedThreads(1, "forecast") as executor:
        async with started_services(node) as services:
            service = build_service(services, observed, clock, executor, cpu_clock=wait_once)
            caller = asyncio.create_task(service.forecast(L1))
            await asyncio.to_thread(has_begun.wait)
            caller.cancel()
            with suppress(asyncio.CancelledError):
                await caller
            may_go_on.set()
    assert [type(job.exception()) for job in jobs] == [CancelledError]


async def test_an_unknown_subnet_and_nodes_that_are_down_are_errors() -> None:
    def refuse(_: object) -> object:
        raise RefusedCall("not bootstrapped")

    def find_none(_: object) -> object:
        raise RefusedCall("not found")

    async with forecasting(RecordedNode({"platform.getSubnet": find_none})) as service:
        with pytest.raises(UnknownSubnet):
            await service.forecast(L1)
    for method in (CURRENT, STATE, CONFIG):
        async with forecasting(RecordedNode({method: refuse})) as service:
            with pytest.raises(NodeUnavailable):
                await service.forecast(L1)


async def test_tracked_subnets_are_refreshed_in_the_background() -> None:
    node, observed = RecordedNode(), Observed({HEAVY: True})
    tracked = (L1, PERMISSIONED, L1, PRIMARY_NETWORK)
    async with started_services(
        node, tracked_subnet_ids=tracked, forecast_refresh_s=0.02
    ) as services:
        await services.heights.poll()
        service = ForecastService(
            ForecastReader(services.upstream.platform, lambda: None),
            services.chains,
            services.heights,
            services.sets,
            observed.connected_since,
            lambda node_id, subnet_id: True,
            replace(services.settings, forecast_stale_after_s=1_000.0),
            now=services.clock,
        )
        assert service.latest() == ()
        async with running(service.run()):
            await until(lambda: len(service.latest()) == 2)
            first = service.latest()[0]
            assert [forecast.subnet_id for forecast in service.latest()] == [L1, PERMISSIONED]
            services.clock.now += TTL_S
            await until(lambda: service.latest()[0] is not first)
            node.replies[STATE] = lambda _: 1 / 0
            assert len(service.latest()) == 2
        services.clock.now += 2_000
        assert service.latest() == ()


@pytest.mark.parametrize(
    ("tracked", "computing_s", "rest_s"),
    [
        ((L1,), 0.5, 30.0),
        ((L1,), 2.0, 40.0),
        ((L1, PERMISSIONED), 2.0, 80.0),
        ((L1, PERMISSIONED), 90.0, 3_600.0),
    ],
)
async def test_forecasts_in_the_background_take_a_twentieth_of_a_core_at_most(
    tracked: tuple[SubnetID, ...], computing_s: float, rest_s: float
) -> None:
    busy, observed, count = BusyTime(computing_s), Observed({HEAVY: True}), len(tracked)
    async with started_services(RecordedNode(), tracked_subnet_ids=tracked) as services:
        await services.heights.poll()
        service = build_service(
            services, observed, busy.clock, cpu_clock=busy.cpu_clock, sleep=busy.sleep
        )
        async with running(service.run()):
            for _ in range(8 * count):
                await until(lambda: len(busy.rests) == count)
                busy.end_rest()
            await until(lambda: len(busy.rests) == count)
    # The first subnets rest before it is known how long the others take.
    starts = busy.starts[count:]
    periods = [later - earlier for earlier, later in zip(starts, starts[count:], strict=False)]
    assert len(periods) == 6 * count
    assert min(periods) == rest_s + computing_s
    assert count * computing_s <= 0.05 * min(periods)


async def test_without_tracked_subnets_no_node_is_called() -> None:
    node = RecordedNode()
    async with started_services(
        node, tracked_subnet_ids=(PRIMARY_NETWORK,), forecast_refresh_s=0.0
    ) as services:
        await build_service(services, Observed(), Clock()).run()
        assert node.calls.total() == 0


async def test_the_shortest_balances_have_series_and_validators_that_left_have_none() -> None:
    clock = Clock()
    funded = [{**ids_of(number), "balance": str(512_000 * number)} for number in range(1, 24)]
    inactive = [{**ids_of(number), "balance": "0"} for number in (30, 31)]
    node = l1_node(*inactive, *reversed(funded), {**ids_of(40), "balance": str(10**18)})
    async with forecasting(node, clock=clock, tracked_subnet_ids=(L1,)) as service:
        await service.forecast(L1)
        samples = list(validator_samples(service))
        assert [sample.seconds_left for sample in samples] == [
            1_000 * number for number in range(1, MAX_SERIES + 1)
        ]
        assert {sample.subnet_id for sample in samples} == {id_text(L1)}
        assert (samples[0].node_id, samples[0].validation_id) == tuple(ids_of(1).values())
        node.replies[CURRENT] = {
            "validators": [{**RECORDED[1], **row} for row in (*inactive, funded[4])]
        }
        clock.now += TTL_S
        await service.forecast(L1)
        assert [sample.seconds_left for sample in validator_samples(service)] == [5_000, 0, 0]
        (quorum,) = quorum_samples(service)
        assert (quorum.seconds_left, list(quorum.margins)) == (0, ["active"])
        assert quorum.margins["active"] == pytest.approx(1 / 3 - 0.67)


async def test_a_subnet_with_stakes_has_no_series() -> None:
    async with forecasting(RecordedNode(), tracked_subnet_ids=(PERMISSIONED,)) as service:
        await service.forecast(PERMISSIONED)
        assert len(service.latest()) == 1
        assert [*validator_samples(service), *quorum_samples(service)] == []


HOSTILE_FEES = [
    ({"minPrice": 0, "price": 0}, 0),
    ({"target": 2**64 - 1, "capacity": 2**64 - 1}, 0),
    ({"target": 0, "capacity": 2**64 - 1, "excessConversionConstant": 1}, 0),
    ({"minPrice": 2**64 - 1, "price": 2**64 - 1}, 0),
    ({"excessConversionConstant": 1, "price": 2**64 - 1}, 2**64 - 1),
]


@pytest.mark.parametrize(("changes", "excess"), HOSTILE_FEES)
async def test_extreme_fees_and_weights_are_computed_with(
    changes: dict[str, Any], excess: int
) -> None:
    changes = {"price": 512, **changes}
    state = {**AT_MINIMUM, "excess": excess, "price": changes.pop("price")}
    most = str(2**64 - 1)
    rows = [{**ids_of(number), "balance": most, "weight": most} for number in (1, 2)]
    node = l1_node(*rows, {**ids_of(3), "weight": "0", "balance": "1"})
    node.replies |= {CONFIG: {**FUJI_FEE, **changes}, STATE: state}
    async with forecasting(node) as service:
        forecast = await service.forecast(L1)
    assert forecast.outlook.total_weight == 2 * (2**64 - 1)
    assert forecast_status(forecast).as_of == "2026-11-21T02:06:47Z"


@pytest.mark.parametrize(
    ("config", "powers"),
    [(L1FeeConfig(0, 1, 10_000, 1), 0), (L1FeeConfig(0, 1, 96_442_733, 4), 23)],
)
async def test_a_node_with_hostile_fee_parameters_makes_no_forecast_long(
    config: L1FeeConfig, powers: int
) -> None:
    excess = powers * config.excess_conversion
    node = l1_node(*({**ids_of(number), "balance": str(5**number)} for number in range(1, 28)))
    fee = {"capacity": config.capacity, "target": config.target, "minPrice": config.min_price}
    node.replies[CONFIG] = {**fee, "excessConversionConstant": config.excess_conversion}
    node.replies[STATE] = {**AT_MINIMUM, "excess": excess, "price": l1_fee_price(config, excess)}
    with counted_steps() as steps:
        async with forecasting(node) as service:
            outlook = (await service.forecast(L1)).outlook
    assert outlook.at_capacity is not None
    assert outlook.at_capacity.losses
    # Two curves: today's one, and the one at capacity.
    assert steps.stretches < 2 * MOST_STRETCHES
    assert steps.terms < 2 * MOST_TERMS


async def test_a_node_that_lists_more_validators_than_any_subnet_has_gets_no_forecast() -> None:
    async with forecasting(l1_node(*map(ids_of, range(2_501)))) as service:
        with pytest.raises(NodeUnavailable, match="at most 2500 validators"):
            await service.forecast(L1)


async def test_a_subnet_without_validators_has_no_quorum() -> None:
    async with forecasting(l1_node()) as service:
        outlook = (await service.forecast(L1)).outlook
    assert (outlook.total_weight, outlook.validators, outlook.today.quorum_impossible_at_s) == (
        0,
        (),
        AT,
    )
    assert outlook.margin == Fraction(-67, 100)


def _set_of(subnet_id: SubnetID) -> dict[str, Any]:
    validator_set: dict[str, Any] = recorded_result(
        "platform.getValidatorsAt", height=19, subnetID=id_text(subnet_id)
    )
    return validator_set
