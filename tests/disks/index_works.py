"""Blocks that are written to an index, while its disk or server fails."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec.structs import replace

from tests.disks.works import LOG_BYTES, Process, Rows, Work, closing_engine, repeat
from tests.index import fixtures as primary
from tests.index.evm import fixtures as evm
from tests.index.evm.histories import History, address
from tests.ledger.recorded import GENESIS, p_blocks, params
from tests.store.table_facts import table_names
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index.database import index_url, reading_index
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.rebuild import RowRebuilder
from warpseal.index.records import PRecord, Record
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.ledger.checkpoint import encode_checkpoint
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import TransactionQuery
from warpseal.store.engine import reading_engine, writing_engine
from warpseal.store.url import StoreUrl

RECORDS_AT_ONCE: Final = 10
# Tables of which a session of the writer decides when rows go from one to the other.
_PARTS: Final = re.compile("^(recent|older)_")
# Columns whose values are drawn at random.
_DRAWN_COLUMNS: Final = {"epoch"}


class _IndexWork(Work):
    """Blocks, one in each transaction. The blocking parts are those of the index process.

    keeps_writer: after an error the same writer goes on, as in the index process; else another one.
    """

    count = 5
    keeps_writer = False

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
            write = partial(self._write_blocks, writer, process, acknowledged)
            await (repeat(write, process) if self.keeps_writer else write())
            if self.ends_killed:
                process.kill()

    async def _write_blocks(self, writer: Any, process: Process, acknowledged: list[int]) -> None:
        for number in self.write_blocks(writer):
            if process.is_killed:
                break
            acknowledged[:] = range(number)

    def write_blocks(self, writer: Any) -> Iterator[int]:
        """Write the missing blocks; yield their number before, and after each write."""
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
        assert self.rows() == expected_rows(type(self), number)
        return list(range(number))

    def rows(self) -> Rows:
        """Return all rows, by table."""
        return dump(self.place)


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


class PrimaryIndexWork(_IndexWork):
    """Blocks of the P-Chain, X-Chain and C-Chain, some of each in a transaction."""

    keeps_writer = True
    flushes_per_seed = 2

    @property
    def path(self) -> Path:
        return self.folder / "index.db"

    @property
    def place(self) -> StoreUrl:
        return index_url(self.settings, None)

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index, whose log has half of the cached bytes."""
        return replace(primary.small_settings(self.url), cache_bytes=2 * LOG_BYTES)

    def open(self) -> AbstractContextManager[IndexWriter]:
        return primary.open_writer(self.url, params(), self.settings)

    def read_count(self, writer: IndexWriter) -> int:
        records = count_records(writer)
        number = -(-records // RECORDS_AT_ONCE)
        assert records == len(primary.recorded_history()[: number * RECORDS_AT_ONCE])
        return number

    def write_block(self, writer: IndexWriter, height: int) -> None:
        start = height * RECORDS_AT_ONCE
        records = primary.recorded_history()[start : start + RECORDS_AT_ONCE]
        heights = [row.effects.block.height for row in records if isinstance(row, PRecord)]
        writer.write(records, p_chain_states()[heights[-1]] if heights else None)

    async def read_pages(self) -> Any:
        return await primary.read_everything(self.url, params())


class RebuildWork(PrimaryIndexWork):
    """Rows of an index of an earlier version, which the start drops and derives again.

    The items are the records of all chains; each step derives those of a segment of blocks.
    """

    count = len(primary.recorded_history())

    def __init__(self, folder: Path, server_url: str = "", *, ends_killed: bool = False) -> None:
        super().__init__(folder, server_url, ends_killed=ends_killed)
        self._rebuilder: RowRebuilder

    def prepare(self) -> None:
        primary.write_all(self.url, params(), primary.recorded_history(), RECORDS_AT_ONCE)
        engine = writing_engine(self.place)
        with closing_engine(engine), engine.begin() as connection:
            connection.run("UPDATE alembic_version SET version_num = '0006'")

    @contextmanager
    def open(self) -> Iterator[IndexWriter]:
        reader = reading_index(self.place, self.settings)
        with super().open() as writer, closing_engine(reader):
            self._rebuilder = RowRebuilder(writer, reader, params())
            try:
                yield writer
            finally:
                # Its step between two segments has a connection.
                del self._rebuilder

    def read_count(self, writer: IndexWriter) -> int:
        return count_records(writer)

    def write_block(self, writer: IndexWriter, height: int) -> None:
        """Only a rebuild writes."""

    def write_blocks(self, writer: IndexWriter) -> Iterator[int]:
        """Derive the missing rows; yield the number of records before, and after each segment."""
        yield self.read_count(writer)
        while self._rebuilder.step(0.0) is not None:
            yield self.read_count(writer)
        yield self.read_count(writer)

    def rows(self) -> Rows:
        """Return all rows, by table, without the state of the ledger, which may be an older one."""
        rows = super().rows()
        del rows["ledgers"]
        return rows


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


INDEX_WORKS: Final = (
    IndexWork,
    NewIndexWork,
    PrimaryIndexWork,
    RebuildWork,
    EvmIndexWork,
    NewEvmIndexWork,
)


def p_chain_blocks() -> Sequence[tuple[Record, bytes]]:
    """Return blocks of a P-Chain, each with the ledger's state after it."""
    return primary.made_up_history(3, 12)


@cache
def p_chain_states() -> Sequence[bytes]:
    """Return the ledger's state after each block of the P-Chain of the recorded network."""
    state, _ = state_from_genesis(GENESIS, params())
    states = [encode_checkpoint(state)]
    for block in p_blocks():
        apply_p_block(state, block, None)
        states.append(encode_checkpoint(state))
    return states


def count_records(writer: IndexWriter) -> int:
    """Return the number of written records of the recorded network, all of which must be right."""
    ledger, p_chain = writer.ledger(), writer.checkpoint(PrimaryChain.P)
    if ledger is not None:
        assert p_chain is not None
        assert ledger[0] <= p_chain.height
        assert ledger[1] == p_chain_states()[ledger[0]]
    # The first containers of the X-Chain come with its genesis, whose number is -1.
    number = writer.pre_linearization_count() + 1
    checkpoints = filter(None, map(writer.checkpoint, PrimaryChain))
    return number + sum(checkpoint.height + 1 for checkpoint in checkpoints)


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
        work.prepare()
        with work.open() as writer:
            assert count in work.write_blocks(writer)
        return work.rows()
