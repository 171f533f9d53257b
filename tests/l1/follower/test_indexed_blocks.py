"""The follower takes from the index the blocks that it has, and all others from the node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.eventually import until
from tests.indexer.indexed import index_all, indexing, only, until_caught_up, upstream_of
from tests.indexer.replay import ReplayNode, serving
from tests.l1.follower.world import FAST, MemoryStore, following, is_done
from tests.ledger.recorded import p_blocks
from warpseal.history.chains import PrimaryChain
from warpseal.index.settings import IndexSettings
from warpseal.l1.follower import indexed_blocks
from warpseal.l1.follower.indexed_blocks import IndexFirstBlocks
from warpseal.node.info import Upgrades
from warpseal.store.url import StoreUrl

RAW_BLOCKS = {block.height: block.raw for block in p_blocks()}
ONLY_P = only(PrimaryChain.P)


@dataclass
class CountingNode:
    """A node that has every block. requested: the heights of the blocks that were read from it."""

    requested: list[int] = field(default_factory=list)
    at_once: int = 4
    per_s: int = 100

    async def tip(self) -> int:
        return max(RAW_BLOCKS)

    async def block_at(self, height: int) -> bytes:
        self.requested.append(height)
        return RAW_BLOCKS[height]

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        return (RAW_BLOCKS[height],)

    async def upgrades(self) -> Upgrades:
        return Upgrades({})


@contextmanager
def blocks_over(node: CountingNode, folder: Path) -> Iterator[IndexFirstBlocks]:
    url = StoreUrl.for_file(folder / "index.db")
    with closing(IndexFirstBlocks(node, url, IndexSettings())) as blocks:
        yield blocks


@pytest.mark.parametrize("has_index_api", [False, True])
async def test_indexed_blocks_are_not_read_from_the_node(tmp_path: Path, has_index_api: bool) -> None:
    async with serving(ReplayNode(has_index=has_index_api)) as replay:
        await index_all(tmp_path, replay, settings=ONLY_P)
    node = CountingNode()
    with blocks_over(node, tmp_path) as blocks:
        found = await asyncio.gather(*(blocks.block_at(height) for height in range(19, 0, -1)))
    assert found == [RAW_BLOCKS[height] for height in range(19, 0, -1)]
    assert node.requested == []


async def test_blocks_above_the_index_are_read_from_the_node_until_it_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_blocks, "HEIGHT_CHECK_INTERVAL_S", 0.0)
    replay, node = ReplayNode(tips={"P": 10}), CountingNode()
    with blocks_over(node, tmp_path) as blocks:
        async with serving(replay):
            await index_all(tmp_path, replay, settings=ONLY_P)
            assert [await blocks.block_at(height) for height in (10, 11)] == [RAW_BLOCKS[10], RAW_BLOCKS[11]]
            assert node.requested == [11]
            replay.tips.clear()
            await index_all(tmp_path, replay, settings=ONLY_P)
        assert await blocks.block_at(12) == RAW_BLOCKS[12]
    assert node.requested == [11]


async def test_the_index_is_not_read_again_at_once_for_missing_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_blocks, "HEIGHT_CHECK_INTERVAL_S", 3_600.0)
    node = CountingNode()
    async with serving(ReplayNode()) as replay:
        with blocks_over(node, tmp_path) as blocks:
            assert await blocks.block_at(7) == RAW_BLOCKS[7]
            await index_all(tmp_path, replay, settings=ONLY_P)
            assert await blocks.block_at(8) == RAW_BLOCKS[8]
    assert node.requested == [7, 8]


async def test_blocks_below_the_beginning_of_the_index_are_read_from_the_node(tmp_path: Path) -> None:
    settings = replace(ONLY_P, first_heights={PrimaryChain.P: 10})
    async with serving(ReplayNode()) as replay:
        await index_all(tmp_path, replay, settings=settings)
    node = CountingNode()
    with blocks_over(node, tmp_path) as blocks:
        found = [await blocks.block_at(height) for height in (12, 11, 5)]
    assert found == [RAW_BLOCKS[height] for height in (12, 11, 5)]
    assert node.requested == [5]


@pytest.mark.parametrize("content", [None, b"", b"this is no database" * 1_000])
async def test_the_node_is_asked_if_the_index_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "index.db").write_bytes(content)
    node = CountingNode()
    with blocks_over(node, tmp_path) as blocks:
        assert [await blocks.block_at(height) for height in (7, 6)] == [RAW_BLOCKS[7], RAW_BLOCKS[6]]
    assert node.requested == [7, 6]


async def test_a_follower_behind_an_index_reads_everything_without_the_blocks_of_the_node(tmp_path: Path) -> None:
    replay = ReplayNode()
    async with serving(replay), upstream_of(replay) as upstream:
        async with indexing(tmp_path, replay, settings=ONLY_P) as indexer:
            await until_caught_up(indexer)
        replay.heights.clear()
        found, settings = MemoryStore(), replace(FAST, follow_from_height=1)
        with closing(
            IndexFirstBlocks(upstream.blocks, StoreUrl.for_file(tmp_path / "index.db"), IndexSettings())
        ) as blocks:
            async with following(blocks, found, settings) as follower:
                await until(lambda: is_done(follower.status()))
    assert found.spans == [(1, replay.tip("P"))]
    assert not replay.heights
