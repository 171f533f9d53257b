"""Inactive and nearly drained validators are fetched while a round runs, and not otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from tests.eventually import finish, until
from tests.node.recorded_node import L1, PERMISSIONED, RecordedNode, node_id, recorded_result
from tests.validators.fixtures import nth_node, started_services
from warpseal.node.p_chain import CurrentValidation
from warpseal.validators.balances import describe_underfunded, inactive_nodes
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text, node_id_text

METHOD = "platform.getCurrentValidators"
INACTIVE = node_id("F3JBbBDkXHTFkeAaxxUbmLsJCFFgtDMtF")


def validator(number: int, balance: int | None) -> CurrentValidation:
    return CurrentValidation(bytes(32), nth_node(number), 1, 0, balance)


def test_an_l1_validator_below_the_balance_is_inactive() -> None:
    current = [validator(0, 0), validator(1, 2_047), validator(2, 2_048), validator(3, None)]
    assert inactive_nodes(current, 2_048) == {nth_node(0), nth_node(1)}


def test_a_node_with_a_funded_validation_is_active() -> None:
    current = [
        validator(0, 0),
        validator(0, 10**9),
        validator(1, 0),
        validator(1, None),
        validator(2, 0),
    ]
    assert inactive_nodes(current, 2_048) == {nth_node(2)}


async def test_the_inactive_validator_of_the_recording_is_known_once_watched() -> None:
    async with started_services() as services:
        assert services.activity.inactive(L1) == frozenset()
        with services.activity.watch(L1):
            await services.activity.ready(L1)
            assert services.activity.inactive(L1) == {INACTIVE}


async def test_underfunded_validations_of_l1s_are_known_once_watched() -> None:
    async with started_services() as services:
        assert services.activity.underfunded(L1) is None
        with services.activity.watch(L1):
            await services.activity.ready(L1)
            (inactive,) = services.activity.underfunded(L1) or ()
            assert (inactive.node_id, inactive.balance) == (INACTIVE, 0)
            assert inactive in services.activity.current(L1)
            assert any(entry.balance for entry in services.activity.current(L1))
        with services.activity.watch(PERMISSIONED):
            await services.activity.ready(PERMISSIONED)
            assert services.activity.underfunded(PERMISSIONED) == ()
        assert services.activity.underfunded(PRIMARY_NETWORK) == ()
        assert services.activity.current(PRIMARY_NETWORK) == ()


def test_an_underfunded_validator_is_described_by_its_balance() -> None:
    drained, inactive = (
        describe_underfunded(validator(1, 2_047)),
        describe_underfunded(validator(1, 0)),
    )
    assert (drained.reason, drained.state) == (
        "underfunded",
        "underfunded: balance 0.000002047 AVAX",
    )
    assert (inactive.reason, inactive.state, inactive.balance) == (
        "inactive",
        "inactive: balance 0",
        "0",
    )


async def test_one_refresh_serves_all_rounds_of_a_subnet() -> None:
    async with started_services(activity_refresh_s=60.0) as services:
        with services.activity.watch(L1), services.activity.watch(L1):
            await asyncio.gather(*(services.activity.ready(L1) for _ in range(20)))
            assert services.node.calls[METHOD] == 1


async def test_activity_is_refreshed_only_while_watched() -> None:
    async with started_services(activity_refresh_s=0.05) as services:
        with services.activity.watch(L1):
            await services.activity.ready(L1)
            services.node.replies[METHOD] = {"validators": []}
            await until(lambda: not services.activity.inactive(L1))
            assert services.node.calls[METHOD] >= 2
        calls = services.node.calls[METHOD]
        await asyncio.sleep(0.3)
        # One call may have been under way.
        assert services.node.calls[METHOD] <= calls + 1


async def test_rounds_in_quick_succession_share_a_reply() -> None:
    async with started_services(activity_refresh_s=60.0) as services:
        for _ in range(20):
            with services.activity.watch(L1):
                await services.activity.ready(L1)
                assert services.activity.inactive(L1) == {INACTIVE}
        assert services.node.calls[METHOD] == 1


async def test_no_refresh_outlives_the_close() -> None:
    def refreshes() -> list[str]:
        return [text for text in map(repr, asyncio.all_tasks()) if "L1Activity._refresh" in text]

    async with started_services(activity_refresh_s=60.0) as services:
        with services.activity.watch(L1):
            await services.activity.ready(L1)
        assert refreshes()
        services.activity.close()
        await until(lambda: not refreshes())


async def test_the_reply_after_the_end_of_a_round_serves_the_next_round() -> None:
    is_over = asyncio.Event()

    async def slow(_: object) -> Any:
        await is_over.wait()
        return recorded_result(METHOD, subnetID=id_text(L1))

    async with started_services(RecordedNode({METHOD: slow}), activity_refresh_s=60.0) as services:
        with services.activity.watch(L1):
            await until(lambda: services.node.calls[METHOD] == 1)
        is_over.set()
        await until(lambda: services.activity.inactive(L1))
        with services.activity.watch(L1):
            assert services.activity.inactive(L1) == {INACTIVE}
            await services.activity.ready(L1)
        assert services.node.calls[METHOD] == 1


async def test_a_failing_call_keeps_the_last_reply() -> None:
    async with started_services(activity_refresh_s=0.05) as services:
        with services.activity.watch(L1):
            await services.activity.ready(L1)
            services.node.replies[METHOD] = lambda _: web.Response(status=500)
            await until(lambda: services.node.calls[METHOD] >= 4)
            assert services.activity.inactive(L1) == {INACTIVE}


async def test_a_failing_node_ends_the_wait_for_activity() -> None:
    async with started_services(
        RecordedNode({METHOD: lambda _: web.Response(status=500)})
    ) as services:
        with services.activity.watch(L1):
            await finish(services.activity.ready(L1))
            assert services.activity.inactive(L1) == frozenset()


async def test_the_primary_network_and_permissioned_subnets_have_no_inactive_validators() -> None:
    async with started_services() as services:
        for subnet_id in (PRIMARY_NETWORK, PERMISSIONED):
            with services.activity.watch(subnet_id):
                await services.activity.ready(subnet_id)
                assert services.activity.inactive(subnet_id) == frozenset()
        assert services.node.calls[METHOD] == 0


async def test_an_unknown_subnet_has_no_inactive_validators() -> None:
    async with started_services(RecordedNode()) as services:
        unknown = SubnetID(b"\x66" * 32)
        with services.activity.watch(unknown):
            await services.activity.ready(unknown)
            assert services.activity.inactive(unknown) == frozenset()


async def test_an_l1_of_a_thousand_validators_is_read() -> None:
    listed = [
        {
            "nodeID": node_id_text(nth_node(n)),
            "weight": "1",
            "startTime": "1",
            "validationID": id_text(bytes(30) + n.to_bytes(2, "big")),
            "balance": str(n),
            "minNonce": "0",
        }
        for n in range(1_000)
    ]
    async with started_services(RecordedNode({METHOD: {"validators": listed}})) as services:
        with services.activity.watch(L1):
            await services.activity.ready(L1)
            assert services.activity.inactive(L1) == {nth_node(n) for n in range(1_000)}
