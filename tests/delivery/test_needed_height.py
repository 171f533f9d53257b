"""The lowest height from which on a subnet has its present set, found with few calls."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.node.recorded_node import L1, RecordedNode
from tests.validators.fixtures import SET, ValidatorServices, made_up_set, started_services
from warpseal.delivery.needed_height import NeededHeights


def changes_at(*heights: int) -> Any:
    """Answer with a set that gains a validator at each of these heights."""
    return lambda params: made_up_set(1 + sum(height <= params["height"] for height in heights))


async def find(services: ValidatorServices, low: int, high: int) -> int:
    digest = (await services.sets.past(L1, high)).digest
    return await NeededHeights(services.sets).find(L1, low, high, digest, timeout_s=30)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_the_last_change_is_found_with_one_call_for_each_halving(data: st.DataObject) -> None:
    low = data.draw(st.integers(0, 1_000))
    high = low + data.draw(st.integers(1, 100_000))
    changed = sorted(data.draw(st.lists(st.integers(low + 1, high), min_size=1, max_size=4)))

    async def search() -> None:
        async with started_services(RecordedNode({SET: changes_at(*changed)})) as services:
            assert await find(services, low, high) == changed[-1]
            assert services.set_calls() <= 1 + (high - low).bit_length()

    asyncio.run(search())


async def test_a_search_that_takes_too_long_goes_on_and_serves_the_next_caller() -> None:
    gate = asyncio.Event()

    async def slow(params: Any) -> Any:
        await gate.wait()
        return changes_at(50)(params)

    node = RecordedNode({SET: changes_at(50)})
    async with started_services(node) as services:
        digest = (await services.sets.past(L1, 100)).digest
        needed = NeededHeights(services.sets)
        node.replies[SET] = slow
        assert await needed.find(L1, 0, 100, digest, timeout_s=0.01) == 100
        gate.set()
        assert await needed.find(L1, 0, 100, digest, timeout_s=30) == 50
        calls = services.set_calls()
        assert await needed.find(L1, 0, 100, digest, timeout_s=30) == 50
        assert services.set_calls() == calls


async def test_a_failed_search_gives_a_height_that_suffices_and_is_tried_again() -> None:
    node = RecordedNode({SET: changes_at(50)})
    async with started_services(node) as services:
        digest = (await services.sets.past(L1, 100)).digest
        needed = NeededHeights(services.sets)
        node.replies[SET] = lambda _: web.Response(status=500)
        assert await needed.find(L1, 0, 100, digest, timeout_s=30) == 100
        node.replies[SET] = changes_at(50)
        assert await needed.find(L1, 0, 100, digest, timeout_s=30) == 50
