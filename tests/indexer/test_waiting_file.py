"""The file of waiting blocks: what is put is found by whoever else reads, until it is forgotten."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpseal.errors import StoreDown
from warpseal.indexer import waiting_file
from warpseal.indexer.proposervm_blocks import RawBlock
from warpseal.indexer.waiting_file import (
    FORGOTTEN_AT_ONCE,
    GROUP_BLOCKS,
    WAITING_NAME,
    Waiting,
    WaitingFile,
    waiting_between,
)

HEIGHTS = st.integers(0, 5 * GROUP_BLOCKS)
BLOCKS = st.dictionaries(HEIGHTS, st.builds(RawBlock, st.binary(max_size=20), st.booleans()), max_size=12)
STEPS = st.lists(st.one_of(BLOCKS, HEIGHTS.map(lambda height: ("out", height)), HEIGHTS), max_size=12)


@settings(max_examples=40, deadline=None)
@given(STEPS, HEIGHTS, HEIGHTS)
def test_it_holds_what_was_put_and_not_taken_out_or_passed(
    steps: list[dict[int, RawBlock] | tuple[str, int] | int], first: int, last: int
) -> None:
    model: dict[int, RawBlock] = {}
    with TemporaryDirectory() as folder, closing(WaitingFile(Path(folder) / WAITING_NAME)) as file:
        for step in steps:
            if isinstance(step, dict):
                file.put(step)
                model |= step
            elif isinstance(step, tuple):
                file.take_out(step[1])
                model.pop(step[1], None)
            else:
                file.forget(step)
                # By the row.
                below = (step + 1) // GROUP_BLOCKS * GROUP_BLOCKS
                model = {height: block for height, block in model.items() if height >= below}
        found = waiting_between(Path(folder) / WAITING_NAME, first, last).found
        assert found == {height: block for height, block in model.items() if first <= height <= last}


def test_it_tells_where_those_begin_that_lie_behind(tmp_path: Path) -> None:
    path = tmp_path / WAITING_NAME
    assert waiting_between(path, 0, 10) == Waiting()
    with closing(WaitingFile(path)) as file:
        file.put({GROUP_BLOCKS * 9 + 4: RawBlock(b"x", False)})
        assert waiting_between(path, 0, 10) == Waiting({}, GROUP_BLOCKS * 9)
        assert waiting_between(path, 0, GROUP_BLOCKS * 9).next_height is None


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    with closing(WaitingFile(tmp_path / WAITING_NAME)) as file:
        file.put({1: RawBlock(b"x", False)})
        assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}


def test_it_gives_room_back(tmp_path: Path) -> None:
    rows = FORGOTTEN_AT_ONCE + 20
    with closing(WaitingFile(tmp_path / WAITING_NAME)) as file:
        for number in range(rows, 0, -1):
            file.put({number * GROUP_BLOCKS: RawBlock(os.urandom(6_000), False)})
        file.shrink()
        full = (tmp_path / WAITING_NAME).stat().st_size
        assert file.forget(10 * GROUP_BLOCKS - 1) == 9
        assert [file.forget(rows * GROUP_BLOCKS * 2) for _ in range(2)] == [
            FORGOTTEN_AT_ONCE,
            rows - 9 - FORGOTTEN_AT_ONCE,
        ]
        file.shrink()
        assert file.is_empty()
        assert full > 1_500_000
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 100_000


def test_it_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_file, "_LEFT_FREE_BYTES", 2**62)
    with closing(WaitingFile(tmp_path / WAITING_NAME)) as file:
        with pytest.raises(StoreDown, match="the disk is almost full"):
            file.put({1: RawBlock(b"x", False)})
        assert file.group(0) == {}


def test_no_more_is_read_at_once_than_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_file, "_MOST_READ_BYTES", 1_000)
    with closing(WaitingFile(tmp_path / WAITING_NAME)) as file:
        file.put({height: RawBlock(bytes(100), False) for height in range(3 * GROUP_BLOCKS)})
        assert list(waiting_between(tmp_path / WAITING_NAME, 0, 99).found) == list(range(10))
        monkeypatch.setattr(waiting_file, "_MOST_GROUP_BYTES", 1_000)
        assert waiting_between(tmp_path / WAITING_NAME, 0, 99).found == {}


def test_a_file_where_none_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / WAITING_NAME, tmp_path):
        with closing(WaitingFile(path)) as file, pytest.raises(StoreDown):
            file.put({1: RawBlock(b"x", False)})
        assert waiting_between(path, 0, 10) == Waiting()
