"""Frames: a 4-byte big-endian length, then that many bytes of one serialized message.

Source of truth: avalanchego `network/peer/msg_length.go`; at most 2 MiB, the length field not counted.
"""

from __future__ import annotations

from typing import Final

FRAME_LIMIT_BYTES: Final = 2 * 1024 * 1024
LENGTH_BYTES: Final = 4


def encode_frame(message: bytes) -> bytes:
    """Return `message` behind its length. Raises ValueError above the limit, at which nodes close."""
    if len(message) > FRAME_LIMIT_BYTES:
        raise ValueError(f"{len(message)} bytes do not fit into a frame of {FRAME_LIMIT_BYTES}")
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


class FrameDecoder:
    """Splits a byte stream into frames, for any chunking, in time linear in the number of bytes.

    limit: a longer announced frame sets `overflow` to its length before any of it is buffered, and ends decoding.
    keep: longer frames (within the limit) are legal but skipped as they arrive, so that a peer occupies at most `keep`
    bytes of memory; None keeps all frames. skipped_bytes: bytes of skipped frames so far.
    """

    __slots__ = ("_buffer", "_keep", "_limit", "_needed", "_to_skip", "overflow", "skipped_bytes")

    def __init__(self, limit: int = FRAME_LIMIT_BYTES, keep: int | None = None) -> None:
        self._limit = limit
        self._keep = limit if keep is None else min(keep, limit)
        self._buffer = bytearray()
        self._needed = LENGTH_BYTES
        self._to_skip = 0
        self.skipped_bytes = 0
        self.overflow: int | None = None

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[bytes]:
        """Return the messages that `chunk` completes, in order and without their lengths."""
        if self.overflow is not None:
            return []
        if not self._buffer and not self._to_skip:
            length = int.from_bytes(chunk[:LENGTH_BYTES], "big")
            if LENGTH_BYTES + length == len(chunk) and length <= self._keep:
                return [bytes(chunk[LENGTH_BYTES:])]  # Most chunks are exactly one frame.
        if self._to_skip:
            skipped = min(self._to_skip, len(chunk))
            self._to_skip -= skipped
            self.skipped_bytes += skipped
            chunk = chunk[skipped:]
        if self._buffer:
            self._buffer += chunk
            if len(self._buffer) < self._needed:
                return []
            chunk, self._buffer = self._buffer, bytearray()
        return self._cut(chunk)

    def _cut(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Return the complete messages of `data`, which begins with a length, and buffer the rest."""
        frames: list[bytes] = []
        offset, end = 0, len(data)
        self._needed = LENGTH_BYTES
        while end - offset >= LENGTH_BYTES:
            body = offset + LENGTH_BYTES
            length = int.from_bytes(data[offset:body], "big")
            if length > self._keep:
                offset = self._skip(length, body, end)
            elif body + length <= end:
                offset = body + length
                frames.append(bytes(data[body:offset]))
            else:
                self._needed = LENGTH_BYTES + length
                break
        if offset < end:
            self._buffer += data[offset:]
        return frames

    def _skip(self, length: int, body: int, end: int) -> int:
        """Skip the available part of a long frame and return the offset behind it, or `end` if it overflows."""
        if length > self._limit:
            self.overflow = length
            return end
        skipped = min(length, end - body)
        self._to_skip = length - skipped
        self.skipped_bytes += skipped
        return body + skipped
