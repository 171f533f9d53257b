"""The curve of an L1 validator's fee is as accurate as it says, against sums second by second."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime
from itertools import accumulate, islice, takewhile
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests import paths
from tests.validators.forecast.fixtures import MOST_STRETCHES, MOST_TERMS, counted_steps
from tests.validators.forecast.plain_p_chain import plain_price, plain_prices, run_plainly
from warpseal.ledger.chain_time import l1_fee_cost, l1_fee_price
from warpseal.ledger.params import DAY_S, FUJI, MAINNET, L1FeeConfig
from warpseal.validators.forecast.fee_curve import HORIZON_S, FeeCurve, share_fee_curve

REFERENCE = L1FeeConfig(target=10_000, min_price=2048, excess_conversion=1_246_488_515)
MOST = 2**64 - 1
LOCAL = L1FeeConfig(target=10_000, min_price=1, excess_conversion=865_617)
# Below this price a fee is exact.
EXACT_PRICE = 1_000

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
counts = st.one_of(
    st.sampled_from([0, 1, 9_990, 9_999, 10_001, 10_010, 20_000]), st.integers(0, 20_000)
)
# Parts of 2^20 of the power of e to which the price has risen.
powers = st.one_of(st.integers(0, 2**20), st.integers(0, 7 * 2**20), st.integers(0, 44 * 2**20))
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


def is_accurate(fee: int, exact: int) -> bool:
    """Return whether a fee is at most 0.1 % too high, and not too low."""
    return 0 <= 1_000 * (fee - exact) <= exact


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
def test_costs_and_covered_seconds_are_near_the_tables_of_avalanchego(
    active: int, excess: int, seconds: int, total: int
) -> None:
    curve = FeeCurve(REFERENCE, active, excess)
    assert is_accurate(curve.cost(seconds), total)
    covered = curve.seconds_covered(total)
    assert covered is not None
    assert 0 <= seconds - covered <= 1 + seconds // 1_000
    if active in {10, REFERENCE.target}:
        # The price stays.
        assert covered == seconds
        assert curve.seconds_covered(total - 1) == seconds - 1


@given(
    st.sampled_from([LOCAL, FUJI.l1_fee, MAINNET.l1_fee, L1FeeConfig(10_000, 2048, 128)]),
    counts,
    powers,
)
@example(FUJI.l1_fee, 20_000, 0)
@example(FUJI.l1_fee, 6_000, 2**22)
@example(FUJI.l1_fee, 9_999, 44 * 2**20)
@example(LOCAL, 10_001, 0)
def test_a_fee_of_any_seconds_is_at_most_a_thousandth_too_high_and_exact_at_low_prices(
    config: L1FeeConfig, active: int, power: int
) -> None:
    excess = power * config.excess_conversion >> 20
    curve, total, is_exact = FeeCurve(config, active, excess), 0, True
    for second, price in enumerate(islice(plain_prices(config, active, excess), 500), start=1):
        total += price
        if total > MOST:
            break
        is_exact = is_exact and price < EXACT_PRICE
        fee = curve.cost(second)
        assert is_accurate(fee, total)
        assert fee == total or not is_exact


@given(
    st.sampled_from([LOCAL, FUJI.l1_fee, MAINNET.l1_fee]),
    counts,
    powers,
    st.lists(st.integers(1, HORIZON_S), min_size=1, max_size=20),
)
def test_a_fee_of_any_second_of_ten_years_is_at_most_a_thousandth_too_high(
    config: L1FeeConfig, active: int, power: int, seconds: list[int]
) -> None:
    """So that the sum over any time is."""
    excess = power * config.excess_conversion >> 20
    curve, slope = FeeCurve(config, active, excess), active - config.target
    for second in seconds:
        fee = curve.cost(second)
        if fee < MOST:
            exact = plain_price(config, min(MOST, max(0, excess + slope * second)))
            assert is_accurate(fee - curve.cost(second - 1), exact)


@given(configs, st.integers(0, 80), st.integers(0, 300_000))
@example(L1FeeConfig(0, 512, 5_000), 1, 0)
@example(L1FeeConfig(40, 1, 1), 0, 7)
@example(L1FeeConfig(40, 7, 100_000), 0, 300_000)
def test_a_fee_below_a_thousand_navax_a_second_is_the_ledgers_with_any_parameters(
    config: L1FeeConfig, active: int, excess: int
) -> None:
    prices = islice(plain_prices(config, active, excess), 1_000)
    totals = list(accumulate(takewhile(lambda price: price < EXACT_PRICE, prices)))
    curve = FeeCurve(config, active, excess)
    assert [curve.cost(second) for second in range(1, len(totals) + 1)] == totals
    for seconds in {len(totals) // 3, len(totals)}:
        assert curve.cost(seconds) == l1_fee_cost(config, active, excess, seconds)


@given(
    configs,
    st.integers(0, 80),
    st.one_of(st.integers(0, 5_000), st.integers(0, 300_000)),
    st.integers(1, 2**20),
)
def test_a_plain_p_chain_deactivates_a_validator_at_the_second_that_the_curve_says(
    config: L1FeeConfig, active: int, excess: int, balance: int
) -> None:
    curve, most = FeeCurve(config, active, excess), 600
    # The series of a smaller product is no exponential.
    assume(config.min_price * config.excess_conversion >= 2**18 or not config.min_price)
    run = run_plainly(config, active, excess, {b"v": balance}, most)
    assert run.paid[b"v"] + run.left[b"v"] == balance
    covered, actual = curve.seconds_covered(balance), run.deactivated_after.get(b"v", most + 1)
    if covered is None or covered > most:
        assert run.deactivated_after == {}
        return
    assert covered <= actual
    assert curve.cost(actual) <= balance + balance // 1_000
    prices = islice(plain_prices(config, active, excess), covered + 1)
    if all(price < EXACT_PRICE for price in prices):
        assert actual == covered
        assert run.paid == {b"v": curve.cost(covered)}


def test_a_cost_stops_at_64_bits_where_the_ledgers_does() -> None:
    assert FeeCurve(FUJI.l1_fee, 20_000, 0).cost(30 * DAY_S) == MOST
    config = L1FeeConfig(target=0, min_price=512, excess_conversion=1_000)
    curve = FeeCurve(config, 100, 0)
    for seconds in range(0, 500, 3):
        exact = l1_fee_cost(config, 100, 0, seconds)
        assert curve.cost(seconds) == MOST or is_accurate(curve.cost(seconds), exact)
    assert curve.cost(300) < MOST == curve.cost(450)
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


@given(hostile_configs, hostile_counts, hostile_excesses)
@example(MAINNET.l1_fee, 20_000, 0)
@example(FUJI.l1_fee, 20_000, 0)
@example(L1FeeConfig(0, 1, 1), 1, 0)
@example(L1FeeConfig(0, 1, 10_000), 1, 0)
@example(L1FeeConfig(10_000, 1, 96_442_733), 10_004, 23 * 96_442_733)
@example(L1FeeConfig(10_000, 1, 6_048_390_047), 9_984, 13 * 6_048_390_047)
# Stretches of one or two seconds, from the least price to the largest, and down from it.
@example(L1FeeConfig(0, 1, 4_090_000), 3_999, 0)
@example(L1FeeConfig(4_000, 1, 4_090_000), 2_001, 36 * 4_090_000)
def test_a_curve_takes_few_steps_whatever_a_node_returns(
    config: L1FeeConfig, active: int, excess: int
) -> None:
    with counted_steps() as steps:
        FeeCurve(config, active, excess)
    assert steps.stretches < MOST_STRETCHES
    assert steps.terms < MOST_TERMS


def test_forecasts_at_one_fee_state_share_a_curve() -> None:
    curve = share_fee_curve(FUJI.l1_fee, 20_000, 77)
    assert share_fee_curve(FUJI.l1_fee, 20_000, 77) is curve
    assert share_fee_curve(FUJI.l1_fee, 20_000, 78) is not curve


@pytest.mark.parametrize(
    "files", [("localnet/platform", "localnet/ledger"), ("helicon/l1-fees",)], ids=lambda x: x[0]
)
def test_recorded_balances_are_as_funded_less_the_fee_until_the_recorded_time(
    files: tuple[str, ...],
) -> None:
    replies = recorded_replies(files)
    (reply,) = replies["platform.getValidatorFeeConfig"]
    (state,) = replies["platform.getValidatorFeeState"]
    config = L1FeeConfig(reply["target"], reply["minPrice"], reply["excessConversionConstant"])
    curve = FeeCurve(config, 3, state["excess"])
    assert curve.cost(1) == l1_fee_price(config, state["excess"]) == state["price"]
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
