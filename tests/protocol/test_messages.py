"""Messages on the wire."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.peers import CHAIN, ZSTD, frame_of, node
from tests.protocol.recorded import FRAMES, LINES, SESSIONS
from warpseal.pb import p2p_pb2
from warpseal.protocol.framing import FrameDecoder, encode_frame
from warpseal.protocol.messages import (
    EMPTY_PEER_LIST_FRAME,
    PING_FRAME,
    PONG_FRAME,
    MessageType,
    decode_app_error,
    decode_app_request_ids,
    decode_app_response,
    decode_handshake,
    decode_peer_list,
    encode_app_error,
    encode_app_request,
    encode_get_peer_list,
    encode_handshake,
    encode_signature_request,
    escape_text,
    open_envelope,
)
from warpseal.warp.protobuf import DecodeError, encode_field, iter_fields

MESSAGE = bytes.fromhex(
    "00000000007b010203000000000000000000000000000000000000000000000000000000000000000006666f6f626172"
)
SOURCE_CHAIN = bytes.fromhex("010203" + "00" * 29)
BLS_SIGNATURE = bytes.fromhex(
    "b7dd4a2c8bf88a7851cfdaf7cfcc297ec2711d3ad4b331cd63cb7c0e0a79aa4da700d274a5f610b15e2a87cd4b61de3b"
    "02d51c5f4d48051a3392dd76ec73b20ac7307414d2ccb031868f8b313ce3fc7f65788e3d794228044c953f1f18612f99"
)
HANDSHAKE = bytes.fromhex(
    "6acb0108b9601080e2cfaa061a047f00000120b34b28d0a7acfe053080e2cfaa063a04aaaaaaaa4a110a0b6176616c61"
    "6e636865676f1001180f622e0a0a01000000000000000000122000000000000000000000000000000000000000000000"
    "000000000000000000006a60b7dd4a2c8bf88a7851cfdaf7cfcc297ec2711d3ad4b331cd63cb7c0e0a79aa4da700d274"
    "a5f610b15e2a87cd4b61de3b02d51c5f4d48051a3392dd76ec73b20ac7307414d2ccb031868f8b313ce3fc7f65788e3d"
    "794228044c953f1f18612f997001"
)


def inner_of(frame: bytes) -> bytes:
    """Return the message inside a compressed frame."""
    return ZSTD.inflate(p2p_pb2.Message.FromString(frame[4:]).compressed_zstd)


def test_fixed_frames_are_those_of_the_vectors() -> None:
    assert PING_FRAME.hex() == "000000025a00"
    assert PONG_FRAME.hex() == "000000026200"
    assert EMPTY_PEER_LIST_FRAME.hex() == "000000027200"
    assert open_envelope(bytes.fromhex("5a020863"), ZSTD) == (MessageType.PING, b"\x08\x63")


def test_an_empty_peer_list_compresses_to_the_vector() -> None:
    frame = frame_of(p2p_pb2.Message(peer_list=p2p_pb2.PeerList()), compressed=True)
    assert frame[4:].hex() == "120b28b52ffd20021100007200"
    assert open_envelope(frame[4:], ZSTD) == (MessageType.PEER_LIST, b"")


def test_get_peer_list_encodes_to_the_vector() -> None:
    frame = encode_get_peer_list(bytes.fromhex("01000000000000000000"), b"", ZSTD)
    assert inner_of(frame).hex() == "9a02100a0c0a0a010000000000000000001001"


def test_a_handshake_encodes_to_the_vector() -> None:
    handshake = p2p_pb2.Handshake(
        network_id=12345,
        my_time=1_700_000_000,
        ip_addr=bytes((127, 0, 0, 1)),
        ip_port=9651,
        upgrade_time=1_607_144_400,
        ip_signing_time=1_700_000_000,
        ip_node_id_sig=b"\xaa" * 4,
        client=p2p_pb2.Client(name="avalanchego", major=1, minor=15),
        known_peers=p2p_pb2.BloomFilter(
            filter=bytes.fromhex("01000000000000000000"), salt=bytes(32)
        ),
        ip_bls_sig=BLS_SIGNATURE,
        all_subnets=True,
    )
    assert encode_handshake(handshake) == bytes.fromhex("000000ce") + HANDSHAKE
    number, body = open_envelope(HANDSHAKE, ZSTD)
    assert (number, decode_handshake(body)) == (MessageType.HANDSHAKE, handshake)


def test_a_signature_request_encodes_to_the_vector() -> None:
    app_bytes = encode_signature_request(MESSAGE, b"")
    frame = encode_app_request(SOURCE_CHAIN, 7, app_bytes, 10.0, ZSTD)
    assert inner_of(frame).hex() == (
        "f2015f0a20010203000000000000000000000000000000000000000000000000000000000010071880c8afa02522330"
        "20a30" + MESSAGE.hex()
    )
    number, body = open_envelope(frame[4:], ZSTD)
    assert (number, decode_app_request_ids(body)) == (MessageType.APP_REQUEST, (SOURCE_CHAIN, 7))


def test_an_app_error_encodes_to_the_vector() -> None:
    frame = encode_app_error(SOURCE_CHAIN, 7, -1, "unexpected error", ZSTD)
    assert inner_of(frame).hex() == (
        "9202380a200102030000000000000000000000000000000000000000000000000000000000100718012210756e657870"
        "6563746564206572726f72"
    )
    assert decode_app_error(open_envelope(frame[4:], ZSTD)[1]) == (
        SOURCE_CHAIN,
        7,
        -1,
        "unexpected error",
    )


@pytest.mark.parametrize(
    ("code", "encoded"),
    [
        (-1, "01"),
        (-2, "03"),
        (-3, "05"),
        (-4, "07"),
        (1, "02"),
        (2, "04"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_error_codes_are_zigzag(code: int, encoded: str) -> None:
    body = bytes.fromhex("18" + encoded)
    assert p2p_pb2.AppError(error_code=code).SerializeToString() == body
    assert decode_app_error(body) == (b"", 0, code, "")


def test_every_recorded_frame_decodes() -> None:
    assert len(FRAMES) == 158
    for line, frame in zip((line for line in LINES if "frame" in line), FRAMES, strict=True):
        assert FrameDecoder().feed(frame) == [frame[4:]]
        number, body = open_envelope(frame[4:], ZSTD)
        assert MessageType(number).name.lower() == line["message"]
        if line.get("compressed"):
            assert encode_field(number, body).hex() == line["inner"]


def test_every_recorded_plain_frame_encodes_to_itself() -> None:
    plain = [frame for frame in FRAMES if frame[4] != 0x12]
    again = [
        encode_frame(p2p_pb2.Message.FromString(frame[4:]).SerializeToString()) for frame in plain
    ]
    different = [frame for frame, encoded in zip(plain, again, strict=True) if frame != encoded]
    assert len(plain) == 91
    # The recording client wrote the empty salt of its filter out, which canonical encoding leaves
    # away.
    assert different == [session.sent_frames[0] for session in SESSIONS]
    assert all(bytes.fromhex("0a0100000000000000000012006a60") in frame for frame in different)


def test_a_message_compressed_twice_is_undecodable() -> None:
    once = encode_field(MessageType.COMPRESSED, ZSTD.compress(bytes.fromhex("5a00")))
    twice = encode_field(MessageType.COMPRESSED, ZSTD.compress(once))
    assert open_envelope(once, ZSTD) == (MessageType.PING, b"")
    with pytest.raises(DecodeError, match="twice"):
        open_envelope(twice, ZSTD)


def test_an_unknown_message_type_is_returned_by_its_number() -> None:
    assert open_envelope(encode_field(40, b"of a later release"), ZSTD) == (
        40,
        b"of a later release",
    )


def test_a_known_message_is_found_among_fields_of_a_later_protocol() -> None:
    ping, other = bytes.fromhex("5a020863"), encode_field(50, b"x")
    for raw in (
        ping + other,
        other + ping,
        b"\x80\x04\x07" + ping,
        ping + b"\x85\x04\x01\x02\x03\x04",
    ):
        assert open_envelope(raw, ZSTD) == (MessageType.PING, b"\x08\x63")


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x5a", id="no length"),
        pytest.param(b"\x5a\x05ab", id="cut off"),
        pytest.param(b"\x08\x01", id="no member"),
        pytest.param(b"\x5b\x5c", id="a group"),
        pytest.param(b"\xff" * 11, id="an endless varint"),
        pytest.param(b"\x12\x03abc", id="no zstd"),
        pytest.param(b"\x12\x00", id="empty zstd"),
    ],
)
def test_malformed_messages_are_undecodable(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        open_envelope(raw, ZSTD)


@given(
    st.binary(min_size=32, max_size=32) | st.binary(max_size=40),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=200) | st.binary(min_size=98, max_size=98),
)
def test_responses_are_read_like_the_generated_parser_reads_them(
    chain: bytes, request_id: int, body: bytes
) -> None:
    raw = p2p_pb2.AppResponse(
        chain_id=chain, request_id=request_id, app_bytes=body
    ).SerializeToString()
    assert decode_app_response(raw) == (chain, request_id, body)


SHARE_TAIL = b"\x1a\x62\x0a\x60" + BLS_SIGNATURE


@given(
    st.binary(max_size=60),
    st.booleans(),
    st.binary(max_size=6),
    st.binary(max_size=6) | st.sampled_from((SHARE_TAIL, SHARE_TAIL[:-1], SHARE_TAIL + b"\0")),
)
def test_strange_responses_are_read_like_the_generated_parser_reads_them(
    junk: bytes, has_chain: bool, before: bytes, behind: bytes
) -> None:
    raw = before + (b"\x0a\x20" + CHAIN + b"\x10" if has_chain else b"") + junk + behind
    try:
        seen = decode_app_response(raw)
    except DecodeError:
        seen = None
    try:
        response = p2p_pb2.AppResponse.FromString(raw)
        expected = (response.chain_id, response.request_id, response.app_bytes)
    except Exception:
        expected = None
    assert seen == expected


@given(
    st.binary(max_size=40),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=40),
)
def test_refusals_are_read_like_the_generated_parser_reads_them(
    chain: bytes, request_id: int, code: int, text: str
) -> None:
    refusal = p2p_pb2.AppError(
        chain_id=chain, request_id=request_id, error_code=code, error_message=text
    )
    assert decode_app_error(refusal.SerializeToString()) == (
        chain,
        request_id,
        code,
        escape_text(text.encode()),
    )


def test_a_refusal_with_a_hostile_text_keeps_its_code() -> None:
    body = b"\x18\x16" + encode_field(4, b"\x1b[31m\xff\xfe\n\xe2\x80\xae" + b"x" * 500)
    assert decode_app_error(body) == (b"", 0, 11, "\\x1b[31m\\xff\\xfe\\n\\u202e" + "x" * 189)


@given(st.binary(max_size=300))
def test_no_bytes_make_a_text_that_is_not_printable(raw: bytes) -> None:
    assert escape_text(raw).isprintable()


def test_a_peer_list_of_a_million_entries_is_read_up_to_the_limit() -> None:
    claim = node().claim()
    entry = encode_field(1, claim.SerializeToString())
    entries = decode_peer_list(entry + b"\x0a\x00" * 1_000_000, 1000)
    assert len(entries) == 1000
    assert entries[0] == claim


@given(st.binary(max_size=120))
def test_random_bytes_are_undecodable_at_worst(raw: bytes) -> None:
    for decode in (
        lambda: open_envelope(raw, ZSTD),
        lambda: open_envelope(encode_field(MessageType.COMPRESSED, ZSTD.compress(raw)), ZSTD),
        lambda: decode_app_response(raw),
        lambda: decode_app_error(raw),
        lambda: decode_handshake(raw),
        lambda: decode_peer_list(raw, 10),
        lambda: decode_app_request_ids(raw),
        lambda: list(iter_fields(raw, 10)),
    ):
        with contextlib.suppress(DecodeError):
            decode()


def test_a_handshake_has_at_most_256_kibibytes() -> None:
    body = encode_field(99, bytes(256 * 1024 - 5))
    assert len(body) == 256 * 1024
    assert decode_handshake(body).network_id == 0
    with pytest.raises(DecodeError, match="at most"):
        decode_handshake(body + b"\x00")


def test_a_number_is_not_taken_for_the_body_of_a_message() -> None:
    with pytest.raises(DecodeError):
        open_envelope(bytes.fromhex("580161"), ZSTD)


def test_the_first_of_several_unknown_messages_counts() -> None:
    raw = encode_field(40, b"first") + encode_field(50, b"second")
    assert open_envelope(raw, ZSTD) == (40, b"first")


def test_a_share_behind_an_unknown_field_belongs_to_no_chain() -> None:
    body = encode_field(4, CHAIN) + b"\x10\x07" + SHARE_TAIL
    assert decode_app_response(body) == (b"", 7, b"\x0a\x60" + BLS_SIGNATURE)
