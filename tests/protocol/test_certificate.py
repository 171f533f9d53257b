"""Which certificates are accepted, whose they are, what their keys signed."""

from __future__ import annotations

import contextlib
import json
import secrets
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.peers import node
from tests.protocol.recorded import CLIENT, SESSIONS, VECTORS
from warpseal.protocol.certificate import (
    DerReader,
    MalformedCertificate,
    MalformedDer,
    node_id_of,
    parse_certificate,
)
from warpseal.warp.ids import node_id_text

STAKERS = json.loads((VECTORS / "peers" / "stakers.json").read_text())
CERTIFICATES = [bytes.fromhex(der) for der in STAKERS["staker_certificates"]]
STAKER_IDS = [
    (
        "1e6fd5d2648edf29d3e922e987d969e78ee6fa6ea36b9d3a688db24244192e1f",
        "7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg",
    ),
    (
        "eba5c835daa9dcabf66d1b35a84e99d7ef0a282d11d463c0ea366b6034ec51c3",
        "MFrZFVCXPv5iCn6M9K6XduxGTYp891xXZ",
    ),
    (
        "b5549fac37e8e302bf8d2cecda898ceffa1e740a54798f8d0eb64909c4f9bdfa",
        "NFBbbJ4qCmNaCzeW7sxErhvWqvEQMnYcN",
    ),
    (
        "b03060fb4fe4c5827cc79412dc8ce7da9b7dcb78319ee437135c83e1ba3e108c",
        "GWPcbFJZFfZreETSoWjPimr846mXEKCtu",
    ),
    (
        "830334f5c2276de60e0ba5ffc55ab63200e72e1c170a09ffa701b57106dd7234",
        "P7oB2McjBGgW2NXXWVYjV8JEDFoW9xDE5",
    ),
]
RSA = bytes.fromhex("06092a864886f70d0101010500")
EC = bytes.fromhex("06072a8648ce3d020106082a8648ce3d030107")
POINT = node().certificate.der[node().certificate.der.index(b"\x03\x42\x00\x04") + 3 :][:65]


def element(tag: int, content: bytes) -> bytes:
    """Return one DER element."""
    if len(content) < 128:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def integer(value: int) -> bytes:
    return element(2, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def certificate(
    algorithm: bytes, key: bytes, *, version: bytes = b"\xa0\x03\x02\x01\x02", unused: int = 0
) -> bytes:
    """Return a certificate of nothing but what is read: its signature is missing."""
    info = element(0x30, element(0x30, algorithm) + element(3, bytes((unused,)) + key))
    fields = version + integer(7) + 4 * element(0x30, b"") + info
    return element(0x30, element(0x30, fields))


def rsa_key(modulus: int, exponent: int = 65537) -> bytes:
    return element(0x30, integer(modulus) + integer(exponent))


@pytest.mark.parametrize(("der", "identity"), list(zip(CERTIFICATES, STAKER_IDS, strict=True)))
def test_the_local_stakers_have_the_published_node_ids(
    der: bytes, identity: tuple[str, str]
) -> None:
    assert len(der) == 1339
    assert sha256(der).hexdigest() == identity[0]
    assert node_id_text(parse_certificate(der).node_id) == "NodeID-" + identity[1]


def test_recorded_nodes_have_the_recorded_node_ids() -> None:
    assert len(SESSIONS) == 7
    for session in SESSIONS:
        assert node_id_of(session.certificate.der) == session.certificate.node_id == session.node_id
    assert len(CLIENT.node_id) == 20


def test_an_rsa_key_verifies_pkcs1v15_over_sha256() -> None:
    preimage = bytes.fromhex("00000000000000000000ffff7f00000125b3000000006553f100")
    signature = bytes.fromhex(STAKERS["staker_1_signature_of_127_0_0_1_9651_at_1700000000"])
    assert (
        sha256(signature).hexdigest()
        == "97a432b5f0423f1d6c3f63d379294dd7421a7f50b81d521585dd68d24aa95dad"
    )
    assert parse_certificate(CERTIFICATES[0]).verify_signature(preimage, signature)
    assert not parse_certificate(CERTIFICATES[0]).verify_signature(preimage + b"\x00", signature)
    assert not parse_certificate(CERTIFICATES[1]).verify_signature(preimage, signature)


def test_an_ec_key_verifies_ecdsa_over_sha256() -> None:
    signature = node().sign(b"message")
    assert node().certificate.verify_signature(b"message", signature)
    assert not node().certificate.verify_signature(b"messagf", signature)
    assert not node(1).certificate.verify_signature(b"message", signature)


@given(st.binary(max_size=80))
def test_no_signature_bytes_raise(signature: bytes) -> None:
    assert not node().certificate.verify_signature(b"message", signature)
    assert not parse_certificate(CERTIFICATES[0]).verify_signature(b"message", signature)


def test_the_oversized_certificate_is_refused() -> None:
    der = bytes.fromhex(STAKERS["oversized_certificate"])
    assert len(der) == 4257
    with pytest.raises(MalformedCertificate, match="of at most 2048"):
        parse_certificate(der)


def test_only_the_fields_that_are_read_are_required() -> None:
    assert parse_certificate(certificate(EC, POINT)).node_id == node_id_of(certificate(EC, POINT))
    assert parse_certificate(certificate(EC, POINT, version=b"")).verify_signature(
        b"m", node().sign(b"m")
    )
    assert parse_certificate(certificate(EC, POINT) + b"trailing").verify_signature(
        b"m", node().sign(b"m")
    )


def test_the_named_curve_is_ignored() -> None:
    assert parse_certificate(certificate(EC[:9], POINT)).verify_signature(b"m", node().sign(b"m"))


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(b"", id="no point"),
        pytest.param(b"\x02" + POINT[1:33], id="compressed"),
        pytest.param(POINT[:64], id="short"),
        pytest.param(POINT + b"\x00", id="long"),
        pytest.param(POINT[:64] + bytes((POINT[64] ^ 1,)), id="off the curve"),
        pytest.param(b"\x04" + bytes(64), id="zero"),
        pytest.param(b"\x04" + b"\xff" * 64, id="beyond the field"),
    ],
)
def test_points_other_than_uncompressed_p256_are_refused(key: bytes) -> None:
    with pytest.raises(MalformedCertificate):
        parse_certificate(certificate(EC, key))


@pytest.mark.parametrize("bits", [2048, 4096])
def test_rsa_keys_of_the_two_sizes_are_accepted(bits: int) -> None:
    modulus = 1 << bits - 1 | secrets.randbits(bits - 1) | 1
    assert parse_certificate(certificate(RSA, rsa_key(modulus))).public_key.key_size == bits


@pytest.mark.parametrize(
    ("modulus", "exponent"),
    [
        pytest.param((1 << 2047) - 1, 65537, id="2047 bits"),
        pytest.param(1 << 2048 | 1, 65537, id="2049 bits"),
        pytest.param(1 << 3071 | 1, 65537, id="3072 bits"),
        pytest.param(1 << 8191 | 1, 65537, id="8192 bits"),
        pytest.param(1 << 2047, 65537, id="even"),
        pytest.param(-(1 << 2047) + 1, 65537, id="negative"),
        pytest.param(0, 65537, id="zero"),
        pytest.param(1 << 2047 | 1, 3, id="exponent 3"),
        pytest.param(1 << 2047 | 1, -65537, id="negative exponent"),
    ],
)
def test_other_rsa_keys_are_refused(modulus: int, exponent: int) -> None:
    with pytest.raises(MalformedCertificate):
        parse_certificate(certificate(RSA, rsa_key(modulus, exponent)))


def test_other_algorithms_are_refused() -> None:
    ed25519 = bytes.fromhex("06032b6570")
    with pytest.raises(MalformedCertificate, match="algorithm"):
        parse_certificate(certificate(ed25519, bytes(32)))


def test_unused_bits_are_shifted_out_and_leave_no_point() -> None:
    shifted = (int.from_bytes(POINT, "big") << 3).to_bytes(66, "big")
    with pytest.raises(MalformedCertificate, match="P-256"):
        parse_certificate(certificate(EC, shifted, unused=3))
    with pytest.raises(MalformedCertificate, match="unused bits"):
        parse_certificate(certificate(EC, POINT[:-1] + b"\x01", unused=1))
    with pytest.raises(MalformedCertificate, match="unused bits"):
        parse_certificate(certificate(EC, POINT, unused=8))


@pytest.mark.parametrize(
    "der",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x30", id="no length"),
        pytest.param(b"\x30\x80" + bytes(10), id="indefinite length"),
        pytest.param(b"\x30\x85\x00\x00\x00\x00\x05" + bytes(10), id="five length bytes"),
        pytest.param(b"\x30\x81\x05" + bytes(5), id="a long form for a short length"),
        pytest.param(b"\x30\x82\x00\xff" + bytes(255), id="a leading zero in a length"),
        pytest.param(b"\x30\x84\xff\xff\xff\xff" + bytes(5), id="a length behind the end"),
        pytest.param(b"\x31\x00", id="another tag"),
    ],
)
def test_der_that_is_not_strict_is_refused(der: bytes) -> None:
    with pytest.raises(MalformedCertificate):
        parse_certificate(der)


@given(st.data())
def test_no_mutated_certificate_raises_anything_else(data: st.DataObject) -> None:
    der = bytearray(data.draw(st.sampled_from([node().certificate.der, CERTIFICATES[0]])))
    for _ in range(data.draw(st.integers(1, 3))):
        der[data.draw(st.integers(0, min(len(der), 500) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedCertificate):
        assert parse_certificate(bytes(der)).der == bytes(der)


@pytest.mark.parametrize(
    ("der", "value"),
    [
        ("020100", 0),
        ("02017f", 127),
        ("02020080", 128),
        ("020180", -128),
        ("0202ff7f", -129),
        ("02020100", 256),
        ("0202fe80", -384),
    ],
)
def test_integers_are_read_with_their_sign(der: str, value: int) -> None:
    assert DerReader(bytes.fromhex(der)).read_integer() == value


@pytest.mark.parametrize(
    "der", ["0200", "02020000", "02020001", "0202007f", "0202ff80", "0202ffff"]
)
def test_integers_not_in_their_shortest_form_are_refused(der: str) -> None:
    with pytest.raises(MalformedDer, match="an integer"):
        DerReader(bytes.fromhex(der)).read_integer()


def test_a_bit_string_has_at_most_seven_unused_bits() -> None:
    assert DerReader(bytes.fromhex("03020780")).read_bits() == b"\x01"
    assert DerReader(bytes.fromhex("030100")).read_bits() == b""
    for der in ("0300", "030101", "030107", "03020800"):
        with pytest.raises(MalformedDer, match="impossible number of unused bits"):
            DerReader(bytes.fromhex(der)).read_bits()


def test_lengths_from_128_on_take_the_long_form() -> None:
    assert DerReader(b"\x30\x7f" + bytes(127)).read(0x30) == bytes(127)
    assert DerReader(b"\x30\x81\x80" + bytes(128)).read(0x30) == bytes(128)
    for der in (b"\x30\x80" + bytes(128), b"\x30\x81\x7f" + bytes(127)):
        with pytest.raises(MalformedDer, match="length"):
            DerReader(der).read(0x30)
