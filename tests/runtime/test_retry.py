"""A retrier repeats calls until they succeed, and reports the dependency that blocks them."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.eventually import until
from warpseal.errors import NodeUnavailable, StoreDown
from warpseal.runtime.backoff import Backoff
from warpseal.runtime.retry import Retrier, RetryDelays

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
    assert await retrier.call(Upstream(NodeUnavailable("x"), StoreDown("y"), NodeUnavailable("x")).ask) == 4
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
    await Retrier(FAST, FAILURES, lambda error, delay_s: reported.append((str(error), delay_s)), Random(1)).call(
        Upstream(*errors).ask
    )
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
