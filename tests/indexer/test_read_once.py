"""Follower and index over one node: whoever comes first to a block, and however, it is read from the node once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.eventually import until
from tests.indexer.indexed import caught_up, index_all, indexing_of
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import query, rows
from tests.l1.follower.long_chain import ONLY_P, asked_twice, follow_all, followed, long_chains, shared
from tests.l1.follower.world import is_done
from warpseal.history.chains import PrimaryChain
from warpseal.indexer import meeting, shared_blocks, waiting_blocks
from warpseal.indexer.proposervm_blocks import RawBlock
from warpseal.indexer.waiting_file import WAITING_NAME, waiting_between

CHAINS = long_chains(280)
TIP = len(CHAINS.p) - 1


def node_of(*, has_index: bool) -> ReplayNode:
    return ReplayNode(chains=CHAINS, has_index=has_index)


def waiting(folder: Path) -> dict[int, RawBlock]:
    """Return what waits in a folder."""
    return waiting_between(folder / WAITING_NAME, 0, TIP).found


def proposers(folder: Path) -> list[tuple[int]]:
    return query(folder, "SELECT count(*) FROM blocks WHERE proposer IS NOT NULL AND chain = 0")


def copy_of(folder: Path) -> Path:
    """Return a folder with the file as it is now."""
    copy = folder / "copy"
    copy.mkdir()
    for file in folder.glob(WAITING_NAME + "*"):
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.mark.parametrize("has_index", [False, True])
async def test_what_the_follower_read_first_is_not_read_again(tmp_path: Path, has_index: bool) -> None:
    async with serving(node_of(has_index=has_index)) as node:
        found = await follow_all(tmp_path, node)
        assert found.spans == [(1, TIP)]
        assert sorted(waiting(tmp_path)) == list(range(1, TIP + 1))
        assert asked_twice(node) == {0: 0}
        await index_all(tmp_path, node, settings=ONLY_P)
        # One that waits is held against the node's.
        assert list(asked_twice(node).values()) == [2]
        # Block 0 is in no container.
        assert proposers(tmp_path) == [(TIP if has_index else 0,)]
        if has_index:
            assert node.asked["index.getContainerRange"] <= 3 + TIP // 32


@pytest.mark.parametrize("has_index", [False, True])
async def test_what_the_index_read_first_is_not_read_again(tmp_path: Path, has_index: bool) -> None:
    async with serving(node_of(has_index=has_index)) as node:
        await index_all(tmp_path, node, settings=ONLY_P)
        await follow_all(tmp_path, node)
        assert asked_twice(node) == {}
        assert waiting(tmp_path) == {}


async def test_rows_are_the_same_whether_blocks_waited_or_not(tmp_path: Path) -> None:
    for has_index in (False, True):
        folders = [tmp_path / f"{has_index}-{name}" for name in ("waited", "read")]
        async with serving(node_of(has_index=has_index)) as node:
            for folder in folders:
                folder.mkdir()
            await follow_all(folders[0], node)
            for folder in folders:
                await index_all(folder, node, settings=ONLY_P)
        assert rows(folders[0]) == rows(folders[1])


async def test_only_what_does_not_wait_is_asked_of_the_node(tmp_path: Path) -> None:
    async with serving(node_of(has_index=True)) as node:
        async with shared(tmp_path, node) as blocks:
            for height in (40, 41, 200):
                await blocks.block_at(height)
        # From the first of the 32 of its row on.
        assert sorted(waiting(tmp_path)) == [*range(32, 42), *range(192, 201)]
        await index_all(tmp_path, node, settings=ONLY_P)
        # Which one is held against the node's is chance: spans are looked up side by side.
        assert list(asked_twice(node).values()) == [2]


async def test_the_file_is_small_once_the_index_has_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_blocks, "FORGOTTEN_EVERY_S", 0.02)
    monkeypatch.setattr(shared_blocks, "LOOKED_UP_EVERY_S", 0.02)
    async with serving(node_of(has_index=True)) as node, followed(tmp_path, node) as follower:
        await until(lambda: is_done(follower.status()))
        await until(lambda: len(waiting(tmp_path)) == TIP)
        await index_all(tmp_path, node, settings=ONLY_P)
        # What is left of the last row goes with the next blocks.
        await until(lambda: len(waiting(tmp_path)) <= 32)
        await until(lambda: (tmp_path / WAITING_NAME).stat().st_size <= 64 * 1024)
        assert list(asked_twice(node).values()) == [2]


async def test_new_blocks_are_read_once_while_both_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of(has_index=False)
    node.tips["P"] = 200
    async with serving(node), followed(tmp_path, node) as follower:
        await until(lambda: len(waiting(tmp_path)) == 200)
        async with indexing_of(tmp_path, node, settings=ONLY_P) as indexing:
            await caught_up(indexing)
            for tip in range(201, 241):
                node.tips["P"] = tip
                async with asyncio.timeout(20):
                    while follower.status().height != tip or indexing.chains[PrimaryChain.P].height != tip:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
        # Nobody indexes, for now.
        monkeypatch.setattr(shared_blocks, "AWAITED_S", 0.3)
        node.tips.clear()
        await until(lambda: set(waiting(tmp_path)) >= set(range(241, TIP + 1)))
        await index_all(tmp_path, node, settings=ONLY_P)
    # Each of the two who indexed held one against the node's.
    assert list(asked_twice(node).values()) == [2, 2]


@pytest.mark.parametrize("has_index", [False, True])
async def test_a_restart_half_way_keeps_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_index: bool
) -> None:
    monkeypatch.setattr(shared_blocks, "AWAITED_S", 0.3)
    async with serving(node_of(has_index=has_index)) as node:
        node.tips["P"] = 150
        known = await follow_all(tmp_path, node)
        async with indexing_of(tmp_path, node, settings=ONLY_P) as indexing:
            await until(lambda: (indexing.chains[PrimaryChain.P].height or 0) > 20)
        node.tips.clear()
        await follow_all(tmp_path, node, index=known)
        await index_all(tmp_path, node, settings=ONLY_P)
        # Whoever starts makes sure of the network by one block: follower, index, and index.
        assert list(asked_twice(node).values()) in ([2, 2], [2, 2, 2])


async def test_without_an_end_no_more_than_a_batch_is_lost(tmp_path: Path) -> None:
    async with serving(node_of(has_index=False)) as node:
        async with shared(tmp_path, node) as blocks:
            for height in range(TIP, 100, -1):
                await blocks.block_at(height)
            # As if this process were killed now: what is in the file is all there is.
            killed = copy_of(tmp_path)
        assert len(waiting(killed)) >= TIP - 100 - 3 * 64
        await index_all(killed, node, settings=ONLY_P)
        assert sum(asked_twice(node).values()) <= 2 * 3 * 64
        assert max(node.heights.values()) <= 2


async def test_where_both_meet_hardly_anything_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "NEAR_BLOCKS", 200)
    node = ReplayNode(chains=long_chains(3_000), has_index=False)
    async with serving(node), followed(tmp_path, node) as follower:
        await until(lambda: follower.status().blocks_read > 100)
        async with indexing_of(tmp_path, node, settings=ONLY_P) as indexing:
            await caught_up(indexing)
            await until(lambda: is_done(follower.status()))
    twice = asked_twice(node)
    assert max(twice.values(), default=2) <= 3
    # What the follower has in flight, and the index.
    assert len(twice) <= 2 * 256


async def test_an_index_that_stands_still_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_blocks, "AWAITED_S", 0.3)
    async with serving(node_of(has_index=False)) as node:
        node.tips["P"] = 100
        await index_all(tmp_path, node, settings=ONLY_P)
        node.tips.clear()
        async with asyncio.timeout(10):
            assert (await follow_all(tmp_path, node)).spans == [(1, TIP)]
        assert asked_twice(node) == {}
