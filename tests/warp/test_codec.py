"""The reader of encoded values: its position and its refusals."""

from __future__ import annotations

import struct

import pytest

from warpseal.warp.codec import CodecReader, MalformedMessage

HEAD = struct.Struct(">HI")


def test_a_layout_is_read_at_the_position_and_moves_it() -> None:
    reader = CodecReader(b"\x07" + bytes.fromhex("000100000002") + b"rest")
    reader.take(1, "first")
    assert reader.unpack(HEAD, "head") == (1, 2)
    assert (reader.offset, reader.take(4, "rest")) == (7, b"rest")


def test_a_layout_may_end_the_value_and_not_lie_behind_it() -> None:
    assert CodecReader(bytes(6)).unpack(HEAD, "head") == (0, 0)
    with pytest.raises(MalformedMessage, match="head needs 6 bytes, 5 are left") as error:
        CodecReader(bytes(5)).unpack(HEAD, "head")
    assert error.value.offset == 0


def test_a_number_of_elements_fits_into_the_bytes_that_are_left() -> None:
    reader = CodecReader(bytes.fromhex("00000002") + bytes(8))
    assert reader.count(4, "members") == 2
    assert reader.offset == 4
    reader = CodecReader(b"\x01" + bytes.fromhex("00000002") + bytes(7))
    reader.take(1, "first")
    with pytest.raises(MalformedMessage, match="2 members need at least 8 bytes, 7 left") as error:
        reader.count(4, "members")
    assert error.value.offset == 1
