"""The validators of the tracked subnets are refreshed periodically, with few concurrent calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.eventually import until
from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NO_CHAIN,
    PERMISSIONED,
    PERMISSIONED_CHAIN,
    RecordedNode,
    RefusedCall,
    recorded_result,
)
from tests.validators.fixtures import Peers, ValidatorServices, started_services
from tests.validators.test_chain_validator_list import FakePeerUptimes
from tests.validators.test_subnet_tracker import L1_NODES
from warpseal.node.chain_apis import ChainValidatorsClient
from warpseal.validators.chain_validator_list import (
    ChainValidatorList,
    CurrentValidations,
    LocalView,
    Validations,
    ValidatorRefresher,
)
from warpseal.warp.ids import ChainID, SubnetID, id_text

METHOD = "platform.getCurrentValidators"
CHAINS = "platform.validates"


class RefresherScenario:
    """A refresher over one node, with its recorded callbacks."""

    def __init__(self, services: ValidatorServices) -> None:
        self.services = services
        self.batches: list[Validations] = []
        self.appeared: set[ChainID] = set()
        self.peers = Peers()
        self.current = CurrentValidations(
            services.upstream.platform, self.batches.append, now=services.clock
        )
        tracker = services.build_tracker(self.peers)
        self.refresher = ValidatorRefresher(
            services.chains,
            self.current,
            tracker,
            services.settings,
            self.appeared.add,
        )

    def chain(self, chain_id: ChainID) -> ChainValidatorList:
        """Return a configured chain that no node lists."""
        peer_uptimes = FakePeerUptimes()
        view = LocalView(
            self.services.chains, self.current, peer_uptimes.is_connected, peer_uptimes.uptime
        )
        return ChainValidatorList(chain_id, ChainValidatorsClient(()), view, self.services.clock)

    @asynccontextmanager
    async def running(self, *configured: ChainID) -> AsyncIterator[None]:
        """Refresh while the block runs."""
        await self.services.heights.poll()
        task = asyncio.create_task(self.refresher.run([self.chain(entry) for entry in configured]))
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_tracked_subnets_and_their_chains_are_refreshed_in_the_background() -> None:
    async with started_services(
        tracked_subnet_ids=(L1, PERMISSIONED, L1), current_refresh_s=0.02
    ) as services:
        scenario = RefresherScenario(services)
        async with scenario.running():
            await until(
                lambda: (
                    scenario.appeared == {L1_CHAIN, PERMISSIONED_CHAIN}
                    and len(scenario.batches) >= 6
                )
            )
            calls = services.node.calls["platform.validatedBy"]
            assert await services.chains.subnet_of(L1_CHAIN) == L1
            assert services.node.calls["platform.validatedBy"] == calls
        assert {len(entry) for entry in scenario.batches} == {4, 1}


async def test_a_refresh_that_failed_is_repeated() -> None:
    def refuse(_: object) -> object:
        raise RefusedCall("current P-chain height (1) < requested P-Chain height (2)")

    async with started_services(tracked_subnet_ids=(L1,), current_refresh_s=0.02) as services:
        scenario = RefresherScenario(services)
        wrongs: tuple[Any, ...] = (lambda _: web.Response(status=503), {"validators": [{}]}, refuse)
        for wrong in wrongs:
            services.node.replies[METHOD] = services.node.replies[CHAINS] = wrong
            services.node.calls.clear()
            async with scenario.running():
                await until(lambda: services.node.calls[METHOD] >= 2)
            assert (scenario.batches, scenario.appeared) == ([], set())
        services.node.replies.clear()
        async with scenario.running():
            await until(lambda: scenario.appeared == {L1_CHAIN})


async def test_a_chain_that_is_created_later_is_reported_later() -> None:
    async with started_services(tracked_subnet_ids=(L1,), current_refresh_s=0.02) as services:
        scenario = RefresherScenario(services)
        services.node.replies[CHAINS] = {"blockchainIDs": []}
        async with scenario.running():
            await until(lambda: len(scenario.batches) >= 2)
            del services.node.replies[CHAINS]
            services.clock.now += 61
            await until(lambda: scenario.appeared == {L1_CHAIN})


async def test_the_concurrency_of_refreshes_is_limited() -> None:
    under_way, most = 0, 0

    async def slow(_: object) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return {"validators": []}

    many = tuple(SubnetID(bytes([number]) * 32) for number in range(1, 25))
    async with started_services(
        RecordedNode({METHOD: slow, CHAINS: {"blockchainIDs": []}}),
        tracked_subnet_ids=many,
    ) as services:
        scenario = RefresherScenario(services)
        async with scenario.running():
            await until(lambda: len(scenario.batches) >= len(many))
    assert 1 < most <= 4


async def test_the_subnet_of_a_configured_chain_is_followed_and_refreshed() -> None:
    async with started_services(
        tracked_subnet_ids=(PERMISSIONED,), current_refresh_s=0.02
    ) as services:
        scenario = RefresherScenario(services)
        async with scenario.running(L1_CHAIN, PERMISSIONED_CHAIN, C_CHAIN, NO_CHAIN):
            await until(lambda: {len(entry) for entry in scenario.batches} == {4, 1})
            await until(lambda: services.node.calls[METHOD] >= 8)
            assert scenario.peers.targets == {L1: L1_NODES}
            assert services.set_calls() == 1, (
                "it is followed for minutes, not asked for at each refresh"
            )
        subnet_ids = {
            params["subnetID"] for _, method, params in services.node.seen if method == METHOD
        }
        assert subnet_ids == {id_text(L1), id_text(PERMISSIONED)}


async def test_a_chain_is_listed_locally_only_if_no_node_lists_it() -> None:
    recorded = recorded_result(METHOD, subnetID=id_text(L1))["validators"]
    async with started_services() as services:
        scenario = RefresherScenario(services)
        chain = scenario.chain(L1_CHAIN)
        assert await chain.locally_listed_subnet() == L1
        assert len(await chain.current([]) or ()) == len(recorded)
        assert await scenario.chain(C_CHAIN).locally_listed_subnet() is None
