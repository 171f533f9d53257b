"""The observed nodes: connected nodes, and wanted nodes that were dialed."""

from __future__ import annotations

from tests.validators.uptime.fixtures import NODE, OTHER, SETTINGS, FakePeers
from warpseal.validators.settings import UptimeSettings
from warpseal.validators.uptime.node_uptime import NodeUptimes, Uptime
from warpseal.warp.ids import NodeID


def uptimes_after(uptimes: NodeUptimes, *seconds: int) -> dict[NodeID, Uptime]:
    """What the counters say after looks at these moments."""
    for moment in seconds:
        uptimes.update(moment * 1_000)
    return {node_id: counter.total() for node_id, counter in uptimes.counters.items()}


def test_a_wanted_node_that_was_never_dialed_is_not_observed() -> None:
    peers = FakePeers(targets={NODE, OTHER}, dialed={OTHER})
    assert uptimes_after(NodeUptimes(peers, SETTINGS), 0, 5) == {OTHER: Uptime(5_000, 0)}


def test_a_node_that_was_observed_before_a_restart_is_observed_without_a_dial() -> None:
    uptimes = NodeUptimes(FakePeers(targets={NODE}), SETTINGS)
    uptimes.mark_tried([NODE, OTHER])
    assert uptimes_after(uptimes, 0, 5) == {NODE: Uptime(5_000, 0)}


def test_a_node_that_is_not_wanted_any_more_is_not_observed_until_it_is_again() -> None:
    peers = FakePeers()
    uptimes = NodeUptimes(peers, SETTINGS)
    uptimes.update(0)
    peers.connect(NODE, 0)
    uptimes.advance(NODE, 0)
    peers.last_heard[NODE] = 4
    uptimes_after(uptimes, 4)
    peers.targets.clear()
    peers.drop(NODE)
    assert uptimes_after(uptimes, 5, 9) == {NODE: Uptime(5_000, 4_000)}
    assert uptimes.drop_unseen(()) == [NODE]
    assert uptimes_after(uptimes, 12) == {}
    peers.dialed.clear()
    peers.targets.add(NODE)
    assert uptimes_after(uptimes, 16, 19) == {NODE: Uptime(3_000, 0)}


def test_nodes_that_are_observed_or_kept_are_not_dropped() -> None:
    peers = FakePeers(targets={NODE}, dialed={NODE})
    uptimes = NodeUptimes(peers, SETTINGS)
    uptimes.update(0)
    uptimes.advance(OTHER, 0)
    assert uptimes.drop_unseen([OTHER]) == []
    assert uptimes.drop_unseen([]) == [OTHER]


def test_nodes_are_bounded_in_number() -> None:
    peers = FakePeers(targets={NODE, OTHER}, dialed={NODE, OTHER})
    uptimes = NodeUptimes(peers, UptimeSettings(max_nodes=1))
    uptimes.update(0)
    assert len(uptimes.counters) == 1
    assert uptimes.advance(NodeID(b"\x03" * 20), 0) is None
