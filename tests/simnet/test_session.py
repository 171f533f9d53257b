"""A session treats its peer as a node does: what it closes for, skips, answers and leaves
unanswered.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simnet.sessions import CLIENT, NOW, Clock, Line, hello, peer_list, small_network
from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.pb import sdk_pb2 as sdk
from warpseal.warp.ids import P_CHAIN, NodeID
from warpseal_simnet import bloom, frames
from warpseal_simnet.addresses import SignedAddress, sign_address
from warpseal_simnet.certificates import node_id_of
from warpseal_simnet.identity import Identity
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.values import ChainKind, SimMessage
from warpseal_simnet.violations import ViolationKind

NETWORK = 88888
TEN_SECONDS_NS = 10_000_000_000
NOTHING_KNOWN = bloom.EMPTY.encode()


def request(message: SimMessage, request_id: object = 1, **changes: object) -> p2p.Message:
    """Return a signature request, some fields changed."""
    signature_request = sdk.SignatureRequest(
        message=message.unsigned.raw, justification=message.justification
    )
    fields: dict[str, object] = {
        "chain_id": message.unsigned.source_chain_id,
        "request_id": request_id,
        "deadline": TEN_SECONDS_NS,
        "app_bytes": b"\x02" + signature_request.SerializeToString(),
    }
    return p2p.Message(app_request=p2p.AppRequest(**(fields | changes)))  # type: ignore[arg-type]


def evm_message(network: SimulatedNetwork) -> SimMessage:
    return network.messages_of(network.subnets[1].subnet_id)[0]


def ask(line: Line, *messages: p2p.Message) -> list[p2p.Message]:
    line.send(*messages)
    return line.transport.messages()


def test_a_share_is_the_validators_signature_over_the_message() -> None:
    network = small_network()
    line = Line(network).finish()
    message = evm_message(network)
    (response,) = ask(line, request(message, 7))
    assert response.app_response.chain_id == message.unsigned.source_chain_id
    assert response.app_response.request_id == 7
    share = sdk.SignatureResponse.FromString(response.app_response.app_bytes).signature
    assert bls.verify(bls.parse_public_key(line.validator.bls_key), message.unsigned.raw, share)
    assert line.violations == {}


def test_requests_before_the_end_of_the_handshake_are_dropped() -> None:
    network = small_network()
    line = Line(network)
    line.transport.messages()
    assert ask(line, request(evm_message(network))) == []
    line.send(p2p.Message(get_peer_list=p2p.GetPeerList()))
    assert line.violations == {ViolationKind.EARLY_MESSAGE: 2}
    assert not line.transport.closed


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ViolationKind.CHAIN_ID_LENGTH, {"chain_id": bytes(31)}),
        (ViolationKind.DEADLINE, {"deadline": 0}),
        (ViolationKind.DEADLINE, {"deadline": 2**63}),
        (ViolationKind.EVEN_REQUEST_ID, {"request_id": 2}),
    ],
)
def test_requests_that_nodes_ignore_are_ignored(
    kind: ViolationKind, changes: dict[str, object]
) -> None:
    network = small_network()
    line = Line(network).finish()
    assert ask(line, request(evm_message(network), **{"request_id": 1} | changes)) == []
    assert line.violations == {kind: 1}
    assert not line.transport.closed


def test_even_request_ids_are_fine_on_the_p_chain() -> None:
    network = small_network()
    line = Line(network).finish()
    (response,) = ask(line, request(network.messages[0], 0))
    assert response.HasField("app_response")
    assert line.violations == {}


def test_a_request_for_a_chain_that_is_not_run_is_ignored_without_violation() -> None:
    network = small_network(l1s=(L1Plan(validators=2),))
    elsewhere = network.messages_of(network.subnets[0].subnet_id)[0]
    line = Line(network, 4).finish()
    assert not line.validator.validates_primary
    assert ask(line, request(elsewhere)) == []
    assert ask(line, request(elsewhere, chain_id=bytes([7]) * 32)) == []
    (response,) = ask(line, request(evm_message(network)))
    assert response.HasField("app_response")
    assert line.violations == {}


@pytest.mark.parametrize("app_bytes", [b"", b"\xff" * 12, b"\x00junk", b"\x03"])
def test_other_handlers_are_answered_with_minus_two(app_bytes: bytes) -> None:
    network = small_network()
    line = Line(network).finish()
    (response,) = ask(line, request(evm_message(network), app_bytes=app_bytes))
    assert (response.app_error.error_code, response.app_error.error_message) == (
        -2,
        "unregistered handler",
    )
    assert line.violations == {ViolationKind.UNREGISTERED_HANDLER: 1}


def test_the_x_chain_has_no_signature_handler() -> None:
    network = small_network()
    line = Line(network).finish()
    x_chain = next(chain for chain in network.state.chains.values() if chain.kind is ChainKind.X)
    (response,) = ask(line, request(evm_message(network), chain_id=x_chain.chain_id))
    assert response.app_error.error_code == -2
    assert line.violations == {}


@pytest.mark.parametrize("app_bytes", [b"\x02\xff\xff", b"\x02\x0a\x04junk", b"\x02"])
def test_unreadable_requests_are_answered_with_minus_one(app_bytes: bytes) -> None:
    network = small_network()
    line = Line(network).finish()
    (response,) = ask(line, request(evm_message(network), app_bytes=app_bytes))
    assert response.app_error.error_code == -1
    assert line.violations == {ViolationKind.BAD_REQUEST: 1}


def test_a_message_of_another_chain_is_not_signed() -> None:
    network = small_network()
    line = Line(network).finish()
    c_chain_message = network.messages_of(network.subnets[0].subnet_id)[0]
    l1_chain = evm_message(network).unsigned.source_chain_id
    (response,) = ask(line, request(c_chain_message, chain_id=l1_chain))
    assert (response.app_error.error_code, response.app_error.error_message) == (
        -1,
        "failed to sign message: wrong SourceChainID",
    )


def test_pings_are_answered_with_one_pong_each() -> None:
    line = Line(small_network()).finish()
    ping = p2p.Message(ping=p2p.Ping(uptime=100))
    assert [message.WhichOneof("message") for message in ask(line, ping, ping)] == ["pong", "pong"]
    line.send(p2p.Message(ping=p2p.Ping(uptime=101)))
    assert line.transport.closed
    assert line.violations == {ViolationKind.PING_UPTIME: 1}


def test_a_pong_answers_one_ping_and_two_pongs_close() -> None:
    line = Line(small_network()).finish()
    line.transport.fire()
    line.transport.fire()
    assert line.transport.kinds() == ["ping", "ping"]
    line.send(p2p.Message(pong=p2p.Pong()))
    assert not line.transport.closed
    line.send(p2p.Message(pong=p2p.Pong()))
    assert line.transport.closed
    assert line.violations == {ViolationKind.UNEXPECTED_PONG: 1}


def test_pings_that_stay_unanswered_for_long_are_a_tolerated_violation() -> None:
    line = Line(small_network()).finish()
    for _ in range(5):
        line.transport.fire()
    assert line.violations == {ViolationKind.UNANSWERED_PINGS: 1}
    assert not line.transport.closed


def test_pings_flow_before_the_handshake_is_finished() -> None:
    line = Line(small_network())
    line.transport.fire()
    assert line.transport.kinds() == ["handshake", "ping"]


def test_unparsable_messages_are_skipped_and_counted() -> None:
    line = Line(small_network()).finish()
    line.session.feed(frames.framed(b"\xff\xff"))
    line.session.feed(frames.framed(b""))
    line.session.feed(frames.framed(bytes.fromhex("ca0100")))
    line.send(p2p.Message(app_response=p2p.AppResponse()), p2p.Message(app_gossip=p2p.AppGossip()))
    assert line.violations == {
        ViolationKind.UNPARSABLE_MESSAGE: 2,
        ViolationKind.UNKNOWN_MESSAGE: 1,
        ViolationKind.UNSOLICITED_RESPONSE: 1,
        ViolationKind.UNWANTED_MESSAGE: 1,
    }
    assert not line.transport.closed


def test_an_oversized_frame_closes() -> None:
    line = Line(small_network()).finish()
    line.session.feed(b"\x00\x20\x00\x01")
    assert line.transport.closed
    assert line.violations == {ViolationKind.OVERSIZED_FRAME: 1}


def test_messages_after_a_fatal_one_are_ignored() -> None:
    line = Line(small_network())
    line.session.feed(frames.encode(hello(1)) + frames.framed(b"\xff\xff") * 3)
    assert line.violations == {ViolationKind.NETWORK_ID: 1}


@pytest.mark.parametrize(
    ("kind", "peer_filter"),
    [
        (ViolationKind.GET_PEER_LIST_FILTER, None),
        (ViolationKind.GET_PEER_LIST_FILTER, p2p.BloomFilter(filter=b"\x00")),
        (ViolationKind.GET_PEER_LIST_SALT, p2p.BloomFilter(filter=NOTHING_KNOWN, salt=bytes(33))),
    ],
)
def test_a_get_peer_list_needs_a_good_filter(
    kind: ViolationKind, peer_filter: p2p.BloomFilter | None
) -> None:
    line = Line(small_network()).finish()
    line.send(p2p.Message(get_peer_list=p2p.GetPeerList(known_peers=peer_filter)))
    assert line.transport.closed
    assert line.violations == {kind: 1}


def claim(of: Identity = CLIENT, **changes: object) -> p2p.ClaimedIpPort:
    ip_port = p2p.ClaimedIpPort()
    ip_port.CopyFrom(sign_address(of, "127.0.0.1", 9, NOW).claim)
    for name, value in changes.items():
        setattr(ip_port, name, value)
    return ip_port


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ViolationKind.PEER_LIST_CERTIFICATE, {"x509_certificate": b"junk"}),
        (ViolationKind.PEER_LIST_IP, {"ip_addr": bytes(3)}),
        (ViolationKind.PEER_LIST_PORT, {"ip_port": 0}),
        (ViolationKind.PEER_LIST_TIME, {"timestamp": NOW + 61}),
        (ViolationKind.PEER_LIST_SIGNATURE, {"timestamp": NOW - 1}),
    ],
)
def test_a_bad_claim_about_a_validator_closes_the_connection(
    kind: ViolationKind, changes: dict[str, object]
) -> None:
    line = Line(small_network()).finish()
    about = line.network.validators[1].identity
    line.send(peer_list(claim(), claim(about)))
    assert not line.transport.closed
    line.send(peer_list(claim(), claim(about, **changes)))
    assert line.transport.closed
    assert line.violations == {kind: 1}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ViolationKind.PEER_LIST_TIME, {"timestamp": NOW + 61}),
        (ViolationKind.PEER_LIST_SIGNATURE, {"signature": b"junk"}),
    ],
)
def test_an_unneeded_bad_claim_is_a_tolerated_violation(
    kind: ViolationKind, changes: dict[str, object]
) -> None:
    line = Line(small_network()).finish()
    line.send(peer_list(claim(CLIENT, **changes)))
    assert not line.transport.closed
    assert line.violations == {kind: 1}


def place_all(network: SimulatedNetwork) -> list[SignedAddress]:
    for index, validator in enumerate(network.validators):
        validator.address = sign_address(validator.identity, "127.0.0.1", 1000 + index, NOW)
    network.context.gossip.addresses_changed()
    return [validator.address for validator in network.validators if validator.address]


def gossiped_nodes(message: p2p.Message) -> set[NodeID]:
    return {node_id_of(claim.x509_certificate) for claim in message.peer_list.claimed_ip_ports}


def test_peer_lists_carry_at_most_fifteen_claims_that_the_peer_lacks() -> None:
    network = small_network(validators=40)
    addresses = place_all(network)
    line = Line(network)
    line.send(hello(NETWORK), peer_list())
    first = gossiped_nodes(line.transport.messages()[1])
    assert len(first) == 15
    assert line.validator.node_id not in first
    peer_filter = bloom.filter_of(
        [address.gossip_id for address in addresses if address.leaf.node_id in first],
        b"salt",
        random.Random(1),
    )
    get = p2p.GetPeerList(
        known_peers=p2p.BloomFilter(filter=peer_filter.encode(), salt=b"salt"), all_subnets=True
    )
    (response,) = ask(line, p2p.Message(get_peer_list=get))
    assert len(gossiped_nodes(response)) == 15
    assert not gossiped_nodes(response) & first


def test_a_peer_that_knows_all_addresses_gets_no_peer_list() -> None:
    network = small_network()
    addresses = place_all(network)
    line = Line(network).finish()
    filter_bytes = bloom.filter_of(
        [address.gossip_id for address in addresses], b"", random.Random(1)
    ).encode()
    get = p2p.GetPeerList(known_peers=p2p.BloomFilter(filter=filter_bytes), all_subnets=True)
    assert ask(line, p2p.Message(get_peer_list=get)) == []


def test_nodes_of_an_l1_are_gossiped_to_peers_that_track_it_or_all_subnets() -> None:
    network = small_network(l1s=(L1Plan(validators=2),))
    place_all(network)
    own = {validator.node_id for validator in network.validators if not validator.validates_primary}
    l1 = network.subnets[1].subnet_id

    def gossiped_by(index: int, **changes: object) -> set[NodeID]:
        line = Line(network, index)
        line.send(hello(NETWORK, **changes))
        return gossiped_nodes(line.transport.messages()[1])

    assert own <= gossiped_by(0, all_subnets=True)
    assert not own & gossiped_by(0, all_subnets=False)
    assert own <= gossiped_by(0, all_subnets=False, tracked_subnets=[l1])
    # A node of the L1 answers for what it tracks itself, whatever is asked.
    assert not own & gossiped_by(4, all_subnets=True)
    assert gossiped_by(4, tracked_subnets=[l1]) & own == own - {network.validators[4].node_id}


def test_more_open_requests_than_a_node_takes_are_a_violation() -> None:
    clock = Clock()
    network = small_network(settings=NodeSettings(clock=clock, max_outstanding=3))
    network.set_behaviour(0, "silent")
    line = Line(network).finish()
    line.send(*(request(evm_message(network), number) for number in (1, 3, 5)))
    assert line.violations == {}
    line.send(request(evm_message(network), 7))
    assert line.violations == {ViolationKind.TOO_MANY_OUTSTANDING: 1}
    clock.now += 11
    line.send(request(evm_message(network), 9))
    assert line.violations == {ViolationKind.TOO_MANY_OUTSTANDING: 1}


def test_a_request_id_in_use_is_a_violation_and_a_freed_one_is_not() -> None:
    network = small_network()
    line = Line(network).finish()
    line.send(request(evm_message(network), 1), request(evm_message(network), 1))
    assert line.violations == {}
    network.set_behaviour(0, "silent")
    line.send(request(evm_message(network), 1), request(evm_message(network), 1))
    assert line.violations == {ViolationKind.REUSED_REQUEST_ID: 1}


def test_more_bytes_than_a_node_reads_in_the_time_are_a_violation() -> None:
    clock = Clock()
    line = Line(small_network(clock)).finish()
    big = p2p.Message(ping=p2p.Ping()).SerializeToString() + bytes.fromhex("7a00") * 500_000
    line.session.feed(frames.framed(big))
    line.session.feed(frames.framed(big))
    assert ViolationKind.OVER_BANDWIDTH not in line.violations
    line.session.feed(frames.framed(big))
    assert line.violations[ViolationKind.OVER_BANDWIDTH] == 1
    clock.now += 2
    line.session.feed(frames.framed(big))
    assert line.violations[ViolationKind.OVER_BANDWIDTH] == 1


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_bytes_of_a_peer_raise_anything(data: bytes, as_frames: bool) -> None:
    line = Line(NETWORK_OF_GARBAGE)
    line.send(hello(NETWORK), peer_list())
    line.session.feed(frames.framed(data) if as_frames else data)


def test_p_chain_requests_go_to_every_validator() -> None:
    network = small_network(l1s=(L1Plan(validators=2),))
    for index in range(len(network.validators)):
        line = Line(network, index).finish()
        (response,) = ask(line, request(network.messages[0]))
        assert response.app_response.chain_id == P_CHAIN


NETWORK_OF_GARBAGE = small_network()
