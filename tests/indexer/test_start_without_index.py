"""A daemon that starts before its indexer has created the index logs no warning about that."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import until
from tests.indexer.indexed import index_all, only
from tests.indexer.replay import ReplayNode, serving
from warpseal.index.index import Index
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.resources.text import NetworkText
from warpseal.runtime.process import running
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import P_CHAIN


class CountingIndex(Index):
    """An index that counts its reads."""

    reads = 0

    async def refresh(self) -> None:
        self.reads += 1
        await super().refresh()


@asynccontextmanager
async def refreshed_index(file: Path) -> AsyncIterator[CountingIndex]:
    text, settings = NetworkText(0, PrimaryChains(P_CHAIN, P_CHAIN)), IndexSettings(refresh_s=0.01)
    index = CountingIndex(StoreUrl.for_file(file), text, settings)
    async with index, running(index.run()):
        yield index


@pytest.mark.parametrize("has_empty_file", [False, True])
async def test_a_missing_index_is_not_logged_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_empty_file: bool
) -> None:
    caplog.set_level(logging.INFO)
    if has_empty_file:
        (tmp_path / "index.db").touch()
    async with refreshed_index(tmp_path / "index.db") as index, serving(ReplayNode()) as node:
        await until(lambda: index.reads > 3)
        assert index.progress() == ()
        assert "index" not in caplog.text
        await index_all(tmp_path, node, settings=only(PrimaryChain.P))
        await until(lambda: [chain.height for chain in index.progress()] == [19])
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_damaged_index_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "index.db").write_bytes(b"this is no database" * 1_000)
    async with refreshed_index(tmp_path / "index.db") as index:
        await until(lambda: index.reads > 3)
    assert [record.message for record in caplog.records] == ["index is damaged"]
