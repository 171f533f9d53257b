"""zstd compression of message bodies, limited to 2 MiB in both directions.

Source of truth: avalanchego `utils/compression/zstd_compressor.go`. Use one instance per
thread: zstd contexts must not be shared between threads, and take about 100 KiB, too much for one per connection.
"""

from __future__ import annotations

from typing import Final

import zstandard

from warpseal.warp.protobuf import DecodeError

INFLATED_LIMIT_BYTES: Final = 2 * 1024 * 1024
# The window that every decoder supports (RFC 8878, 3.1.1.1.2); a larger one would be allocated for the peer.
_WINDOW_LIMIT_BYTES: Final = 8 * 1024 * 1024
_LEVEL: Final = 3
_SIZE_NOT_DECLARED: Final = -1


class Zstd:
    """Compresses and decompresses message bodies."""

    __slots__ = ("_compressor", "_decompressor")

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)

    def compress(self, raw: bytes) -> bytes:
        """Return one zstd frame that declares its content size. Raises ValueError above 2 MiB."""
        if len(raw) > INFLATED_LIMIT_BYTES:
            raise ValueError(f"{len(raw)} bytes exceed the {INFLATED_LIMIT_BYTES} bytes that a peer decompresses")
        return self._compressor.compress(raw)

    def inflate(self, compressed: bytes) -> bytes:
        """Return the content of one zstd frame, at most 2 MiB. Raises DecodeError."""
        try:
            # The library ignores its limit if the frame declares a size, so the declared size is checked here.
            declared = zstandard.frame_content_size(compressed)
            if declared > INFLATED_LIMIT_BYTES:
                raise DecodeError(f"{declared} bytes are declared, of at most {INFLATED_LIMIT_BYTES}")
            if declared == _SIZE_NOT_DECLARED:
                return self._decompressor.decompress(
                    compressed, max_output_size=INFLATED_LIMIT_BYTES, allow_extra_data=False
                )
            return self._decompressor.decompress(compressed, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise DecodeError(f"zstd: {error}") from None
