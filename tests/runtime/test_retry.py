"""Delays grow with jitter up to a cap; a retrier repeats calls until they succeed, and reports what
blocks them.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eventually import until
from warpseal.runtime.retry import Backoff, Retrier, RetryDelays
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable

FAST = Backoff(first_s=0.001, cap_s=0.002)
FAILURES: dict[type[Exception], str] = {StoreDown: "store", NodeUnavailable: "nodes"}


class Upstream:
    """Raise the given errors in order, then return the number of calls."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.calls = 0

    async def ask(self) -> int:
        self.calls += 1
        if self._failures:
            raise self._failures.pop(0)
        return self.calls


async def test_a_call_is_repeated_until_it_succeeds() -> None:
    retrier = Retrier(FAST, FAILURES)
    upstream = Upstream(NodeUnavailable("x"), StoreDown("y"), NodeUnavailable("x"))
    assert await retrier.call(upstream.ask) == 4
    assert retrier.blocked_on is None


async def test_other_errors_pass_through_and_are_not_repeated() -> None:
    retrier, upstream = Retrier(FAST, FAILURES), Upstream(NodeUnavailable("x"), ValueError("y"))
    with pytest.raises(ValueError, match="y"):
        await retrier.call(upstream.ask)
    assert upstream.calls == 2
    assert retrier.blocked_on is None


async def test_every_failure_is_reported_with_the_delay_that_follows() -> None:
    reported: list[tuple[str, float]] = []
    errors = [NodeUnavailable("x"), StoreDown("y")]

    def report(error: Exception, delay_s: float) -> None:
        reported.append((str(error), delay_s))

    await Retrier(FAST, FAILURES, report, Random(1)).call(Upstream(*errors).ask)
    delays = RetryDelays(FAST, Random(1))
    assert reported == [(str(error), delays.next()) for error in errors]


async def test_calls_are_blocked_on_the_first_named_dependency_until_they_end() -> None:
    open_nodes, open_store = asyncio.Event(), asyncio.Event()

    async def node_call() -> str:
        if not open_nodes.is_set():
            raise NodeUnavailable("x")
        return "node"

    async def store_call() -> str:
        if not open_store.is_set():
            raise StoreDown("y")
        return "store"

    retrier = Retrier(FAST, FAILURES)
    node_task = asyncio.create_task(retrier.call(node_call))
    await until(lambda: retrier.blocked_on == "nodes")
    store_task = asyncio.create_task(retrier.call(store_call))
    await until(lambda: retrier.blocked_on == "store")
    open_store.set()
    assert await store_task == "store"
    assert retrier.blocked_on == "nodes"
    node_task.cancel()
    await asyncio.wait((node_task,))
    assert retrier.blocked_on is None


def test_delays_begin_again_after_a_reset() -> None:
    delays = RetryDelays(Backoff(first_s=1.0, cap_s=100.0), Random(3))
    grown = [delays.next() for _ in range(4)]
    assert grown == sorted(grown)
    delays.reset()
    assert 1.0 <= delays.next() < 2.0 < grown[-1]


class Fixed(Random):
    """A random source that always draws the same number of [0, 1)."""

    def __init__(self, draws: float) -> None:
        super().__init__(0)
        self.draws = draws

    def random(self) -> float:
        return self.draws


def delays(backoff: Backoff, random: Random, count: int) -> list[float]:
    draws = [0.0]
    for _ in range(count):
        draws.append(backoff.next_delay(draws[-1], random))
    return draws[1:]


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
def test_delays_stay_between_the_first_and_the_cap(
    random: Random, first_s: float, cap_s: float
) -> None:
    backoff = Backoff(first_s, cap_s)
    draws = delays(backoff, random, 40)
    # The largest draw below 1 rounds up to a doubling.
    assert first_s <= draws[0] <= 2 * first_s
    assert all(first_s <= delay <= cap_s for delay in draws)
    for before, after in pairwise(draws):
        assert before <= after <= 2 * before or 0.75 * cap_s <= after <= cap_s


def test_the_same_seed_gives_the_same_delays_and_another_seed_others() -> None:
    assert delays(Backoff(), Random(1), 10) == delays(Backoff(), Random(1), 10)
    assert delays(Backoff(), Random(1), 10) != delays(Backoff(), Random(2), 10)


def test_most_delays_reach_the_region_of_the_cap() -> None:
    assert 45 <= delays(Backoff(), Random(3), 40)[-1] <= 60
