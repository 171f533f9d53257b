"""Frames, a 4-byte big-endian length before one serialized message, and zstd of message bodies.

Source of truth: avalanchego `network/peer/msg_length.go` and
`utils/compression/zstd_compressor.go`; at most 2 MiB, the length field not counted, compressed or
not.
"""

from __future__ import annotations

from typing import Final

from warpseal.protocol.limits import MAX_MESSAGE_BYTES
from warpseal.runtime.zstd import Compressor, Decompressor, ZstdError
from warpseal.warp.protobuf import DecodeError

LENGTH_BYTES: Final = 4
# The window that every decoder supports (RFC 8878, 3.1.1.1.2); a larger one would be allocated for
# the peer.
_WINDOW_LIMIT_LOG: Final = 23
_LEVEL: Final = 3


def encode_frame(message: bytes) -> bytes:
    """Return `message` behind its length. Raises ValueError above the limit of nodes."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise ValueError(f"{len(message)} bytes do not fit into a frame of {MAX_MESSAGE_BYTES}")
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


class FrameDecoder:
    """Splits a byte stream into frames, for any chunking, in time linear in the number of bytes.

    limit: greatest length of a frame. A longer announced frame sets `overflow` to its length before
        any of it is buffered, and ends decoding.
    keep: greatest length of a frame that is kept; None keeps all. Longer frames within the limit
        are legal but skipped as they arrive, so that a peer occupies no more memory.
    skipped_bytes: bytes of skipped frames so far.
    """

    __slots__ = ("_buffer", "_keep", "_limit", "_needed", "_to_skip", "overflow", "skipped_bytes")

    def __init__(self, limit: int = MAX_MESSAGE_BYTES, keep: int | None = None) -> None:
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
            # Most chunks are exactly one frame.
            if LENGTH_BYTES + length == len(chunk) and length <= self._keep:
                return [bytes(chunk[LENGTH_BYTES:])]
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
        """Return the complete messages of `data`, which begins with a length; buffer the rest."""
        frames: list[bytes] = []
        offset, end = 0, len(data)
        self._needed = LENGTH_BYTES
        while end - offset >= LENGTH_BYTES:
            body = offset + LENGTH_BYTES
            length = int.from_bytes(data[offset:body], "big")
            # peer.go readMessages reads frames one after the other; an empty one is legal and does
            # not parse.
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
        """Skip the available part of a long frame; return the offset behind it.

        Returns `end` if the frame is longer than the limit.
        """
        # msg_length.go, readMsgLen: 2 MiB, the length itself not counted.
        if length > self._limit:
            self.overflow = length
            return end
        skipped = min(length, end - body)
        self._to_skip = length - skipped
        self.skipped_bytes += skipped
        return body + skipped


class Zstd:
    """Compresses and decompresses message bodies. Use one instance per thread.

    zstd contexts must not be shared between threads, and take about 100 KiB, too much for one per
    connection.
    """

    __slots__ = ("_compressor", "_decompressor")

    def __init__(self) -> None:
        self._compressor = Compressor(_LEVEL)
        self._decompressor = Decompressor(MAX_MESSAGE_BYTES, _WINDOW_LIMIT_LOG)

    def compress(self, raw: bytes) -> bytes:
        """Return one zstd frame that declares its content size. Raises ValueError above 2 MiB."""
        if len(raw) > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"{len(raw)} bytes exceed the {MAX_MESSAGE_BYTES} bytes that a peer decompresses"
            )
        return self._compressor.compress(raw)

    def inflate(self, compressed: bytes) -> bytes:
        """Return the content of one zstd frame, at most 2 MiB. Raises DecodeError."""
        try:
            # zstd_compressor.go, Decompress: at most 2 MiB of content, declared or not.
            return self._decompressor.decompress(compressed)
        except ZstdError as error:
            raise DecodeError(f"zstd: {error}") from None
