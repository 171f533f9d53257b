"""A file of waiting blocks that cannot be read, written or believed costs reading blocks twice, and nothing else."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.indexer.indexed import index_all
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import query, rows
from tests.l1.follower.long_chain import ONLY_P, follow_all, long_chains
from tests.l1.follower.world import MemoryIndex
from warpseal.chains.p_blocks import Block, parse_p_block
from warpseal.indexer.proposervm_blocks import RawBlock
from warpseal.indexer.waiting_file import WAITING_NAME, WaitingFile, waiting_between

CHAINS = long_chains(280)
TIP = len(CHAINS.p) - 1


def node_of(*, has_index: bool) -> ReplayNode:
    return ReplayNode(chains=CHAINS, has_index=has_index)


def waiting(folder: Path) -> dict[int, RawBlock]:
    """Return what waits in a folder."""
    return waiting_between(folder / WAITING_NAME, 0, TIP).found


def nonsense(file: Path) -> None:
    file.write_bytes(b"nonsense " * 5_000)


def cut(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def of_another_version(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 99")
        database.execute("DROP TABLE groups")


def without_table(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE groups")


def of_random_rows(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("UPDATE groups SET body = randomblob(400)")
        database.execute("UPDATE groups SET body = 'text' WHERE number % 3 = 1")


def of_other_heights(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("UPDATE groups SET body = (SELECT body FROM groups WHERE number = 3) WHERE number <> 3")


def of_garbage(file: Path) -> None:
    waiting_file = WaitingFile(file)
    waiting_file.put({height: RawBlock(os.urandom(300), height % 2 == 0) for height in range(0, TIP, 3)})
    waiting_file.close()


def of_some_garbage(file: Path) -> None:
    """What is held against the node's is right."""
    waiting_file = WaitingFile(file)
    waiting_file.put({height: RawBlock(CHAINS.p[height], False) for height in range(TIP + 1)})
    waiting_file.put({height: RawBlock(os.urandom(300), height % 2 == 0) for height in range(10, TIP, 10)})
    waiting_file.close()


def that_contradicts(file: Path) -> None:
    """A block that spends again what another one did, and is the next one by height and parent."""
    seventh, sixth = parse_p_block(CHAINS.p[7]), parse_p_block(CHAINS.p[6])
    twice = Block.build(seventh.kind, seventh.parent_id, 7, seventh.time, sixth.txs)
    waiting_file = WaitingFile(file)
    waiting_file.put({7: RawBlock(twice.raw, False)})
    waiting_file.close()


OF_THE_FILE = [nonsense, cut, of_another_version, without_table, of_random_rows, of_garbage]


@pytest.mark.parametrize("spoil", [*OF_THE_FILE, of_other_heights, of_some_garbage, that_contradicts])
async def test_a_bad_file_stops_neither_the_index_nor_the_follower(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    async with serving(node_of(has_index=True)) as node:
        node.tips["P"] = 250
        await follow_all(tmp_path, node)
        spoil(tmp_path / WAITING_NAME)
        node.tips.clear()
        folder = tmp_path / "good"
        folder.mkdir()
        await index_all(folder, node, settings=ONLY_P)
        await index_all(tmp_path, node, settings=ONLY_P)
        assert [row[:8] for row in rows(tmp_path)["blocks"]] == [row[:8] for row in rows(folder)["blocks"]]
        assert (await follow_all(tmp_path, node)).spans == [(1, TIP)]


@pytest.mark.parametrize("spoil", OF_THE_FILE)
async def test_a_follower_goes_on_over_a_bad_file_and_begins_it_anew(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    async with serving(node_of(has_index=False)) as node:
        node.tips["P"] = 100
        await follow_all(tmp_path, node)
        spoil(tmp_path / WAITING_NAME)
        node.tips.clear()
        assert (await follow_all(tmp_path, node)).spans == [(1, TIP)]
        assert {height for height in range(101, TIP + 1) if height % 3} <= set(waiting(tmp_path))
        await index_all(tmp_path, node, settings=ONLY_P)
        assert query(tmp_path, "SELECT height FROM chains") == [(TIP,)]


@pytest.mark.parametrize("has_index", [False, True])
async def test_what_waits_of_a_network_that_was_made_anew_is_not_believed(tmp_path: Path, has_index: bool) -> None:
    async with serving(node_of(has_index=has_index)) as node:
        await follow_all(tmp_path, node)
    anew = ReplayNode(chains=long_chains(230, pace_s=2), has_index=has_index)
    assert anew.chains.p[19] == CHAINS.p[19]
    assert anew.chains.p[25] != CHAINS.p[25]
    tip = anew.tip("P")
    index = MemoryIndex()
    async with serving(anew):
        await follow_all(tmp_path, anew, index=index)
        await index_all(tmp_path, anew, settings=ONLY_P)
    found = query(tmp_path, "SELECT block_id FROM blocks WHERE chain = 0 AND key > 0 ORDER BY key")
    assert found == [(sha256(raw).digest(),) for raw in anew.chains.p[1:]]
    (known,) = index.known
    assert (known.low, known.high, known.high_block_id) == (1, tip, found[-1][0])


async def test_a_file_of_another_network_is_not_believed_without_a_follower(tmp_path: Path) -> None:
    async with serving(node_of(has_index=False)) as node:
        await follow_all(tmp_path, node)
    anew = ReplayNode(chains=long_chains(230, pace_s=2), has_index=False)
    async with serving(anew):
        await index_all(tmp_path, anew, settings=ONLY_P)
    found = query(tmp_path, "SELECT block_id FROM blocks WHERE chain = 0 AND key > 0 ORDER BY key")
    assert found == [(sha256(raw).digest(),) for raw in anew.chains.p[1:]]


async def test_a_file_that_cannot_be_written_costs_reading_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / WAITING_NAME).mkdir()
    async with serving(node_of(has_index=True)) as node:
        assert (await follow_all(tmp_path, node)).spans == [(1, TIP)]
        await index_all(tmp_path, node, settings=ONLY_P)
        # Whether the newest one is still there is looked at once more.
        assert max(count for (_, height), count in node.heights.items() if height < TIP) == 2
    assert query(tmp_path, "SELECT height FROM chains") == [(TIP,)]
    told = [record.getMessage() for record in caplog.records if "wait for the index" in record.getMessage()]
    assert told == ["blocks cannot wait for the index: they are read twice"]


async def test_a_full_disk_costs_reading_twice(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with serving(node_of(has_index=False)) as node:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, before[1]))
        try:
            assert (await follow_all(tmp_path, node)).spans == [(1, TIP)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await index_all(tmp_path, node, settings=ONLY_P)
    assert query(tmp_path, "SELECT height FROM chains") == [(TIP,)]
