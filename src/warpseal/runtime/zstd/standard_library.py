"""Frames by `compression.zstd` of Python 3.14, which `backports.zstd` offers to earlier versions.

The classes do what those of `zstandard_package` do, whose docstrings hold here.
"""

from __future__ import annotations

import sys
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZstdError = zstd.ZstdError

_DEFAULT_LEVEL: Final = 3


class Compressor:
    __slots__ = ("_compressor",)

    def __init__(
        self, level: int = _DEFAULT_LEVEL, *, has_checksum: bool = False, declares_size: bool = True
    ) -> None:
        self._compressor = zstd.ZstdCompressor(
            options={
                zstd.CompressionParameter.compression_level: level,
                zstd.CompressionParameter.checksum_flag: int(has_checksum),
                zstd.CompressionParameter.content_size_flag: int(declares_size),
            }
        )

    def compress(self, content: bytes) -> bytes:
        frame: bytes = self._compressor.compress(content, zstd.ZstdCompressor.FLUSH_FRAME)
        return frame


class Decompressor:
    __slots__ = ("_max_bytes", "_options")

    def __init__(self, max_bytes: int, max_window_log: int = 27) -> None:
        self._max_bytes = max_bytes
        self._options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: max_window_log}

    def decompress(self, frame: bytes) -> bytes:
        declared = zstd.get_frame_info(frame).decompressed_size
        if declared is not None and declared > self._max_bytes:
            raise ZstdError(f"{declared} bytes are declared, of at most {self._max_bytes}")
        # A decompressor ends with its frame.
        decompressor = zstd.ZstdDecompressor(options=self._options)
        # The byte beyond the limit separates content that is too large from complete content.
        content: bytes = decompressor.decompress(frame, self._max_bytes + 1)
        if len(content) > self._max_bytes:
            raise ZstdError(f"the content has more than {self._max_bytes} bytes")
        if not decompressor.eof:
            raise ZstdError("the frame is incomplete")
        if decompressor.unused_data:
            raise ZstdError(f"{len(decompressor.unused_data)} bytes follow the frame")
        return content
