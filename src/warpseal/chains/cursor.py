"""Where a decoder stands in its bytes: bounded reads, and what it raises when the bytes are wrong.

Source of truth: avalanchego `codec/linearcodec`, version 0.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from warpseal.warp.codec import CODEC_VERSION, MalformedMessage

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")


class MalformedChainBytes(MalformedMessage):
    """Bytes of a chain that are not what they claim to be. `offset` is where (from the start), `reason` is why."""


class UnknownType(MalformedChainBytes):
    """A type id that this program does not know, so that nobody can tell where the value ends."""

    def __init__(self, offset: int, type_id: int, what: str) -> None:
        super().__init__(offset, f"{what} has the unknown type id {type_id}")
        self.type_id = type_id


class Cursor:
    """A place in `raw`. Codecs move `offset` and check against `size` themselves where speed matters."""

    __slots__ = ("offset", "raw", "size")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.offset = 0
        self.size = len(raw)

    def short(self, length: int, what: str) -> MalformedChainBytes:
        """Return the error that says that `what` needs `length` more bytes than are there."""
        return MalformedChainBytes(self.offset, f"{what} needs {length} bytes, {self.size - self.offset} are left")

    def take(self, length: int, what: str) -> bytes:
        """Return the next `length` bytes. Raises MalformedChainBytes."""
        start = self.offset
        end = start + length
        if end > self.size:
            raise self.short(length, what)
        self.offset = end
        return self.raw[start:end]

    def unpack(self, layout: Struct, what: str) -> tuple[Any, ...]:
        """Return the fields of the fixed-size `layout`. Raises MalformedChainBytes."""
        start = self.offset
        end = start + layout.size
        if end > self.size:
            raise self.short(layout.size, what)
        self.offset = end
        return layout.unpack_from(self.raw, start)

    def u16(self, what: str) -> int:
        """Return the next two bytes as an unsigned integer. Raises MalformedChainBytes."""
        value: int = self.unpack(_U16, what)[0]
        return value

    def u32(self, what: str) -> int:
        """Return the next four bytes as an unsigned integer. Raises MalformedChainBytes."""
        start = self.offset
        end = start + 4
        if end > self.size:
            raise self.short(4, what)
        self.offset = end
        return int.from_bytes(self.raw[start:end], "big")

    def count(self, least_bytes: int, what: str) -> int:
        """Return a uint32 number of elements, each of at least `least_bytes`, that the bytes left can hold.

        Raises MalformedChainBytes at the count, before anything is made of it.
        """
        start = self.offset
        number = self.u32(what)
        if number * least_bytes > self.size - self.offset:
            left = self.size - self.offset
            raise MalformedChainBytes(start, f"{number} {what} need at least {number * least_bytes} bytes, {left} left")
        return number

    def version(self) -> None:
        """Read the codec version, which must be 0. Raises MalformedChainBytes."""
        start = self.offset
        value = self.u16("codec version")
        if value != CODEC_VERSION:
            raise MalformedChainBytes(start, f"codec version is {value}, not {CODEC_VERSION}")

    def finish(self) -> None:
        """Refuse bytes that were not read. Raises MalformedChainBytes."""
        if self.offset != self.size:
            raise MalformedChainBytes(self.offset, f"{self.size - self.offset} bytes left over")
