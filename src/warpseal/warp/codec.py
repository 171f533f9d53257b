"""Strict reader and writers of the linear codec: big-endian integers, length-prefixed bytes, no rest.

Source of truth: avalanchego `codec/linearcodec`, version 0.
"""

from __future__ import annotations

CODEC_VERSION = 0
_VERSION_BYTES = b"\x00\x00"


class MalformedMessage(ValueError):
    """Bytes that are not what they claim to be. `offset` is where (bytes from the start), `reason` is why."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Reader:
    """Reads one encoded value from its first byte to its last. Every fault is a MalformedMessage."""

    __slots__ = ("_raw", "offset")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.offset = 0

    def fixed(self, length: int, what: str) -> bytes:
        """Return the next `length` bytes."""
        start = self.offset
        end = start + length
        if end > len(self._raw):
            raise MalformedMessage(start, f"{what} needs {length} bytes, {len(self._raw) - start} are left")
        self.offset = end
        return self._raw[start:end]

    def unsigned(self, width: int, what: str) -> int:
        """Return the next `width` bytes as a big-endian unsigned integer."""
        return int.from_bytes(self.fixed(width, what), "big")

    def sized(self, what: str) -> bytes:
        """Return bytes that follow their own uint32 length."""
        return self.fixed(self.unsigned(4, f"length of {what}"), what)

    def flag(self, what: str) -> bool:
        """Return a one-byte bool; only 0 and 1 are allowed."""
        value = self.unsigned(1, what)
        if value > 1:
            raise MalformedMessage(self.offset - 1, f"{what} is {value}, neither 0 nor 1")
        return value == 1

    def version(self) -> None:
        """Read the codec version, which must be 0."""
        value = self.unsigned(2, "codec version")
        if value != CODEC_VERSION:
            raise MalformedMessage(self.offset - 2, f"codec version is {value}, not {CODEC_VERSION}")

    def type_id(self, expected: int, what: str) -> None:
        """Read a uint32 type id, which must be `expected`."""
        value = self.unsigned(4, "type id")
        if value != expected:
            raise MalformedMessage(self.offset - 4, f"type id is {value}, not {expected} ({what})")

    def finish(self) -> None:
        """Refuse bytes that were not read."""
        if self.offset != len(self._raw):
            raise MalformedMessage(self.offset, f"{len(self._raw) - self.offset} bytes left over")


def versioned(*parts: bytes) -> bytes:
    """Return the codec version followed by `parts`."""
    return _VERSION_BYTES + b"".join(parts)


def u32(value: int) -> bytes:
    """Return `value` as a big-endian uint32."""
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    """Return `value` as a big-endian uint64."""
    return value.to_bytes(8, "big")


def sized(value: bytes) -> bytes:
    """Return `value` after its uint32 length."""
    return u32(len(value)) + value


def exactly(value: bytes, length: int, what: str) -> bytes:
    """Return `value`, which must have `length` bytes; ValueError otherwise."""
    if len(value) != length:
        raise ValueError(f"{what} has {len(value)} bytes, not {length}")
    return value
