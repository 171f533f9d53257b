"""The upgrades of the network, as one node or several that agree report them, and their watch."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest
from aiohttp import web

from tests.aggregation.virtual_time import now, run
from tests.eventually import until
from tests.node.recorded_node import RecordedNode, open_upstream, recorded_result
from warpseal.node import info
from warpseal.node.info import (
    AHEAD_S,
    TESTED_UPGRADES,
    InfoClient,
    NetworkUpgrades,
    UpgradeWatch,
)
from warpseal.runtime.process import running
from warpseal.upstream.errors import NodeAttempt, NodesDisagree, NodeUnavailable, PublicFailure

MOVED = "2027-03-01T15:00:00Z"
MOVED_S = 1_803_913_200
NEVER = "9999-12-01T00:00:00Z"
NEVER_S = 253_399_622_400
LIE = "2026-12-24T00:00:00Z"
REFUSED = "refused"
BAD_DATES = (
    "1960-01-01T00:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "0001-01-01T00:00:01Z",
    "9999-12-31T23:59:59-23:59",
)


def upgrades(**times: object) -> dict[str, Any]:
    return {**recorded_result("info.upgrades"), **times}


async def test_recorded_upgrades_are_all_tested_ones() -> None:
    latest: list[int] = []
    async with open_upstream(RecordedNode()) as upstream:
        watch = UpgradeWatch(upstream.info, latest.append, unix_clock=lambda: 10.0**12)
        assert await watch.ask()
    assert watch.untested() == {}
    assert latest == [1_607_144_400]
    times = [name for name in recorded_result("info.upgrades") if name.endswith("Time")]
    names = {name.removesuffix("Time") for name in times}
    assert names <= TESTED_UPGRADES


@pytest.mark.parametrize(("early_s", "is_due"), [(1, False), (0, True), (-AHEAD_S - 10**6, True)])
async def test_an_upgrade_that_was_not_tested_is_named_a_month_ahead_and_from_then_on(
    early_s: int, is_due: bool
) -> None:
    node = RecordedNode({"info.upgrades": upgrades(ioTime=MOVED, laterTime=NEVER)})
    latest: list[int] = []
    async with open_upstream(node) as upstream:
        watch = UpgradeWatch(
            upstream.info, latest.append, unix_clock=lambda: MOVED_S - AHEAD_S - early_s
        )
        assert await watch.ask()
        assert watch.untested() == ({"io": MOVED_S} if is_due else {})
    assert latest == [MOVED_S]


async def test_a_node_that_refuses_the_call_changes_nothing_and_is_asked_again_soon() -> None:
    node, latest = RecordedNode({"info.upgrades": upgrades(ioTime=MOVED)}), list[int]()
    async with open_upstream(node) as upstream:
        watch = UpgradeWatch(upstream.info, latest.append, unix_clock=lambda: MOVED_S)
        assert await watch.ask()
        node.replies["info.upgrades"] = lambda _: web.Response(status=404)
        assert not await watch.ask()
        assert watch.untested() == {"io": MOVED_S}
        # A name that nodes report no more is forgotten.
        node.replies["info.upgrades"] = upgrades()
        assert await watch.ask()
        assert watch.untested() == {}
    assert latest == [MOVED_S, MOVED_S, 1_607_144_400]


@pytest.mark.parametrize("date", BAD_DATES)
async def test_a_date_of_no_sane_year_is_a_bad_answer_of_its_node_alone(date: str) -> None:
    bad, good = RecordedNode({"info.upgrades": upgrades(ioTime=date)}), RecordedNode()
    latest: list[int] = []
    async with open_upstream(bad) as upstream:
        watch = UpgradeWatch(upstream.info, latest.append, unix_clock=lambda: MOVED_S)
        assert not await watch.ask()
        with pytest.raises(NodeUnavailable) as error:
            await upstream.info.upgrades()
        assert error.value.attempts == (NodeAttempt(0, PublicFailure.BAD_ANSWER),)
        assert latest == []
        assert watch.untested() == {}
        bad.replies["info.upgrades"] = upgrades()
        assert await watch.ask()
    bad.replies["info.upgrades"] = upgrades(ioTime=date)
    async with open_upstream(bad, good) as upstream:
        assert await UpgradeWatch(upstream.info, latest.append, unix_clock=lambda: MOVED_S).ask()
    assert latest == [1_607_144_400] * 2


async def test_the_zero_time_of_a_node_means_active_from_the_start() -> None:
    async with open_upstream(
        RecordedNode({"info.upgrades": {"etnaTime": "0001-01-01T00:00:00Z"}})
    ) as upstream:
        assert (await upstream.info.upgrades())["etna"] == 0


async def test_a_node_of_an_older_release_hides_no_upgrade_that_is_known_to_be_scheduled() -> None:
    older = upgrades(heliconTime=NEVER, iglooTime=NEVER, graniteTime=MOVED)
    node = RecordedNode({"info.getNetworkID": {"networkID": "1"}, "info.upgrades": older})
    async with open_upstream(node) as upstream:
        times = await upstream.info.upgrades()
    expected = {"helicon": 1_790_089_200, "igloo": NEVER_S, "granite": MOVED_S}
    assert {name: times[name] for name in expected} == expected


async def test_validators_that_know_an_upgrade_let_the_nodes_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(info, "_RETRY_S", 0.01)
    node, latest = RecordedNode(), list[int]()
    async with open_upstream(node) as upstream:
        watch = UpgradeWatch(upstream.info, latest.append, lambda: latest[-1] < MOVED_S)
        async with running(watch.run()):
            await until(lambda: len(latest) > 1)
            node.replies["info.upgrades"] = upgrades(ioTime=MOVED)
            await until(lambda: latest[-1] == MOVED_S)


async def test_a_name_of_an_upgrade_is_short() -> None:
    async with open_upstream(
        RecordedNode({"info.upgrades": upgrades(**{"x" * 65: MOVED})})
    ) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.info.upgrades()


@pytest.mark.parametrize(
    ("dates", "io"),
    [
        ((MOVED, MOVED, LIE), MOVED_S),
        ((LIE, MOVED, MOVED), MOVED_S),
        ((LIE, None, None), None),
        ((LIE, NEVER, NEVER), NEVER_S),
        # A node of an older release, and one that refuses the call.
        ((None, MOVED, MOVED), MOVED_S),
        ((REFUSED, MOVED, MOVED), MOVED_S),
        ((BAD_DATES[0], MOVED, MOVED), MOVED_S),
        # What one node alone knows of an upgrade is not believed, and contradicts no other node.
        ((NEVER, MOVED, None), None),
        ((REFUSED, REFUSED, MOVED), MOVED_S),
    ],
)
async def test_several_nodes_agree_about_each_upgrade(
    dates: tuple[str | None, ...], io: int | None
) -> None:
    async with open_upstream(*map(node_with, dates), p_chain_quorum=2) as upstream:
        times = await upstream.info.upgrades()
    assert times.get("io") == io
    assert times["etna"] == 1_607_144_400


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        ((LIE, MOVED, NEVER), NodesDisagree),
        ((BAD_DATES[0], BAD_DATES[0], MOVED), NodeUnavailable),
    ],
)
async def test_without_a_quorum_there_is_no_reply(
    dates: tuple[str, ...], expected: type[NodeUnavailable]
) -> None:
    async with open_upstream(*map(node_with, dates), p_chain_quorum=2) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.info.upgrades()
        assert type(error.value) is expected
        assert not await UpgradeWatch(upstream.info, list[int]().append).ask()


class AskedNodes:
    """Nodes whose replies about upgrades are given in advance, and the times of the calls."""

    def __init__(self, *replies: NetworkUpgrades | NodeUnavailable | None) -> None:
        self._replies = list(replies)
        self.asked_at: list[float] = []

    async def reported_upgrades(self) -> NetworkUpgrades | None:
        self.asked_at.append(now())
        reply = self._replies.pop(0)
        if isinstance(reply, NodeUnavailable):
            raise reply
        return reply

    async def network_id(self) -> int:
        return 1


def test_nodes_without_a_usable_reply_are_asked_again_within_minutes() -> None:
    usable = NetworkUpgrades({"io": MOVED_S}, None)
    nodes = AskedNodes(NodeUnavailable("upgrades"), None, usable, usable)

    async def main() -> None:
        latest: list[int] = []
        watch = UpgradeWatch(cast(InfoClient, nodes), latest.append)
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(300.0)
        assert latest[-1] == MOVED_S
        await asyncio.sleep(3_600.0)
        watching.cancel()

    run(main())
    waits_s = [later - earlier for earlier, later in pairwise(nodes.asked_at)]
    assert max(waits_s[:2]) <= 120.0
    assert len(waits_s) == 3


async def test_the_duration_of_an_epoch_is_that_of_several_nodes() -> None:
    nodes: list[RecordedNode] = []
    for duration_s in (10**6, 30, 30):
        reply = upgrades(graniteEpochDuration=duration_s * 10**9)
        nodes.append(RecordedNode({"info.upgrades": reply}))
    async with open_upstream(*nodes, p_chain_quorum=2) as upstream:
        assert await upstream.info.epoch_duration_s() == 30


def node_with(date: str | None) -> RecordedNode:
    """Return a node that reports this date of an upgrade; None: it does not know the upgrade."""
    if date == REFUSED:
        return RecordedNode({"info.upgrades": lambda _: web.Response(status=404)})
    return RecordedNode({"info.upgrades": upgrades() if date is None else upgrades(ioTime=date)})
