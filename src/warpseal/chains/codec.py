"""How single values and lists of them are written: integers, byte strings, texts, lists.

Source of truth: avalanchego `codec/reflectcodec`, `utils/wrappers/packing.go`. A codec reads and writes, so that one
description serves both ways; reading what was written gives the same value, writing what was read the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from struct import Struct
from typing import Final, Generic, TypeVar

from warpseal.chains.cursor import Cursor, MalformedChainBytes

T = TypeVar("T")

_MAX_TEXT_BYTES: Final = 2**16 - 1
_COUNT_BYTES: Final = 4


class Codec(ABC, Generic[T]):
    """Reads and writes one kind of value. least_bytes: no encoding is shorter; at least 0."""

    least_bytes: int

    @abstractmethod
    def read(self, cursor: Cursor) -> T:
        """Return the value at the cursor, and move it behind. Raises MalformedChainBytes."""

    @abstractmethod
    def write(self, value: T, out: bytearray) -> None:
        """Append the bytes of `value`. Raises ValueError where it does not fit the format."""


class Fixed(Codec[T]):
    """A value of fixed size; `format` is its place in a `struct` layout, so that runs of them are read at once."""

    format: str


class Unsigned(Fixed[int]):
    """A big-endian unsigned integer of 1, 4 or 8 bytes."""

    def __init__(self, size_bytes: int) -> None:
        self.format = {1: "B", 4: "I", 8: "Q"}[size_bytes]
        self.least_bytes = size_bytes

    def read(self, cursor: Cursor) -> int:
        return int.from_bytes(cursor.take(self.least_bytes, "integer"), "big")

    def write(self, value: int, out: bytearray) -> None:
        try:
            out += value.to_bytes(self.least_bytes, "big")
        except OverflowError:
            raise ValueError(f"{value} does not fit an unsigned integer of {self.least_bytes} bytes") from None


class FixedBytes(Fixed[bytes]):
    """Exactly `length` bytes."""

    def __init__(self, length: int) -> None:
        self.format = f"{length}s"
        self.least_bytes = length

    def read(self, cursor: Cursor) -> bytes:
        return cursor.take(self.least_bytes, "bytes")

    def write(self, value: bytes, out: bytearray) -> None:
        if len(value) != self.least_bytes:
            raise ValueError(f"{len(value)} bytes where {self.least_bytes} are written")
        out += value


class SizedBytes(Codec[bytes]):
    """Bytes behind their own uint32 length."""

    least_bytes = _COUNT_BYTES

    def read(self, cursor: Cursor) -> bytes:
        return cursor.take(cursor.u32("length"), "bytes")

    def write(self, value: bytes, out: bytearray) -> None:
        write_count(len(value), out)
        out += value


class Text(Codec[str]):
    """UTF-8 behind a uint16 length in bytes. Other bytes are refused: the chains accept only ASCII in names."""

    least_bytes = 2

    def read(self, cursor: Cursor) -> str:
        raw = cursor.take(cursor.u16("length of text"), "text")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MalformedChainBytes(cursor.offset - len(raw), "text is not UTF-8") from None

    def write(self, value: str, out: bytearray) -> None:
        raw = value.encode()
        if len(raw) > _MAX_TEXT_BYTES:
            raise ValueError(f"a text of {len(raw)} bytes is longer than {_MAX_TEXT_BYTES}")
        out += len(raw).to_bytes(2, "big")
        out += raw


class ListOf(Codec[tuple[T, ...]]):
    """A uint32 count, then the elements. The count is checked against the bytes left before any is read."""

    least_bytes = _COUNT_BYTES

    def __init__(self, element: Codec[T], what: str) -> None:
        # An element of no bytes would make the count boundless.
        self._least_element_bytes = max(1, element.least_bytes)
        self.element = element
        self._read_element = element.read
        self._what = what

    def read(self, cursor: Cursor) -> tuple[T, ...]:
        count = cursor.count(self._least_element_bytes, self._what)
        read = self._read_element
        if count == 1:
            return (read(cursor),)
        return tuple([read(cursor) for _ in range(count)])

    def write(self, value: tuple[T, ...], out: bytearray) -> None:
        write_count(len(value), out)
        for element in value:
            self.element.write(element, out)


class ListOfFixed(Codec[tuple[T, ...]]):
    """A uint32 count, then that many elements of fixed size, read at once."""

    least_bytes = _COUNT_BYTES

    def __init__(self, element: Fixed[T], what: str) -> None:
        self.element = element
        self._what = what
        self._one = Struct(f">{element.format}")

    def read(self, cursor: Cursor) -> tuple[T, ...]:
        one = self._one
        count = cursor.count(one.size, self._what)
        start = cursor.offset
        cursor.offset = end = start + count * one.size
        if count == 1:
            return one.unpack_from(cursor.raw, start)
        return tuple([fields[0] for fields in one.iter_unpack(cursor.raw[start:end])])

    def write(self, value: tuple[T, ...], out: bytearray) -> None:
        write_count(len(value), out)
        for element in value:
            self.element.write(element, out)


def write_count(count: int, out: bytearray) -> None:
    """Append a uint32 count or length. Raises ValueError where it does not fit."""
    if count >= 2**32:
        raise ValueError(f"{count} is more than a count of 4 bytes can say")
    out += count.to_bytes(_COUNT_BYTES, "big")


U8: Final = Unsigned(1)
U32: Final = Unsigned(4)
U64: Final = Unsigned(8)
ID: Final = FixedBytes(32)
ADDRESS: Final = FixedBytes(20)
SIZED: Final = SizedBytes()
TEXT: Final = Text()
