"""Current validations are fetched once for all callers, and stay usable for a minute while no node
answers.
"""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.node.recorded_node import L1, PERMISSIONED
from tests.validators.fixtures import ValidatorServices, started_services
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.chain_validator_list import STALE_S, CurrentValidations, Validations

METHOD = "platform.getCurrentValidators"
TTL_S = 4.0


def of(services: ValidatorServices, batches: list[Validations] | None = None) -> CurrentValidations:
    updates: list[Validations] = [] if batches is None else batches
    return CurrentValidations(
        services.upstream.platform, updates.append, ttl_s=TTL_S, now=services.clock
    )


async def test_concurrent_callers_share_one_call_for_each_subnet() -> None:
    batches: list[Validations] = []
    async with started_services() as services:
        current = of(services, batches)
        results = await asyncio.gather(
            *(current.of(subnet_id) for subnet_id in (L1, PERMISSIONED) for _ in range(20))
        )
        assert {len(validation) for validation in results} == {4, 1}
        assert services.node.calls[METHOD] == 2
    assert sorted(map(len, batches)) == [1, 4]


async def test_validations_are_fetched_again_once_they_are_old() -> None:
    async with started_services() as services:
        current = of(services)
        await current.of(L1)
        services.node.replies[METHOD] = {"validators": []}
        services.clock.now += TTL_S - 0.1
        assert len(await current.of(L1)) == 4
        services.clock.now += 0.2
        assert await current.of(L1) == ()


async def test_a_refresh_in_the_background_saves_callers_the_call() -> None:
    async with started_services() as services:
        current = of(services)
        for _ in range(3):
            await current.refresh(L1)
            services.clock.now += TTL_S / 2
            await current.of(L1)
        assert services.node.calls[METHOD] == 3


async def test_the_last_response_is_used_for_a_minute_while_no_node_answers() -> None:
    async with started_services() as services:
        current = of(services)
        await current.of(L1)
        services.node.replies[METHOD] = lambda _: web.Response(status=503)
        services.clock.now += STALE_S - 1
        assert len(await current.of(L1)) == 4
        services.clock.now += 2
        with pytest.raises(NodeUnavailable):
            await current.of(L1)
        with pytest.raises(NodeUnavailable):
            await current.refresh(L1)
