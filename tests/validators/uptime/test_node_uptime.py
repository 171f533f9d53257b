"""Who is observed: connected nodes, and wanted ones that were tried."""

from __future__ import annotations

from tests.validators.uptime.world import NODE, OTHER, SETTINGS, MovedPeers
from warpseal.validators.uptime.counter import Uptime
from warpseal.validators.uptime.node_uptime import NodeUptimes
from warpseal.validators.uptime.settings import UptimeSettings
from warpseal.warp.ids import NodeID


def looked(roster: NodeUptimes, *seconds: int) -> dict[NodeID, Uptime]:
    """What the tallies say after looks at these moments."""
    for moment in seconds:
        roster.look(moment * 1_000)
    return {node_id: tally.total() for node_id, tally in roster.tallies.items()}


def test_a_wanted_node_that_was_never_dialled_is_not_observed() -> None:
    peers = MovedPeers(wanted={NODE, OTHER}, dialled={OTHER})
    assert looked(NodeUptimes(peers, SETTINGS), 0, 5) == {OTHER: Uptime(5_000, 0)}


def test_a_node_that_was_observed_before_a_restart_is_observed_without_a_dial() -> None:
    roster = NodeUptimes(MovedPeers(wanted={NODE}), SETTINGS)
    roster.meet([NODE, OTHER])
    assert looked(roster, 0, 5) == {NODE: Uptime(5_000, 0)}


def test_a_node_that_is_not_wanted_any_more_is_not_observed_until_it_is_again() -> None:
    peers = MovedPeers()
    roster = NodeUptimes(peers, SETTINGS)
    roster.look(0)
    peers.connect(NODE, 0)
    roster.settle(NODE, 0)
    peers.heard[NODE] = 4
    looked(roster, 4)
    peers.wanted.clear()
    peers.drop(NODE)
    assert looked(roster, 5, 9) == {NODE: Uptime(5_000, 4_000)}
    assert roster.forget(()) == [NODE]
    assert looked(roster, 12) == {}
    peers.dialled.clear()
    peers.wanted.add(NODE)
    assert looked(roster, 16, 19) == {NODE: Uptime(3_000, 0)}


def test_who_is_seen_or_kept_is_not_forgotten() -> None:
    peers = MovedPeers(wanted={NODE}, dialled={NODE})
    roster = NodeUptimes(peers, SETTINGS)
    roster.look(0)
    roster.settle(OTHER, 0)
    assert roster.forget([OTHER]) == []
    assert roster.forget([]) == [OTHER]


def test_nodes_are_bounded_in_number() -> None:
    peers = MovedPeers(wanted={NODE, OTHER}, dialled={NODE, OTHER})
    roster = NodeUptimes(peers, UptimeSettings(max_nodes=1))
    roster.look(0)
    assert len(roster.tallies) == 1
    assert roster.settle(NodeID(b"\x03" * 20), 0) is None
