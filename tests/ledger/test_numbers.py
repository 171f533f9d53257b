"""Rewards, their split and the fee of L1 validators, against the reference's own tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.ledger.chain_time import LONGEST_SUM_S, advance_excess, l1_fee_cost, l1_fee_price
from warpseal.ledger.params import DAY_S, STANDARD_REWARDS, L1FeeConfig, RewardConfig
from warpseal.ledger.rewards import potential_reward, reward_config_at, split_reward

FEE = L1FeeConfig(target=10_000, min_price=2048, excess_conversion=1_246_488_515)


@pytest.mark.parametrize(
    ("days", "stake", "supply", "reward"),
    [
        (365, 10**15, 360 * 10**15, 120_000_000_000_000),
        (365, 10**15, 400 * 10**15, 96_000_000_000_000),
        (1, 10**15, 360 * 10**15, 274_122_724_713),
        (1, 5_000_000, 360 * 10**15, 1370),
        (1, 10**15, 400 * 10**15, 219_298_179_771),
        (1, 2 * 10**15, 400 * 10**15, 438_596_359_542),
        (365, 10**15, 720 * 10**15, 0),
    ],
)
def test_rewards_equal_the_tables_of_avalanchego(
    days: int, stake: int, supply: int, reward: int
) -> None:
    assert potential_reward(STANDARD_REWARDS, days * DAY_S, stake, supply) == reward


@given(st.integers(1, 366 * DAY_S), st.integers(0, 2**64 - 1), st.integers(1, 720 * 10**15))
def test_no_reward_exceeds_the_supply_cap(duration_s: int, stake: int, supply: int) -> None:
    reward = potential_reward(STANDARD_REWARDS, duration_s, stake, supply)
    assert 0 <= reward <= STANDARD_REWARDS.supply_cap - supply


@pytest.mark.parametrize(
    ("total", "shares", "part"),
    [
        (1000, 500_000, 500),
        (1, 999_999, 1),
        (1, 1, 1),
        (1, 0, 0),
        (9_223_374_036_974_675_809, 2, 18_446_748_749_757),
        (9_223_372_036_855_275_808, 999_998, 9_223_353_590_111_202_098),
        (9_223_372_036_855_275_808, 2, 18_446_744_349_518),
    ],
)
def test_rounding_of_a_split_favours_the_validator(total: int, shares: int, part: int) -> None:
    assert split_reward(total, shares) == (part, total - part)


def test_a_reward_too_large_to_multiply_is_rounded_early() -> None:
    largest = (2**64 - 1) // 980_000
    assert split_reward(largest, 20_000)[1] == 980_000 * largest // 10**6
    assert split_reward(largest + 1, 20_000)[1] == 980_000 * ((largest + 1) // 10**6)
    # 641 and 257 are factors of the largest number of 64 bits.
    rest_shares = 641 * 257
    largest = (2**64 - 1) // rest_shares
    assert split_reward(largest, 10**6 - rest_shares)[1] == (2**64 - 1) // 10**6


@pytest.mark.parametrize(
    ("active", "excess", "seconds", "total", "after"),
    [
        (10, 0, 60, 122_880, 0),
        (10_000, 864_000_000, 60, 245_760, 864_000_000),
        (10_000, 1_246_488_515, 60, 334_020, 1_246_488_515),
        (15_000, 0, 60, 122_880, 300_000),
        (9_000, 21_600_000, 86_400, 177_321_939, 0),
        (15_000, 0, 86_400, 211_438_809, 432_000_000),
    ],
)
def test_l1_fees_equal_the_tables_of_avalanchego(
    active: int, excess: int, seconds: int, total: int, after: int
) -> None:
    assert l1_fee_cost(FEE, active, excess, seconds) == total
    assert advance_excess(FEE, active, excess, seconds) == after


@given(st.integers(0, 20_000), st.integers(0, 2 * 10**9), st.integers(0, 40), st.integers(0, 40))
def test_a_fee_over_a_period_is_the_sum_over_its_parts(
    active: int, excess: int, first: int, second: int
) -> None:
    middle = advance_excess(FEE, active, excess, first)
    parts = l1_fee_cost(FEE, active, excess, first) + l1_fee_cost(FEE, active, middle, second)
    assert parts == l1_fee_cost(FEE, active, excess, first + second)
    assert advance_excess(FEE, active, middle, second) == advance_excess(
        FEE, active, excess, first + second
    )


def test_the_fee_is_capped_at_64_bits() -> None:
    assert l1_fee_price(FEE, 2**64 - 1) == 2**64 - 1
    assert l1_fee_cost(FEE, 10_000, 2**64 - 1, 2) == 2**64 - 1


def test_an_implausibly_long_period_is_refused_without_a_sum() -> None:
    config = L1FeeConfig(target=1, min_price=1, excess_conversion=10**30)
    assert l1_fee_cost(config, 0, 0, 2**63) == 2**63
    with pytest.raises(ValueError, match="too many to sum"):
        l1_fee_cost(config, 2, 0, LONGEST_SUM_S + 2)


@pytest.mark.parametrize(
    ("start_s", "rate"),
    [(999, 100_000), (1000, 100_000), (1000 + 45 * DAY_S, 87_500), (1000 + 90 * DAY_S, 75_000)],
)
def test_helicon_lowers_the_minimum_rate_over_ninety_days(start_s: int, rate: int) -> None:
    assert reward_config_at(STANDARD_REWARDS, start_s, 1000).min_rate == rate


def test_helicon_never_lifts_the_minimum_above_a_lower_maximum() -> None:
    low = RewardConfig(74_999, 60_000, 365 * DAY_S, 10**18)
    assert reward_config_at(low, 2**40, 1000) == low
    equal = RewardConfig(75_000, 60_000, 365 * DAY_S, 10**18)
    assert reward_config_at(equal, 2**40, 1000).min_rate == 75_000
