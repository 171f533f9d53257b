"""The watch of the nodes' releases and of the network's upgrades."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from tests.node.recorded_node import RecordedNode, open_upstream, recorded_result
from warpseal.node.info import AHEAD_S, TESTED_UPGRADES, UpgradeWatch, parse_release
from warpseal.protocol.handshake import Version

MOVED = "2027-03-01T15:00:00Z"
MOVED_S = 1_803_913_200
NEVER = "9999-12-01T00:00:00Z"


class Releases:
    """What the watch reports."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Version, ...], int]] = []

    def __call__(self, releases: tuple[Version, ...], upgrade_time: int) -> None:
        self.calls.append((releases, upgrade_time))


def upgrades(**times: str) -> dict[str, Any]:
    return {**recorded_result("info.upgrades"), **times}


async def test_recorded_upgrades_are_all_tested_ones() -> None:
    releases = Releases()
    node = RecordedNode({"info.getNodeVersion": {"version": "avalanchego/1.14.1"}})
    async with open_upstream(node) as upstream:
        watch = UpgradeWatch(upstream.info, releases, lambda: 10.0**12)
        assert await watch.ask()
    assert watch.untested() == {}
    assert releases.calls == [(((1, 14, 1),), 1_607_144_400)]
    names = {name.removesuffix("Time") for name in recorded_result("info.upgrades") if name.endswith("Time")}
    assert names <= TESTED_UPGRADES


@pytest.mark.parametrize(("early_s", "is_due"), [(1, False), (0, True), (-AHEAD_S - 10**6, True)])
async def test_an_upgrade_that_was_not_tested_is_named_a_month_ahead_and_from_then_on(
    early_s: int, is_due: bool
) -> None:
    node = RecordedNode({"info.upgrades": upgrades(ioTime=MOVED, laterTime=NEVER)})
    releases = Releases()
    async with open_upstream(node) as upstream:
        watch = UpgradeWatch(upstream.info, releases, lambda: MOVED_S - AHEAD_S - early_s)
        assert await watch.ask()
        assert watch.untested() == ({"io": MOVED_S} if is_due else {})
    assert releases.calls[0][1] == MOVED_S


async def test_a_node_that_refuses_the_call_changes_nothing() -> None:
    node, releases = RecordedNode({"info.upgrades": upgrades(ioTime=MOVED)}), Releases()
    async with open_upstream(node) as upstream:
        watch = UpgradeWatch(upstream.info, releases, lambda: MOVED_S)
        assert await watch.ask()
        node.replies["info.upgrades"] = lambda _: web.Response(status=404)
        assert await watch.ask()
        assert watch.untested() == {"io": MOVED_S}
        node.replies["info.upgrades"] = upgrades(ioTime=NEVER)
        assert await watch.ask()
        assert watch.untested() == {}
    assert [upgrade_time for _, upgrade_time in releases.calls] == [MOVED_S, MOVED_S, 1_607_144_400]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("avalanchego/1.15.0", (1, 15, 0)),
        ("avalanchego/1.15.3-rc.1", (1, 15, 3)),
        ("avalanchego/1.15", None),
        ("avalanchego/123456.0.0", None),
        ("1.15.0", None),
        ("", None),
    ],
)
def test_a_release_is_parsed(text: str, release: Version | None) -> None:
    assert parse_release(text) == release
