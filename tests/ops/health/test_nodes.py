"""The nodes that the daemon asks: one of each list has to be usable, of this network, and not behind the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from warpseal.errors import NodeFailure
from warpseal.node.pool import NodeResult
from warpseal.ops.health.check import CheckOutcome
from warpseal.ops.health.nodes import STALE_HEIGHT, NodeMonitor
from warpseal.ops.health.settings import HealthSettings

Said = int | NodeFailure


@dataclass
class Nodes:
    """What nodes say, in configured order; and the proposed height."""

    heights: list[Said]
    info: list[Said] = field(default_factory=lambda: [5])
    last: int | None = 7
    is_fresh: bool = True
    now: float = 0.0

    def watch(self, frequency_s: float = 30.0) -> NodeMonitor:
        async def heights() -> Sequence[NodeResult[int]]:
            return answers(self.heights)

        async def info() -> Sequence[NodeResult[int]]:
            return answers(self.info)

        return NodeMonitor(heights, info, self, HealthSettings(frequency_s, max_lag_s=120), lambda: self.now)


def answers(said: list[Said]) -> list[NodeResult[int]]:
    return [
        NodeResult(place, "http://h", None, item)
        if isinstance(item, NodeFailure)
        else NodeResult(place, "", item, None)
        for place, item in enumerate(said)
    ]


async def looked(nodes: Nodes, watch: NodeMonitor | None = None) -> CheckOutcome:
    watch = watch or nodes.watch()
    await watch.poll()
    found = watch.check().run()
    assert isinstance(found, CheckOutcome)
    return found


async def error_of(nodes: Nodes) -> str | None:
    return (await looked(nodes)).error


async def test_a_good_day_tells_heights_by_the_places_of_the_lists() -> None:
    outcome = await looked(Nodes([12, 12], [5]))
    shown = {"p-chain-api[0]": {"height": 12}, "p-chain-api[1]": {"height": 12}, "info-api[0]": {}}
    assert outcome == CheckOutcome({"nodes": shown, "proposedHeight": 7})


async def test_without_a_proposed_height_nothing_is_signed_whatever_the_nodes_say() -> None:
    nodes = Nodes([12], is_fresh=False, last=None)
    assert await error_of(nodes) == STALE_HEIGHT
    outcome = nodes.watch().check().run()
    assert outcome == CheckOutcome({"nodes": {}, "proposedHeight": None}, STALE_HEIGHT), (
        "before any node was asked, too"
    )


async def test_a_node_that_is_down_while_another_is_not_is_told_and_no_failure() -> None:
    outcome = await looked(Nodes([NodeFailure.TIMEOUT, 12]))
    assert outcome.error is None
    assert outcome.message["nodes"]["p-chain-api[0]"] == {"error": "timeout"}


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        (Nodes([NodeFailure.TIMEOUT, NodeFailure.REFUSED]), "no node of p-chain-api can be used"),
        (Nodes([12], [NodeFailure.HTTP_STATUS]), "no node of info-api can be used"),
        (Nodes([12, NodeFailure.WRONG_NETWORK]), "p-chain-api[1] is of another network"),
    ],
)
async def test_a_list_of_which_no_node_can_be_used_fails_and_so_does_a_node_of_another_network(
    nodes: Nodes, result: str
) -> None:
    assert await error_of(nodes) == result


async def test_the_node_that_is_asked_first_may_be_behind_the_others_for_a_while_only() -> None:
    nodes = Nodes([10, 12])
    watch = nodes.watch()
    assert (await looked(nodes, watch)).error is None
    nodes.now += 120
    outcome = await looked(nodes, watch)
    assert (outcome.error, outcome.message["nodes"]["p-chain-api[0]"]) == (None, {"height": 10, "behindFor": "2m0s"})
    nodes.now += 1
    assert (await looked(nodes, watch)).error == "p-chain-api[0] is behind the others for longer than 2m0s"
    nodes.heights = [12, 12]
    assert (await looked(nodes, watch)).error is None


async def test_a_node_behind_that_is_not_asked_first_is_told_and_no_failure() -> None:
    nodes = Nodes([12, 10])
    watch = nodes.watch()
    await watch.poll()
    nodes.now += 1_000
    outcome = await looked(nodes, watch)
    assert outcome.error is None
    assert outcome.message["nodes"]["p-chain-api[1]"] == {"height": 10, "behindFor": "16m40s"}


async def test_who_watches_is_told_when_something_changes() -> None:
    nodes, changed = Nodes([12]), asyncio.Event()
    task = asyncio.create_task(nodes.watch(frequency_s=0.02).run(changed.set))
    try:
        await asyncio.sleep(0.1)
        assert not changed.is_set()
        nodes.heights = [NodeFailure.TIMEOUT]
        await asyncio.wait_for(changed.wait(), 10)
        changed.clear()
        nodes.heights = [13]
        await asyncio.wait_for(changed.wait(), 10)
    finally:
        task.cancel()
        await asyncio.wait((task,))
