"""The linear codec: a strict reader of encoded values, and the writers of their parts.

Source of truth: avalanchego `codec/linearcodec`, version 0: big-endian integers, length-prefixed
bytes, no bytes left over. `chains/codec.py` builds its codecs on this reader.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Final

VERSION: Final = b"\x00\x00"

_CODEC_VERSION: Final = 0


class MalformedMessage(ValueError):
    """The bytes do not follow the format.

    offset: position from the start at which they stop to do so.
    reason: rule that they break.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class CodecReader:
    """Reads one encoded value from its first byte to its last.

    Methods raise `error` for bytes that do not fit. Codecs move `offset` and compare it with `size`
    themselves if speed matters.

    name: name of the value, for the error text; the same in all methods.
    """

    __slots__ = ("offset", "raw", "size")
    error: ClassVar[type[MalformedMessage]] = MalformedMessage

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.offset = 0
        self.size = len(raw)

    def truncated(self, length: int, name: str) -> MalformedMessage:
        """Return the error for `length` bytes that are not there."""
        rest_bytes = self.size - self.offset
        return self.error(self.offset, f"{name} needs {length} bytes, {rest_bytes} are left")

    def take(self, length: int, name: str) -> bytes:
        """Return the next `length` bytes."""
        start = self.offset
        end = start + length
        if end > self.size:
            raise self.truncated(length, name)
        self.offset = end
        return self.raw[start:end]

    def unpack(self, layout: struct.Struct, name: str) -> tuple[Any, ...]:
        """Return the fields of the fixed-size `layout`."""
        start = self.offset
        end = start + layout.size
        if end > self.size:
            raise self.truncated(layout.size, name)
        self.offset = end
        return layout.unpack_from(self.raw, start)

    def unsigned(self, width: int, name: str) -> int:
        """Return the next `width` bytes as a big-endian unsigned integer."""
        return int.from_bytes(self.take(width, name), "big")

    def u32(self, name: str) -> int:
        """Return the next four bytes as an unsigned integer."""
        start = self.offset
        end = start + 4
        if end > self.size:
            raise self.truncated(4, name)
        self.offset = end
        return int.from_bytes(self.raw[start:end], "big")

    def sized(self, name: str) -> bytes:
        """Return bytes that follow their own uint32 length."""
        return self.take(self.u32(f"length of {name}"), name)

    def flag(self, name: str) -> bool:
        """Return a one-byte bool; only 0 and 1 are allowed."""
        value = self.unsigned(1, name)
        if value > 1:
            raise self.error(self.offset - 1, f"{name} is {value}, neither 0 nor 1")
        return value == 1

    def count(self, least_bytes: int, name: str) -> int:
        """Return a uint32 number of elements, which must fit into the bytes that are left.

        least_bytes: least size of an element.
        """
        start = self.offset
        number = self.u32(name)
        rest_bytes = self.size - self.offset
        needed_bytes = number * least_bytes
        if needed_bytes > rest_bytes:
            reason = f"{number} {name} need at least {needed_bytes} bytes, {rest_bytes} left"
            raise self.error(start, reason)
        return number

    def version(self) -> None:
        """Read the codec version, which must be 0."""
        start = self.offset
        value = self.unsigned(2, "codec version")
        if value != _CODEC_VERSION:
            raise self.error(start, f"codec version is {value}, not {_CODEC_VERSION}")

    def type_id(self, expected: int, name: str) -> None:
        """Read a uint32 type id, which must be `expected`."""
        start = self.offset
        value = self.u32("type id")
        if value != expected:
            raise self.error(start, f"type id is {value}, not {expected} ({name})")

    def finish(self) -> None:
        """Refuse bytes that were not read."""
        if self.offset != self.size:
            raise self.error(self.offset, f"{self.size - self.offset} bytes left over")


def pack_versioned(*parts: bytes) -> bytes:
    """Return the codec version followed by `parts`."""
    return VERSION + b"".join(parts)


def pack_u32(value: int) -> bytes:
    """Return `value` as a big-endian uint32."""
    return value.to_bytes(4, "big")


def pack_u64(value: int) -> bytes:
    """Return `value` as a big-endian uint64."""
    return value.to_bytes(8, "big")


def pack_sized(value: bytes) -> bytes:
    """Return `value` after its uint32 length."""
    return pack_u32(len(value)) + value


def require_length(value: bytes, length: int, name: str) -> bytes:
    """Return `value`, which must have `length` bytes; ValueError otherwise."""
    if len(value) != length:
        raise ValueError(f"{name} has {len(value)} bytes, not {length}")
    return value
