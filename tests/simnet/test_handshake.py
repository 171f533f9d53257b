"""Handshakes are judged as a node judges them: the recorded ones pass, every single error is
refused.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simnet.sessions import (
    CLIENT,
    NOW,
    Clock,
    Line,
    hello,
    peer_list,
    recorded,
    recorded_client,
    recorded_responses,
    small_network,
)
from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal_simnet.addresses import sign_address
from warpseal_simnet.frames import decode
from warpseal_simnet.handshake import HandshakePolicy, MessageRejected, check_handshake
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.violations import ViolationKind

NETWORK = 88888
INFINITY = bytes([0xC0]) + bytes(95)

MUTATIONS: list[tuple[ViolationKind, dict[str, object]]] = [
    (ViolationKind.NETWORK_ID, {"network_id": 1}),
    (ViolationKind.CLOCK, {"my_time": NOW + 61}),
    (ViolationKind.CLOCK, {"my_time": NOW - 61}),
    (ViolationKind.TOO_MANY_SUBNETS, {"tracked_subnets": [bytes([i]) * 32 for i in range(17)]}),
    (ViolationKind.SUBNET_ID, {"tracked_subnets": [bytes(31)]}),
    (ViolationKind.ACPS, {"supported_acps": [236], "objected_acps": [236]}),
    (ViolationKind.KNOWN_PEERS, {"known_peers": p2p.BloomFilter(filter=b"")}),
    (ViolationKind.KNOWN_PEERS, {"known_peers": p2p.BloomFilter(filter=bytes([17]) + bytes(200))}),
    (ViolationKind.KNOWN_PEERS, {"known_peers": p2p.BloomFilter(filter=bytes([1]) + bytes(8))}),
    (
        ViolationKind.SALT,
        {"known_peers": p2p.BloomFilter(filter=bytes([1]) + bytes(9), salt=bytes(33))},
    ),
    (ViolationKind.IP, {"ip_addr": bytes(5)}),
    (ViolationKind.IP, {"ip_addr": None}),
    (ViolationKind.PORT, {"ip_port": 0}),
    (ViolationKind.PORT, {"ip_port": 65536}),
    (ViolationKind.SIGNING_TIME, {"ip_signing_time": NOW + 61}),
    (ViolationKind.IP_SIGNATURE, {"ip_signing_time": NOW - 2}),
    (ViolationKind.IP_SIGNATURE, {"ip_addr": bytes([127, 0, 0, 1])}),
    (ViolationKind.IP_SIGNATURE, {"ip_port": 2}),
    (ViolationKind.IP_SIGNATURE, {"ip_node_id_sig": b"junk"}),
    (ViolationKind.IP_SIGNATURE, {"ip_node_id_sig": None}),
    (ViolationKind.BLS_SIGNATURE, {"ip_bls_sig": None}),
    (ViolationKind.BLS_SIGNATURE, {"ip_bls_sig": bytes(96)}),
    (ViolationKind.BLS_SIGNATURE, {"ip_bls_sig": bytes(95)}),
    (ViolationKind.VERSION, {"client": p2p.Client(name="avalanchego", major=1, minor=13, patch=9)}),
    (ViolationKind.VERSION, {"client": p2p.Client(name="avalanchego", major=2)}),
    (ViolationKind.VERSION, {"client": None}),
]


@pytest.mark.parametrize(("kind", "changes"), MUTATIONS, ids=lambda value: str(value)[:40])
def test_one_wrong_field_ends_the_connection(
    kind: ViolationKind, changes: dict[str, object]
) -> None:
    line = Line(small_network())
    line.send(hello(NETWORK, **changes))
    assert line.transport.closed
    assert line.violations == {kind: 1}
    assert line.transport.kinds() == ["handshake"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"my_time": NOW + 60},
        {"known_peers": None},
        {"all_subnets": None},
        {"tracked_subnets": [bytes([i]) * 32 for i in range(16)]},
        {"supported_acps": [23], "objected_acps": [23]},
        {"supported_acps": [236], "objected_acps": [194]},
        {"ip_port": 65537},
        {"ip_addr": bytes(10) + b"\xff\xff" + bytes(4)},
        {"ip_bls_sig": INFINITY},
        {"upgrade_time": 1},
        {"client": p2p.Client(name="someone else", major=1, minor=99)},
    ],
    ids=str,
)
def test_handshakes_that_nodes_tolerate_are_accepted(changes: dict[str, object]) -> None:
    line = Line(small_network())
    line.send(hello(NETWORK, **changes))
    assert not line.transport.closed
    assert line.transport.kinds() == ["handshake", "peer_list"]
    assert line.violations == {}


def test_the_first_failed_check_in_a_nodes_order_is_reported() -> None:
    line = Line(small_network())
    line.send(hello(1, my_time=1, tracked_subnets=[bytes(3)], ip_addr=None, ip_bls_sig=None))
    assert line.violations == {ViolationKind.NETWORK_ID: 1}


def test_a_second_handshake_ends_the_connection() -> None:
    line = Line(small_network())
    line.send(hello(NETWORK), hello(NETWORK))
    assert line.transport.closed
    assert line.violations == {ViolationKind.SECOND_HANDSHAKE: 1}


def test_the_handshake_is_finished_by_the_peer_list_behind_it() -> None:
    line = Line(small_network())
    line.send(peer_list())
    assert not line.session.is_finished
    line.send(hello(NETWORK))
    assert not line.session.is_finished
    line.send(peer_list())
    assert line.session.is_finished
    assert line.violations == {ViolationKind.EARLY_PEER_LIST: 1}


def test_a_recorded_client_is_accepted_and_its_requests_get_the_recorded_responses() -> None:
    leaf, frames_by_node = recorded_client()
    clock = Clock()
    network = recorded(clock)
    for index, (node, frames) in enumerate(frames_by_node.items()):
        clock.now = decode(frames[0][4:]).handshake.my_time
        line = Line(network, index, leaf)
        line.session.feed(b"".join(frames))
        assert line.session.is_finished
        responses = [
            message
            for message in line.transport.messages()
            if message.HasField("app_response") or message.HasField("app_error")
        ]
        assert sorted(map(_response_key, responses)) == sorted(
            map(_response_key, recorded_responses(node))
        )
        assert not line.transport.closed
    # One of the recorded requests is deliberately no warp message; a node answers it with code -1.
    assert network.violations.by_kind() == {ViolationKind.BAD_REQUEST: len(frames_by_node)}


@pytest.mark.parametrize(("kind", "changes"), MUTATIONS, ids=lambda value: str(value)[:40])
def test_each_mutation_of_a_recorded_handshake_is_refused(
    kind: ViolationKind, changes: dict[str, object]
) -> None:
    leaf, frames_by_node = recorded_client()
    message = p2p.Message.FromString(next(iter(frames_by_node.values()))[0][4:])
    for name, value in changes.items():
        message.handshake.ClearField(name)
        if value is not None:
            message.handshake.MergeFrom(p2p.Handshake(**{name: value}))  # type: ignore[arg-type]
    line = Line(recorded(), 0, leaf)
    line.send(message)
    assert line.transport.closed
    assert line.violations == {kind: 1}


def test_a_primary_network_validator_must_prove_its_registered_key() -> None:
    other = bls.derive_public_key(bls.generate_secret(bytes([1]) * 32))
    message = hello(NETWORK).handshake
    own = HandshakePolicy(
        NETWORK,
        NodeSettings(clock=Clock()),
        bls.derive_public_key(CLIENT.bls_secret),
        1,
        (1, 14, 0),
    )
    assert check_handshake(message, CLIENT.leaf, own).version == (1, 15, 0)
    with pytest.raises(MessageRejected) as error:
        check_handshake(message, CLIENT.leaf, replace(own, bls_key=other))
    assert error.value.kind is ViolationKind.BLS_PROOF


def test_a_validator_that_dials_must_prove_its_key() -> None:
    network = small_network()
    caller = network.validators[1].identity
    address = sign_address(caller, "0.0.0.0", 1, NOW)
    changes = {"ip_node_id_sig": address.signature}
    line = Line(network, 0, caller.leaf)
    line.send(hello(NETWORK, **changes, ip_bls_sig=address.bls_signature))
    assert not line.transport.closed
    line = Line(network, 0, caller.leaf)
    line.send(hello(NETWORK, **changes))
    assert line.violations == {ViolationKind.BLS_PROOF: 1}


def test_the_own_handshake_has_the_content_of_a_nodes() -> None:
    network = small_network()
    line = Line(network, 2)
    handshake = line.transport.messages()[0].handshake
    address = line.validator.address
    assert address is not None
    assert (handshake.network_id, handshake.my_time) == (NETWORK, NOW)
    assert (handshake.ip_addr, handshake.ip_port, handshake.ip_signing_time) == (
        bytes([127, 0, 0, 1]),
        9651,
        NOW - 100,
    )
    assert handshake.client == p2p.Client(name="avalanchego", major=1, minor=15, patch=3)
    assert list(handshake.tracked_subnets) == [network.subnets[1].subnet_id]
    assert handshake.all_subnets
    key = bls.parse_public_key(line.validator.bls_key)
    assert check_handshake(
        handshake,
        line.validator.identity.leaf,
        HandshakePolicy(NETWORK, NodeSettings(clock=Clock()), key, 1, (1, 14, 0)),
    )
    assert handshake.HasField("known_peers")
    assert len(handshake.known_peers.salt) == 32


def _response_key(message: p2p.Message) -> bytes:
    return message.SerializeToString(deterministic=True)
