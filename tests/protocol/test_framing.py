"""Frames out of a byte stream."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.peers import random_chunks
from warpseal.protocol.framing import FrameDecoder, encode_frame
from warpseal.protocol.limits import MAX_MESSAGE_BYTES

RANDOMS = st.builds(random.Random, st.integers(0, 2**32 - 1))
# Both kinds are drawn by name, since hypothesis seldom draws many bytes by itself.
SHORT_OR_LONG = st.binary(max_size=40) | st.binary(min_size=41, max_size=90)


@given(st.lists(st.binary(max_size=50), max_size=8), RANDOMS)
def test_frames_survive_any_chunking(frames: list[bytes], rnd: random.Random) -> None:
    wire = b"".join(map(encode_frame, frames))
    decoder = FrameDecoder(limit=64)
    assert [f for chunk in random_chunks(wire, rnd) for f in decoder.feed(chunk)] == frames
    assert len(decoder._buffer) == 0


@given(st.lists(SHORT_OR_LONG, max_size=8), RANDOMS)
def test_long_frames_are_passed_over_and_their_neighbours_are_not(
    frames: list[bytes], rnd: random.Random
) -> None:
    wire = b"".join(map(encode_frame, frames))
    decoder = FrameDecoder(limit=90, keep=40)
    seen = []
    for chunk in random_chunks(wire, rnd):
        seen += decoder.feed(memoryview(chunk))
        assert len(decoder._buffer) < 4 + 40
    assert seen == [frame for frame in frames if len(frame) <= 40]
    assert decoder.skipped_bytes == sum(len(frame) for frame in frames if len(frame) > 40)


@given(st.lists(st.binary(max_size=64), max_size=4), st.integers(65, 2**32 - 1), RANDOMS)
def test_a_frame_above_the_limit_ends_decoding_before_it_is_buffered(
    frames: list[bytes], length: int, rnd: random.Random
) -> None:
    wire = (
        b"".join(map(encode_frame, frames))
        + length.to_bytes(4, "big")
        + bytes(200)
        + encode_frame(b"more")
    )
    decoder = FrameDecoder(limit=64)
    assert [f for chunk in random_chunks(wire, rnd) for f in decoder.feed(chunk)] == frames
    assert decoder.overflow == length
    assert len(decoder._buffer) == 0


@given(st.binary(max_size=300), RANDOMS)
def test_random_bytes_decode_alike_in_any_chunks(data: bytes, rnd: random.Random) -> None:
    whole, pieces = FrameDecoder(limit=1000), FrameDecoder(limit=1000)
    expected = whole.feed(data)
    assert [f for chunk in random_chunks(data, rnd) for f in pieces.feed(chunk)] == expected
    assert pieces.overflow == whole.overflow


def test_the_limit_itself_is_legal() -> None:
    message = bytes(MAX_MESSAGE_BYTES)
    assert FrameDecoder().feed(encode_frame(message)) == [message]
    with pytest.raises(ValueError, match="do not fit"):
        encode_frame(message + b"\x00")


def test_a_big_frame_in_small_chunks_takes_linear_time() -> None:
    # Quadratic copying would move half a terabyte here.
    message = random.Random(1).randbytes(MAX_MESSAGE_BYTES)
    wire = encode_frame(message)
    decoder = FrameDecoder()
    started_s = time.thread_time()
    seen = [f for at in range(0, len(wire), 4) for f in decoder.feed(wire[at : at + 4])]
    assert seen == [message]
    # Linear work takes about half a second of CPU time.
    assert time.thread_time() - started_s < 30


def test_frames_do_not_share_memory_with_the_receive_buffer() -> None:
    buffer = bytearray(encode_frame(b"first"))
    frames = FrameDecoder().feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert frames == [b"first"]


def test_a_frame_inside_a_long_frame_is_skipped_with_it() -> None:
    decoder = FrameDecoder(limit=90, keep=40)
    inner = encode_frame(b"inner")
    assert decoder.feed(encode_frame(bytes(60) + inner)[:-9]) == []
    assert decoder.feed(inner) == []
    assert decoder.feed(encode_frame(b"next")) == [b"next"]


def test_a_chunk_that_looks_like_a_frame_may_end_another_one() -> None:
    decoder = FrameDecoder()
    inner = encode_frame(b"inner")
    assert decoder.feed(encode_frame(b"ab" + inner)[:-9]) == []
    assert decoder.feed(inner) == [b"ab" + inner]
