"""Facts about chains and subnets that never change are fetched once, others repeatedly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NO_CHAIN,
    PERMISSIONED,
    RecordedNode,
    RpcFault,
    recorded_result,
)
from tests.validators.world import world
from warpseal.errors import NodeUnavailable, UnknownChain, UnknownSubnet
from warpseal.node.p_chain import Subnet
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, SubnetID, id_text

VALIDATED_BY = "platform.validatedBy"
SUBNET = "platform.getSubnet"


def unknown(_: object) -> Any:
    raise RpcFault("not found")


async def test_the_primary_network_validates_the_p_chain_without_a_call() -> None:
    async with world() as here:
        assert await here.chains.subnet_of(P_CHAIN) == PRIMARY_NETWORK
        assert await here.chains.subnet(PRIMARY_NETWORK) == Subnet(PRIMARY_NETWORK)
        assert not here.node.seen


async def test_concurrent_lookups_of_a_chain_share_one_call_and_stay_cached() -> None:
    async with world() as here:
        assert await asyncio.gather(*(here.chains.subnet_of(L1_CHAIN) for _ in range(50))) == [L1] * 50
        here.clock.now += 10**9
        assert await here.chains.subnet_of(L1_CHAIN) == L1
        assert await here.chains.subnet_of(C_CHAIN) == PRIMARY_NETWORK
        assert here.node.calls[VALIDATED_BY] == 2


async def test_an_unknown_chain_is_looked_up_again_soon() -> None:
    async with world() as here:
        for _ in range(3):
            with pytest.raises(UnknownChain) as caught:
                await here.chains.subnet_of(NO_CHAIN)
        assert caught.value.detail()["blockchainId"] == id_text(NO_CHAIN)
        assert here.node.calls[VALIDATED_BY] == 1
        here.node.answers[VALIDATED_BY] = {"subnetID": id_text(L1)}
        here.clock.now += 2.0
        assert await here.chains.subnet_of(NO_CHAIN) == L1


async def test_a_failure_to_ask_is_not_kept() -> None:
    async with world(RecordedNode({VALIDATED_BY: lambda _: web.Response(status=500)})) as here:
        with pytest.raises(NodeUnavailable):
            await here.chains.subnet_of(L1_CHAIN)
        del here.node.answers[VALIDATED_BY]
        assert await here.chains.subnet_of(L1_CHAIN) == L1


async def test_a_conversion_is_kept_and_its_absence_is_not() -> None:
    async with world() as here:
        assert (await here.chains.subnet(L1)).is_l1
        assert not (await here.chains.subnet(PERMISSIONED)).is_l1
        here.clock.now += 2.0
        here.node.answers[SUBNET] = recorded_result(SUBNET, subnetID=id_text(L1))
        assert (await here.chains.subnet(PERMISSIONED)).is_l1
        here.node.answers[SUBNET] = unknown
        here.clock.now += 10**9
        assert (await here.chains.subnet(L1)).is_l1
        assert (await here.chains.subnet(PERMISSIONED)).is_l1


async def test_an_unknown_subnet_is_looked_up_again_soon() -> None:
    made_up = SubnetID(b"\x55" * 32)
    async with world(RecordedNode({SUBNET: unknown})) as here:
        for _ in range(3):
            with pytest.raises(UnknownSubnet):
                await here.chains.subnet(made_up)
        assert here.node.calls[SUBNET] == 1
        here.clock.now += 2.0
        with pytest.raises(UnknownSubnet):
            await here.chains.subnet(made_up)
        assert here.node.calls[SUBNET] == 2


async def test_the_chains_of_a_subnet_are_kept_for_a_minute() -> None:
    async with world() as here:
        for _ in range(3):
            assert await here.chains.blockchains_of(L1) == (L1_CHAIN,)
        assert here.node.calls["platform.validates"] == 1
        here.clock.now += 60.0
        await here.chains.blockchains_of(L1)
        assert here.node.calls["platform.validates"] == 2
