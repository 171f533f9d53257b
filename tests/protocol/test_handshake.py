"""Handshakes: recorded ones pass, and each changed field of them fails."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import pytest

from tests.protocol.peers import NO_PEERS, UNIX_S, ZSTD, node, own_handshake
from tests.protocol.recorded import CLIENT, NETWORK_ID, SESSIONS, Session
from warpseal import bls
from warpseal.pb import p2p_pb2
from warpseal.protocol.addresses import signed_bytes
from warpseal.protocol.handshake import CloseReason, OwnHandshake, ProtocolError, check_handshake
from warpseal.protocol.messages import decode_handshake, open_envelope

Mutation = Callable[[p2p_pb2.Handshake], object]

# On the signature curve, but not in its subgroup.
NOT_IN_SUBGROUP = bytes.fromhex("80" + "00" * 94 + "02")


@pytest.mark.parametrize("session", SESSIONS, ids=lambda s: s.node_id.hex()[:8])
def test_recorded_nodes_pass(session: Session) -> None:
    theirs = check_handshake(
        session.handshake, session.certificate, NETWORK_ID, session.handshake.my_time + 2
    )
    assert theirs.version == (1, 14, 1)
    assert theirs.claim.ip == IPv4Address("127.0.0.1")
    assert theirs.claim.node_id == session.node_id
    assert theirs.clock_offset_s == -2


@pytest.mark.parametrize("session", SESSIONS, ids=lambda s: s.node_id.hex()[:8])
def test_the_recorded_client_passes(session: Session) -> None:
    handshake = session.client_handshake
    theirs = check_handshake(handshake, CLIENT, NETWORK_ID, handshake.my_time)
    assert (theirs.claim.ip, theirs.claim.port) == (IPv4Address("0.0.0.0"), 1)
    assert theirs.version == (1, 15, 0)


def known_peers(raw: bytes, salt: bytes = b"") -> Mutation:
    return lambda h: h.known_peers.CopyFrom(p2p_pb2.BloomFilter(filter=raw, salt=salt))


def set_to(name: str, value: object) -> Mutation:
    return lambda h: setattr(h, name, value)


def shifted(name: str, by: int) -> Mutation:
    return lambda h: setattr(h, name, getattr(h, name) + by)


FIRST = SESSIONS[0].handshake
MUTATIONS = [
    pytest.param(set_to("network_id", 1), CloseReason.WRONG_NETWORK, id="network"),
    pytest.param(shifted("my_time", 61), CloseReason.CLOCK_SKEW, id="clock ahead"),
    pytest.param(shifted("my_time", -61), CloseReason.CLOCK_SKEW, id="clock behind"),
    pytest.param(
        set_to("my_time", 2**64 - 1), CloseReason.CLOCK_SKEW, id="clock at the end of time"
    ),
    pytest.param(
        lambda h: h.tracked_subnets.extend([bytes(32)] * 16),
        CloseReason.TOO_MANY_SUBNETS,
        id="17 subnets",
    ),
    pytest.param(
        lambda h: h.tracked_subnets.append(bytes(31)),
        CloseReason.MALFORMED_SUBNET_ID,
        id="subnet id",
    ),
    pytest.param(known_peers(b""), CloseReason.MALFORMED_FILTER, id="no filter"),
    pytest.param(known_peers(b"\x11" + bytes(200)), CloseReason.MALFORMED_FILTER, id="17 hashes"),
    pytest.param(
        known_peers(b"\x01" + bytes(9), bytes(33)), CloseReason.MALFORMED_FILTER, id="long salt"
    ),
    pytest.param(set_to("ip_addr", bytes(5)), CloseReason.MALFORMED_ADDRESS, id="address length"),
    pytest.param(set_to("ip_port", 0), CloseReason.MALFORMED_ADDRESS, id="port 0"),
    pytest.param(set_to("ip_port", 65536), CloseReason.MALFORMED_ADDRESS, id="port 65536"),
    pytest.param(
        set_to("ip_signing_time", FIRST.my_time + 61),
        CloseReason.ADDRESS_FROM_THE_FUTURE,
        id="future",
    ),
    pytest.param(
        set_to("ip_addr", b"\x7f\x00\x00\x02"), CloseReason.WRONG_ADDRESS_SIGNATURE, id="address"
    ),
    pytest.param(shifted("ip_port", 1), CloseReason.WRONG_ADDRESS_SIGNATURE, id="port"),
    pytest.param(
        shifted("ip_signing_time", -1), CloseReason.WRONG_ADDRESS_SIGNATURE, id="signing time"
    ),
    pytest.param(
        set_to("ip_node_id_sig", b""), CloseReason.WRONG_ADDRESS_SIGNATURE, id="no signature"
    ),
    pytest.param(
        set_to("ip_node_id_sig", SESSIONS[1].handshake.ip_node_id_sig),
        CloseReason.WRONG_ADDRESS_SIGNATURE,
        id="signature of another",
    ),
    pytest.param(set_to("ip_bls_sig", b""), CloseReason.MALFORMED_BLS_PROOF, id="no proof"),
    pytest.param(
        set_to("ip_bls_sig", FIRST.ip_bls_sig[:95]),
        CloseReason.MALFORMED_BLS_PROOF,
        id="short proof",
    ),
    pytest.param(
        set_to("ip_bls_sig", b"\xff" * 96), CloseReason.MALFORMED_BLS_PROOF, id="no point"
    ),
    pytest.param(
        set_to("ip_bls_sig", NOT_IN_SUBGROUP),
        CloseReason.MALFORMED_BLS_PROOF,
        id="not in the subgroup",
    ),
]


@pytest.mark.parametrize(("mutate", "reason"), MUTATIONS)
def test_each_changed_field_fails(mutate: Mutation, reason: CloseReason) -> None:
    changed = p2p_pb2.Handshake()
    changed.CopyFrom(FIRST)
    mutate(changed)
    assert changed != FIRST
    with pytest.raises(ProtocolError) as error:
        check_handshake(changed, SESSIONS[0].certificate, NETWORK_ID, FIRST.my_time)
    assert error.value.reason is reason


def test_the_point_outside_the_subgroup_is_on_the_curve() -> None:
    assert bls.decode_share(NOT_IN_SUBGROUP)


def test_a_bls_signature_of_another_key_passes() -> None:
    changed = p2p_pb2.Handshake()
    changed.CopyFrom(FIRST)
    changed.ip_bls_sig = SESSIONS[1].handshake.ip_bls_sig
    assert check_handshake(changed, SESSIONS[0].certificate, NETWORK_ID, FIRST.my_time)


@pytest.mark.parametrize(
    "mutate",
    [
        pytest.param(lambda h: h.ClearField("known_peers"), id="no filter field"),
        pytest.param(lambda h: h.ClearField("client"), id="no client"),
        pytest.param(
            lambda h: h.client.CopyFrom(p2p_pb2.Client(name="x", major=9)),
            id="version of the future",
        ),
        pytest.param(
            lambda h: h.client.CopyFrom(p2p_pb2.Client(major=1, minor=7)), id="version of the past"
        ),
        pytest.param(
            set_to("ip_addr", bytes.fromhex("00000000000000000000ffff7f000001")),
            id="mapped address",
        ),
        pytest.param(shifted("ip_port", 65536), id="port with high bits"),
        pytest.param(shifted("my_time", 60), id="clock 60 s ahead"),
        pytest.param(shifted("my_time", -60), id="clock 60 s behind"),
        pytest.param(lambda h: h.tracked_subnets.extend([bytes(32)] * 15), id="16 subnets"),
        pytest.param(lambda h: h.supported_acps.extend([1, 2]), id="proposals"),
        pytest.param(set_to("upgrade_time", 0), id="upgrade time"),
    ],
)
def test_handshakes_that_nodes_tolerate_pass(mutate: Mutation) -> None:
    changed = p2p_pb2.Handshake()
    changed.CopyFrom(FIRST)
    mutate(changed)
    assert check_handshake(changed, SESSIONS[0].certificate, NETWORK_ID, FIRST.my_time)


def test_an_address_may_be_signed_sixty_seconds_ahead() -> None:
    signed_at = float(FIRST.ip_signing_time)
    handshake = p2p_pb2.Handshake()
    handshake.CopyFrom(FIRST)
    handshake.my_time = FIRST.ip_signing_time - 60
    certificate = SESSIONS[0].certificate
    assert check_handshake(handshake, certificate, NETWORK_ID, signed_at - 60)
    with pytest.raises(ProtocolError) as error:
        check_handshake(handshake, certificate, NETWORK_ID, signed_at - 60.5)
    assert error.value.reason is CloseReason.ADDRESS_FROM_THE_FUTURE


def test_our_handshake_passes_the_same_checks() -> None:
    number, body = open_envelope(own_handshake().encode(UNIX_S + 30.9, NO_PEERS)[4:], ZSTD)
    handshake = decode_handshake(body)
    ours = check_handshake(handshake, node(1000).certificate, 12345, UNIX_S + 30)
    assert number == 13
    assert handshake.my_time == UNIX_S + 30
    assert ours.version == (1, 15, 3)
    assert (ours.claim.ip, ours.claim.port, ours.claim.timestamp) == (
        IPv4Address("0.0.0.0"),
        1,
        UNIX_S,
    )
    assert not handshake.tracked_subnets
    assert handshake.all_subnets
    assert handshake.known_peers.filter == NO_PEERS.encode()
    signed = signed_bytes(ours.claim.ip, ours.claim.port, UNIX_S)
    assert bls.verify_possession(
        bls.derive_public_key(node(1000).bls_secret), signed, handshake.ip_bls_sig
    )


def own_handshake_at(own: OwnHandshake, unix_s: float) -> p2p_pb2.Handshake:
    """Return the handshake that is sent at `unix_s`."""
    return decode_handshake(open_envelope(own.encode(unix_s, NO_PEERS)[4:], ZSTD)[1])


def test_the_advertised_version_is_a_setting() -> None:
    client = own_handshake_at(
        OwnHandshake(12345, node(1000).sign, node(1000).bls_secret, (1, 16, 3)), UNIX_S
    ).client
    assert (client.name, client.major, client.minor, client.patch) == ("avalanchego", 1, 16, 3)


def test_a_claim_is_signed_like_the_vector() -> None:
    secret = bls.secret_from_bytes(b"AvalancheLocalNetworkValidator01")
    signed = signed_bytes(IPv4Address("127.0.0.1"), 9651, 1_700_000_000)
    assert signed.hex() == "00000000000000000000ffff7f00000125b3000000006553f100"
    assert bls.sign_possession(secret, signed).hex() == (
        "b7dd4a2c8bf88a7851cfdaf7cfcc297ec2711d3ad4b331cd63cb7c0e0a79aa4da700d274a5f610b15e2a87cd4b61de3b"
        "02d51c5f4d48051a3392dd76ec73b20ac7307414d2ccb031868f8b313ce3fc7f65788e3d794228044c953f1f18612f99"
    )


def test_the_claim_is_signed_again_only_if_the_clock_was_ahead() -> None:
    messages: list[bytes] = []

    def tls_sign(message: bytes) -> bytes:
        messages.append(message)
        return b"signature %d" % len(messages)

    own = OwnHandshake(12345, tls_sign, node(1000).bls_secret)
    first, later, corrected = (
        own_handshake_at(own, unix_s) for unix_s in (1_000.9, 5_000.0, 900.0)
    )
    assert [claim.ip_signing_time for claim in (first, later, corrected)] == [1_000, 1_000, 900]
    assert [claim.ip_node_id_sig for claim in (first, later)] == [b"signature 1"] * 2
    assert later.ip_bls_sig == first.ip_bls_sig != corrected.ip_bls_sig
    assert messages == [
        signed_bytes(IPv4Address("0.0.0.0"), 1, signed_at) for signed_at in (1_000, 900)
    ]


def test_an_ipv6_claim_of_a_peer_passes() -> None:
    handshake = node().handshake("2001:db8::7")
    assert len(handshake.ip_addr) == 16
    assert check_handshake(handshake, node().certificate, 12345, UNIX_S).claim.ip == IPv6Address(
        "2001:db8::7"
    )
