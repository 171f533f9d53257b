"""However indexing is interrupted, it goes on where it was, and what it ends with is the same."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.indexer.indexed import index_all, indexing, until_caught_up
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import rows
from warpseal.errors import StoreDown
from warpseal.index.records import Record
from warpseal.index.writer import IndexWriter
from warpseal.indexer.indexer import Indexer

Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def at_once() -> Rows:
    """What one run over everything writes."""

    async def index() -> Rows:
        with tempfile.TemporaryDirectory() as folder:
            async with serving(ReplayNode()) as node:
                await index_all(Path(folder), node)
            return rows(Path(folder))

    return asyncio.run(index())


HEIGHTS = st.tuples(st.integers(0, 19), st.integers(0, 13), st.integers(0, 10))


@given(st.lists(HEIGHTS, max_size=4), st.booleans())
@settings(max_examples=12)
def test_any_split_into_runs_writes_the_same(at_once: Rows, stops: list[tuple[int, int, int]], has_index: bool) -> None:
    async def index(folder: Path) -> None:
        node = ReplayNode(has_index=has_index)
        async with serving(node):
            for p, x, c in [*sorted(stops), (19, 13, 10)]:
                for chain, height in zip("PXC", (p, x, c), strict=True):
                    node.tips[chain] = max(height, node.tips.get(chain, 0))
                await index_all(folder, node)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(index(Path(folder)))
        assert without_proposers(rows(Path(folder))) == without_proposers(at_once)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("failing", range(1, 6))
async def test_a_write_that_fails_at_any_point_repeats_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: Rows, failing: int, is_committed: bool
) -> None:
    written, write = 0, IndexWriter.write

    def failing_write(index: IndexWriter, records: Sequence[Record], *args: Any, **kwargs: Any) -> None:
        nonlocal written
        written += 1
        if written != failing or is_committed:
            write(index, records, *args, **kwargs)
        if written == failing:
            raise StoreDown("the machine is not well")

    monkeypatch.setattr(IndexWriter, "write", failing_write)
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node)
    assert rows(tmp_path) == at_once
    assert written >= failing


async def test_blocks_that_come_while_it_runs_are_followed(tmp_path: Path, at_once: Rows) -> None:
    node = ReplayNode(tips={"P": 3, "X": 2, "C": 1})
    async with serving(node), indexing(tmp_path, node) as indexer:
        await until_caught_up(indexer)
        for _ in range(17):
            for chain in "PXC":
                node.tips[chain] += 1
            node.tips = {"P": min(19, node.tips["P"]), "X": min(13, node.tips["X"]), "C": min(10, node.tips["C"])}
            await asyncio.sleep(0.01)
        await heights_of(indexer, [19, 13, 10])
    assert rows(tmp_path) == at_once


async def test_a_node_that_says_429_is_asked_again(tmp_path: Path, at_once: Rows) -> None:
    node = ReplayNode(has_index=False)
    async with serving(node), indexing(tmp_path, node) as indexer:
        for _ in range(5):
            node.busy = 3
            await asyncio.sleep(0.01)
        await until_caught_up(indexer)
    assert without_proposers(rows(tmp_path)) == without_proposers(at_once)


async def test_a_node_that_restarts_is_waited_for(tmp_path: Path, at_once: Rows) -> None:
    node = ReplayNode(tips={"P": 5, "X": 5, "C": 5})
    async with AsyncExitStack() as stack:
        async with serving(node):
            indexer = await stack.enter_async_context(indexing(tmp_path, node))
            await until_caught_up(indexer)
        await asyncio.sleep(0.1)
        node.tips.clear()
        await stack.enter_async_context(serving(node))
        await heights_of(indexer, [19, 13, 10])
    assert rows(tmp_path) == at_once


async def heights_of(indexer: Indexer, wanted: list[int]) -> None:
    """Wait until so much is written."""
    async with asyncio.timeout(10):
        while [chain.height for chain in indexer.chains.values()] != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def without_proposers(found: Rows) -> Rows:
    """Return rows without what only containers tell."""
    return {**found, "blocks": [row[:-1] for row in found["blocks"]]}
