"""Each list of configured nodes needs a usable node of this network that does not lag."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.eventually import until
from warpseal.ops.health.chains import STALE_HEIGHT, NodeMonitor
from warpseal.ops.health.registry import CheckOutcome
from warpseal.ops.settings import HealthSettings
from warpseal.upstream.errors import PublicFailure
from warpseal.upstream.pool import NodeResult

NodeReply = int | PublicFailure


class ProbedNodes:
    """Stands for the client of a list of nodes."""

    def __init__(self, probe: Callable[[], Awaitable[Sequence[NodeResult[int]]]]) -> None:
        self.probe = probe


@dataclass
class FakeNodes:
    """The replies of nodes in configured order, and the proposed height."""

    heights: list[NodeReply]
    info: list[NodeReply] = field(default_factory=lambda: [5])
    last: int | None = 7
    is_fresh: bool = True
    now: float = 0.0
    polls: int = 0

    def monitor(self, frequency_s: float = 30.0, quorum: int = 1) -> NodeMonitor:
        async def heights() -> Sequence[NodeResult[int]]:
            self.polls += 1
            return node_results(self.heights)

        async def info() -> Sequence[NodeResult[int]]:
            return node_results(self.info)

        platform: Any = ProbedNodes(heights)
        info_nodes: Any = ProbedNodes(info)
        height: Any = self
        return NodeMonitor(
            platform,
            info_nodes,
            height,
            HealthSettings(frequency_s, max_lag_s=120),
            lambda: self.now,
            quorum,
        )


def node_results(replies: list[NodeReply]) -> list[NodeResult[int]]:
    return [
        (
            NodeResult(place, "http://h", None, item)
            if isinstance(item, PublicFailure)
            else NodeResult(place, "", item, None)
        )
        for place, item in enumerate(replies)
    ]


async def poll_and_check(nodes: FakeNodes, monitor: NodeMonitor | None = None) -> CheckOutcome:
    monitor = monitor or nodes.monitor()
    await monitor.poll()
    outcome = monitor.check().run()
    assert isinstance(outcome, CheckOutcome)
    return outcome


async def error_of(nodes: FakeNodes) -> str | None:
    return (await poll_and_check(nodes)).error


async def test_heights_are_reported_by_position_in_the_configured_lists() -> None:
    outcome = await poll_and_check(FakeNodes([12, 12], [5]))
    messages = {
        "p-chain-api[0]": {"height": 12},
        "p-chain-api[1]": {"height": 12},
        "info-api[0]": {},
    }
    assert outcome == CheckOutcome({"nodes": messages, "proposedHeight": 7})


async def test_a_stale_proposed_height_fails_even_if_the_nodes_answer() -> None:
    nodes = FakeNodes([12], is_fresh=False, last=None)
    assert await error_of(nodes) == STALE_HEIGHT
    outcome = nodes.monitor().check().run()
    assert outcome == CheckOutcome({"nodes": {}, "proposedHeight": None}, STALE_HEIGHT), (
        "also before the first poll"
    )


async def test_a_failed_node_is_reported_but_is_no_failure_while_another_works() -> None:
    outcome = await poll_and_check(FakeNodes([PublicFailure.TIMEOUT, 12]))
    assert outcome.error is None
    assert outcome.message["nodes"]["p-chain-api[0]"] == {"error": "timeout"}


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        (
            FakeNodes([PublicFailure.TIMEOUT, PublicFailure.REFUSED]),
            "no node of p-chain-api can be used",
        ),
        (FakeNodes([12], [PublicFailure.HTTP_STATUS]), "no node of info-api can be used"),
        (FakeNodes([12, PublicFailure.WRONG_NETWORK]), "p-chain-api[1] is of another network"),
    ],
)
async def test_a_list_without_a_usable_node_fails_and_so_does_a_node_of_another_network(
    nodes: FakeNodes, result: str
) -> None:
    assert await error_of(nodes) == result


async def test_the_first_node_of_a_list_may_lag_for_a_limited_time() -> None:
    nodes = FakeNodes([10, 12])
    monitor = nodes.monitor()
    assert (await poll_and_check(nodes, monitor)).error is None
    nodes.now += 120
    outcome = await poll_and_check(nodes, monitor)
    assert outcome.error is None
    assert outcome.message["nodes"]["p-chain-api[0]"] == {"height": 10, "behindFor": "2m0s"}
    nodes.now += 1
    outcome = await poll_and_check(nodes, monitor)
    assert outcome.error == "p-chain-api[0] is behind the others for longer than 2m0s"
    nodes.heights = [12, 12]
    assert (await poll_and_check(nodes, monitor)).error is None


async def test_a_lagging_node_that_is_not_first_is_reported_but_is_no_failure() -> None:
    nodes = FakeNodes([12, 10])
    monitor = nodes.monitor()
    await monitor.poll()
    nodes.now += 1_000
    outcome = await poll_and_check(nodes, monitor)
    assert outcome.error is None
    assert outcome.message["nodes"]["p-chain-api[1]"] == {"height": 10, "behindFor": "16m40s"}


async def test_a_forged_height_makes_no_node_late_if_several_must_agree() -> None:
    nodes = FakeNodes([1_012, 12, 10])
    monitor = nodes.monitor(quorum=2)
    await monitor.poll()
    nodes.now += 1_000
    outcome = await poll_and_check(nodes, monitor)
    assert outcome.error is None
    assert [monitor.behind_s(position) for position in range(3)] == [0.0, 0.0, 1_000.0]


async def test_fewer_usable_nodes_than_must_agree_fail() -> None:
    nodes = FakeNodes([12, PublicFailure.TIMEOUT, PublicFailure.REFUSED])
    outcome = await poll_and_check(nodes, nodes.monitor(quorum=2))
    assert outcome.error == "1 of 3 nodes of p-chain-api can be used, and 2 must agree"
    nodes.heights[2] = 11
    assert (await poll_and_check(nodes, nodes.monitor(quorum=2))).error is None


async def test_a_node_that_contradicted_others_is_marked() -> None:
    async def heights() -> Sequence[NodeResult[int]]:
        return [NodeResult(0, "", 12, None, disagrees=True), NodeResult(1, "", 12, None)]

    settings = HealthSettings(30.0, max_lag_s=120)
    nodes: Any = ProbedNodes(heights)
    height: Any = FakeNodes([])
    monitor = NodeMonitor(nodes, nodes, height, settings, lambda: 0.0, 2)
    message = (await poll_and_check(FakeNodes([]), monitor)).message["nodes"]
    assert message["p-chain-api[0]"] == {"disagrees": True, "height": 12}
    assert message["p-chain-api[1]"] == {"height": 12}


async def test_the_callback_runs_when_a_result_changes() -> None:
    nodes, changed = FakeNodes([12]), asyncio.Event()
    task = asyncio.create_task(nodes.monitor(frequency_s=0.02).run(changed.set))
    try:
        await until(lambda: nodes.polls >= 3)
        assert not changed.is_set()
        nodes.heights = [PublicFailure.TIMEOUT]
        await until(changed.is_set)
        changed.clear()
        nodes.heights = [13]
        await until(changed.is_set)
    finally:
        task.cancel()
        await asyncio.wait((task,))
