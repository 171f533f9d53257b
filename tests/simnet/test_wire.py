"""Certificates, signed addresses, filters and frames follow the vectors and refuse what a node
refuses.
"""

from __future__ import annotations

import json
import random
from ipaddress import ip_address
from pathlib import Path

import pytest
import zstandard
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simnet.sessions import VECTORS
from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.warp.ids import node_id_text, parse_node_id
from warpseal_simnet import bloom, frames
from warpseal_simnet.addresses import address_preimage, gossip_id, parse_wire_ip, sign_address
from warpseal_simnet.certificates import RefusedCertificate, node_id_of, parse_leaf
from warpseal_simnet.identity import make_certificate, make_identity

STAKERS = json.loads((VECTORS.parent / "peers" / "stakers.json").read_text())
STAKER_1 = parse_node_id("NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg")
SIGNED_AT = 1_700_000_000


def recorded_certificates() -> dict[str, bytes]:
    entries = [json.loads(line) for line in Path(VECTORS / "wire.jsonl").read_text().splitlines()]
    return {
        entry["node"]: bytes.fromhex(entry["certificate_der"])
        for entry in entries
        if "certificate_der" in entry
    }


def test_recorded_certificates_are_taken_and_name_their_nodes() -> None:
    for name, der in recorded_certificates().items():
        assert node_id_text(parse_leaf(der).node_id) == name


def test_simulated_certificates_are_shaped_like_recorded_ones() -> None:
    ours = make_identity(b"a node").leaf.der
    theirs = next(iter(recorded_certificates().values()))
    assert len(ours) in range(len(theirs) - 4, len(theirs) + 5)
    # Everything up to the end of the validity, lengths of the signature aside, and the extensions.
    assert ours[4:36] == theirs[4:36]
    assert ours.count(bytes.fromhex("a320301e300e0603551d0f0101ff040403020780")) == 1


def test_equal_seeds_make_equal_nodes_and_rsa_keys_are_fresh() -> None:
    assert make_identity(b"x").leaf.der == make_identity(b"x").leaf.der
    assert make_identity(b"x").node_id != make_identity(b"y").node_id
    rsa_one = make_identity(b"x", rsa_key=True)
    assert rsa_one.bls_public_key == make_identity(b"x").bls_public_key
    assert rsa_one.node_id != make_identity(b"x").node_id
    assert rsa_one.leaf.has_signed(b"data", rsa_one.sign(b"data"))
    assert not rsa_one.leaf.has_signed(b"other", rsa_one.sign(b"data"))


def test_the_proof_of_a_key_verifies() -> None:
    entry = make_identity(b"x")
    key = bls.parse_public_key(entry.bls_public_key)
    assert bls.verify_possession(key, entry.bls_public_key, entry.bls_proof)


@pytest.mark.parametrize(
    "key",
    [
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: rsa.generate_private_key(65537, 1024),
        lambda: rsa.generate_private_key(3, 2048),
    ],
    ids=["P-384", "RSA-1024", "RSA with exponent 3"],
)
def test_certificates_with_other_keys_are_refused(key: object) -> None:
    assert callable(key)
    with pytest.raises(RefusedCertificate):
        parse_leaf(make_certificate(key()))


def test_edwards_keys_oversized_and_cut_certificates_are_refused() -> None:
    der = make_identity(b"x").leaf.der
    edwards = bytes.fromhex("06032b6570")
    spki = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    for bad in (der[:100], b"", b"\x30\x80" + der, der + bytes(2048), edwards + spki):
        with pytest.raises(RefusedCertificate):
            parse_leaf(bad)


@given(st.data())
@settings(max_examples=200)
def test_no_mutation_of_a_certificate_raises_anything_else(data: st.DataObject) -> None:
    der = bytearray(make_identity(b"x").leaf.der)
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    try:
        leaf = parse_leaf(bytes(der))
    except RefusedCertificate:
        return
    assert leaf.node_id == node_id_of(bytes(der))


def test_the_signed_bytes_of_an_address_are_those_of_the_vector() -> None:
    preimage = address_preimage(ip_address("127.0.0.1"), 9651, SIGNED_AT)
    assert preimage.hex() == "00000000000000000000ffff7f00000125b3000000006553f100"


def test_an_address_is_signed_by_both_keys() -> None:
    entry = make_identity(b"x")
    for host in ("127.0.0.1", "2001:db8::1"):
        address = sign_address(entry, host, 9651, SIGNED_AT)
        preimage = address_preimage(ip_address(host), 9651, SIGNED_AT)
        assert entry.leaf.has_signed(preimage, address.signature)
        assert bls.verify_possession(
            bls.parse_public_key(entry.bls_public_key), preimage, address.bls_signature
        )
        assert parse_wire_ip(address.claim.ip_addr) == ip_address(host)
    assert address.endpoint == "[2001:db8::1]:9651"


def test_mapped_addresses_are_unmapped_and_odd_lengths_are_none() -> None:
    assert parse_wire_ip(bytes(10) + b"\xff\xff" + bytes([1, 2, 3, 4])) == ip_address("1.2.3.4")
    assert parse_wire_ip(bytes(5)) is None


def test_gossip_ids_and_filters_follow_the_vectors() -> None:
    key = gossip_id(STAKER_1, SIGNED_AT)
    salt = bytes(range(32))
    assert key.hex() == "a038e8c4e3fef8a65645eba257d53f4b9727523a9205b00262e7487ad3dbb99a"
    raw = bytes.fromhex("030000000000000001000000000000000200000000000000030000008001100000")
    parsed = bloom.Filter.parse(raw)
    assert parsed.contains(key, salt)
    assert not parsed.contains(key, b"")
    assert parsed.encode() == raw
    other = bloom.Filter.parse(
        bytes.fromhex("020123456789abcdeffedcba987654321000000000000400020000000000000000")
    )
    assert other.contains(b"hello world?", b"so salty")


def test_a_filter_contains_added_keys_and_few_others() -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(32) for _ in range(600)]
    bloom_filter = bloom.Filter.parse(bloom.filter_of(keys[:300], b"salt", rng).encode())
    assert all(bloom_filter.contains(key, b"salt") for key in keys[:300])
    assert sum(bloom_filter.contains(key, b"salt") for key in keys[300:]) < 5


def test_the_recorded_node_filters_are_sized_like_ours() -> None:
    # 128 entries at least: 230 bytes and 10 hashes.
    assert len(bloom.filter_of([bytes(32)], b"", random.Random(1)).encode()) == 311


@pytest.mark.parametrize("raw", ["", "00", "11" + "00" * 200, "01" + "00" * 8, "01"])
def test_malformed_filters_are_refused(raw: str) -> None:
    with pytest.raises(bloom.MalformedFilter):
        bloom.Filter.parse(bytes.fromhex(raw))


@given(st.lists(st.binary(max_size=60), max_size=8), st.randoms(use_true_random=False))
def test_frames_survive_any_chunking(bodies: list[bytes], rnd: random.Random) -> None:
    wire = b"".join(frames.framed(body) for body in bodies)
    reader = frames.FrameReader()
    frames_read = []
    while wire:
        size = rnd.randint(1, len(wire))
        frames_read += reader.feed(wire[:size])
        wire = wire[size:]
    assert frames_read == bodies
    assert not reader.unfinished


def test_a_frame_of_the_limit_passes_and_one_more_byte_does_not() -> None:
    reader = frames.FrameReader()
    assert reader.feed((frames.MAX_MESSAGE_BYTES).to_bytes(4, "big")) == []
    with pytest.raises(frames.OversizedFrame):
        frames.FrameReader().feed((frames.MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))


def test_only_what_a_node_compresses_is_compressed() -> None:
    assert frames.encode(p2p.Message(ping=p2p.Ping())).hex() == "00000002" + "5a00"
    assert frames.encode(p2p.Message(pong=p2p.Pong())).hex() == "00000002" + "6200"
    packed = frames.encode(p2p.Message(peer_list=p2p.PeerList()))
    raw = p2p.Message.FromString(packed[4:]).compressed_zstd
    assert zstandard.frame_content_size(raw) == 2
    assert zstandard.ZstdDecompressor().decompress(raw) == bytes.fromhex("7200")


def test_messages_are_read_compressed_or_plain() -> None:
    message = p2p.Message(app_gossip=p2p.AppGossip(chain_id=bytes(32), app_bytes=b"x" * 500))
    plain = message.SerializeToString()
    undeclared = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    for body in (
        plain,
        frames.compressed(plain),
        p2p.Message(compressed_zstd=undeclared).SerializeToString(),
    ):
        assert frames.decode(body) == message


def bomb(*, declared: bool) -> bytes:
    packed = zstandard.ZstdCompressor(write_content_size=declared).compress(bytes(3 * 1024 * 1024))
    return p2p.Message(compressed_zstd=packed).SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff",
        bomb(declared=True),
        bomb(declared=False),
        frames.compressed(frames.compressed(bytes.fromhex("7200"))),
        p2p.Message(compressed_zstd=b"no frame").SerializeToString(),
    ],
    ids=["empty", "junk", "declared bomb", "undeclared bomb", "compressed twice", "no zstd"],
)
def test_undecodable_bodies_are_reported(body: bytes) -> None:
    with pytest.raises(frames.UndecodableMessage):
        frames.decode(body)
