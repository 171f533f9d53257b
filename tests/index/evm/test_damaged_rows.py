"""Damaged pages and rows of an EVM chain's index end in typed errors, for the requests that need
them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.index.evm.fixtures import all_items, index_url, open_index, open_writer
from tests.index.evm.histories import History, address, hash_of
from tests.index.flipped import RESULT, TYPED, copy_file, ends_of, flip_bytes, merge_log
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.errors import IndexDamaged
from warpseal.index.evm.reader import EvmIndex
from warpseal.resources.evm import CollectibleQuery, Erc1155Query
from warpseal.resources.queries import PageRequest

BLOCKS = History(9).blocks(24)
# Without a translation of errors of rows, or of the schema, each of these ends a read or the
# indexer with a trace.
SEEDS = (1, 39, 45, 69, 132, 232, 298, 323, 327)


def url_of(folder: Path) -> str:
    """Return the URL of the index in a folder."""
    return f"sqlite:///{folder}/index.db"


def file_of(folder: Path) -> Path:
    """Return the file of the chain's index in a folder."""
    path = index_url(url_of(folder)).path
    assert path is not None
    return path


@pytest.fixture(scope="module")
def index_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an index with 20 blocks."""
    folder = tmp_path_factory.mktemp("index")
    with open_writer(url_of(folder)) as writer:
        writer.set_interfaces({address(2): True, address(4): True})
        writer.write(BLOCKS[:20])
    merge_log(file_of(folder))
    return file_of(folder)


def reads(index: EvmIndex) -> Iterator[Awaitable[Any]]:
    """Yield every kind of read, of some blocks and of all contracts and some holders."""
    yield index.progress()
    yield index.waiting_requests()
    yield index.daily_tps(0, 20_000)
    for number in range(0, 20, 5):
        yield index.block(number)
        yield index.block(hash_of(number))
    for party in map(address, (*range(7), *range(1_000, 1_004))):
        yield all_items(partial(index.collectibles, CollectibleQuery(party)), 20)
        yield all_items(partial(index.tokens, party), 20)
        yield all_items(partial(index.erc1155_transfers, Erc1155Query(party)), 20)
        yield all_items(partial(index.deployments, party), 20)
        yield index.nft_holders(party, PageRequest(5))
        yield index.token(party, 1)


@pytest.mark.parametrize("seed", SEEDS)
async def test_flipped_bytes_end_in_results_or_typed_errors(
    tmp_path: Path, index_file: Path, seed: int
) -> None:
    flip_bytes(index_file, file_of(tmp_path), seed)
    async with open_index(url_of(tmp_path)) as index:
        assert await ends_of(reads(index)) <= {RESULT, "StoreDown", "IndexDamaged"}
    try:
        with open_writer(url_of(tmp_path)) as writer:
            for block in BLOCKS[20:]:
                writer.write([block])
    except (*TYPED, OutOfOrder):
        pass


def change_copy(source: Path, copy: Path, statement: str) -> None:
    """Copy an index, and run a statement that must change rows of the copy."""
    copy_file(source, copy)
    with sqlite3.connect(copy) as database:
        assert database.execute(statement).rowcount


async def test_a_missing_row_fails_only_the_requests_that_need_it(
    tmp_path: Path, index_file: Path
) -> None:
    change_copy(index_file, file_of(tmp_path), "DELETE FROM txs")
    async with open_index(url_of(tmp_path)) as index:
        ends = [await ends_of([read]) for read in reads(index)]
        assert {"IndexDamaged"} in ends
        assert {RESULT} in ends
        assert index.damage() is None
        with pytest.raises(IndexDamaged, match="rows contradict each other"):
            await index.erc1155_transfers(Erc1155Query(address(1_000)), PageRequest(20))


def copy_with_damaged_schema(source: Path, copy: Path) -> None:
    content = source.read_bytes()
    assert content.count(b"CREATE TABLE ")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(content.replace(b"CREATE TABLE ", b"CREATE TABL\xff "))


async def test_a_schema_that_is_not_utf_8_is_damage(tmp_path: Path, index_file: Path) -> None:
    copy_with_damaged_schema(index_file, file_of(tmp_path))
    async with open_index(url_of(tmp_path)) as index:
        with pytest.raises(IndexDamaged, match="the schema is damaged"):
            await index.progress()
        assert index.damage() is not None
    with pytest.raises(IndexDamaged), open_writer(url_of(tmp_path)):
        pass


async def test_a_value_of_another_type_fails_only_its_requests(
    tmp_path: Path, index_file: Path
) -> None:
    change_copy(index_file, file_of(tmp_path), "UPDATE blocks SET hash = 'x' WHERE number = 7")
    async with open_index(url_of(tmp_path)) as index:
        with pytest.raises(IndexDamaged, match="rows contradict each other"):
            await index.block(7)
        assert await index.block(18) is not None
        assert index.damage() is None
