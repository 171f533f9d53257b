"""Blocks that are written to an index, while its disk or server fails."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec.structs import replace

from tests.disks.works import LOG_BYTES, Process, Rows, Work, closing_engine
from tests.index import fixtures as primary
from tests.index.evm import fixtures as evm
from tests.index.evm.histories import History, address
from tests.store.table_facts import table_names
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index.database import index_url
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.records import Record
from warpseal.index.writer import IndexWriter
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import TransactionQuery
from warpseal.store.engine import reading_engine
from warpseal.store.url import StoreUrl

# Tables of which a session of the writer decides when rows go from one to the other.
_PARTS: Final = re.compile("^(recent|older)_")
# Columns whose values are drawn at random.
_DRAWN_COLUMNS: Final = {"epoch"}


class _IndexWork(Work):
    """Blocks, one in each transaction. The blocking parts are those of the index process."""

    count = 5

    @property
    def url(self) -> str:
        """The URL of all indexes."""
        return self.server_url or f"sqlite:///{self.folder}/index.db"

    @property
    @abstractmethod
    def place(self) -> StoreUrl:
        """The URL of the index itself."""

    def prepare(self) -> None:
        with self.open():
            pass

    @abstractmethod
    def open(self) -> AbstractContextManager[Any]:
        """Open the writer of the index."""

    @abstractmethod
    def read_count(self, writer: Any) -> int:
        """Return the number of blocks in the index."""

    @abstractmethod
    def write_block(self, writer: Any, height: int) -> None:
        """Write the next block."""

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        with self.open() as writer:
            for number in self.write_blocks(writer):
                if process.is_killed:
                    break
                acknowledged[:] = range(number)
            if self.ends_killed:
                process.kill()

    def write_blocks(self, writer: Any) -> Iterator[int]:
        """Write the missing blocks; yield their number before, and after each of them."""
        while (number := self.read_count(writer)) < self.count:
            yield number
            self.write_block(writer, number)
        yield number

    @abstractmethod
    async def read_pages(self) -> Any:
        """Return pages of the index, as the API reads them."""

    async def read(self) -> list[int]:
        with self.open() as writer:
            number = self.read_count(writer)
        assert dump(self.place) == expected_rows(type(self), number)
        return list(range(number))


class IndexWork(_IndexWork):
    """Blocks of the P-Chain with the state of its ledger."""

    @property
    def path(self) -> Path:
        return self.folder / "index.db"

    @property
    def place(self) -> StoreUrl:
        return index_url(primary.small_settings(self.url), None)

    def open(self) -> AbstractContextManager[IndexWriter]:
        # The log has half of the cached bytes.
        settings = replace(primary.small_settings(self.url), cache_bytes=2 * LOG_BYTES)
        return primary.open_writer(self.url, primary.made_up_params(), settings)

    def read_count(self, writer: IndexWriter) -> int:
        checkpoint = writer.checkpoint(PrimaryChain.P)
        if checkpoint is None:
            assert writer.ledger() is None
            return 0
        _, ledger = p_chain_blocks()[checkpoint.height]
        assert writer.ledger() == (checkpoint.height, ledger)
        return checkpoint.height + 1

    def write_block(self, writer: IndexWriter, height: int) -> None:
        record, ledger = p_chain_blocks()[height]
        writer.write([record], ledger)

    async def read_pages(self) -> Any:
        async with primary.open_index(self.url, primary.made_up_params()) as index:
            query = TransactionQuery(PrimaryChain.P)
            return await primary.all_pages(index.transactions, query, 100)


class NewIndexWork(IndexWork):
    """The same in an index that does not exist yet."""

    def prepare(self) -> None:
        """Leave the folder empty."""


class EvmIndexWork(_IndexWork):
    """Blocks of an EVM chain with transfers of tokens."""

    @property
    def path(self) -> Path:
        path = self.place.path
        assert path is not None
        return path

    @property
    def place(self) -> StoreUrl:
        return evm.index_url(self.url)

    def open(self) -> AbstractContextManager[EvmIndexWriter]:
        # The log has three quarters of the cached bytes.
        settings = replace(evm.small_settings(self.url), cache_bytes=LOG_BYTES * 4 // 3)
        return evm.open_writer(self.url, settings=settings)

    def read_count(self, writer: EvmIndexWriter) -> int:
        checkpoint = writer.start(evm.IDENTITY)
        return 0 if checkpoint is None else checkpoint.height + 1

    def write_block(self, writer: EvmIndexWriter, height: int) -> None:
        writer.write([evm_blocks()[height]])

    async def read_pages(self) -> Any:
        parties = [address(number) for number in range(1, 5)]
        return await evm.read_everything(self.url, parties, 3, self.count - 1)


class NewEvmIndexWork(EvmIndexWork):
    """The same in an index that does not exist yet."""

    def prepare(self) -> None:
        """Leave the folder empty."""


INDEX_WORKS: Final = (IndexWork, NewIndexWork, EvmIndexWork, NewEvmIndexWork)


def p_chain_blocks() -> Sequence[tuple[Record, bytes]]:
    """Return blocks of a P-Chain, each with the ledger's state after it."""
    return primary.made_up_history(3, 12)


@cache
def evm_blocks() -> Sequence[EvmBlockFacts]:
    """Return blocks of an EVM chain."""
    return History(5, is_consistent=True).blocks(12)


def dump(url: StoreUrl) -> Rows:
    """Return all rows of an index, by table."""
    rows: Rows = {}
    with closing_engine(reading_engine(url)) as engine, engine.connect() as connection:
        for name in table_names(connection) - {"leases"}:
            part = rows.setdefault(_PARTS.sub("", name), [])
            for row in connection.records(f"SELECT * FROM {name}"):
                fields = row._asdict()
                part.append(
                    tuple(fields[column] for column in fields if column not in _DRAWN_COLUMNS)
                )
    return {name: sorted(part, key=repr) for name, part in rows.items()}


@cache
def expected_rows(kind: type[_IndexWork], count: int) -> Rows:
    """Return the rows of an undisturbed index with so many blocks."""
    with TemporaryDirectory() as folder:
        work = kind(Path(folder))
        work.count = count
        with work.open() as writer:
            assert list(work.write_blocks(writer))[-1] == count
        return dump(work.place)
