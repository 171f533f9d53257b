"""Damaged pages and rows end a read with a typed error, and one bad row does not take the index out
of service.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.index.fixtures import (
    all_pages,
    network_text,
    open_index,
    open_writer,
    recorded_history,
    write_all,
)
from tests.index.flipped import RESULT, TYPED, copy_file, ends_of, flip_bytes, merge_log
from tests.ledger.recorded import params
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.database import reading_index
from warpseal.index.errors import IndexDamaged
from warpseal.index.index import Index
from warpseal.index.l1_validators import L1ValidatorQuery, l1_validators
from warpseal.index.raw_blocks import read_segments
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import BlockQuery, PageRequest, RewardQuery, TransactionQuery
from warpseal.store.access import open_read_only
from warpseal.store.engine import open_file
from warpseal.store.errors import StoreUnusable
from warpseal.store.url import StoreUrl

# Without a translation of errors of rows, or of the schema, each of these ends a read or the
# indexer with a trace.
SEEDS = (5, 43, 50, 54, 59, 94, 216, 256)


@pytest.fixture(scope="module")
def index_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an index of the recorded network without its last blocks."""
    path = tmp_path_factory.mktemp("index") / "index.db"
    write_all(f"sqlite:///{path}", params(), recorded_history()[:-5])
    merge_log(path)
    return path


def reads(index: Index) -> Iterator[Awaitable[Any]]:
    """Yield every kind of read."""
    for chain in PrimaryChain:
        yield all_pages(index.transactions, TransactionQuery(chain), 10)
        yield all_pages(index.blocks, BlockQuery(chain), 10)
    yield all_pages(index.rewards, RewardQuery(), 100)
    yield index.blockchain(params().x_chain_id)
    criteria, text = L1ValidatorQuery(has_inactive=True), network_text(params())
    yield index.page(
        "l1_validators", lambda session: l1_validators(session, text, criteria, PageRequest(100))
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_flipped_bytes_end_in_results_or_typed_errors(
    tmp_path: Path, index_file: Path, seed: int
) -> None:
    flip_bytes(index_file, tmp_path / "index.db", seed)
    url = f"sqlite:///{tmp_path}/index.db"
    async with open_index(url, params()) as index:
        assert await ends_of(reads(index)) <= {RESULT, "StoreDown", "IndexDamaged"}
    try:
        with open_writer(url, params()) as writer:
            writer.write(recorded_history()[-5:])
    except (*TYPED, OutOfOrder):
        pass


async def test_a_missing_row_fails_only_the_requests_that_need_it(
    tmp_path: Path, index_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "index.db"
    copy_file(index_file, copy)
    with sqlite3.connect(copy) as database:
        database.execute("DELETE FROM ids WHERE key IN (SELECT owner FROM outputs)")
    async with open_index(f"sqlite:///{copy}", params()) as index:
        for _ in range(3):
            with pytest.raises(IndexDamaged, match="rows contradict each other"):
                await all_pages(index.transactions, TransactionQuery(PrimaryChain.X), 10)
        assert index.damage() is None
        assert await all_pages(index.blocks, BlockQuery(PrimaryChain.X), 10)
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "rows of the index contradict each other"


async def test_a_schema_that_is_not_utf_8_is_damage(tmp_path: Path, index_file: Path) -> None:
    copy = tmp_path / "index.db"
    copy_file(index_file, copy)
    with sqlite3.connect(copy) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute(
            "UPDATE sqlite_master"
            " SET name = CAST(X'c5ff' AS TEXT), sql = 'CREATE'"
            " WHERE name = 'txs'"
        )
    async with open_index(f"sqlite:///{copy}", params()) as index:
        with pytest.raises(IndexDamaged, match="the schema is damaged"):
            await all_pages(index.blocks, BlockQuery(PrimaryChain.P), 10)
        assert index.damage() is not None
    with (
        pytest.raises(IndexDamaged, match="the schema is damaged"),
        open_writer(f"sqlite:///{copy}", params()),
    ):
        pass
    with pytest.raises(sqlite3.DatabaseError) as error:
        open_file(copy, "ro")
    assert error.value.sqlite_errorcode == sqlite3.SQLITE_CORRUPT
    with (
        pytest.raises(StoreUnusable, match="the schema is damaged"),
        open_read_only(StoreUrl.for_file(copy)),
    ):
        pass


def test_stored_blocks_of_an_unknown_kind_are_damage(tmp_path: Path, index_file: Path) -> None:
    copy = tmp_path / "index.db"
    copy_file(index_file, copy)
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE raw_blocks SET kind = 7 WHERE number = 0")
    engine = reading_index(StoreUrl.for_file(copy), IndexSettings())
    with (
        engine.connect() as connection,
        pytest.raises(IndexDamaged, match="block 0 is of the unknown kind 7"),
    ):
        list(read_segments(connection))
    engine.dispose()
