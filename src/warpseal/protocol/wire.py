"""The protobuf wire format, as far as bytes are looked at before (or without) building objects from them.

Source of truth: the protobuf encoding specification. Everything works on slices and is bounded by the caller's
limit, where a generated parser would build an object for each of a million empty members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warpseal.protocol.errors import Undecodable

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5
_MAX_VARINT_BYTES: Final = 10
_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}


def encode_varint(value: int) -> bytes:
    """Return `value`, from 0 to 2^64 - 1, as an unsigned LEB128 varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_member(number: int, value: bytes) -> bytes:
    """Return one length-delimited field of this number."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(value)) + value


def read_varint(raw: bytes, offset: int) -> tuple[int, int]:
    """Return the varint at `offset` and the offset behind it. Raises Undecodable."""
    if offset < len(raw) and raw[offset] < 0x80:
        return raw[offset], offset + 1
    value = shift = 0
    for position in range(offset, min(len(raw), offset + _MAX_VARINT_BYTES)):
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        shift += 7
    raise Undecodable(f"no varint ends at offset {offset}")


def members(raw: bytes, limit: int) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of at most `limit` fields: ints of varints, bytes of everything else.

    Raises Undecodable at what is no field, groups included.
    """
    offset = count = 0
    while offset < len(raw) and count < limit:
        key, offset = read_varint(raw, offset)
        value, offset = _value(raw, offset, key & 7)
        count += 1
        yield key >> 3, value


def _value(raw: bytes, offset: int, wire_type: int) -> tuple[int | bytes, int]:
    if wire_type == VARINT:
        return read_varint(raw, offset)
    if wire_type == LENGTH_DELIMITED:
        length, offset = read_varint(raw, offset)
    elif wire_type in _FIXED_BYTES:
        length = _FIXED_BYTES[wire_type]
    else:
        raise Undecodable(f"wire type {wire_type} at offset {offset}")
    end = offset + length
    if end > len(raw):
        raise Undecodable(f"a field ends {end - len(raw)} bytes behind its message")
    return raw[offset:end], end
