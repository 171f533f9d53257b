"""Rows that a schema change dropped are rebuilt from the stored blocks, without a node."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from tests.eventually import until
from tests.indexer.indexed import FAST, index_all, indexing, only, until_caught_up
from tests.indexer.replay import ReplayNode, recorded_chains, serving
from tests.indexer.rows import flip_stored_bytes, query, rows
from tests.indexer.test_index_failures import read_status
from warpseal.chains.p_blocks import parse_p_block
from warpseal.index import rebuild
from warpseal.index.database import index_url, writing_index
from warpseal.index.rebuild import RebuildProgress, RowRebuilder
from warpseal.index.schema import ALL_UNSPENT, create_row_tables
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain

BLOCKS = (
    "platform.getBlockByHeight",
    "avm.getBlockByHeight",
    "eth_getBlockByNumber",
    "index.getContainerRange",
)


def change_schema(folder: Path) -> None:
    """Drop and create the derived tables, as a new schema version does."""
    own = IndexSettings()
    engine = writing_index(index_url(own, folder), own)
    with engine.begin() as connection:
        create_row_tables(connection)
    engine.dispose()


@pytest.mark.parametrize("has_index", [True, False])
async def test_a_schema_change_rebuilds_the_rows_without_reading_a_block_again(
    tmp_path: Path, has_index: bool
) -> None:
    async with serving(ReplayNode(has_index=has_index)) as node:
        await index_all(tmp_path, node)
        before, raw_blocks = rows(tmp_path), query(tmp_path, "SELECT * FROM raw_blocks")
        change_schema(tmp_path)
        node.call_counts.clear()
        await index_all(tmp_path, node)
        assert [node.call_counts[method] for method in BLOCKS] == [0, 0, 0, 0]
    assert rows(tmp_path) == before
    assert query(tmp_path, "SELECT * FROM raw_blocks") == raw_blocks


async def test_an_interrupted_rebuild_continues_before_new_blocks_are_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ReplayNode(tips={"P": 12, "X": 7, "C": 5})
    async with serving(node):
        for height in range(1, 13):
            node.tips = {"P": height, "X": min(7, height), "C": min(5, height)}
            await index_all(tmp_path, node)
        change_schema(tmp_path)
        step = RowRebuilder.step

        def once(self: RowRebuilder, _seconds: float) -> RebuildProgress | None:
            monkeypatch.setattr(RowRebuilder, "step", fails)
            return step(self, 0.0)

        has_failed = threading.Event()

        def fails(self: RowRebuilder, _seconds: float) -> RebuildProgress | None:
            has_failed.set()
            raise KeyError("the process ends here")

        monkeypatch.setattr(RowRebuilder, "step", once)
        async with indexing(tmp_path, node):
            await until(has_failed.is_set)
        monkeypatch.setattr(RowRebuilder, "step", step)
        assert query(tmp_path, "SELECT max(height) FROM chains") < [(12,)]
        node.tips.clear()
        await index_all(tmp_path, node)
    whole = tmp_path / "whole"
    whole.mkdir()
    async with serving(ReplayNode()) as other:
        await index_all(whole, other)
    assert rows(tmp_path) == rows(whole)


async def test_a_block_without_derivable_rows_stops_the_rebuild_until_the_parser_supports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = only(PrimaryChain.P)
    async with serving(ReplayNode(has_index=False)) as node:
        await index_all(tmp_path, node, settings=settings)
        before = rows(tmp_path)
        change_schema(tmp_path)
        older = lambda raw: parse_p_block(raw[:-1])  # noqa: E731
        monkeypatch.setattr(rebuild, "parse_p_block", older)
        async with indexing(tmp_path, node, settings=settings) as indexer:
            await until(lambda: query(tmp_path, "SELECT 1 FROM chain_status") != [])
            status = read_status(tmp_path)
            assert (status.stopped, status.stopped_at) == ("contradiction", 1)
            monkeypatch.setattr(rebuild, "parse_p_block", parse_p_block)
            await until_caught_up(indexer)
            await until(lambda: read_status(tmp_path).stopped == "")
    assert rows(tmp_path) == before


@pytest.mark.parametrize("seed", range(5))
async def test_stored_blocks_with_flipped_bytes_are_reported_as_damage(
    tmp_path: Path, seed: int
) -> None:
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node)
        change_schema(tmp_path)
        flip_stored_bytes(tmp_path, Random(seed), share=0.001)
        async with indexing(tmp_path, node):
            await until(lambda: query(tmp_path, "SELECT 1 FROM chain_status WHERE chain = 0") != [])
            assert read_status(tmp_path).stopped == "index_damaged"


async def test_a_c_chain_block_that_repeats_imports_changes_no_balance(tmp_path: Path) -> None:
    recorded = recorded_chains()
    last = recorded.c[-1]
    imports = next(block for block in recorded.c if len(block["blockExtraData"]) > 2)
    number = len(recorded.c)
    again = {
        **last,
        "number": hex(number),
        "hash": "0x" + "77" * 32,
        "parentHash": last["hash"],
        "blockExtraData": imports["blockExtraData"],
    }
    node = ReplayNode(chains=dataclasses.replace(recorded, c=[*recorded.c, again]))
    network = lambda subject: replace(  # noqa: E731
        subject, params=replace(subject.params, repeated_c_blocks=frozenset([number]))
    )
    async with serving(node):
        async with indexing(tmp_path, node, settings=FAST, change=network) as indexer:
            await until_caught_up(indexer)
        assert (
            query(tmp_path, "SELECT * FROM txs WHERE height = ? AND key >= 2 << 40", number) == []
        )
        with sqlite3.connect(tmp_path / "index.db") as database:
            before = database.execute(
                f"SELECT count(*), sum(amount) FROM {ALL_UNSPENT} AS u"
            ).fetchall()
        change_schema(tmp_path)
        async with indexing(tmp_path, node, settings=FAST, change=network) as indexer:
            await until_caught_up(indexer)
    assert query(tmp_path, f"SELECT count(*), sum(amount) FROM {ALL_UNSPENT} AS u") == before
    assert query(tmp_path, "SELECT height FROM chains WHERE chain = 2") == [(number,)]
