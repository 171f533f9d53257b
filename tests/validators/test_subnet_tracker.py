"""The tracker gives the peer network nodes and addresses, and reports the connected weight."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import until
from tests.node.recorded_node import (
    L1,
    RecordedNode,
    RefusedCall,
    node_id,
)
from tests.validators.fixtures import (
    HEIGHT,
    SET,
    Peers,
    made_up_set,
    nth_key,
    nth_node,
    started_services,
)
from warpseal.validators.subnet_tracker import SubnetReadiness, SubnetTracker
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text
from warpseal.warp.validator_set import build_canonical_set

ALL_SETS = "platform.getAllValidatorsAt"
PEERS = "info.peers"
MADE_UP = SubnetID(b"\x09" * 32)
PRIMARY_NODES = {
    node_id(text)
    for text in (
        "7fdvUNLVpGgng9tyYzBifCzT7XJrqMKNS",
        "4t2fv4b9AQ39bhZkKwky3otLxBzMM1sdF",
        "4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS",
    )
}
L1_NODES = {
    node_id(text)
    for text in (
        "3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK",
        "83a7v34gAYeeF3TAczJJa3mNSZDGSrqVV",
        "CvXTKynipgz4Z4JubmHGBWqYimuJs8T9H",
    )
}


def tracked_weights(tracker: SubnetTracker) -> dict[SubnetID, tuple[int, int]]:
    return {
        subnet.subnet_id: (subnet.connected, subnet.total) for subnet in tracker.all_readiness()
    }


def count_warnings(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of warnings of sets that could not be refreshed."""
    failed = [record for record in caplog.records if "refresh failed" in record.getMessage()]
    return sum(record.levelno == logging.WARNING for record in failed)


def members(*numbers: int) -> Any:
    return build_canonical_set([(nth_node(n), nth_key(n), n + 1) for n in numbers])


async def test_the_primary_network_and_tracked_subnets_are_followed_from_the_start() -> None:
    peers = Peers()
    async with started_services(tracked_subnet_ids=(L1,)) as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        assert await following.refresh()
    assert peers.targets == {PRIMARY_NETWORK: PRIMARY_NODES, L1: L1_NODES}


async def test_unchanged_sets_are_not_sent_to_peers_again() -> None:
    peers = Peers()
    async with started_services(tracked_subnet_ids=(L1,)) as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        for _ in range(3):
            await following.refresh()
    assert peers.follows == 2


async def test_all_subnets_validators_are_known_but_not_wanted() -> None:
    peers = Peers()
    async with started_services() as services:
        await services.heights.poll()
        await services.build_tracker(peers).refresh()
    assert peers.validators == PRIMARY_NODES | L1_NODES
    assert peers.targets == {PRIMARY_NETWORK: PRIMARY_NODES}


@pytest.mark.parametrize("reason", ["older", "broken"])
async def test_tracked_validators_are_known_if_no_node_lists_all_validators(reason: str) -> None:
    def missing(_: object) -> web.Response:
        if reason == "broken":
            return web.Response(text="?")
        raise RefusedCall('rpc: can\'t find method "platform.GetAllValidatorsAt"')

    peers = Peers()
    async with started_services(
        RecordedNode({ALL_SETS: missing}), tracked_subnet_ids=(L1,)
    ) as services:
        await services.heights.poll()
        assert await services.build_tracker(peers).refresh()
    assert peers.validators == PRIMARY_NODES | L1_NODES


async def test_a_changed_set_changes_the_wanted_nodes() -> None:
    peers = Peers()
    async with started_services(tracked_subnet_ids=(L1,)) as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        await following.refresh()
        services.node.replies[HEIGHT] = {"height": "20"}
        services.node.replies[SET] = made_up_set(3)
        await services.heights.poll()
        await following.refresh()
    assert peers.targets[L1] == {nth_node(n) for n in range(3)}


async def test_a_failed_refresh_keeps_the_tracked_sets_and_is_reported() -> None:
    peers = Peers()
    async with started_services(tracked_subnet_ids=(L1,)) as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        await following.refresh()
        services.node.replies = {HEIGHT: {"height": "20"}, SET: lambda _: web.Response(status=500)}
        await services.heights.poll()
        assert not await following.refresh()
    assert peers.targets == {PRIMARY_NETWORK: PRIMARY_NODES, L1: L1_NODES}


async def test_a_set_that_cannot_be_read_for_a_minute_is_not_ready_and_warned_of_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started_services(tracked_subnet_ids=(L1,)) as services:
        await services.heights.poll()
        made_up = {nth_node(number) for number in range(3)}
        following = services.build_tracker(
            Peers(connected_nodes=PRIMARY_NODES | L1_NODES | made_up)
        )
        await following.refresh()
        services.node.replies = {HEIGHT: {"height": "20"}, SET: lambda _: web.Response(status=500)}
        await services.heights.poll()
        for _ in range(30):
            assert all(subnet.is_ready for subnet in following.readiness())
            await following.refresh()
            assert count_warnings(caplog) == 2
            services.clock.now += 2.0
        primary, l1 = following.readiness()
        assert (primary.is_ready, l1.is_ready, l1.connected) == (False, False, 98_975_463)
        assert l1.shortfall is not None
        assert l1.shortfall.startswith(
            f"subnet {id_text(L1)}: its validator set cannot be read: no usable answer"
        )
        await following.refresh()
        assert count_warnings(caplog) == 4
        services.clock.now += 1.0
        assert all(subnet.is_ready for subnet in following.readiness()), (
            "the height is stale, which is a fault of its own"
        )
        await services.heights.poll()
        assert not any(subnet.is_ready for subnet in following.readiness())
        services.node.replies[SET] = made_up_set(3)
        assert await following.refresh()
        assert all(subnet.is_ready for subnet in following.readiness())


async def test_without_a_height_nothing_can_be_refreshed() -> None:
    async with started_services(
        RecordedNode({HEIGHT: lambda _: web.Response(status=500)})
    ) as services:
        await services.heights.poll()
        assert not await services.build_tracker(Peers()).refresh()


async def test_a_named_subnet_is_followed_until_ten_minutes_after_its_use() -> None:
    peers = Peers()
    async with started_services() as services:
        following = services.build_tracker(peers)
        with following.track(MADE_UP, members(1, 2)):
            assert peers.targets == {MADE_UP: {nth_node(1), nth_node(2)}}
            services.clock.now += 10_000
            following.expire()
            assert MADE_UP in peers.targets
        services.clock.now += 599.9
        following.expire()
        assert MADE_UP in peers.targets
        assert tracked_weights(following) == {PRIMARY_NETWORK: (0, 0), MADE_UP: (0, 5)}
        services.clock.now += 0.1
        following.expire()
        assert peers.targets == {}
        assert list(tracked_weights(following)) == [PRIMARY_NETWORK]


async def test_the_number_of_named_subnets_is_bounded() -> None:
    peers = Peers()
    async with started_services(max_tracked_by_request=3) as services:
        following = services.build_tracker(peers)
        subnet_ids = [SubnetID(bytes([n]) * 32) for n in range(1, 9)]
        for subnet_id in subnet_ids:
            with following.track(subnet_id, members(1)):
                pass
        assert set(peers.targets) == set(subnet_ids[-3:])


async def test_nodes_of_a_set_at_an_older_height_are_wanted_while_it_is_used() -> None:
    peers = Peers()
    async with started_services(tracked_subnet_ids=(L1,)) as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        await following.refresh()
        with following.track(L1, members(7)):
            assert peers.targets[L1] == L1_NODES | {nth_node(7)}
        services.clock.now += 600.0
        following.expire()
        assert peers.targets[L1] == L1_NODES


async def test_using_a_tracked_set_does_not_change_the_wanted_nodes() -> None:
    peers = Peers()
    async with started_services(tracked_subnet_ids=(L1,)) as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        await following.refresh()
        before = peers.follows
        current = await services.sets.at(L1, 19, is_chosen=False)
        for _ in range(100):
            with following.track(L1, current):
                pass
    assert peers.follows == before


async def test_hints_are_passed_on_for_wanted_nodes_only() -> None:
    peers = Peers()
    async with started_services() as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        assert await following.discover()
        assert peers.hints == []
        await following.refresh()
    assert {hint[0] for hint in peers.hints} == PRIMARY_NODES
    assert (node_id("4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS"), "127.0.0.1", 38_211) in peers.hints


async def test_a_newly_named_subnet_gets_its_hints_at_once() -> None:
    peers = Peers()
    async with started_services() as services:
        following = services.build_tracker(peers)
        await following.discover()
        with following.track(L1, await services.sets.at(L1, 19, is_chosen=False)):
            assert {hint[0] for hint in peers.hints} == L1_NODES


async def test_connected_nodes_get_no_hints() -> None:
    peers = Peers(connected_nodes=set(PRIMARY_NODES))
    async with started_services() as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        await following.discover()
        await following.refresh()
    assert peers.hints == []


async def test_a_dead_info_node_is_reported_without_a_failure() -> None:
    async with started_services(
        RecordedNode({PEERS: lambda _: web.Response(status=500)})
    ) as services:
        assert not await services.build_tracker(Peers()).discover()


async def test_each_key_counts_once_however_many_of_its_nodes_are_connected() -> None:
    shared = build_canonical_set(
        [
            (nth_node(0), nth_key(0), 10),
            (nth_node(1), nth_key(0), 20),
            (nth_node(2), nth_key(1), 5),
            (nth_node(3), None, 7),
        ]
    )
    peers = Peers(connected_nodes={nth_node(0), nth_node(1)})
    async with started_services() as services:
        following = services.build_tracker(peers)
        assert MADE_UP not in tracked_weights(following)
        with following.track(MADE_UP, shared):
            assert tracked_weights(following)[MADE_UP] == (30, 42)
            peers.connected_nodes = {nth_node(1), nth_node(2), nth_node(3)}
            assert tracked_weights(following)[MADE_UP] == (35, 42)


async def test_readiness_lists_the_missing_validators_of_each_pinned_subnet() -> None:
    peers = Peers(connected_nodes=PRIMARY_NODES | {node_id("83a7v34gAYeeF3TAczJJa3mNSZDGSrqVV")})
    async with started_services(tracked_subnet_ids=(L1, PRIMARY_NETWORK)) as services:
        await services.heights.poll()
        following = services.build_tracker(peers)
        assert [
            (node_id.subnet_id, node_id.is_known, node_id.total)
            for node_id in following.readiness()
        ] == [
            (PRIMARY_NETWORK, False, 0),
            (L1, False, 0),
        ]
        await following.refresh()
        with following.track(MADE_UP, members(1)):
            primary, tracked = following.readiness()
    assert (primary.connected, primary.total, primary.missing) == (3 * 10**15, 3 * 10**15, ())
    assert (tracked.connected, tracked.total) == (49_463_000, 99_024_926)
    assert [(node_id.node_ids, node_id.weight) for node_id in tracked.missing] == [
        ((node_id("CvXTKynipgz4Z4JubmHGBWqYimuJs8T9H"),), 49_463_000),
        ((node_id("3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK"),), 49_463),
    ]


async def test_the_tracker_starts_before_the_node_is_up() -> None:
    peers = Peers()
    node = RecordedNode(
        {HEIGHT: lambda _: web.Response(status=500), PEERS: lambda _: web.Response(status=500)}
    )
    async with started_services(
        node, height_poll_s=0.02, validator_refresh_period_s=0.05
    ) as services:
        running = [
            asyncio.create_task(node_id.run())
            for node_id in (services.heights, services.build_tracker(peers))
        ]
        await asyncio.sleep(0.1)
        assert not peers.targets
        node.replies.clear()
        await until(lambda: {hint[0] for hint in peers.hints} >= PRIMARY_NODES)
        assert peers.targets == {PRIMARY_NETWORK: PRIMARY_NODES}
        for task in running:
            task.cancel()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(node_id, asyncio.CancelledError) for node_id in outcomes)


async def test_info_nodes_are_not_called_once_all_validators_are_connected() -> None:
    peers = Peers(connected_nodes=set(PRIMARY_NODES))
    async with started_services(validator_refresh_period_s=0.02) as services:
        await services.heights.poll()
        running = asyncio.create_task(services.build_tracker(peers).run())
        await until(lambda: PRIMARY_NETWORK in peers.targets)
        calls = services.node.calls[PEERS]
        await asyncio.sleep(0.3)
        assert services.node.calls[PEERS] <= calls + 1
        peers.connected_nodes.clear()
        await until(lambda: services.node.calls[PEERS] > calls + 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("subnet_id", "unit", "text"),
    [
        (
            PRIMARY_NETWORK,
            10**9,
            "Primary Network: connected weight 1,234 AVAX of 13,400 AVAX needed"
            " (total 20,000 AVAX, 18,766 AVAX of it inactive or without a BLS key)",
        ),
        (
            L1,
            1,
            f"subnet {id_text(L1)}: connected weight 1,234 of 13,400 needed"
            " (total 20,000, 18,766 of it inactive or without a BLS key)",
        ),
    ],
)
def test_the_reason_of_a_subnet_that_is_not_ready_has_weights_with_their_unit(
    subnet_id: SubnetID, unit: int, text: str
) -> None:
    subnet = SubnetReadiness(
        subnet_id=subnet_id,
        is_known=True,
        connected=1_234 * unit,
        total=20_000 * unit,
        missing=(),
    )
    assert subnet.shortfall == text
