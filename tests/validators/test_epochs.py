"""The epoch height of a chain is fetched at most once a second."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.node.recorded_node import C_CHAIN, L1_CHAIN, NO_CHAIN, RecordedNode
from tests.validators.fixtures import started_services
from warpseal.upstream.errors import NodeUnavailable

METHOD = "proposervm.getCurrentEpoch"


async def test_concurrent_callers_make_one_call_a_second() -> None:
    async with started_services() as services:
        assert (
            await asyncio.gather(*(services.epochs.height(C_CHAIN) for _ in range(100)))
            == [13] * 100
        )
        services.clock.now += 0.99
        assert await services.epochs.height(C_CHAIN) == 13
        assert services.node.calls[METHOD] == 1
        services.clock.now += 0.01
        assert await services.epochs.height(C_CHAIN) == 13
        assert services.node.calls[METHOD] == 2


async def test_a_chain_without_epochs_is_not_queried_more_often() -> None:
    zeros = {"number": "0", "startTime": "0", "pChainHeight": "0"}
    async with started_services(RecordedNode({METHOD: zeros})) as services:
        for _ in range(3):
            assert await services.epochs.height(C_CHAIN) is None
        assert services.node.calls[METHOD] == 1


async def test_an_epoch_height_is_recognised_among_several_chains() -> None:
    async with started_services() as services:
        assert await services.epochs.any_at(18, (NO_CHAIN, C_CHAIN, L1_CHAIN))
        assert await services.epochs.any_at(13, (C_CHAIN,))
        assert not await services.epochs.any_at(17, (NO_CHAIN, C_CHAIN, L1_CHAIN))


async def test_without_a_node_no_epoch_height_is_known() -> None:
    async with started_services(
        RecordedNode({METHOD: lambda _: web.Response(text="?")})
    ) as services:
        with pytest.raises(NodeUnavailable):
            await services.epochs.height(C_CHAIN)
        assert not await services.epochs.any_at(13, (C_CHAIN,))
