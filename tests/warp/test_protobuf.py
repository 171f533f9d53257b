"""The protobuf wire format: varints and fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.warp.protobuf import (
    DecodeError,
    encode_field,
    encode_varint,
    iter_fields,
    read_varint,
)


@pytest.mark.parametrize(
    ("value", "raw"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**64 - 1, "ff" * 9 + "01")],
)
def test_varints_have_the_documented_bytes(value: int, raw: str) -> None:
    assert encode_varint(value).hex() == raw
    assert read_varint(b"\x99" + bytes.fromhex(raw) + b"\x99", 1) == (value, 1 + len(raw) // 2)


@given(st.integers(0, 2**64 - 1))
def test_varints_round_trip(value: int) -> None:
    raw = encode_varint(value)
    assert read_varint(raw, 0) == (value, len(raw))


def test_a_varint_has_at_most_ten_bytes_and_is_cut_to_64_bits() -> None:
    assert read_varint(b"\xff" * 9 + b"\x7f", 0) == (2**64 - 1, 10)
    for raw in (b"\x80" * 10 + b"\x01", b"\x80" * 9, b""):
        with pytest.raises(DecodeError, match="no varint ends at offset 0"):
            read_varint(raw, 0)


def test_each_type_of_field_is_read_to_its_end() -> None:
    raw = b"\x08\xac\x02" + b"\x11abcdefgh" + encode_field(3, b"bytes") + b"\x25ABCD"
    fields = [(1, 300), (2, b"abcdefgh"), (3, b"bytes"), (4, b"ABCD")]
    assert list(iter_fields(raw)) == fields
    assert list(iter_fields(raw, 3)) == fields[:3]
    assert list(iter_fields(raw, 0)) == []


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x0b", "wire type 3 at offset 1"),
        (b"\x0a\x03ab", "a field ends 1 bytes behind its message"),
        (b"\x11abcdefg", "a field ends 1 bytes behind its message"),
        (b"\x0a", "no varint ends at offset 1"),
    ],
)
def test_malformed_fields_are_refused_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        list(iter_fields(raw))
