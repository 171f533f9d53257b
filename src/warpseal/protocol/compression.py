"""Bounded zstd in both directions: nothing above 2 MiB goes in or comes out.

Source of truth: avalanchego `utils/compression/zstd_compressor.go`. One instance per thread: zstd contexts are
not shared between threads, and too big (about 100 KiB) to have one per connection.
"""

from __future__ import annotations

from typing import Final

import zstandard

from warpseal.protocol.errors import Undecodable

INFLATED_LIMIT_BYTES: Final = 2 * 1024 * 1024
# What a decoder has to support (RFC 8878, 3.1.1.1.2); a frame that asks for more would make us allocate it.
_WINDOW_LIMIT_BYTES: Final = 8 * 1024 * 1024
_LEVEL: Final = 3
_SIZE_NOT_DECLARED: Final = -1


class Zstd:
    """Compresses and inflates message bodies."""

    __slots__ = ("_compressor", "_decompressor")

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)

    def compress(self, raw: bytes) -> bytes:
        """Return one zstd frame that declares its content size. ValueError above 2 MiB."""
        if len(raw) > INFLATED_LIMIT_BYTES:
            raise ValueError(f"{len(raw)} bytes are more than a peer inflates")
        return self._compressor.compress(raw)

    def inflate(self, compressed: bytes) -> bytes:
        """Return what one zstd frame holds, at most 2 MiB. Raises Undecodable."""
        try:
            # A declared size replaces the library's limit, so it is judged here; without one the limit holds.
            declared = zstandard.frame_content_size(compressed)
            if declared > INFLATED_LIMIT_BYTES:
                raise Undecodable(f"{declared} bytes are declared, of at most {INFLATED_LIMIT_BYTES}")
            if declared == _SIZE_NOT_DECLARED:
                return self._decompressor.decompress(
                    compressed, max_output_size=INFLATED_LIMIT_BYTES, allow_extra_data=False
                )
            return self._decompressor.decompress(compressed, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise Undecodable(f"zstd: {error}") from None
