"""Profiles are what pprof reads: by the definitions of the format, and by what Go's tool read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import paths
from tests.ops.profiles.read_profile import read_profile
from warpseal.ops.profiles.pprof import ProfileContents, encode
from warpseal.ops.profiles.stacks import Frame, StackTotal

FRAMES = st.builds(
    Frame,
    st.text(max_size=5),
    st.sampled_from(["", "a.py", "b.py"]),
    st.integers(0, 99),
    st.just(1),
)
TOTALS = st.lists(
    st.builds(
        StackTotal,
        st.lists(FRAMES, max_size=5).map(tuple),
        st.integers(0, 2**40),
        st.integers(0, 2**62),
    ),
    max_size=8,
)
INNER, OUTER = Frame("Codec.decode", "codec.py", 12, 10), Frame("main", "main.py", 3, 1)


def contents(totals: list[StackTotal]) -> ProfileContents:
    return ProfileContents(
        "samples", "cpu", "nanoseconds", totals, 1_700_000_000 * 10**9, 10**10, 10**7
    )


@given(TOTALS)
def test_stacks_survive_encoding_and_decoding(
    tmp_path_factory: pytest.TempPathFactory, totals: list[StackTotal]
) -> None:
    file = tmp_path_factory.mktemp("profile") / "cpu.profile"
    file.write_bytes(encode(contents(totals)))
    read = read_profile(file)
    assert read.units == (("samples", "count"), ("cpu", "nanoseconds"))
    assert [
        (sample.functions, sample.files, sample.lines, sample.count, sample.amount)
        for sample in read.samples
    ] == [
        (
            tuple(frame.function for frame in total.stack),
            tuple(frame.file for frame in total.stack),
            tuple(frame.line for frame in total.stack),
            total.count,
            total.amount,
        )
        for total in totals
    ]


def test_a_profile_stores_each_text_function_and_location_once(tmp_path: Path) -> None:
    file = tmp_path / "cpu.profile"
    elsewhere = Frame("Codec.decode", "codec.py", 14, 10)
    totals = [StackTotal((INNER, OUTER), 1, 5), StackTotal((elsewhere, OUTER), 1, 5)]
    file.write_bytes(encode(contents(totals)))
    raw = read_profile(file).raw
    assert (len(raw.function), len(raw.location)) == (2, 3)
    assert len(set(raw.string_table)) == len(raw.string_table)


@pytest.mark.parametrize(
    ("file", "totals"),
    [
        (
            "two_stacks.profile",
            [StackTotal((INNER, OUTER), 3, 30_000_000), StackTotal((OUTER,), 1, 10_000_000)],
        ),
        ("empty.profile", []),
    ],
)
def test_profiles_are_those_that_go_tool_pprof_read(file: str, totals: list[StackTotal]) -> None:
    read_by_go = gzip.decompress((paths.VECTORS / "pprof" / file).read_bytes())
    assert gzip.decompress(encode(contents(totals))) == read_by_go
