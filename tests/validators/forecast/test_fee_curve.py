"""The curve of an L1 validator's fee equals the ledger's sum and a plain model of the P-Chain, for
ten years.
"""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import accumulate, islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import paths
from tests.validators.forecast.fixtures import MOST_FORECAST_STEPS, MOST_STEPS, count_steps
from tests.validators.forecast.plain_p_chain import plain_price, plain_prices, run_plainly
from warpseal.ledger.chain_time import l1_fee_cost, l1_fee_price
from warpseal.ledger.params import DAY_S, FUJI, MAINNET, L1FeeConfig
from warpseal.validators.forecast.fee_curve import HORIZON_S, FeeCurve, share_fee_curve

REFERENCE = L1FeeConfig(target=10_000, min_price=2048, excess_conversion=1_246_488_515)
MOST = 2**64 - 1

configs = st.builds(
    L1FeeConfig,
    target=st.integers(0, 40),
    min_price=st.sampled_from([0, 1, 2, 7, 512, 2048]),
    excess_conversion=st.sampled_from([1, 3, 50, 1_000, 5_000, 100_000, 51_937_021]),
)
hostile_configs = st.builds(
    L1FeeConfig,
    target=st.sampled_from([0, 1, 10_000, MOST]),
    min_price=st.sampled_from([0, 1, 512, 2**32, MOST]),
    excess_conversion=st.sampled_from([1, 2, 1_000, 865_617, 2**40, MOST]),
)
hostile_counts = st.sampled_from([0, 1, 2, 9_999, 10_000, 10_001, 20_000, 2**40, MOST])
hostile_excesses = st.sampled_from([0, 1, 2**20, 2**30, 2**40, MOST - 1, MOST])


def recorded_replies(files: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return the results of recorded calls by method."""
    results: dict[str, list[Any]] = defaultdict(list)
    for file in files:
        for line in (paths.VECTORS / f"{file}.jsonl").read_text().splitlines():
            call = json.loads(line)
            results[call["method"]].append(call.get("result"))
    return results


@pytest.mark.parametrize(
    ("active", "excess", "seconds", "total"),
    [
        (10, 0, 60, 122_880),
        (10_000, 864_000_000, 60, 245_760),
        (10_000, 1_246_488_515, 60, 334_020),
        (15_000, 0, 60, 122_880),
        (9_000, 21_600_000, 86_400, 177_321_939),
        (15_000, 0, 86_400, 211_438_809),
    ],
)
def test_costs_and_covered_seconds_equal_the_tables_of_avalanchego(
    active: int, excess: int, seconds: int, total: int
) -> None:
    curve = FeeCurve(REFERENCE, active, excess)
    assert curve.cost(seconds) == total
    assert curve.seconds_covered(total) == seconds
    assert curve.seconds_covered(total - 1) == seconds - 1


@given(
    configs,
    st.integers(0, 80),
    st.integers(0, 300_000),
    st.lists(st.integers(0, 3_000), min_size=1, max_size=4),
)
@example(L1FeeConfig(0, 512, 5_000), 1, 0, [3_000, 1, 2_999])
@example(L1FeeConfig(40, 2048, 100_000), 0, 300_000, [3_000, 129, 128])
def test_a_cost_is_the_ledgers(
    config: L1FeeConfig, active: int, excess: int, spans: list[int]
) -> None:
    curve = FeeCurve(config, active, excess)
    for seconds in spans:
        assert curve.cost(seconds) == l1_fee_cost(config, active, excess, seconds)
    assert curve.price == l1_fee_price(config, excess)


@given(configs, st.integers(0, 80), st.integers(0, 300_000), st.integers(0, 2**24))
def test_a_plain_p_chain_deactivates_a_validator_at_the_second_that_the_curve_says(
    config: L1FeeConfig, active: int, excess: int, balance: int
) -> None:
    curve, most = FeeCurve(config, active, excess), 600
    run = run_plainly(config, active, excess, {b"v": balance}, most)
    covered = curve.seconds_covered(balance)
    if balance and (covered is None or covered > most):
        assert run.deactivated_after == {}
        assert run.paid == {b"v": curve.cost(most)}
    elif balance:
        assert run.deactivated_after == {b"v": covered}
        assert run.paid == {b"v": curve.cost(covered or 0)}
    assert run.paid[b"v"] + run.left[b"v"] == balance


@pytest.mark.parametrize(
    ("config", "active", "excess", "seconds"),
    [
        (FUJI.l1_fee, 20_000, 0, 60_000),
        (FUJI.l1_fee, 10_500, 100_000_000, 60_000),
        (FUJI.l1_fee, 6_000, 200_000_000, 60_000),
    ],
    ids=["at capacity", "rising", "falling to the minimum"],
)
def test_costs_of_fuji_are_exact_while_the_price_changes_every_second(
    config: L1FeeConfig, active: int, excess: int, seconds: int
) -> None:
    """The price passes one change in minutes, one a second, and many a second."""
    curve = FeeCurve(config, active, excess)
    totals = list(accumulate(islice(plain_prices(config, active, excess), seconds)))
    assert curve.cost(seconds) == totals[-1]
    for second in range(1, seconds, 1_997):
        assert curve.cost(second) == totals[second - 1]
        assert curve.seconds_covered(totals[second - 1]) == second
        assert curve.seconds_covered(totals[second] - 1) == second


def test_prices_of_thirty_days_at_the_capacity_of_mainnet_are_exact() -> None:
    config = MAINNET.l1_fee
    curve = FeeCurve(config, config.capacity, 0)
    for second in range(1, 30 * DAY_S, 49_999):
        assert curve.cost(second) - curve.cost(second - 1) == plain_price(config, 10_000 * second)


def test_a_cost_stops_at_64_bits_where_the_ledgers_does() -> None:
    assert FeeCurve(FUJI.l1_fee, 20_000, 0).cost(30 * DAY_S) == MOST
    config = L1FeeConfig(target=0, min_price=512, excess_conversion=1_000)
    for seconds in range(0, 500, 3):
        assert FeeCurve(config, 100, 0).cost(seconds) == l1_fee_cost(config, 100, 0, seconds)
    assert l1_fee_cost(config, 100, 0, 300) < MOST == l1_fee_cost(config, 100, 0, 450)


def test_a_constant_price_is_a_product() -> None:
    curve = FeeCurve(MAINNET.l1_fee, 2_000, 0)
    assert curve.cost(30 * DAY_S) == 512 * 30 * DAY_S == 1_327_104_000
    assert curve.cost(HORIZON_S) == 512 * HORIZON_S
    assert curve.seconds_covered(512 * 10 + 511) == 10
    assert curve.seconds_covered(512 * HORIZON_S - 1) == HORIZON_S - 1
    assert curve.seconds_covered(512 * HORIZON_S) is None


def test_a_free_network_uses_up_no_balance() -> None:
    curve = FeeCurve(L1FeeConfig(0, 0, 1), 1, MOST)
    assert curve.seconds_covered(0) is None
    assert curve.cost(HORIZON_S) == 0


def test_threads_that_share_a_curve_get_its_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpseal.validators.forecast.fee_curve._FORECAST_STEPS", MOST)
    curve = share_fee_curve(FUJI.l1_fee, 20_000, 77)
    assert share_fee_curve(FUJI.l1_fee, 20_000, 77) is curve
    spans = [*range(0, 40_000, 1_999), *range(40_000, 0, -1_999)]
    with ThreadPoolExecutor(4) as threads:
        costs = list(threads.map(curve.cost, spans))
    alone = FeeCurve(FUJI.l1_fee, 20_000, 77)
    assert costs == [alone.cost(seconds) for seconds in spans]


def test_spans_beyond_the_horizon_and_an_excess_conversion_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at most"):
        FeeCurve(MAINNET.l1_fee, 0, 0).cost(HORIZON_S + 1)
    with pytest.raises(ValueError, match="positive excess conversion"):
        FeeCurve(L1FeeConfig(0, 1, 0), 1, 0)


@given(
    hostile_configs,
    hostile_counts,
    hostile_excesses,
    st.lists(st.integers(0, 2**34), min_size=2, max_size=6),
    st.lists(st.integers(0, HORIZON_S), min_size=2, max_size=4),
)
def test_more_balance_never_lasts_shorter_and_more_time_never_costs_less(
    config: L1FeeConfig, active: int, excess: int, balances: list[int], spans: list[int]
) -> None:
    curve = FeeCurve(config, active, excess)
    covered = [curve.seconds_covered(balance) for balance in sorted(balances)]
    lasting = [HORIZON_S if seconds is None else seconds for seconds in covered]
    assert lasting == sorted(lasting)
    for balance, seconds in zip(sorted(balances), covered, strict=True):
        if seconds is not None:
            assert curve.cost(seconds) <= balance < curve.cost(seconds + 1)
    costs = [curve.cost(seconds) for seconds in sorted(spans) if seconds <= max(lasting)]
    assert costs == sorted(costs)


@given(hostile_configs, hostile_counts, hostile_excesses, st.integers(0, 50))
def test_a_cost_of_hostile_numbers_is_the_ledgers(
    config: L1FeeConfig, active: int, excess: int, seconds: int
) -> None:
    assert FeeCurve(config, active, excess).cost(seconds) == l1_fee_cost(
        config, active, excess, seconds
    )


def test_behind_the_exact_steps_a_fee_is_at_most_a_thousandth_too_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("warpseal.validators.forecast.fee_curve._EXACT_STEPS", 40_000)
    config, balance = L1FeeConfig(0, 1, 20_000), 10**11
    coarse = FeeCurve(config, 1, 0)
    seconds = coarse.seconds_covered(balance)
    assert seconds is not None
    monkeypatch.undo()
    exact = FeeCurve(config, 1, 0).cost(seconds)
    assert exact < coarse.cost(seconds) <= exact + exact // 1_000
    assert coarse.cost(1_000) == FeeCurve(config, 1, 0).cost(1_000)


@pytest.mark.parametrize(
    ("config", "active", "excess"),
    [
        (L1FeeConfig(0, 1, 10_000), 1, 0),
        (L1FeeConfig(10_000, 1, 96_442_733), 10_004, 23 * 96_442_733),
        (L1FeeConfig(10_000, 1, 6_048_390_047), 9_984, 13 * 6_048_390_047),
    ],
)
def test_no_balances_and_no_parameters_take_more_than_some_steps(
    monkeypatch: pytest.MonkeyPatch, config: L1FeeConfig, active: int, excess: int
) -> None:
    steps, curve = count_steps(monkeypatch), FeeCurve(config, active, excess)
    pieces = 0

    def step() -> None:
        nonlocal pieces
        pieces += 1

    balances = [min(MOST, 103**power // 100**power) for power in range(1_502)]
    covered = [curve.seconds_covered(balance, step) for balance in balances]
    assert balances[-1] == MOST
    assert covered[0] != covered[-1]
    assert steps.total < MOST_STEPS
    assert pieces < 200_000


hostile_forecasts = [
    (MAINNET.l1_fee, 20_000, 0),
    (FUJI.l1_fee, 20_000, 0),
    (L1FeeConfig(0, 1, 10_000), 1, 0),
    (L1FeeConfig(10_000, 1, 96_442_733), 10_004, 23 * 96_442_733),
    (L1FeeConfig(10_000, 1, 6_048_390_047), 9_984, 13 * 6_048_390_047),
    # Stretches of one or two seconds, from the least price to the largest, and down from it.
    (L1FeeConfig(0, 1, 4_090_000), 3_999, 0),
    (L1FeeConfig(4_000, 1, 4_090_000), 2_001, 36 * 4_090_000),
    (L1FeeConfig(0, MOST, MOST), MOST, MOST),
    (L1FeeConfig(MOST, MOST, MOST), 0, MOST),
]


@pytest.mark.parametrize(("config", "active", "excess"), hostile_forecasts)
def test_a_forecast_takes_few_steps_whatever_a_node_returns(
    monkeypatch: pytest.MonkeyPatch, config: L1FeeConfig, active: int, excess: int
) -> None:
    balances = [103**power // 100**power for power in range(1_500)]
    steps, curve = count_steps(monkeypatch), FeeCurve(config, active, excess)
    for _ in range(3):
        curve.begin_forecast()
        before = steps.total
        covered = [curve.seconds_covered(balance) for balance in balances]
        curve.cost(30 * DAY_S)
        assert steps.total - before < MOST_FORECAST_STEPS
        assert len(curve._starts) < 30_000
    lasting = [HORIZON_S if seconds is None else seconds for seconds in covered]
    assert lasting == sorted(lasting)
    for balance, seconds in zip(balances, covered, strict=True):
        if seconds is not None:
            # The steps end before the costs, which then are bounds.
            assert curve.cost(seconds) <= balance + max(balance // 1_000, seconds)
            assert balance < curve.cost(seconds + 1)


def test_each_forecast_makes_a_curve_more_exact_until_all_of_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("warpseal.validators.forecast.fee_curve._FORECAST_STEPS", 5_000)
    config, seconds, exact = FUJI.l1_fee, 40_000, FeeCurve(FUJI.l1_fee, 20_000, 0)
    costs = [share_fee_curve(config, 20_000, 0).cost(seconds) for _ in range(60)]
    assert costs[0] > costs[10] > costs[-1] == min(costs) == exact.cost(seconds)
    assert max(costs) <= costs[-1] + costs[-1] // 1_000


@pytest.mark.parametrize(
    "files", [("localnet/platform", "localnet/ledger"), ("helicon/l1-fees",)], ids=lambda x: x[0]
)
def test_recorded_balances_are_as_funded_less_the_fee_until_the_recorded_time(
    files: tuple[str, ...],
) -> None:
    replies = recorded_replies(files)
    (config,), (state,) = (
        replies["platform.getValidatorFeeConfig"],
        replies["platform.getValidatorFeeState"],
    )
    curve = FeeCurve(
        L1FeeConfig(config["target"], config["minPrice"], config["excessConversionConstant"]),
        3,
        state["excess"],
    )
    assert curve.price == state["price"]
    as_of_s = int(datetime.fromisoformat(state["timestamp"]).timestamp())
    validators = {
        record["validationID"]: record for record in replies["platform.getL1Validator"] if record
    }
    active = [record for record in validators.values() if int(record["balance"])]
    assert len(active) == 3
    for validator in active:
        paid = curve.cost(as_of_s - int(validator["startTime"]))
        # Funded with whole AVAX.
        assert (int(validator["balance"]) + paid) % 10**9 == 0
