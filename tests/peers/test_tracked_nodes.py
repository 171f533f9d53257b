"""Which nodes are tracked."""

from __future__ import annotations

from warpseal.peers.dial_schedule import TrackedNodes
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID

A, B, C, OWN = (NodeID(bytes([number]) * 20) for number in range(1, 5))
L1 = SubnetID(b"\x07" * 32)


def test_new_nodes_are_returned_once_and_in_order() -> None:
    nodes = TrackedNodes(OWN, ())
    assert nodes.track(PRIMARY_NETWORK, [C, A], 0.0) == ([C, A], [])
    assert nodes.track(PRIMARY_NETWORK, [A, B], 1.0) == ([B], [C])
    assert set(nodes.primary) == {A, B}


def test_a_node_stays_tracked_until_no_subnet_tracks_it() -> None:
    nodes = TrackedNodes(OWN, ())
    nodes.track(PRIMARY_NETWORK, [A, B], 0.0)
    assert nodes.track(L1, [B, C], 0.0) == ([C], [])
    assert nodes.untrack(PRIMARY_NETWORK) == [A]
    assert B in nodes
    assert sorted(nodes.untrack(L1)) == [B, C]
    assert len(nodes) == 0


def test_manual_peers_are_always_tracked() -> None:
    nodes = TrackedNodes(OWN, [A])
    assert nodes.track(L1, [A], 0.0) == ([], [])
    assert nodes.untrack(L1) == []
    assert A in nodes


def test_the_own_node_and_the_empty_node_are_never_tracked() -> None:
    nodes = TrackedNodes(OWN, [OWN])
    assert nodes.track(L1, [OWN, EMPTY_NODE_ID, A], 0.0) == ([A], [])
    assert OWN not in nodes


def test_tracking_a_subnet_again_keeps_its_first_time() -> None:
    nodes = TrackedNodes(OWN, ())
    nodes.track(L1, [A], 1.0)
    nodes.track(L1, [A, B], 9.0)
    assert nodes.tracked_since(L1) == 1.0
    nodes.untrack(L1)
    assert nodes.tracked_since(L1) is None
    nodes.track(L1, [A], 20.0)
    assert nodes.tracked_since(L1) == 20.0


def test_an_old_subnet_is_returned_once() -> None:
    nodes = TrackedNodes(OWN, ())
    nodes.track(L1, [A], 1.0)
    nodes.track(PRIMARY_NETWORK, [B], 5.0)
    assert nodes.pop_tracked_since_before(0.9) == []
    assert nodes.pop_tracked_since_before(1.0) == [A]
    assert nodes.pop_tracked_since_before(4.0) == []
    assert nodes.pop_tracked_since_before(5.0) == [B]


def test_untracking_an_unknown_subnet_returns_nothing() -> None:
    assert TrackedNodes(OWN, ()).untrack(L1) == []
