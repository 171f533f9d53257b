"""Frames by the package zstandard."""

from __future__ import annotations

from typing import Final

import zstandard
from zstandard import ZstdError as ZstdError

_DEFAULT_LEVEL: Final = 3
_SIZE_NOT_DECLARED: Final = -1


class Compressor:
    """Compresses contents into frames, one after another, in one thread at a time.

    A frame holds a checksum of its content if `has_checksum`, and the size of its content if
    `declares_size`.
    """

    __slots__ = ("_compressor",)

    def __init__(
        self, level: int = _DEFAULT_LEVEL, *, has_checksum: bool = False, declares_size: bool = True
    ) -> None:
        self._compressor = zstandard.ZstdCompressor(
            level=level, write_checksum=has_checksum, write_content_size=declares_size
        )

    def compress(self, content: bytes) -> bytes:
        """Return one frame."""
        return self._compressor.compress(content)


class Decompressor:
    """Decompresses frames, one after another, in one thread at a time.

    A content has at most `max_bytes`. A frame needs a window of at most 2 ** `max_window_log`
    bytes.
    """

    __slots__ = ("_decompressor", "_max_bytes")

    def __init__(self, max_bytes: int, max_window_log: int = 27) -> None:
        self._max_bytes = max_bytes
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << max_window_log)

    def decompress(self, frame: bytes) -> bytes:
        """Return the content of exactly one frame.

        Raises ZstdError, also for a content that is too large.
        """
        # The library ignores its limit if the frame declares a size, so the declared size is
        # checked here.
        declared = zstandard.frame_content_size(frame)
        if declared > self._max_bytes:
            raise ZstdError(f"{declared} bytes are declared, of at most {self._max_bytes}")
        if declared == _SIZE_NOT_DECLARED:
            return self._decompressor.decompress(
                frame, max_output_size=self._max_bytes, allow_extra_data=False
            )
        return self._decompressor.decompress(frame, allow_extra_data=False)
