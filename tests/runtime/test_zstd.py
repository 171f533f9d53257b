"""Both zstd backends make the same frames, and hold to the same limits; the standard library's is
`backports.zstd`.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from warpseal.runtime import zstd as chosen
from warpseal.runtime.zstd import standard_library, zstandard_package

BACKENDS: list[ModuleType] = [zstandard_package, standard_library]
LIMIT = 1000
CONTENT = bytes(range(250)) * 4
SKIPPABLE_FRAME = bytes.fromhex("502a4d1802000000") + b"hi"

any_backend = pytest.mark.parametrize("zstd", BACKENDS, ids=["zstandard", "standard library"])
any_frame = pytest.mark.parametrize("declares_size", [True, False])

contents = st.binary(max_size=LIMIT) | st.binary(max_size=20).map(lambda part: part * (LIMIT // 20))
mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "replace", "append"]),
        st.integers(0, LIMIT),
        st.integers(0, 255),
    ),
    max_size=3,
)


def mutate(frame: bytes, kind: str, place: int, value: int) -> bytes:
    """Return a frame after one mutation; most of them hit its header."""
    place = place % (len(frame) if value & 1 else 7) if frame else 0
    if kind == "cut":
        return frame[:place]
    if kind == "append":
        return frame + bytes([value]) * (place + 1)
    byte = 0
    if kind == "replace":
        byte = value
    elif place < len(frame):
        byte = frame[place] ^ 1 << value % 8
    return frame[:place] + bytes([byte]) + frame[place + 1 :]


def inflate(zstd: ModuleType, frame: bytes, window_log: int = 23) -> bytes | None:
    """Return the content of a frame, or None if it is refused."""
    try:
        content = zstd.Decompressor(LIMIT, window_log).decompress(frame)
    except zstd.ZstdError:
        return None
    assert isinstance(content, bytes)
    return content


@given(contents, st.integers(1, 5), st.booleans(), st.booleans())
def test_both_make_the_same_frames_and_read_them(
    content: bytes, level: int, has_checksum: bool, declares_size: bool
) -> None:
    frames = set()
    for zstd in BACKENDS:
        compressor = zstd.Compressor(level, has_checksum=has_checksum, declares_size=declares_size)
        frames |= {compressor.compress(content), compressor.compress(content)}
    (frame,) = frames
    parameters = zstandard.get_frame_parameters(frame)
    assert parameters.has_checksum == has_checksum
    assert zstandard.frame_content_size(frame) == (len(content) if declares_size else -1)
    assert [inflate(zstd, frame) for zstd in BACKENDS] == [content] * 2


@settings(max_examples=1000, deadline=None)
@given(contents, st.booleans(), st.booleans(), mutations, st.sampled_from([10, 23]))
def test_the_standard_library_accepts_nothing_that_zstandard_refuses(
    content: bytes,
    has_checksum: bool,
    declares_size: bool,
    steps: list[tuple[str, int, int]],
    window_log: int,
) -> None:
    compressor = zstandard_package.Compressor(
        has_checksum=has_checksum, declares_size=declares_size
    )
    frame = compressor.compress(content)
    for step in steps:
        frame = mutate(frame, *step)
    first, second = (inflate(zstd, frame, window_log) for zstd in BACKENDS)
    # zstandard ignores bytes behind a frame that does not declare its size, and all of one that
    # declares none.
    if first is not None and second is None:
        assert zstandard.frame_content_size(frame) in (-1, 0)
    else:
        assert first == second


@any_backend
@any_frame
def test_a_content_above_the_limit_is_refused(zstd: ModuleType, declares_size: bool) -> None:
    compressor = zstd.Compressor(declares_size=declares_size)
    assert inflate(zstd, compressor.compress(bytes(LIMIT))) == bytes(LIMIT)
    for size in (LIMIT + 1, 50_000_000):
        assert inflate(zstd, compressor.compress(bytes(size))) is None


@any_backend
@any_frame
def test_damage_is_an_error_even_in_the_checksum(zstd: ModuleType, declares_size: bool) -> None:
    frame = zstd.Compressor(has_checksum=True, declares_size=declares_size).compress(CONTENT)
    assert inflate(zstd, frame) == CONTENT
    for end in range(len(frame)):
        assert inflate(zstd, frame[:end]) is None
    for place in (0, len(frame) // 2, len(frame) - 1):
        assert inflate(zstd, frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]) is None


@any_backend
def test_bytes_after_a_frame_and_bytes_that_are_no_frame_are_errors(zstd: ModuleType) -> None:
    frame = zstd.Compressor().compress(b"content")
    for raw in (frame + frame, frame + b"\x00", b"", b"\x28", b"no frame", SKIPPABLE_FRAME + frame):
        assert not inflate(zstd, raw)


@any_backend
def test_a_window_above_the_limit_is_refused(zstd: ModuleType) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=24)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(b"small") + stream.flush()
    assert inflate(zstd, frame, 24) == b"small"
    assert inflate(zstd, frame, 23) is None


def test_the_daemon_uses_zstandard_where_it_has_packages() -> None:
    module = standard_library if sys.version_info >= (3, 15) else zstandard_package
    assert {chosen.Compressor.__module__, chosen.Decompressor.__module__} == {module.__name__}
