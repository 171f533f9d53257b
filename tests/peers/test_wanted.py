"""Which nodes are wanted."""

from __future__ import annotations

from warpseal.peers.tracked_nodes import WantedNodes
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID

A, B, C, OWN = (NodeID(bytes([number]) * 20) for number in range(1, 5))
L1 = SubnetID(b"\x07" * 32)


def test_new_nodes_come_in_their_given_order_and_known_ones_not_again() -> None:
    wanted = WantedNodes(OWN, ())
    assert wanted.track(PRIMARY_NETWORK, [C, A], 0.0) == ([C, A], [])
    assert wanted.track(PRIMARY_NETWORK, [A, B], 1.0) == ([B], [C])
    assert set(wanted.primary) == {A, B}


def test_a_node_stays_wanted_until_no_subnet_wants_it() -> None:
    wanted = WantedNodes(OWN, ())
    wanted.track(PRIMARY_NETWORK, [A, B], 0.0)
    assert wanted.track(L1, [B, C], 0.0) == ([C], [])
    assert wanted.untrack(PRIMARY_NETWORK) == [A]
    assert B in wanted
    assert sorted(wanted.untrack(L1)) == [B, C]
    assert len(wanted) == 0


def test_manual_peers_are_always_wanted() -> None:
    wanted = WantedNodes(OWN, [A])
    assert wanted.track(L1, [A], 0.0) == ([], [])
    assert wanted.untrack(L1) == []
    assert A in wanted


def test_neither_ourselves_nor_the_empty_node_is_ever_wanted() -> None:
    wanted = WantedNodes(OWN, [OWN])
    assert wanted.track(L1, [OWN, EMPTY_NODE_ID, A], 0.0) == ([A], [])
    assert OWN not in wanted


def test_following_again_keeps_the_first_moment_until_the_subnet_is_left() -> None:
    wanted = WantedNodes(OWN, ())
    wanted.track(L1, [A], 1.0)
    wanted.track(L1, [A, B], 9.0)
    assert wanted.followed_since(L1) == 1.0
    wanted.untrack(L1)
    assert wanted.followed_since(L1) is None
    wanted.track(L1, [A], 20.0)
    assert wanted.followed_since(L1) == 20.0


def test_a_subnet_grows_old_once() -> None:
    wanted = WantedNodes(OWN, ())
    wanted.track(L1, [A], 1.0)
    wanted.track(PRIMARY_NETWORK, [B], 5.0)
    assert wanted.grown_old(0.9) == []
    assert wanted.grown_old(1.0) == [A]
    assert wanted.grown_old(4.0) == []
    assert wanted.grown_old(5.0) == [B]


def test_leaving_what_was_never_followed_is_nothing() -> None:
    assert WantedNodes(OWN, ()).untrack(L1) == []
