"""The course of a quorum equals that of a plain P-Chain, and top-ups keep it for exactly as long as
they should.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.validators.forecast.plain_p_chain import PlainFeeCurve, PlainRun, run_plainly
from warpseal.ledger.chain_time import l1_fee_cost
from warpseal.ledger.params import DAY_S, FUJI, MAINNET, L1FeeConfig
from warpseal.validators.forecast.fee_curve import FeeCurve
from warpseal.validators.forecast.outlook import (
    Course,
    ForecastValidator,
    QuorumOutlook,
    TopUp,
    WeightLoss,
    forecast_quorum,
)
from warpseal.warp.ids import NodeID, ValidationID

NOW_S = 1_800_000_000
AVAX = 10**9
MONTH_NAVAX = 512 * (30 * DAY_S + 1)


def validator_id(number: int) -> ValidationID:
    return ValidationID(bytes([number]) * 32)


def l1_validator(
    number: int, weight: int, balance: int, *, has_answered: bool = True
) -> ForecastValidator:
    node_id = NodeID(bytes([number]) * 20)
    return ForecastValidator(
        validator_id(number), node_id, weight, balance, None, True, has_answered
    )


def stake(
    number: int, weight: int, end_s: int, *, has_key: bool = True, has_answered: bool = True
) -> ForecastValidator:
    node_id = NodeID(bytes([number]) * 20)
    return ForecastValidator(
        validator_id(number), node_id, weight, None, end_s, has_key, has_answered
    )


AT_CAPACITY = FeeCurve(MAINNET.l1_fee, MAINNET.l1_fee.capacity, 0)


def on_mainnet(validators: Sequence[ForecastValidator]) -> QuorumOutlook:
    return forecast_quorum(validators, NOW_S, FeeCurve(MAINNET.l1_fee, 2_000, 0), AT_CAPACITY)


def is_possible(active_weight: int, total_weight: int) -> bool:
    return active_weight > 0 and Fraction(active_weight, total_weight) >= Fraction(67, 100)


def test_a_tenth_of_an_avax_of_half_of_the_weight_stops_the_l1_in_two_days() -> None:
    outlook = on_mainnet(
        [l1_validator(1, 50, AVAX // 10), l1_validator(2, 50, 5 * AVAX, has_answered=False)]
    )
    assert (outlook.total_weight, outlook.required_weight, outlook.active_weight) == (100, 67, 100)
    assert (outlook.margin, outlook.answering_weight) == (Fraction(33, 100), 50)
    assert outlook.answering_margin == Fraction(-17, 100)
    assert [validator.seconds_left for validator in outlook.validators] == [195_312, 9_765_625]
    # 117,550 and 545,196 by sums of the P-Chain's prices; a fee is up to 0.1 % too high.
    assert [validator.seconds_left_at_capacity for validator in outlook.validators] == [
        117_537,
        545_138,
    ]
    assert outlook.today.losses == (
        WeightLoss(NOW_S + 195_312, (validator_id(1),), 50, 50, 100),
        WeightLoss(NOW_S + 9_765_625, (validator_id(2),), 50, 0, 100),
    )
    assert outlook.today.quorum_impossible_at_s == NOW_S + 195_312
    assert outlook.today.top_ups == (TopUp(validator_id(1), MONTH_NAVAX - AVAX // 10),)
    assert outlook.today.top_up_total_navax == MONTH_NAVAX - AVAX // 10
    assert outlook.at_capacity is not None
    assert outlook.at_capacity.quorum_impossible_at_s == NOW_S + 117_537


def test_equal_balances_run_out_in_one_moment() -> None:
    outlook = on_mainnet(
        [l1_validator(3, 1, 512), l1_validator(1, 2, 1_000), l1_validator(2, 97, 100 * AVAX)]
    )
    assert outlook.today.losses[0] == WeightLoss(
        NOW_S + 1, (validator_id(1), validator_id(3)), 3, 97, 100
    )
    assert outlook.today.quorum_impossible_at_s == outlook.today.losses[1].at_s
    assert outlook.today.top_ups == ()


def test_an_inactive_validator_counts_in_the_total_and_is_funded_if_that_is_cheapest() -> None:
    outlook = on_mainnet(
        [l1_validator(1, 40, 0), l1_validator(2, 20, AVAX), l1_validator(3, 40, 9 * AVAX)]
    )
    assert (outlook.active_weight, outlook.total_weight) == (60, 100)
    assert outlook.margin == Fraction(-7, 100)
    assert outlook.validators[0].seconds_left == 0
    assert [loss.ids for loss in outlook.today.losses] == [(validator_id(2),), (validator_id(3),)]
    assert outlook.today.quorum_impossible_at_s == NOW_S
    assert outlook.today.top_ups == (TopUp(validator_id(1), MONTH_NAVAX),)


def test_no_balance_helps_where_keyless_stakes_hold_a_third() -> None:
    outlook = on_mainnet([l1_validator(1, 66, 0), stake(2, 34, NOW_S + 100 * DAY_S, has_key=False)])
    assert outlook.today.top_ups is None
    assert outlook.today.top_up_total_navax == 0
    assert outlook.today.quorum_impossible_at_s == NOW_S


def test_a_stake_that_ends_leaves_the_total_and_may_make_the_quorum_possible_again() -> None:
    outlook = on_mainnet([l1_validator(1, 66, 10 * AVAX), stake(2, 34, NOW_S + 50, has_key=False)])
    assert outlook.today.quorum_impossible_at_s == NOW_S
    assert outlook.today.losses[0] == WeightLoss(NOW_S + 50, (validator_id(2),), 34, 66, 66)
    assert (
        outlook.validators[1].seconds_left == outlook.validators[1].seconds_left_at_capacity == 50
    )


def test_a_stake_that_ends_shifts_what_the_others_have_to_hold() -> None:
    validators = [
        stake(1, 60, NOW_S + DAY_S),
        l1_validator(2, 20, AVAX // 2),
        l1_validator(3, 20, 0),
    ]
    outlook = on_mainnet(validators)
    # Until the stake ends 80 of 100 sign; behind it 20 of 40, and none when the balance is used up.
    assert outlook.today.quorum_impossible_at_s == NOW_S + DAY_S
    assert outlook.today.top_ups == (
        TopUp(validator_id(2), MONTH_NAVAX - AVAX // 2),
        TopUp(validator_id(3), MONTH_NAVAX),
    )


def test_stakes_alone_need_no_fee_and_have_no_course_at_capacity() -> None:
    outlook = forecast_quorum(
        [stake(1, 50, NOW_S + 5), stake(2, 50, NOW_S - 1), stake(3, 1, 2**64 - 1)], NOW_S
    )
    assert [validator.seconds_left for validator in outlook.validators] == [5, 0, None]
    assert outlook.today == Course(
        (
            WeightLoss(NOW_S, (validator_id(2),), 50, 51, 51),
            WeightLoss(NOW_S + 5, (validator_id(1),), 50, 1, 1),
        ),
        None,
        (),
    )
    assert outlook.at_capacity is None
    with pytest.raises(ValueError, match="fee of L1 validators"):
        forecast_quorum([l1_validator(1, 1, 1)], NOW_S)


def test_a_subnet_without_weight_has_no_quorum() -> None:
    outlook = forecast_quorum([], NOW_S)
    assert (outlook.total_weight, outlook.margin) == (0, Fraction(-67, 100))
    assert outlook.today.quorum_impossible_at_s == NOW_S
    ended = forecast_quorum([stake(1, 1, NOW_S + 9)], NOW_S)
    assert ended.today.quorum_impossible_at_s == NOW_S + 9


def test_weights_and_margins_of_64_bits_are_exact() -> None:
    most, curve = 2**64 - 1, FeeCurve(L1FeeConfig(10_000, 1, 865_617), 5, 0)
    outlook = forecast_quorum(
        [l1_validator(1, most, most), l1_validator(2, most, 0)], NOW_S, curve, curve
    )
    assert outlook.total_weight == 2 * most
    assert outlook.required_weight == -(-2 * most * 67 // 100)
    assert outlook.margin == Fraction(most - outlook.required_weight, 2 * most)
    assert outlook.validators[0].seconds_left is None


def test_a_month_that_costs_more_than_any_balance_has_no_top_ups() -> None:
    curve = FeeCurve(L1FeeConfig(0, 2**60, 1), 1, 0)
    outlook = forecast_quorum([l1_validator(1, 1, 5)], NOW_S, curve, curve)
    assert outlook.validators[0].seconds_left == 0
    assert outlook.today.top_ups is None


def test_a_free_network_needs_one_navax_to_make_a_validator_active_again() -> None:
    curve = FeeCurve(L1FeeConfig(0, 0, 1), 1, 0)
    outlook = forecast_quorum([l1_validator(1, 1, 0), l1_validator(2, 1, 1)], NOW_S, curve, curve)
    assert outlook.today.top_ups == (TopUp(validator_id(1), 1),)


small_configs = st.builds(
    L1FeeConfig,
    target=st.integers(0, 30),
    min_price=st.integers(1, 9),
    excess_conversion=st.sampled_from([200, 1_000, 9_999]),
)
small_sets = st.lists(
    st.tuples(
        st.integers(1, 30),
        st.one_of(st.just(0), st.integers(1, 500)),
        st.one_of(st.none(), st.none(), st.integers(0, 100)),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


def build_validators(
    samples: Sequence[tuple[int, int, int | None, bool]],
) -> list[ForecastValidator]:
    return [
        (
            l1_validator(number, weight, balance)
            if end is None
            else stake(number, weight, NOW_S + end, has_key=has_key)
        )
        for number, (weight, balance, end, has_key) in enumerate(samples, start=1)
    ]


def run_set(
    validators: Sequence[ForecastValidator],
    config: L1FeeConfig,
    active: int,
    excess: int,
    seconds: int,
) -> PlainRun:
    balances = {
        validator.id: validator.balance_navax
        for validator in validators
        if validator.balance_navax is not None
    }
    return run_plainly(config, active, excess, balances, seconds)


def plain_weights(
    validators: Sequence[ForecastValidator], run: PlainRun, second: int
) -> tuple[int, int]:
    """Return the weight that can sign after the block of a second, and all weight."""
    active = total = 0
    for validator in validators:
        if validator.end_s is not None:
            is_present = is_active = validator.end_s > NOW_S + second
        else:
            is_present = True
            is_active = (
                validator.balance_navax != 0
                and run.deactivated_after.get(validator.id, second + 1) > second
            )
        total += validator.weight * is_present
        active += validator.weight * (is_active and validator.has_key)
    return active, total


def keeps_quorum(
    validators: Sequence[ForecastValidator],
    config: L1FeeConfig,
    active: int,
    excess: int,
    seconds: int,
) -> bool:
    run = run_set(validators, config, active, excess, seconds)
    ends = {validator.end_s - NOW_S for validator in validators if validator.end_s is not None}
    changes = {
        0,
        *run.deactivated_after.values(),
        *(second for second in ends if 0 < second <= seconds),
    }
    return all(is_possible(*plain_weights(validators, run, second)) for second in changes)


def funded(
    validators: Sequence[ForecastValidator], top_ups: Sequence[TopUp]
) -> list[ForecastValidator]:
    amounts = {top_up.validation_id: top_up.amount_navax for top_up in top_ups}
    return [
        (
            validator
            if validator.balance_navax is None
            else replace(
                validator,
                balance_navax=validator.balance_navax + amounts.get(ValidationID(validator.id), 0),
            )
        )
        for validator in validators
    ]


@given(small_sets, small_configs, st.integers(0, 60), st.integers(0, 2_000))
def test_the_course_is_that_of_a_plain_p_chain(
    samples: Sequence[tuple[int, int, int | None, bool]],
    config: L1FeeConfig,
    active: int,
    excess: int,
) -> None:
    validators, seconds = build_validators(samples), 120
    curve = PlainFeeCurve(config, active, excess)
    course = forecast_quorum(validators, NOW_S, curve, curve, top_up_s=seconds).today
    run = run_set(validators, config, active, excess, seconds)
    before = None
    losses = {loss.at_s - NOW_S: loss for loss in course.losses}
    impossible_at_s = None
    for second in range(seconds + 1):
        weights = plain_weights(validators, run, second)
        if not is_possible(*weights) and impossible_at_s is None:
            impossible_at_s = NOW_S + second
        if second in losses:
            assert (losses[second].active_weight, losses[second].total_weight) == weights
            assert losses[second].weight_lost > 0
        else:
            assert before is None or weights == before
        before = weights
    gone = {key: second for key, second in run.deactivated_after.items() if second <= seconds}
    listed = {
        key: second for second, loss in losses.items() for key in loss.ids if second <= seconds
    }
    ended = {
        validator_forecast.id: max(0, validator_forecast.end_s - NOW_S)
        for validator_forecast in validators
        if validator_forecast.end_s is not None
    }
    assert listed == gone | ended
    if impossible_at_s is not None:
        assert course.quorum_impossible_at_s == impossible_at_s
    else:
        assert (
            course.quorum_impossible_at_s is None or course.quorum_impossible_at_s > NOW_S + seconds
        )
    # Balances and fees are conserved: with what is left, every validator paid what it had.
    for validator in validators:
        if validator.balance_navax is not None:
            assert run.paid[validator.id] + run.left[validator.id] == validator.balance_navax
            assert run.paid[validator.id] == (
                curve.cost(min(seconds, gone.get(validator.id, seconds)))
                if validator.balance_navax
                else 0
            )


@given(small_sets, small_configs, st.integers(0, 60), st.integers(0, 2_000), st.integers(1, 60))
def test_top_ups_keep_the_quorum_and_one_navax_less_of_any_does_not(
    samples: Sequence[tuple[int, int, int | None, bool]],
    config: L1FeeConfig,
    active: int,
    excess: int,
    seconds: int,
) -> None:
    validators = build_validators(samples)
    curve = PlainFeeCurve(config, active, excess)
    assume(curve.cost(seconds + 1) < 2**60)
    top_ups = forecast_quorum(validators, NOW_S, curve, curve, top_up_s=seconds).today.top_ups
    if top_ups is None:
        amount = curve.cost(seconds + 1)
        every = [
            TopUp(ValidationID(validator.id), amount)
            for validator in validators
            if validator.balance_navax is not None
        ]
        assert not keeps_quorum(funded(validators, every), config, active, excess, seconds)
        return
    assert keeps_quorum(funded(validators, top_ups), config, active, excess, seconds)
    # A stake that ends leaves the total, so that a validator may be needed only until then.
    assume(
        all(
            validator.end_s is None or validator.end_s > NOW_S + seconds for validator in validators
        )
    )
    for place, top_up in enumerate(top_ups):
        less = [
            *top_ups[:place],
            replace(top_up, amount_navax=top_up.amount_navax - 1),
            *top_ups[place + 1 :],
        ]
        assert not keeps_quorum(funded(validators, less), config, active, excess, seconds)


@given(small_sets, st.integers(0, 100), st.integers(1, 100))
def test_up_to_twelve_candidates_are_funded_with_the_least_sum(
    samples: Sequence[tuple[int, int, int | None, bool]], excess: int, seconds: int
) -> None:
    config, active = L1FeeConfig(5, 3, 1_000), 5
    validators = build_validators(samples[:6])
    curve = PlainFeeCurve(config, active, excess)
    top_ups = forecast_quorum(validators, NOW_S, curve, curve, top_up_s=seconds).today.top_ups
    needed = curve.cost(seconds + 1)
    missing = [
        TopUp(ValidationID(validator.id), needed - validator.balance_navax)
        for validator in validators
        if validator.balance_navax is not None and validator.balance_navax < needed
    ]
    sums = [
        sum(top_up.amount_navax for top_up in choice)
        for size in range(len(missing) + 1)
        for choice in combinations(missing, size)
        if keeps_quorum(funded(validators, choice), config, active, excess, seconds)
    ]
    assert (None if top_ups is None else sum(top_up.amount_navax for top_up in top_ups)) == min(
        sums, default=None
    )


def test_two_thousand_validators_are_funded_cheaply_and_with_none_too_many() -> None:
    validators = [l1_validator(1, 1, 0)]
    for number in range(2_000):
        key = ValidationID(number.to_bytes(32, "big"))
        balance = (number * 7_919) % 2_000 * AVAX // 1_000
        validators.append(
            replace(validators[0], id=key, weight=1 + number % 13, balance_navax=balance)
        )
    outlook = on_mainnet(validators)
    top_ups = outlook.today.top_ups
    assert top_ups is not None
    amounts = {top_up.validation_id: top_up.amount_navax for top_up in top_ups}
    weights = {validator.id: validator.weight for validator in validators}
    unfunded = [
        validator
        for validator in validators
        if validator.id not in amounts and (validator.balance_navax or 0) < MONTH_NAVAX
    ]
    lasting = [
        validator
        for validator in funded(validators, top_ups)
        if (validator.balance_navax or 0) >= MONTH_NAVAX
    ]
    weight = sum(validator.weight for validator in lasting)
    assert weight >= outlook.required_weight
    superfluous = [
        validator
        for validator in lasting
        if validator.id in amounts and weight - validator.weight >= outlook.required_weight
    ]
    assert superfluous == []
    dearest = max(
        Fraction(top_up.amount_navax, weights[top_up.validation_id]) for top_up in top_ups
    )
    assert (
        sum(
            Fraction(MONTH_NAVAX - (validator.balance_navax or 0), validator.weight) < dearest
            for validator in unfunded
        )
        <= 1
    )


class CountedWeight(int):
    """A weight that counts how often a weight was added or taken off."""

    count = 0

    def __radd__(self, other: int) -> int:
        CountedWeight.count += 1
        return other + int(self)

    def __rsub__(self, other: int) -> int:
        CountedWeight.count += 1
        return other - int(self)


@pytest.mark.parametrize(("balances", "stakes"), [(12, 5_000), (5_000, 5_000)])
def test_the_choice_of_top_ups_takes_a_bounded_number_of_sums(
    monkeypatch: pytest.MonkeyPatch, balances: int, stakes: int
) -> None:
    """Each end of a stake is another need, so that a node that lies could make the needs as many as
    the validators.
    """
    monkeypatch.setattr(CountedWeight, "count", 0)
    validators = [
        replace(
            l1_validator(1, CountedWeight(100), 512 * (1_000 + 3 * number)),
            id=number.to_bytes(32, "big"),
        )
        for number in range(balances)
    ]
    validators += [
        replace(stake(2, 1, NOW_S + 1_001 + 3 * number), id=(10_000 + number).to_bytes(32, "big"))
        for number in range(stakes)
    ]
    outlook = on_mainnet(validators)
    top_ups = outlook.today.top_ups
    assert CountedWeight.count < 250_000
    assert outlook.today.quorum_impossible_at_s is not None
    if balances > 12:
        # The cheapest choice would take millions of sums.
        assert top_ups is not None
        assert len(top_ups) == balances


def test_thirty_days_are_paid_for_to_the_navax_while_the_price_falls() -> None:
    # From 912 nAVAX a second; a fee at more than 1,000 is up to 0.1 % too high.
    config, active, excess = FUJI.l1_fee, 9_000, 30_000_000
    curve = FeeCurve(config, active, excess)
    validators = [l1_validator(1, 40, AVAX), l1_validator(2, 35, AVAX), l1_validator(3, 25, 0)]
    top_ups = forecast_quorum(validators, NOW_S, curve, curve).today.top_ups
    needed = l1_fee_cost(config, active, excess, 30 * DAY_S + 1)
    assert top_ups == (TopUp(validator_id(1), needed - AVAX), TopUp(validator_id(2), needed - AVAX))
