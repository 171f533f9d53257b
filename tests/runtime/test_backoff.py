"""Backoff: growth, jitter and cap, for any random source."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from warpseal.runtime.backoff import Backoff


class Fixed(Random):
    """A random source that always draws the same number of [0, 1)."""

    def __init__(self, drawn: float) -> None:
        super().__init__(0)
        self.drawn = drawn

    def random(self) -> float:
        return self.drawn


def delays(backoff: Backoff, random: Random, count: int) -> list[float]:
    drawn = [0.0]
    for _ in range(count):
        drawn.append(backoff.next_delay(drawn[-1], random))
    return drawn[1:]


def test_the_slowest_draw_never_grows_and_the_middle_draw_grows_by_half() -> None:
    assert delays(Backoff(), Fixed(0.0), 3) == [1.0, 1.0, 1.0]
    assert delays(Backoff(), Fixed(0.5), 4) == [1.5, 2.25, 3.375, 5.0625]


def test_above_the_cap_a_delay_falls_back_below_it() -> None:
    assert Backoff().next_delay(59.0, Fixed(0.5)) == 60 * 3.5 / 4
    assert Backoff().next_delay(60.0, Fixed(0.0)) == 60.0
    assert Backoff(cap_s=8.0).next_delay(1000.0, Fixed(0.0)) == 6.0


def test_the_first_delay_follows_zero() -> None:
    assert Backoff(first_s=10.0).next_delay(0, Fixed(0.25)) == 12.5


@given(st.randoms(use_true_random=False), st.floats(0.01, 10), st.floats(20, 600))
def test_delays_stay_between_the_first_and_the_cap(random: Random, first_s: float, cap_s: float) -> None:
    backoff = Backoff(first_s, cap_s)
    drawn = delays(backoff, random, 40)
    # The largest draw below 1 rounds up to a doubling.
    assert first_s <= drawn[0] <= 2 * first_s
    assert all(first_s <= delay <= cap_s for delay in drawn)
    for before, after in pairwise(drawn):
        assert before <= after <= 2 * before or 0.75 * cap_s <= after <= cap_s


def test_the_same_seed_gives_the_same_delays_and_another_seed_others() -> None:
    assert delays(Backoff(), Random(1), 10) == delays(Backoff(), Random(1), 10)
    assert delays(Backoff(), Random(1), 10) != delays(Backoff(), Random(2), 10)


def test_most_delays_reach_the_region_of_the_cap() -> None:
    assert 45 <= delays(Backoff(), Random(3), 40)[-1] <= 60
