"""The follower reads from the index what is there, and from the node what is not; it never waits long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.indexer.indexed import index_all, only
from tests.indexer.replay import ReplayNode, serving
from tests.ledger.recorded import p_blocks
from warpseal.errors import StoreDown
from warpseal.history.chains import PrimaryChain
from warpseal.index.settings import IndexSettings
from warpseal.indexer import shared_blocks
from warpseal.indexer.shared_blocks import IndexedBlocks, SharedBlocks
from warpseal.node.upgrades import Upgrades
from warpseal.store.url import StoreUrl

RAWS = {block.height: block.raw for block in p_blocks()}


@dataclass
class Nodes:
    """Nodes that have everything; asked: for which heights."""

    asked: list[int] = field(default_factory=list)
    at_once: int = 4
    per_s: int = 100

    async def tip(self) -> int:
        return 19

    async def block_at(self, height: int) -> bytes:
        self.asked.append(height)
        return RAWS[height]

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        return (RAWS[height],)

    async def upgrades(self) -> Upgrades:
        return Upgrades({})


@dataclass
class Indexed:
    """An index that is that far."""

    top: int | None
    is_down: bool = False

    async def height(self) -> int | None:
        if self.is_down:
            raise StoreDown("no")
        return self.top

    async def read(self, first: int, last: int) -> tuple[bytes, ...]:
        assert self.top is not None
        return tuple(RAWS[height] for height in range(first, min(last, self.top) + 1))


async def test_blocks_that_are_indexed_are_not_asked_of_the_node(tmp_path: Path) -> None:
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node, settings=only(PrimaryChain.P))
    nodes = Nodes()
    indexed = IndexedBlocks(StoreUrl.of_file(tmp_path / "index.db"), IndexSettings())
    blocks = SharedBlocks(nodes, indexed)
    found = await asyncio.gather(*(blocks.block_at(height) for height in range(19, 0, -1)))
    indexed.close()
    assert found == [RAWS[height] for height in range(19, 0, -1)]
    assert nodes.asked == []


async def test_a_block_that_is_about_to_be_indexed_is_awaited() -> None:
    nodes, indexed = Nodes(), Indexed(18)
    blocks = SharedBlocks(nodes, indexed)
    asking = asyncio.create_task(blocks.block_at(19))
    await asyncio.sleep(0.02)
    indexed.top = 19
    assert await asking == RAWS[19]
    assert nodes.asked == []


async def test_an_index_that_let_the_follower_wait_is_not_awaited_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_blocks, "AWAITED_S", 0.05)
    nodes, indexed = Nodes(), Indexed(10)
    blocks = SharedBlocks(nodes, indexed)
    assert await blocks.block_at(11) == RAWS[11]
    monkeypatch.setattr(shared_blocks, "AWAITED_S", 60.0)
    async with asyncio.timeout(5):
        assert [await blocks.block_at(height) for height in (12, 13)] == [RAWS[12], RAWS[13]]
    assert nodes.asked == [11, 12, 13]
    indexed.top = 14
    assert await blocks.block_at(14) == RAWS[14]
    assert nodes.asked == [11, 12, 13]


@pytest.mark.parametrize("indexed", [Indexed(None), Indexed(5, is_down=True)])
async def test_without_an_index_that_answers_the_node_is_asked_at_once(indexed: Indexed) -> None:
    nodes = Nodes()
    async with asyncio.timeout(2):
        assert await SharedBlocks(nodes, indexed).block_at(7) == RAWS[7]
    assert nodes.asked == [7]
