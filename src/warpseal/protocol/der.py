"""Reading DER, as strictly as nodes do and no further than a certificate's key needs.

Source of truth: X.690 (DER), with lengths of at most four bytes.
"""

from __future__ import annotations

from typing import Final

INTEGER: Final = 0x02
BIT_STRING: Final = 0x03
OBJECT_IDENTIFIER: Final = 0x06
SEQUENCE: Final = 0x30
# The [0] of a certificate's version: context-specific, constructed.
VERSION: Final = 0xA0

_LONG_FORM: Final = 0x80
_MAX_LENGTH_BYTES: Final = 4


class MalformedDer(ValueError):
    """Bytes that are not the DER that was expected."""


class DerReader:
    """Reads one element after another from the content of a constructed one."""

    __slots__ = ("_offset", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._offset = 0

    def read(self, tag: int) -> bytes:
        """Return the content of the next element, which must have this tag. Raises MalformedDer."""
        if self._offset >= len(self._raw) or self._raw[self._offset] != tag:
            raise MalformedDer(f"no element of tag {tag:#04x} at offset {self._offset}")
        length, start = self._length(self._offset + 1)
        if start + length > len(self._raw):
            raise MalformedDer(f"the element at offset {self._offset} is cut off")
        self._offset = start + length
        return self._raw[start : self._offset]

    def skip_optional(self, tag: int) -> None:
        """Pass over the next element if it has this tag. Raises MalformedDer."""
        if self._offset < len(self._raw) and self._raw[self._offset] == tag:
            self.read(tag)

    def read_integer(self) -> int:
        """Return the next element, a signed integer in its shortest form. Raises MalformedDer."""
        content = self.read(INTEGER)
        if not content:
            raise MalformedDer("an integer without bytes")
        # The first byte may not merely repeat the sign of the second.
        if len(content) > 1 and content[0] == (0xFF if content[1] & 0x80 else 0x00):
            raise MalformedDer("an integer that is not in its shortest form")
        return int.from_bytes(content, "big", signed=True)

    def read_bits(self) -> bytes:
        """Return the next element, a bit string, shifted so that unused bits are in front. Raises MalformedDer."""
        content = self.read(BIT_STRING)
        if not content or content[0] > 7 or (len(content) == 1 and content[0]):
            raise MalformedDer("a bit string with an impossible number of unused bits")
        unused, bits = content[0], int.from_bytes(content[1:], "big")
        if bits & (1 << unused) - 1:
            raise MalformedDer("a bit string whose unused bits are not 0")
        return (bits >> unused).to_bytes(len(content) - 1, "big")

    def _length(self, offset: int) -> tuple[int, int]:
        """Return the length at `offset`, in its shortest form, and the offset behind it."""
        if offset >= len(self._raw):
            raise MalformedDer("cut off before a length")
        first = self._raw[offset]
        if first < _LONG_FORM:
            return first, offset + 1
        count = first - _LONG_FORM
        encoded = self._raw[offset + 1 : offset + 1 + count]
        if not 1 <= count <= _MAX_LENGTH_BYTES or len(encoded) != count:
            raise MalformedDer(f"an impossible length at offset {offset}")
        length = int.from_bytes(encoded, "big")
        if length < _LONG_FORM or encoded[0] == 0:
            raise MalformedDer(f"a length that is not in its shortest form at offset {offset}")
        return length, offset + 1 + count
