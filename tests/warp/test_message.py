"""Messages, payloads and signer bit sets: documented bytes, round trips, and refusal of all other
bytes.
"""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warp.fuji import SIGNED_REGISTER as FUJI_REGISTER
from tests.warp.fuji import SIGNED_WEIGHT as FUJI_WEIGHT
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, id_text
from warpseal.warp.message import (
    PAYLOAD_LIMIT_BYTES,
    AddressedCall,
    Hash,
    MalformedSigners,
    SignedMessage,
    UnsignedMessage,
    decode_signers,
    encode_signers,
    unwrap_log_data,
)

UNSIGNED = bytes.fromhex(
    "00000000007b010203000000000000000000000000000000000000000000000000000000000000000006666f6f626172"
)
AGGREGATE = bytes.fromhex(
    "984495625ff87a42c38eb1f59e456a6cab8338a5e703ffa476653ed968d3fb6dc251b961fd78cb30b7c2321dbffeb7ac"
    "055c127bffbf24deafe248b71c90c88ea1f5dfd939b31eb1a3f65fc88f225fabb856f3cfe4565a77f9087b237bb6ac17"
)

unsigned_messages = st.builds(
    UnsignedMessage.build,
    st.integers(0, 2**32 - 1),
    st.binary(min_size=32, max_size=32).map(ChainID),
    st.binary(max_size=200),
)
signer_bits = st.integers(0, 2**70).map(
    lambda bits: bits.to_bytes((bits.bit_length() + 7) // 8, "big")
)
signed_messages = st.builds(
    SignedMessage, unsigned_messages, signer_bits, st.binary(min_size=96, max_size=96)
)


def test_an_unsigned_message_has_the_documented_parts() -> None:
    message = UnsignedMessage.parse(UNSIGNED)
    assert message.network_id == 123
    assert message.source_chain_id == b"\x01\x02\x03" + bytes(29)
    assert message.payload == b"foobar"
    assert message.raw == UNSIGNED
    assert message.id.hex() == "2d258cfba751165a4434f085809fe4e5eb7a7b861a1a9e8ca8cbbf5d93b5760c"
    assert UnsignedMessage.build(123, ChainID(b"\x01\x02\x03" + bytes(29)), b"foobar") == message


@given(signed_messages, unsigned_messages)
def test_a_signed_message_is_parsed_over_its_unsigned_message_only(
    signed: SignedMessage, other: UnsignedMessage
) -> None:
    raw = signed.encode()
    assert SignedMessage.parse_over(signed.unsigned, raw) == SignedMessage.parse(raw)
    for unsigned, changed in (
        (other, raw),
        (signed.unsigned, raw[:-1]),
        (signed.unsigned, raw + b"\x00"),
    ):
        if unsigned != signed.unsigned or changed != raw:
            with pytest.raises(MalformedMessage):
                SignedMessage.parse_over(unsigned, changed)


def test_a_signed_message_is_unsigned_bytes_bit_set_and_signature() -> None:
    raw = UNSIGNED + bytes(4) + bytes.fromhex("000000010f") + AGGREGATE
    message = SignedMessage.parse(raw)
    assert len(raw) == 153
    assert message.unsigned.raw == UNSIGNED
    assert message.signer_indices == (0, 1, 2, 3)
    assert message.signature == AGGREGATE
    assert message.encode() == raw


def test_a_signed_weight_message_of_fuji_reads_back() -> None:
    message = SignedMessage.parse(FUJI_WEIGHT)
    assert message.unsigned.network_id == 5
    assert (
        id_text(message.unsigned.source_chain_id)
        == "pLyW2CtL3nRzYPZUDKJV3j7jGvRD6UDdRMLbR46zyvYmMDkyB"
    )
    assert (
        message.unsigned.id.hex()
        == "fdb30089be7689263d2735156f50555e171e29a977d270a59b481ae4ed0446c6"
    )
    assert message.signer_indices == (1, 2)
    assert message.encode() == FUJI_WEIGHT


def test_a_signed_registration_of_fuji_reads_back() -> None:
    message = SignedMessage.parse(FUJI_REGISTER)
    assert (
        id_text(message.unsigned.source_chain_id)
        == "y97omoP2cSyEVfdSztQHXD9EnfnVP9YKjZwAxhUfGbLAPYT9t"
    )
    assert (
        message.unsigned.id.hex()
        == "ddc8bd103aa96ccdd20f34abfcc2d40dfb1e7cb66314a8f7fec2ac461742d915"
    )
    assert message.signer_indices == (3, 4, 8, 14, 18, 22, 23)
    assert message.encode() == FUJI_REGISTER


def test_messages_with_equal_bytes_are_equal() -> None:
    assert UnsignedMessage.parse(UNSIGNED) == UnsignedMessage.parse(UNSIGNED)
    assert len({UnsignedMessage.parse(UNSIGNED), UnsignedMessage.parse(UNSIGNED)}) == 1
    assert UnsignedMessage.parse(UNSIGNED) != UnsignedMessage.build(
        123, ChainID(bytes(32)), b"foobar"
    )


@pytest.mark.parametrize(
    ("raw", "offset", "reason"),
    [
        (b"", 0, "codec version needs 2 bytes"),
        (b"\x00\x01" + UNSIGNED[2:], 0, "codec version is 1"),
        (UNSIGNED[:40], 38, "length of payload needs 4 bytes"),
        (UNSIGNED[:-1], 42, "payload needs 6 bytes, 5 are left"),
        (UNSIGNED + b"\x00", 48, "1 bytes left over"),
        (UNSIGNED[:38] + b"\xff\xff\xff\xff" + UNSIGNED[42:], 42, "payload needs 4294967295 bytes"),
    ],
)
def test_a_malformed_message_names_offset_and_reason(raw: bytes, offset: int, reason: str) -> None:
    with pytest.raises(MalformedMessage) as error:
        UnsignedMessage.parse(raw)
    assert error.value.offset == offset
    assert reason in error.value.reason


@pytest.mark.parametrize(
    ("tail", "offset"),
    [
        (bytes.fromhex("00000001") + bytes.fromhex("000000010f") + AGGREGATE, 48),
        (bytes(4) + bytes.fromhex("00000002000f") + AGGREGATE, 56),
        (bytes(4) + bytes.fromhex("0000000100") + AGGREGATE, 56),
        (bytes(4) + bytes.fromhex("000000010f") + AGGREGATE[1:], 57),
        (bytes(4) + bytes.fromhex("000000010f") + AGGREGATE + b"\x00", 153),
    ],
)
def test_a_signed_message_with_a_wrong_tail_is_refused(tail: bytes, offset: int) -> None:
    with pytest.raises(MalformedMessage) as error:
        SignedMessage.parse(UNSIGNED + tail)
    assert error.value.offset == offset


def test_a_signature_over_another_message_is_refused_from_its_first_byte() -> None:
    unsigned = UnsignedMessage.parse(UNSIGNED)
    with pytest.raises(MalformedMessage, match="another message") as error:
        SignedMessage.parse_over(unsigned, bytes(len(UNSIGNED)))
    assert error.value.offset == 0


def test_padded_signers_are_refused_over_an_unsigned_message() -> None:
    signed = UNSIGNED + bytes(4) + bytes.fromhex("00000002000f") + AGGREGATE
    with pytest.raises(MalformedMessage) as error:
        SignedMessage.parse_over(UnsignedMessage.parse(UNSIGNED), signed)
    assert error.value.offset == len(UNSIGNED) + 8


def test_a_message_is_not_built_from_parts_of_a_wrong_length() -> None:
    with pytest.raises(ValueError, match="source chain id has 31 bytes"):
        UnsignedMessage.build(1, ChainID(bytes(31)), b"")
    with pytest.raises(ValueError, match="signature has 95 bytes"):
        SignedMessage(UnsignedMessage.parse(UNSIGNED), b"", bytes(95)).encode()


@given(unsigned_messages)
def test_unsigned_messages_round_trip(message: UnsignedMessage) -> None:
    again = UnsignedMessage.parse(message.raw)
    assert (again.network_id, again.source_chain_id, again.payload) == (
        message.network_id,
        message.source_chain_id,
        message.payload,
    )
    assert again.id == sha256(message.raw).digest()


@given(signed_messages)
def test_signed_messages_round_trip(message: SignedMessage) -> None:
    assert SignedMessage.parse(message.encode()) == message


@given(signed_messages, st.data())
def test_a_truncated_or_extended_message_is_malformed_and_nothing_else(
    message: SignedMessage, data: st.DataObject
) -> None:
    raw = message.encode()
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    longer = raw + data.draw(st.binary(min_size=1, max_size=20))
    for wrong in (cut, longer):
        with pytest.raises(MalformedMessage):
            SignedMessage.parse(wrong)
    unsigned = message.unsigned.raw
    for wrong in (unsigned[: data.draw(st.integers(0, len(unsigned) - 1))], unsigned + b"\x00"):
        with pytest.raises(MalformedMessage):
            UnsignedMessage.parse(wrong)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_that_encodes_to_them_or_malformed(raw: bytes) -> None:
    for read in (UnsignedMessage.parse, SignedMessage.parse):
        try:
            message = read(raw)
        except MalformedMessage:
            continue
        assert (message.raw if isinstance(message, UnsignedMessage) else message.encode()) == raw


def abi_bytes(data: bytes) -> bytes:
    padding = -len(data) % 32
    return (32).to_bytes(32, "big") + len(data).to_bytes(32, "big") + data + bytes(padding)


@given(st.binary(max_size=100))
def test_log_data_unwraps_to_its_bytes(data: bytes) -> None:
    assert unwrap_log_data(abi_bytes(data)) == data


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        UNSIGNED,
        abi_bytes(UNSIGNED)[:-1],
        abi_bytes(UNSIGNED) + b"\x00",
        abi_bytes(UNSIGNED) + bytes(32),
        abi_bytes(bytes(32)) + bytes(32),
        abi_bytes(UNSIGNED)[:-1] + b"\x01",
        (64).to_bytes(32, "big") + abi_bytes(UNSIGNED)[32:],
        (32).to_bytes(32, "big") + b"\xff" * 32 + bytes(32),
        (32).to_bytes(32, "big"),
    ],
)
def test_malformed_log_data_is_not_unwrapped(raw: bytes) -> None:
    assert unwrap_log_data(raw) is None


HASH = bytes.fromhex("000000000000040506") + bytes(29)
CALL = bytes.fromhex("0000000000010000001001020300000000000000000000000000000000030a0b0c")


def test_a_hash_payload_has_the_documented_bytes() -> None:
    assert Hash.parse(HASH) == Hash(b"\x04\x05\x06" + bytes(29))
    assert Hash(b"\x04\x05\x06" + bytes(29)).encode() == HASH


def test_an_addressed_call_has_the_documented_bytes() -> None:
    call = AddressedCall(b"\x01\x02\x03" + bytes(13), b"\x0a\x0b\x0c")
    assert call.encode() == CALL
    assert AddressedCall.parse(CALL) == call


def test_each_payload_refuses_the_type_of_the_other() -> None:
    with pytest.raises(MalformedMessage, match="type id is 1, not 0"):
        Hash.parse(CALL)
    with pytest.raises(MalformedMessage, match="type id is 0, not 1"):
        AddressedCall.parse(HASH)


def test_bytes_behind_a_hash_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="1 bytes left over"):
        Hash.parse(HASH + b"\x00")


def test_a_hash_of_another_length_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="hash has 31 bytes"):
        Hash(bytes(31)).encode()


def test_the_longest_payload_that_verifiers_parse_is_24_kib() -> None:
    longest = AddressedCall(b"", bytes(PAYLOAD_LIMIT_BYTES - 14)).encode()
    assert len(longest) == PAYLOAD_LIMIT_BYTES == 24576
    assert AddressedCall.parse(longest).encode() == longest
    with pytest.raises(MalformedMessage, match="at most 24576 bytes"):
        AddressedCall.parse(AddressedCall(b"", bytes(PAYLOAD_LIMIT_BYTES - 13)).encode())


@given(st.builds(AddressedCall, st.binary(max_size=40), st.binary(max_size=200)), st.data())
def test_addressed_calls_round_trip_and_every_other_length_is_malformed(
    call: AddressedCall, data: st.DataObject
) -> None:
    raw = call.encode()
    assert AddressedCall.parse(raw) == call
    for wrong in (
        raw[: data.draw(st.integers(0, len(raw) - 1))],
        raw + data.draw(st.binary(min_size=1, max_size=9)),
    ):
        with pytest.raises(MalformedMessage):
            AddressedCall.parse(wrong)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_payload_that_encodes_to_them_or_malformed(raw: bytes) -> None:
    for read in (Hash.parse, AddressedCall.parse):
        try:
            assert read(raw).encode() == raw
        except MalformedMessage:
            continue


@pytest.mark.parametrize(
    ("indices", "raw"),
    [
        ((), ""),
        ((0,), "01"),
        ((1, 2), "06"),
        ((8,), "0100"),
        ((0, 1, 2, 3), "0f"),
        ((3, 4, 8, 14, 18, 22, 23), "c44118"),
    ],
)
def test_bit_sets_have_the_documented_bytes(indices: tuple[int, ...], raw: str) -> None:
    assert encode_signers(indices).hex() == raw
    assert decode_signers(bytes.fromhex(raw)) == indices


@pytest.mark.parametrize("raw", ["00", "0001", "00c44118"])
def test_a_padded_bit_set_is_refused(raw: str) -> None:
    with pytest.raises(MalformedSigners):
        decode_signers(bytes.fromhex(raw))


@given(st.sets(st.integers(0, 4000), max_size=50))
def test_bit_sets_round_trip_in_any_order(indices: set[int]) -> None:
    assert decode_signers(encode_signers(indices)) == tuple(sorted(indices))
    assert encode_signers(sorted(indices, reverse=True)) == encode_signers(sorted(indices))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_bit_set_that_encodes_to_them_or_padded(raw: bytes) -> None:
    try:
        assert encode_signers(decode_signers(raw)) == raw
    except MalformedSigners:
        assert raw[0] == 0
