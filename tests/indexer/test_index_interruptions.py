"""Interrupted indexing continues where it stopped, and its rows equal those of a single run."""

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

from tests.eventually import until
from tests.indexer.indexed import index_all, indexing, until_caught_up
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import rows
from warpseal.index.records import Record
from warpseal.index.writer import IndexWriter
from warpseal.indexer.indexer import Indexer
from warpseal.store.errors import StoreDown

TableRows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def single_run_rows() -> TableRows:
    """Return the rows of a single run over all blocks."""

    async def index() -> TableRows:
        with tempfile.TemporaryDirectory() as folder:
            async with serving(ReplayNode()) as node:
                await index_all(Path(folder), node)
            return rows(Path(folder))

    return asyncio.run(index())


HEIGHTS = st.tuples(st.integers(0, 19), st.integers(0, 13), st.integers(0, 10))


@given(st.lists(HEIGHTS, max_size=4), st.booleans())
@settings(max_examples=12)
def test_the_rows_do_not_depend_on_the_number_of_runs(
    single_run_rows: TableRows, stops: list[tuple[int, int, int]], has_index: bool
) -> None:
    async def index(folder: Path) -> None:
        node = ReplayNode(has_index=has_index)
        async with serving(node):
            for p, x, c in [*sorted(stops), (19, 13, 10)]:
                for chain, height in zip("PXC", (p, x, c), strict=True):
                    node.tips[chain] = max(height, node.tips.get(chain, 0))
                await index_all(folder, node)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(index(Path(folder)))
        assert without_proposers(rows(Path(folder))) == without_proposers(single_run_rows)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("failing", range(1, 6))
async def test_a_failed_write_is_repeated_without_loss(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    single_run_rows: TableRows,
    failing: int,
    is_committed: bool,
) -> None:
    writes, write = 0, IndexWriter.write

    def failing_write(
        index: IndexWriter, records: Sequence[Record], *args: Any, **kwargs: Any
    ) -> None:
        nonlocal writes
        writes += 1
        if writes != failing or is_committed:
            write(index, records, *args, **kwargs)
        if writes == failing:
            raise StoreDown("a failed write")

    monkeypatch.setattr(IndexWriter, "write", failing_write)
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node)
    assert rows(tmp_path) == single_run_rows
    assert writes >= failing


async def test_new_blocks_are_indexed_while_the_indexer_runs(
    tmp_path: Path, single_run_rows: TableRows
) -> None:
    node = ReplayNode(tips={"P": 3, "X": 2, "C": 1})
    async with serving(node), indexing(tmp_path, node) as indexer:
        await until_caught_up(indexer)
        for more in range(1, 17):
            node.tips = {"P": min(19, 3 + more), "X": min(13, 2 + more), "C": min(10, 1 + more)}
            await until(lambda: written_heights(indexer) == list(node.tips.values()))
    assert node.tips == {"P": 19, "X": 13, "C": 10}
    assert rows(tmp_path) == single_run_rows


async def test_requests_that_got_429_are_repeated(
    tmp_path: Path, single_run_rows: TableRows
) -> None:
    node = ReplayNode(has_index=False)
    async with serving(node), indexing(tmp_path, node) as indexer:
        for _ in range(5):
            node.busy = 3
            await until(lambda: not node.busy)
        await until_caught_up(indexer)
    assert without_proposers(rows(tmp_path)) == without_proposers(single_run_rows)


async def test_the_indexer_waits_for_a_node_that_restarts(
    tmp_path: Path, single_run_rows: TableRows
) -> None:
    node = ReplayNode(tips={"P": 5, "X": 5, "C": 5})
    async with AsyncExitStack() as stack:
        async with serving(node):
            indexer = await stack.enter_async_context(indexing(tmp_path, node))
            await until_caught_up(indexer)
        await until(
            lambda: all(
                chain.as_fields()["waiting_for"] == "nodes" for chain in indexer.chains.values()
            )
        )
        node.tips.clear()
        await stack.enter_async_context(serving(node))
        await until(lambda: written_heights(indexer) == [19, 13, 10])
    assert rows(tmp_path) == single_run_rows


def written_heights(indexer: Indexer) -> list[int | None]:
    """Return the written height of each chain."""
    return [chain.height for chain in indexer.chains.values()]


def without_proposers(tables: TableRows) -> TableRows:
    """Return rows without the proposers, which only containers have."""
    return {**tables, "blocks": [row[:-1] for row in tables["blocks"]]}
