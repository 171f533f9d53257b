"""Damage that SQLite does not notice itself: every read and write ends with a typed error."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.index.evm import fixtures as evm
from tests.index.evm.histories import History
from tests.index.evm.test_histories import PARTIES, write
from tests.index.fixtures import all_pages, open_index, open_writer, recorded_history, write_all
from tests.ledger.recorded import params
from warpseal.errors import IndexDamaged, StartupError, StoreDown
from warpseal.history.chains import PrimaryChain
from warpseal.history.evm import CollectibleQuery
from warpseal.history.queries import TransactionQuery
from warpseal.store.access import open_read_only
from warpseal.store.engine import open_file
from warpseal.store.errors import StoreUnusable
from warpseal.store.url import StoreUrl

TRANSACTIONS = TransactionQuery(chain=PrimaryChain.P)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an index of the recorded network."""
    write_all(f"sqlite:///{tmp_path}/index.db", params(), list(recorded_history()))
    return f"sqlite:///{tmp_path}/index.db"


@pytest.fixture
def evm_url(tmp_path: Path) -> str:
    """The setting `index-url` of an index of an EVM chain."""
    with evm.open_writer(f"sqlite:///{tmp_path}/index.db") as writer:
        write(writer, History(5).blocks(30))
    return f"sqlite:///{tmp_path}/index.db"


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement).rowcount
        connection.commit()


def damage_schema(path: Path) -> None:
    """Put a byte that is no UTF-8 into the text of every table."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    assert content.count(b"CREATE TABLE ")
    path.write_bytes(content.replace(b"CREATE TABLE ", b"CREATE TABL\xff "))


async def assert_damaged(read: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    with pytest.raises(IndexDamaged) as caught:
        await read()
    return str(caught.value)


def test_a_damaged_schema_is_an_error_of_the_database_for_every_opener(tmp_path: Path, url: str) -> None:
    damage_schema(tmp_path / "index.db")
    with pytest.raises(sqlite3.DatabaseError) as caught:
        open_file(tmp_path / "index.db", "ro")
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_CORRUPT
    with pytest.raises(StoreUnusable, match="the schema is damaged"), open_read_only(StoreUrl.parse(url)):
        pass


async def test_a_damaged_schema_is_reported_by_readers_and_writers_of_the_primary_index(url: str) -> None:
    damage_schema(path_of(url))
    with pytest.raises((StoreDown, StartupError), match="damaged"), open_writer(url, params()):
        pass
    async with open_index(url, params()) as index:
        await assert_damaged(lambda: all_pages(index.transactions, TRANSACTIONS, 100))
        assert index.damage() is not None


async def test_a_damaged_schema_is_reported_by_readers_and_writers_of_an_evm_index(evm_url: str) -> None:
    path = evm.index_url(evm_url).path
    assert path is not None
    damage_schema(path)
    async with evm.open_index(evm_url) as index:
        assert "the schema is damaged" in await assert_damaged(index.freshness)
        assert index.damage() is not None
    with pytest.raises(IndexDamaged), evm.open_writer(evm_url):
        pass


async def test_a_value_of_another_type_fails_its_request_only(evm_url: str) -> None:
    path = evm.index_url(evm_url).path
    assert path is not None
    execute(path, "UPDATE blocks SET hash = 'x' WHERE number = 7")
    async with evm.open_index(evm_url) as index:
        assert "rows contradict each other" in await assert_damaged(lambda: index.block(7))
        assert (await index.block(20)) is not None
        assert await evm.read_collectibles(index, CollectibleQuery(PARTIES[5]), 10) is not None
        assert index.damage() is None
