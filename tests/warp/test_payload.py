"""Payloads: the bytes of the notes, round trips, limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.warp.codec import MalformedMessage
from warpseal.warp.message import PAYLOAD_LIMIT_BYTES, AddressedCall, Hash

HASH = bytes.fromhex("000000000000040506") + bytes(29)
CALL = bytes.fromhex("0000000000010000001001020300000000000000000000000000000000030a0b0c")


def test_a_hash_payload_has_the_bytes_of_the_notes() -> None:
    assert Hash.parse(HASH) == Hash(b"\x04\x05\x06" + bytes(29))
    assert Hash(b"\x04\x05\x06" + bytes(29)).encode() == HASH


def test_an_addressed_call_has_the_bytes_of_the_notes() -> None:
    call = AddressedCall(b"\x01\x02\x03" + bytes(13), b"\x0a\x0b\x0c")
    assert call.encode() == CALL
    assert AddressedCall.parse(CALL) == call


def test_each_payload_refuses_the_type_of_the_other() -> None:
    with pytest.raises(MalformedMessage, match="type id is 1, not 0"):
        Hash.parse(CALL)
    with pytest.raises(MalformedMessage, match="type id is 0, not 1"):
        AddressedCall.parse(HASH)


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
def test_any_bytes_are_a_payload_that_writes_itself_or_malformed(raw: bytes) -> None:
    for read in (Hash.parse, AddressedCall.parse):
        try:
            assert read(raw).encode() == raw
        except MalformedMessage:
            continue
