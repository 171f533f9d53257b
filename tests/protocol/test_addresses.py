"""Signed addresses."""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.peers import UNIX_S, node
from tests.protocol.recorded import SESSIONS
from warpseal.pb import p2p_pb2
from warpseal.protocol.addresses import (
    MalformedAddress,
    is_public,
    parse_claimed_ip_port,
    parse_ip,
    parse_port,
    signed_bytes,
)


def test_the_signed_bytes_are_those_of_the_vectors() -> None:
    assert signed_bytes(IPv4Address("127.0.0.1"), 9651, 1_700_000_000).hex() == (
        "00000000000000000000ffff7f00000125b3000000006553f100"
    )
    assert signed_bytes(IPv4Address("1.2.3.4"), 9651, 1).hex() == (
        "00000000000000000000ffff0102030425b30000000000000001"
    )
    assert signed_bytes(IPv6Address("2001:db8::1"), 1, 2**64 - 1).hex() == (
        "20010db80000000000000000000000010001ffffffffffffffff"
    )


def test_addresses_have_four_or_sixteen_bytes() -> None:
    assert parse_ip(bytes((1, 2, 3, 4))) == IPv4Address("1.2.3.4")
    assert parse_ip(IPv6Address("::ffff:1.2.3.4").packed) == IPv4Address("1.2.3.4")
    assert parse_ip(IPv6Address("2001:db8::1").packed) == IPv6Address("2001:db8::1")
    for length in (0, 3, 5, 15, 17):
        with pytest.raises(MalformedAddress):
            parse_ip(bytes(length))


def test_ports_are_cut_to_sixteen_bits_as_nodes_do() -> None:
    assert (parse_port(1), parse_port(65535), parse_port(65537)) == (1, 65535, 1)
    for value in (0, 65536):
        with pytest.raises(MalformedAddress):
            parse_port(value)


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3.4",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "203.0.113.9",
        "240.0.0.1",
        "172.32.0.1",
        "2001:db8::1",
    ],
)
def test_addresses_that_nodes_treat_as_public_are_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        *("0.0.0.0", "127.0.0.1", "127.255.0.1", "224.0.0.1", "169.254.1.1", "255.255.255.255"),
        *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1"),
        *("::", "::1", "ff02::1", "fe80::1", "fc00::1", "fdff::1"),
    ],
)
def test_private_addresses_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


def test_every_recorded_peer_list_entry_is_signed_by_its_certificate() -> None:
    node_ids = {session.node_id for session in SESSIONS}
    entries = [
        entry for session in SESSIONS for entry in session.inner[1].peer_list.claimed_ip_ports
    ]
    assert len(entries) == 27
    for entry in entries:
        claim = parse_claimed_ip_port(entry)
        assert claim.node_id in node_ids
        assert claim.verify(claim.timestamp)
        assert not claim.verify(claim.timestamp - 61)


def changed(**fields: object) -> p2p_pb2.ClaimedIpPort:
    entry = node().claim()
    for name, value in fields.items():
        setattr(entry, name, value)
    return entry


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(changed(ip_addr=bytes((127, 0, 0, 2))), id="address"),
        pytest.param(changed(ip_port=9652), id="port"),
        pytest.param(changed(timestamp=UNIX_S - 1), id="timestamp"),
        pytest.param(changed(signature=b""), id="no signature"),
        pytest.param(changed(x509_certificate=node(1).certificate.der), id="another certificate"),
        pytest.param(changed(x509_certificate=b"\x30\x00"), id="no certificate"),
    ],
)
def test_a_changed_claim_is_not_verified(entry: p2p_pb2.ClaimedIpPort) -> None:
    assert parse_claimed_ip_port(node().claim()).verify(UNIX_S)
    assert not parse_claimed_ip_port(entry).verify(UNIX_S)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(changed(ip_addr=b"\x7f"), id="address"),
        pytest.param(changed(ip_port=65536), id="port"),
        pytest.param(changed(x509_certificate=bytes(2049)), id="long certificate"),
        pytest.param(changed(signature=bytes(513)), id="long signature"),
    ],
)
def test_a_malformed_claim_is_refused(entry: p2p_pb2.ClaimedIpPort) -> None:
    with pytest.raises(MalformedAddress):
        parse_claimed_ip_port(entry)


def test_a_claim_may_be_sixty_seconds_ahead() -> None:
    claim = parse_claimed_ip_port(node().claim())
    assert claim.verify(UNIX_S - 60)
    assert not claim.verify(UNIX_S - 60.5)


@given(
    st.binary(max_size=20),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=600),
)
def test_no_entry_raises_anything_else(ip: bytes, port: int, timestamp: int, junk: bytes) -> None:
    entry = p2p_pb2.ClaimedIpPort(
        x509_certificate=junk, ip_addr=ip, ip_port=port, timestamp=timestamp, signature=junk
    )
    with contextlib.suppress(MalformedAddress):
        assert not parse_claimed_ip_port(entry).verify(UNIX_S)


def test_certificates_and_signatures_have_a_greatest_length() -> None:
    entry = node().claim()
    entry.x509_certificate, entry.signature = bytes(2048), bytes(512)
    assert parse_claimed_ip_port(entry).signature == bytes(512)
    entry.signature = bytes(513)
    with pytest.raises(MalformedAddress, match="too long"):
        parse_claimed_ip_port(entry)
    entry.x509_certificate, entry.signature = bytes(2049), bytes(512)
    with pytest.raises(MalformedAddress, match="too long"):
        parse_claimed_ip_port(entry)
