"""The order of the addresses of a node, and which addresses are kept."""

from __future__ import annotations

import pytest

from warpseal.peers.addresses import AddressBook, Endpoint, SignedAddress
from warpseal.warp.ids import NodeID

NODE, OTHER, STRANGER = NodeID(b"\1" * 20), NodeID(b"\2" * 20), NodeID(b"\3" * 20)


def at(last: int, port: int = 9651) -> Endpoint:
    """Return a public endpoint."""
    return Endpoint.parse(f"203.0.113.{last}", port)


def make_book(
    *node_ids: NodeID, allow_private: bool = False, max_nodes: int = 1_000
) -> AddressBook:
    addresses = AddressBook((), allow_private=allow_private, max_nodes=max_nodes)
    addresses.set_validators(node_ids or (NODE, OTHER))
    return addresses


def node(number: int) -> NodeID:
    return NodeID(number.to_bytes(20, "big"))


def test_candidates_are_ordered_manual_reached_signed_hinted() -> None:
    addresses = make_book()
    addresses.add_hint(NODE, at(4))
    addresses.learn(NODE, SignedAddress(at(3), 100))
    addresses.record_reached(NODE, at(2), now=1_000.0)
    addresses.add_manual(NODE, at(1))
    assert addresses.candidates(NODE) == (at(1), at(2), at(3), at(4))


def test_an_address_signed_after_one_was_reached_comes_first() -> None:
    addresses = make_book()
    addresses.learn(NODE, SignedAddress(at(1), 100))
    addresses.record_reached(NODE, at(1), now=1_000.0)
    addresses.learn(NODE, SignedAddress(at(2), 101))
    assert addresses.candidates(NODE) == (at(2), at(1))


def test_a_reached_address_comes_before_an_older_signed_one() -> None:
    addresses = make_book()
    addresses.add_hint(NODE, at(1))
    addresses.learn(NODE, SignedAddress(at(9), 100))
    addresses.record_reached(NODE, at(1), now=1_000.0)
    assert addresses.candidates(NODE)[0] == at(1)


def test_the_newest_two_signed_addresses_of_a_node_are_kept() -> None:
    addresses = make_book()
    for signed_at in (1, 2, 3):
        assert addresses.learn(NODE, SignedAddress(at(signed_at), signed_at))
    assert addresses.candidates(NODE) == (at(3), at(2))
    assert addresses.newest_signed_at(NODE) == 3


@pytest.mark.parametrize("signed_at", [99, 100])
def test_a_signed_address_that_is_not_newer_changes_nothing(signed_at: int) -> None:
    addresses = make_book()
    addresses.learn(NODE, SignedAddress(at(1), 100))
    assert not addresses.learn(NODE, SignedAddress(at(2), signed_at))
    assert addresses.candidates(NODE) == (at(1),)


def test_gossip_about_an_unknown_node_is_not_kept() -> None:
    addresses = make_book()
    assert not addresses.learn(STRANGER, SignedAddress(at(1), 100))
    assert addresses.candidates(STRANGER) == ()


def test_gossip_about_a_manual_peer_is_kept() -> None:
    addresses = make_book()
    addresses.add_manual(STRANGER, at(1))
    assert addresses.learn(STRANGER, SignedAddress(at(2), 100))
    assert addresses.candidates(STRANGER) == (at(1), at(2))


def test_gossip_about_a_node_that_no_longer_validates_is_dropped() -> None:
    addresses = make_book(NODE, OTHER)
    addresses.learn(NODE, SignedAddress(at(1), 100))
    addresses.learn(OTHER, SignedAddress(at(2), 100))
    addresses.set_validators([OTHER])
    assert addresses.candidates(NODE) == ()
    assert list(addresses.signed()) == [(OTHER, 100)]


def test_the_newest_two_hints_are_kept() -> None:
    addresses = make_book()
    assert [addresses.add_hint(NODE, at(n)) for n in (1, 2, 2, 3)] == [True, True, False, True]
    assert addresses.candidates(NODE) == (at(3), at(2))


def test_an_address_at_which_another_node_answered_comes_last() -> None:
    addresses = make_book()
    addresses.record_reached(NODE, at(1), now=1_000.0)
    addresses.add_hint(NODE, at(1))
    addresses.add_hint(NODE, at(2))
    addresses.record_other_node(NODE, at(1), STRANGER)
    assert addresses.candidates(NODE) == (at(2), at(1))
    addresses.record_reached(NODE, at(1), now=1_001.0)
    assert addresses.candidates(NODE) == (at(1), at(2))


@pytest.mark.parametrize(
    "host", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "127.0.0.1", "fc00::1", "::ffff:10.0.0.1"]
)
def test_private_addresses_are_candidates_only_if_allowed(host: str) -> None:
    for allowed in (False, True):
        addresses = make_book(allow_private=allowed)
        addresses.add_hint(NODE, Endpoint.parse(host, 9651))
        assert bool(addresses.candidates(NODE)) is allowed
        assert addresses.only_private(NODE) is not allowed


def test_a_node_with_a_public_and_a_private_address_is_dialed_at_the_public_one() -> None:
    addresses = make_book()
    addresses.add_hint(NODE, Endpoint.parse("10.0.0.1", 9651))
    addresses.add_hint(NODE, at(1))
    assert addresses.candidates(NODE) == (at(1),)
    assert not addresses.only_private(NODE)


def test_a_node_without_addresses_is_not_reported_as_private() -> None:
    assert not make_book().only_private(NODE)


def test_carrier_grade_and_documentation_peers_gossiped_are_public_as_nodes_take_them() -> None:
    addresses = make_book()
    addresses.add_hint(NODE, Endpoint.parse("100.64.0.1", 9651))
    assert addresses.candidates(NODE) == (Endpoint.parse("100.64.0.1", 9651),)


def test_addresses_of_unknown_nodes_are_bounded() -> None:
    addresses = AddressBook((), allow_private=False, max_nodes=64)
    addresses.set_validators([node(0)])
    addresses.learn(node(0), SignedAddress(at(1), 1))
    for number in range(1, 200):
        addresses.add_hint(node(number), at(number))
    held = [number for number in range(200) if addresses.candidates(node(number))]
    assert len(held) <= 65
    assert held[0] == 0
    assert held[-1] == 199


def test_loaded_addresses_have_the_same_order() -> None:
    before = make_book()
    before.learn(NODE, SignedAddress(at(1), 100))
    before.record_reached(NODE, at(1), now=1_000.0)
    before.learn(NODE, SignedAddress(at(2), 200))
    before.add_hint(OTHER, at(3))
    after = make_book()
    after.load(before.export_rows(), 2_000.0)
    assert after.candidates(NODE) == (at(2), at(1))
    assert after.newest_signed_at(NODE) == 200
    assert after.candidates(OTHER) == ()


def test_loaded_addresses_do_not_replace_newer_ones() -> None:
    addresses = make_book()
    addresses.learn(NODE, SignedAddress(at(2), 200))
    older = make_book()
    older.learn(NODE, SignedAddress(at(1), 100))
    older.record_reached(NODE, at(1), now=1_000.0)
    addresses.load(older.export_rows(), 2_000.0)
    assert addresses.candidates(NODE) == (at(2), at(1))
    assert addresses.newest_signed_at(NODE) == 200


def test_ipv4_inside_ipv6_is_ipv4() -> None:
    assert Endpoint.parse("::ffff:203.0.113.7", 1) == Endpoint.parse("203.0.113.7", 1)


@pytest.mark.parametrize(
    ("host", "port"), [("203.0.113.7", 0), ("203.0.113.7", 65_536), ("example.org", 1), ("", 1)]
)
def test_a_malformed_endpoint_is_refused(host: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        Endpoint.parse(host, port)
