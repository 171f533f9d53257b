"""Where a node may be reached, best address first, and whose addresses are kept."""

from __future__ import annotations

import pytest

from warpseal.peers.addresses import AddressBook, Endpoint, Remembered, Signed, Worked
from warpseal.warp.ids import NodeID

NODE, OTHER, STRANGER = NodeID(b"\1" * 20), NodeID(b"\2" * 20), NodeID(b"\3" * 20)


def at(last: int, port: int = 9651) -> Endpoint:
    """Return a public endpoint."""
    return Endpoint.parse(f"203.0.113.{last}", port)


def book(*known: NodeID, allow_private: bool = False, max_nodes: int = 1_000) -> AddressBook:
    made = AddressBook((), allow_private=allow_private, max_nodes=max_nodes)
    made.set_known_validators(known or (NODE, OTHER))
    return made


def node(number: int) -> NodeID:
    return NodeID(number.to_bytes(20, "big"))


def test_the_operator_comes_before_what_worked_before_what_is_signed_before_hints() -> None:
    addresses = book()
    addresses.add_hint(NODE, at(4))
    addresses.learn(NODE, Signed(at(3), 100))
    addresses.reached(NODE, at(2), now=1_000.0)
    addresses.add_manual(NODE, at(1))
    assert addresses.candidates(NODE) == (at(1), at(2), at(3), at(4))


def test_an_address_signed_after_one_worked_replaces_it() -> None:
    addresses = book()
    addresses.learn(NODE, Signed(at(1), 100))
    addresses.reached(NODE, at(1), now=1_000.0)
    addresses.learn(NODE, Signed(at(2), 101))
    assert addresses.candidates(NODE) == (at(2), at(1))


def test_a_node_that_claims_a_wrong_address_is_dialled_where_it_was_reached() -> None:
    addresses = book()
    addresses.add_hint(NODE, at(1))
    addresses.learn(NODE, Signed(at(9), 100))
    addresses.reached(NODE, at(1), now=1_000.0)
    assert addresses.candidates(NODE)[0] == at(1)


def test_the_newest_two_signed_addresses_of_a_node_are_kept() -> None:
    addresses = book()
    for signed_at in (1, 2, 3):
        assert addresses.learn(NODE, Signed(at(signed_at), signed_at))
    assert addresses.candidates(NODE) == (at(3), at(2))
    assert addresses.newest_signed_at(NODE) == 3


@pytest.mark.parametrize("signed_at", [99, 100])
def test_a_signed_address_that_is_not_newer_changes_nothing(signed_at: int) -> None:
    addresses = book()
    addresses.learn(NODE, Signed(at(1), 100))
    assert not addresses.learn(NODE, Signed(at(2), signed_at))
    assert addresses.candidates(NODE) == (at(1),)


def test_gossip_about_a_node_that_validates_nothing_is_not_kept() -> None:
    addresses = book()
    assert not addresses.learn(STRANGER, Signed(at(1), 100))
    assert addresses.candidates(STRANGER) == ()


def test_gossip_about_a_manual_peer_is_kept_though_it_validates_nothing() -> None:
    addresses = book()
    addresses.add_manual(STRANGER, at(1))
    assert addresses.learn(STRANGER, Signed(at(2), 100))
    assert addresses.candidates(STRANGER) == (at(1), at(2))


def test_gossip_about_a_node_that_no_longer_validates_is_dropped() -> None:
    addresses = book(NODE, OTHER)
    addresses.learn(NODE, Signed(at(1), 100))
    addresses.learn(OTHER, Signed(at(2), 100))
    addresses.set_known_validators([OTHER])
    assert addresses.candidates(NODE) == ()
    assert list(addresses.signed()) == [(OTHER, 100)]


def test_the_newest_two_hints_are_kept() -> None:
    addresses = book()
    assert [addresses.add_hint(NODE, at(n)) for n in (1, 2, 2, 3)] == [True, True, False, True]
    assert addresses.candidates(NODE) == (at(3), at(2))


def test_an_address_where_another_node_answers_goes_to_the_end_of_the_line() -> None:
    addresses = book()
    addresses.reached(NODE, at(1), now=1_000.0)
    addresses.add_hint(NODE, at(1))
    addresses.add_hint(NODE, at(2))
    addresses.answered_by(NODE, at(1), STRANGER)
    assert addresses.candidates(NODE) == (at(2), at(1))
    addresses.reached(NODE, at(1), now=1_001.0)
    assert addresses.candidates(NODE) == (at(1), at(2))


@pytest.mark.parametrize("host", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "127.0.0.1", "fc00::1", "::ffff:10.0.0.1"])
def test_private_addresses_are_dialled_only_where_that_is_allowed(host: str) -> None:
    for allowed in (False, True):
        addresses = book(allow_private=allowed)
        addresses.add_hint(NODE, Endpoint.parse(host, 9651))
        assert bool(addresses.candidates(NODE)) is allowed
        assert addresses.only_private(NODE) is not allowed


def test_a_node_with_a_public_address_beside_a_private_one_is_not_lost() -> None:
    addresses = book()
    addresses.add_hint(NODE, Endpoint.parse("10.0.0.1", 9651))
    addresses.add_hint(NODE, at(1))
    assert addresses.candidates(NODE) == (at(1),)
    assert not addresses.only_private(NODE)


def test_a_node_without_any_address_is_not_called_private() -> None:
    assert not book().only_private(NODE)


def test_carrier_grade_and_documentation_addresses_are_public_as_nodes_take_them() -> None:
    addresses = book()
    addresses.add_hint(NODE, Endpoint.parse("100.64.0.1", 9651))
    assert addresses.candidates(NODE) == (Endpoint.parse("100.64.0.1", 9651),)


def test_addresses_of_nodes_that_nobody_vouches_for_are_bounded_oldest_out_first() -> None:
    addresses = AddressBook((), allow_private=False, max_nodes=64)
    addresses.set_known_validators([node(0)])
    addresses.learn(node(0), Signed(at(1), 1))
    for number in range(1, 200):
        addresses.add_hint(node(number), at(number))
    held = [number for number in range(200) if addresses.candidates(node(number))]
    assert len(held) <= 65
    assert held[0] == 0
    assert held[-1] == 199


def test_what_is_remembered_comes_back_in_the_same_order_of_preference() -> None:
    before = book()
    before.learn(NODE, Signed(at(1), 100))
    before.reached(NODE, at(1), now=1_000.0)
    before.learn(NODE, Signed(at(2), 200))
    before.add_hint(OTHER, at(3))
    after = book()
    after.recall(before.remembered())
    assert after.candidates(NODE) == (at(2), at(1))
    assert after.newest_signed_at(NODE) == 200
    assert after.candidates(OTHER) == ()


def test_what_is_remembered_never_replaces_what_was_learnt_since() -> None:
    addresses = book()
    addresses.learn(NODE, Signed(at(2), 200))
    addresses.recall([Remembered(NODE, Worked(at(1), 1_000.0, 100), Signed(at(1), 100))])
    assert addresses.candidates(NODE) == (at(2), at(1))
    assert addresses.newest_signed_at(NODE) == 200


def test_ipv4_inside_ipv6_is_ipv4() -> None:
    assert Endpoint.parse("::ffff:203.0.113.7", 1) == Endpoint.parse("203.0.113.7", 1)


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 0), ("203.0.113.7", 65_536), ("example.org", 1), ("", 1)])
def test_what_is_no_endpoint_is_refused(host: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        Endpoint.parse(host, port)
