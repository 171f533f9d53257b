"""Inflation never makes more than 2 MiB, whatever the frame declares."""

from __future__ import annotations

import contextlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from warpseal.protocol.framing import Zstd
from warpseal.protocol.limits import MAX_MESSAGE_BYTES
from warpseal.warp.protobuf import DecodeError

_UNDECLARED = zstandard.ZstdCompressor(write_content_size=False)
_DECLARED = zstandard.ZstdCompressor(write_content_size=True)


@given(st.binary(max_size=2000))
def test_compressed_bytes_inflate_to_themselves(raw: bytes) -> None:
    assert Zstd().inflate(Zstd().compress(raw)) == raw


@given(st.binary(max_size=2000))
def test_a_frame_without_a_declared_size_inflates(raw: bytes) -> None:
    assert Zstd().inflate(_UNDECLARED.compress(raw)) == raw


@pytest.mark.parametrize("compressor", [_DECLARED, _UNDECLARED])
def test_two_mebibytes_are_the_limit(compressor: zstandard.ZstdCompressor) -> None:
    assert len(Zstd().inflate(compressor.compress(bytes(MAX_MESSAGE_BYTES)))) == MAX_MESSAGE_BYTES
    with pytest.raises(DecodeError):
        Zstd().inflate(compressor.compress(bytes(MAX_MESSAGE_BYTES + 1)))


@pytest.mark.parametrize("compressor", [_DECLARED, _UNDECLARED])
def test_zip_bombs_are_refused(compressor: zstandard.ZstdCompressor) -> None:
    bomb = compressor.compress(bytes(50 * 1024 * 1024))
    assert len(bomb) < 8192
    with pytest.raises(DecodeError):
        Zstd().inflate(bomb)


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(b"small") + stream.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 128 * 1024 * 1024
    with pytest.raises(DecodeError):
        Zstd().inflate(frame)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_truncated_frames_are_refused(raw: bytes, data: st.DataObject) -> None:
    for compressor in (_DECLARED, _UNDECLARED):
        frame = compressor.compress(raw)
        cut = data.draw(st.integers(0, len(frame) - 1))
        with pytest.raises(DecodeError):
            Zstd().inflate(frame[:cut])


@given(st.binary(max_size=100))
def test_random_bytes_inflate_or_are_refused(raw: bytes) -> None:
    for frame in (raw, b"\x28\xb5\x2f\xfd" + raw):
        with contextlib.suppress(DecodeError):
            assert len(Zstd().inflate(frame)) <= MAX_MESSAGE_BYTES


def test_nothing_above_the_limit_is_compressed() -> None:
    with pytest.raises(ValueError, match="that a peer decompresses"):
        Zstd().compress(bytes(MAX_MESSAGE_BYTES + 1))
