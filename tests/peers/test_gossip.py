"""Which entries of a peer list are accepted, and how many are verified."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from tests.protocol.peers import UNIX_S, Node, node
from warpseal.peers.addresses import AddressBook, Gossip, peers_to_ask
from warpseal.peers.statistics import NetworkStatistics
from warpseal.protocol.addresses import ClaimedIpPort, parse_claimed_ip_port
from warpseal.protocol.bloom import gossip_id


def claim(who: Node, port: int = 9651, timestamp: int = UNIX_S) -> ClaimedIpPort:
    return parse_claimed_ip_port(who.claim("203.0.113.7", port, timestamp))


def make_gossip(nodes: Iterable[Node]) -> tuple[Gossip, AddressBook, NetworkStatistics]:
    book = AddressBook((), allow_private=False, max_nodes=100)
    book.set_validators([node.certificate.node_id for node in nodes])
    statistics = NetworkStatistics()
    return Gossip(book, statistics, os.urandom), book, statistics


def test_the_signed_address_of_a_known_node_is_added_to_book_and_filter() -> None:
    gossip, book, statistics = make_gossip([node(1)])
    node_id = node(1).certificate.node_id
    assert gossip.learn([claim(node(1))], UNIX_S) == [node_id]
    assert [str(endpoint) for endpoint in book.candidates(node_id)] == ["203.0.113.7:9651"]
    assert gossip_id(node_id, UNIX_S) in gossip.known_peers
    assert (statistics.addresses_learned, statistics.forged_addresses) == (1, 0)


def test_addresses_of_unknown_nodes_are_skipped_unverified() -> None:
    gossip, _, statistics = make_gossip([node(1)])
    stranger = replace(claim(node(2)), signature=b"forged")
    assert gossip.learn([stranger, claim(node(1))], UNIX_S) == [node(1).certificate.node_id]
    assert statistics.forged_addresses == 0


@pytest.mark.parametrize("timestamp", [UNIX_S - 1, UNIX_S])
def test_an_address_that_is_not_newer_is_not_verified(timestamp: int) -> None:
    gossip, _, statistics = make_gossip([node(1)])
    gossip.learn([claim(node(1))], UNIX_S)
    again = replace(claim(node(1), timestamp=timestamp), signature=b"forged")
    assert gossip.learn([again], UNIX_S) == []
    assert statistics.forged_addresses == 0


def test_a_newer_signature_of_the_same_address_causes_no_dial() -> None:
    gossip, book, _ = make_gossip([node(1)])
    node_id = node(1).certificate.node_id
    gossip.learn([claim(node(1))], UNIX_S)
    assert gossip.learn([claim(node(1), timestamp=UNIX_S + 1)], UNIX_S) == []
    assert book.newest_signed_at(node_id) == UNIX_S + 1
    assert gossip.learn([claim(node(1), port=9652, timestamp=UNIX_S + 2)], UNIX_S) == [node_id]


def test_a_forgery_is_counted_and_ends_the_message() -> None:
    gossip, book, statistics = make_gossip([node(1), node(2), node(3)])
    forged = replace(claim(node(2)), port=1)
    assert gossip.learn([claim(node(1)), forged, claim(node(3))], UNIX_S) == [
        node(1).certificate.node_id
    ]
    assert statistics.forged_addresses == 1
    assert book.candidates(node(2).certificate.node_id) == ()
    assert book.candidates(node(3).certificate.node_id) == ()


def test_an_address_from_the_future_is_a_forgery() -> None:
    gossip, _, statistics = make_gossip([node(1)])
    assert gossip.learn([claim(node(1), timestamp=UNIX_S + 61)], UNIX_S) == []
    assert gossip.learn([claim(node(1), timestamp=UNIX_S + 60)], UNIX_S) == [
        node(1).certificate.node_id
    ]
    assert statistics.forged_addresses == 1


def test_a_message_causes_a_bounded_number_of_verifications() -> None:
    gossip, _, statistics = make_gossip([node(1)])
    climbing = [claim(node(1), timestamp=UNIX_S - 100 + step) for step in range(60)]
    gossip.learn(climbing, UNIX_S)
    assert statistics.addresses_learned == 30


def test_only_the_first_entries_of_a_huge_message_are_read() -> None:
    gossip, _, _ = make_gossip([node(1)])
    padding = [replace(claim(node(2)), certificate_der=bytes(1))] * 1_000
    assert gossip.learn([*padding, claim(node(1))], UNIX_S) == []


async def test_a_renewed_filter_holds_the_newest_addresses_under_new_seeds() -> None:
    nodes = [node(number) for number in range(1, 6)]
    gossip, _, _ = make_gossip(nodes)
    gossip.learn([claim(claimed_node) for claimed_node in nodes], UNIX_S)
    gossip.learn([claim(nodes[0], timestamp=UNIX_S + 5)], UNIX_S)
    before = gossip.known_peers
    await gossip.renew_filter(0.0)
    after = gossip.known_peers
    assert before.salt != after.salt
    assert gossip_id(nodes[0].certificate.node_id, UNIX_S + 5) in after
    assert all(gossip_id(other.certificate.node_id, UNIX_S) in after for other in nodes[1:])
    assert gossip_id(nodes[0].certificate.node_id, UNIX_S) not in after


async def test_a_filter_lasts_a_minute() -> None:
    gossip, _, _ = make_gossip([])
    await gossip.renew_filter(0.0)
    first = gossip.known_peers
    await gossip.renew_filter(59.0)
    assert gossip.known_peers is first
    await gossip.renew_filter(60.0)
    assert gossip.known_peers is not first


@pytest.mark.parametrize(
    ("missing", "peer_count"), [(0, 0), (1, 1), (15, 1), (16, 2), (45, 3), (10_000, 4)]
)
def test_more_peers_are_asked_if_more_addresses_are_missing(missing: int, peer_count: int) -> None:
    assert peers_to_ask(missing) == peer_count
