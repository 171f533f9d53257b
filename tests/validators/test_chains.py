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
    RefusedCall,
    recorded_result,
)
from tests.validators.fixtures import started_services
from warpseal.node.p_chain import Subnet
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import UnknownChain, UnknownSubnet
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, SubnetID, id_text

VALIDATED_BY = "platform.validatedBy"
SUBNET = "platform.getSubnet"


def unknown(_: object) -> Any:
    raise RefusedCall("not found")


async def test_the_primary_network_validates_the_p_chain_without_a_call() -> None:
    async with started_services() as services:
        assert await services.chains.subnet_of(P_CHAIN) == PRIMARY_NETWORK
        assert await services.chains.subnet(PRIMARY_NETWORK) == Subnet(PRIMARY_NETWORK)
        assert not services.node.seen


async def test_concurrent_lookups_of_a_chain_share_one_call_and_stay_cached() -> None:
    async with started_services() as services:
        assert (
            await asyncio.gather(*(services.chains.subnet_of(L1_CHAIN) for _ in range(50)))
            == [L1] * 50
        )
        services.clock.now += 10**9
        assert await services.chains.subnet_of(L1_CHAIN) == L1
        assert await services.chains.subnet_of(C_CHAIN) == PRIMARY_NETWORK
        assert services.node.calls[VALIDATED_BY] == 2


@pytest.mark.parametrize(("has_index", "subnet_id"), [(False, PERMISSIONED), (True, L1)])
async def test_a_listed_chain_has_the_subnet_of_its_list_unless_an_index_knows_better(
    has_index: bool, subnet_id: SubnetID
) -> None:
    node = RecordedNode({"platform.validates": {"blockchainIDs": [id_text(L1_CHAIN)]}})
    async with started_services(node) as services:
        chains = ChainLookup(services.upstream.platform, has_index=has_index)
        assert await chains.blockchains_of(PERMISSIONED) == (L1_CHAIN,)
        assert await chains.subnet_of(L1_CHAIN) == subnet_id


async def test_an_unknown_chain_is_looked_up_again_soon() -> None:
    async with started_services() as services:
        for _ in range(3):
            with pytest.raises(UnknownChain) as error:
                await services.chains.subnet_of(NO_CHAIN)
        assert error.value.detail["blockchain_id"] == id_text(NO_CHAIN)
        assert services.node.calls[VALIDATED_BY] == 1
        services.node.replies[VALIDATED_BY] = {"subnetID": id_text(L1)}
        services.clock.now += 2.0
        assert await services.chains.subnet_of(NO_CHAIN) == L1


async def test_a_failure_to_ask_is_not_kept() -> None:
    async with started_services(
        RecordedNode({VALIDATED_BY: lambda _: web.Response(status=500)})
    ) as services:
        with pytest.raises(NodeUnavailable):
            await services.chains.subnet_of(L1_CHAIN)
        del services.node.replies[VALIDATED_BY]
        assert await services.chains.subnet_of(L1_CHAIN) == L1


async def test_a_conversion_is_kept_and_its_absence_is_not() -> None:
    async with started_services() as services:
        assert (await services.chains.subnet(L1)).is_l1
        assert not (await services.chains.subnet(PERMISSIONED)).is_l1
        services.clock.now += 2.0
        services.node.replies[SUBNET] = recorded_result(SUBNET, subnetID=id_text(L1))
        assert (await services.chains.subnet(PERMISSIONED)).is_l1
        services.node.replies[SUBNET] = unknown
        services.clock.now += 10**9
        assert (await services.chains.subnet(L1)).is_l1
        assert (await services.chains.subnet(PERMISSIONED)).is_l1


async def test_an_unknown_subnet_is_looked_up_again_soon() -> None:
    made_up = SubnetID(b"\x55" * 32)
    async with started_services(RecordedNode({SUBNET: unknown})) as services:
        for _ in range(3):
            with pytest.raises(UnknownSubnet):
                await services.chains.subnet(made_up)
        assert services.node.calls[SUBNET] == 1
        services.clock.now += 2.0
        with pytest.raises(UnknownSubnet):
            await services.chains.subnet(made_up)
        assert services.node.calls[SUBNET] == 2


async def test_the_chains_of_a_subnet_are_kept_for_a_minute() -> None:
    async with started_services() as services:
        for _ in range(3):
            assert await services.chains.blockchains_of(L1) == (L1_CHAIN,)
        assert services.node.calls["platform.validates"] == 1
        services.clock.now += 60.0
        await services.chains.blockchains_of(L1)
        assert services.node.calls["platform.validates"] == 2
