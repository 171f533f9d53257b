"""The follower takes the blocks that the index has from there, and no node is asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from tests.eventually import until
from tests.indexer.indexed import index_all, indexing, only, until_caught_up, upstream_of
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import flip_stored_bytes
from tests.l1.follower.fixtures import FAST, MemoryStore, following, is_done
from tests.ledger.recorded import p_blocks
from warpseal.follow import index_source
from warpseal.follow.index_source import IndexedBlocks
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain
from warpseal.store.url import StoreUrl

RAW_BLOCKS = {block.height: block.raw for block in p_blocks()}
ONLY_P = only(PrimaryChain.P)


@contextmanager
def blocks_of(folder: Path) -> Iterator[IndexedBlocks]:
    with closing(IndexedBlocks(StoreUrl.for_file(folder / "index.db"), IndexSettings())) as blocks:
        yield blocks


@pytest.mark.parametrize("has_index_api", [False, True])
async def test_the_index_has_every_block_from_genesis_to_its_tip(
    tmp_path: Path, has_index_api: bool
) -> None:
    async with serving(ReplayNode(has_index=has_index_api)) as replay:
        await index_all(tmp_path, replay, settings=ONLY_P)
    with blocks_of(tmp_path) as blocks:
        blocks_read = await asyncio.gather(
            *(blocks.block_at(height) for height in range(19, 0, -1))
        )
    assert blocks_read == [RAW_BLOCKS[height] for height in range(19, 0, -1)]


async def test_a_block_above_the_index_is_found_once_it_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_source, "HEIGHT_CHECK_INTERVAL_S", 0.0)
    replay = ReplayNode(tips={"P": 10})
    with blocks_of(tmp_path) as blocks:
        async with serving(replay):
            await index_all(tmp_path, replay, settings=ONLY_P)
            assert [await blocks.block_at(height) for height in (10, 11)] == [RAW_BLOCKS[10], None]
            replay.tips.clear()
            await index_all(tmp_path, replay, settings=ONLY_P)
        assert await blocks.block_at(12) == RAW_BLOCKS[12]


async def test_the_index_is_not_read_again_at_once_for_missing_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_source, "HEIGHT_CHECK_INTERVAL_S", 3_600.0)
    async with serving(ReplayNode()) as replay:
        with blocks_of(tmp_path) as blocks:
            assert await blocks.block_at(7) is None
            await index_all(tmp_path, replay, settings=ONLY_P)
            assert await blocks.block_at(8) is None


async def test_blocks_below_the_beginning_of_the_index_are_not_found(tmp_path: Path) -> None:
    settings = replace(ONLY_P, first_heights={PrimaryChain.P: 10})
    async with serving(ReplayNode()) as replay:
        await index_all(tmp_path, replay, settings=settings)
    with blocks_of(tmp_path) as blocks:
        blocks_read = [await blocks.block_at(height) for height in (12, 11, 5)]
    assert blocks_read == [RAW_BLOCKS[12], RAW_BLOCKS[11], None]


@pytest.mark.parametrize("content", [None, b"", b"this is no database" * 1_000])
async def test_an_index_that_cannot_be_read_has_no_blocks(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "index.db").write_bytes(content)
    with blocks_of(tmp_path) as blocks:
        assert [await blocks.block_at(height) for height in (7, 6)] == [None, None]


@pytest.mark.parametrize("seed", range(8))
async def test_a_block_with_flipped_bytes_is_not_indexed_for_the_follower(
    tmp_path: Path, seed: int
) -> None:
    async with serving(ReplayNode()) as replay:
        await index_all(tmp_path, replay, settings=ONLY_P)
    flip_stored_bytes(tmp_path, Random(seed), share=0.02 if seed else 1.0)
    with blocks_of(tmp_path) as blocks:
        for height in range(19, 0, -1):
            assert await blocks.block_at(height) in (None, RAW_BLOCKS[height])


async def test_a_follower_reads_the_blocks_from_the_node_that_are_damaged_in_the_index(
    tmp_path: Path,
) -> None:
    replay = ReplayNode()
    async with serving(replay), upstream_of(replay) as upstream:
        await index_all(tmp_path, replay, settings=ONLY_P)
        flip_stored_bytes(tmp_path, Random(1), share=1.0)
        store, settings = MemoryStore(), replace(FAST, follow_from_height=1)
        with blocks_of(tmp_path) as indexed:
            async with following(upstream.blocks, store, settings, indexed=indexed) as follower:
                await until(lambda: is_done(follower.progress()))
    assert store.spans == [(1, replay.tip("P"))]


async def test_a_follower_behind_an_index_reads_everything_without_the_blocks_of_the_node(
    tmp_path: Path,
) -> None:
    replay = ReplayNode()
    async with serving(replay), upstream_of(replay) as upstream:
        async with indexing(tmp_path, replay, settings=ONLY_P) as indexer:
            await until_caught_up(indexer)
        replay.heights.clear()
        store, settings = MemoryStore(), replace(FAST, follow_from_height=1)
        with blocks_of(tmp_path) as indexed:
            async with following(upstream.blocks, store, settings, indexed=indexed) as follower:
                await until(lambda: is_done(follower.progress()))
    assert store.spans == [(1, replay.tip("P"))]
    assert not replay.heights


async def test_a_follower_reads_the_blocks_above_the_index_from_the_node(tmp_path: Path) -> None:
    replay = ReplayNode(tips={"P": 10})
    async with serving(replay), upstream_of(replay) as upstream:
        await index_all(tmp_path, replay, settings=ONLY_P)
        replay.heights.clear()
        replay.tips.clear()
        store, settings = MemoryStore(), replace(FAST, follow_from_height=1)
        with blocks_of(tmp_path) as indexed:
            async with following(upstream.blocks, store, settings, indexed=indexed) as follower:
                await until(lambda: is_done(follower.progress()))
    assert store.spans == [(1, replay.tip("P"))]
    assert {height for _, height in replay.heights} == set(range(11, replay.tip("P") + 1))
