"""The protobuf wire format, for bytes that are read before (or without) building objects from them.

Source of truth: the protobuf encoding specification. Every function works on slices and stops at
the caller's limit; a generated parser would build an object for each of a million empty fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5
_MAX_VARINT_BYTES: Final = 10
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}


class DecodeError(ValueError):
    """The bytes are not the protobuf message that was expected."""


def encode_varint(value: int) -> bytes:
    """Return `value`, from 0 to 2^64 - 1, as an unsigned LEB128 varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_field(number: int, value: bytes) -> bytes:
    """Return one length-delimited field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(value)) + value


def read_varint(raw: bytes, offset: int) -> tuple[int, int]:
    """Return the varint at `offset`, cut to 64 bits, and its end. Raises DecodeError."""
    if offset < len(raw) and raw[offset] < 0x80:
        return raw[offset], offset + 1
    value = shift = 0
    for position in range(offset, min(len(raw), offset + _MAX_VARINT_BYTES)):
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK_64, position + 1
        shift += 7
    raise DecodeError(f"no varint ends at offset {offset}")


def iter_fields(raw: bytes, limit: int | None = None) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of at most `limit` fields.

    The value of a varint is an int, that of every other type is bytes.

    Raises DecodeError at malformed bytes and at groups.
    """
    offset = count = 0
    while offset < len(raw) and (limit is None or count < limit):
        key, offset = read_varint(raw, offset)
        value, offset = _read_value(raw, offset, key & 7)
        count += 1
        yield key >> 3, value


def _read_value(raw: bytes, offset: int, wire_type: int) -> tuple[int | bytes, int]:
    if wire_type == VARINT:
        return read_varint(raw, offset)
    if wire_type == LENGTH_DELIMITED:
        length, offset = read_varint(raw, offset)
    elif wire_type in _FIXED_BYTES:
        length = _FIXED_BYTES[wire_type]
    else:
        raise DecodeError(f"wire type {wire_type} at offset {offset}")
    end = offset + length
    if end > len(raw):
        raise DecodeError(f"a field ends {end - len(raw)} bytes behind its message")
    return raw[offset:end], end
