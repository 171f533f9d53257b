"""The work of the product on each of its databases, while their disk or server fails.

A work has numbered items, written one after the other by the product's own code. It does not stop
at a typed error of the product: as an operator would, it starts the product again.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from tests.eventually import until
from tests.index import fixtures as primary
from tests.index.evm import fixtures as evm
from tests.index.evm.histories import History, address
from tests.store.fixtures import message, share, signature, store_at
from tests.store.table_facts import table_names
from tests.usage.test_database import database
from tests.usage.test_sums import NOW, adding_flusher, check, read_buckets
from tests.usage.traffic import Call, FakeRecorder, make_calls
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.errors import StartupError
from warpseal.index.database import index_url
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.records import Record
from warpseal.index.writer import IndexWriter
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import TransactionQuery
from warpseal.store.connection import Engine
from warpseal.store.engine import PAGE_BYTES, reading_engine, run_pragmas, writing_engine
from warpseal.store.errors import StoreDown
from warpseal.store.event_rows import NewEvent
from warpseal.store.migrate import HEAD, MIGRATIONS, Migrations, upgrade_at_start
from warpseal.store.store import Store
from warpseal.store.url import StoreUrl
from warpseal.store.values import Event, EventType, SigningBlock, SigningBlockKind
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.migrations import VERSIONS as USAGE_VERSIONS

Rows = dict[str, list[tuple[Any, ...]]]

# Columns whose values are drawn at random.
# Tables of which a session of the writer decides when rows go from one to the other.
_PARTS: Final = re.compile("^(recent|older)_")
_DRAWN_COLUMNS: Final = {"epoch"}
PAUSE_S = 0.002
# A log is merged when it is longer, several times in each work.
LOG_BYTES: Final = 48 * 1024
# A failure is tried again at once, and nothing happens by a timer.
QUICK: dict[str, Any] = {
    "gather_s": 0.0,
    "flush_s": 0.0,
    "log_bytes": LOG_BYTES,
    "retry_first_s": PAUSE_S,
    "retry_cap_s": PAUSE_S,
    "first_prune_s": 3_600.0,
    "readers": 1,
}


class Process(Protocol):
    """The process that does a work.

    is_killed: the process has ended, although its threads go on.
    """

    is_killed: bool

    def kill(self) -> None:
        """End it."""


class Work(ABC):
    """Items that are written to one database.

    server_url: URL of the database, if it is no file in the folder.
    count: number of the items.
    ends_killed: the process is killed after the last item, while the file is open.
    refusals: texts of the errors with which the product refused to start.
    """

    count = 4

    def __init__(self, folder: Path, server_url: str = "", *, ends_killed: bool = False) -> None:
        self.folder = folder
        self.server_url = server_url
        self.ends_killed = ends_killed
        self.refusals: list[str] = []

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file."""

    @property
    def url(self) -> str:
        """The URL of the database."""
        return self.server_url or f"sqlite:///{self.path}"

    @abstractmethod
    def prepare(self) -> None:
        """Make the database as it is before the work, on a disk that does not fail."""

    async def run(self, process: Process, stored: int = 0) -> list[int]:
        """Write the items until all are acknowledged, or the process is killed.

        stored: number of items that an earlier process has written.
        Returns the numbers of acknowledged items.
        """
        acknowledged = list(range(stored))
        while len(acknowledged) < self.count and not process.is_killed:
            try:
                await self._write(process, acknowledged)
            except StoreDown:
                await asyncio.sleep(PAUSE_S)
            except StartupError as error:
                self.refusals.append(str(error))
        return acknowledged

    @abstractmethod
    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        """Open the file, write the next items and append their numbers to `acknowledged`."""

    @abstractmethod
    async def read(self) -> list[int]:
        """Return the numbers of the stored items, each of which must be right."""

    def check_pages(self) -> None:
        """Let SQLite check the whole file."""
        with closing(sqlite3.connect(self.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


class StoreWork(Work):
    """Signed messages with their events; after each of them a signing block, and an event that
    follows from a source with a position, as from the block of an index.
    """

    @property
    def path(self) -> Path:
        return self.folder / "store.db"

    def prepare(self) -> None:
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with self._store():
            pass

    def _store(self) -> Store:
        return store_at(self.url, **QUICK)

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        async with self._store() as store:
            while len(acknowledged) < self.count:
                number = len(acknowledged)
                await self._write_item(store, process, number)
                if process.is_killed:
                    break
                acknowledged.append(number)
            if self.ends_killed:
                process.kill()

    async def _write_item(self, store: Store, process: Process, number: int) -> None:
        store.archive.pin(message(number))
        store.archive.store_shares(message(number), [share(number)])
        await store.archive.store_signature(message(number), signature(number))
        await until(lambda: self._is_committed(store) or process.is_killed)
        for step in (self._add_block, self._add_source_event, self._write_nothing):
            # An operator and the reader of an index try again.
            while not process.is_killed:
                try:
                    await step(store, number)
                    break
                except StoreDown:
                    await asyncio.sleep(PAUSE_S)

    @staticmethod
    async def _add_block(store: Store, number: int) -> None:
        await store.signing_blocks.add(block(number))

    @staticmethod
    async def _add_source_event(store: Store, number: int) -> None:
        position = await store.events.position(SOURCE)
        if position is None or position < number:
            event = NewEvent.of(sha256(b"%d" % number).digest()[:16], source_event(number))
            assert await store.events.add_from_source(SOURCE, position, number, [event])

    @staticmethod
    async def _write_nothing(store: Store, _: int) -> None:
        # Before the writer's thread runs another call, it flushes the item.
        await store.database.write(lambda _: None)

    @staticmethod
    def _is_committed(store: Store) -> bool:
        status = store.status()
        return status.is_up and not status.waiting_writes

    async def read(self) -> list[int]:
        async with self._store() as store:
            numbers = [
                number
                for number in range(self.count)
                if (await store.archive.load(message(number).id)).signatures
            ]
            for number in numbers:
                entry = await store.archive.load(message(number).id)
                assert entry.signatures == (signature(number),)
            blocks = await store.signing_blocks.load()
            assert blocks == [block(number) for number in range(len(blocks))]
            position = await store.events.position(SOURCE)
            events = [
                msgspec.json.decode(event.body, type=Event)
                for event in await store.events.read(0, 1_000)
            ]
        signed = [event.message_id for event in events if event.type == EventType.MESSAGE_SIGNED]
        assert signed == [f"0x{message(number).id.hex()}" for number in numbers]
        items = list(range(0 if position is None else position + 1))
        others = [event for event in events if event.type != EventType.MESSAGE_SIGNED]
        assert others == [source_event(number) for number in items]
        # In this order the parts of each item were written.
        assert items == numbers[: len(items)]
        assert len(numbers) >= len(blocks) >= len(items)
        return items


SOURCE: Final = "a chain"


def source_event(number: int) -> Event:
    """Return the event of an item."""
    return Event(type=EventType.ICM_RECEIVED, time=number, data={"number": number})


def block(number: int) -> SigningBlock:
    """Return the signing block of an item."""
    value = f"0x{sha256(b'%d' % number).hexdigest()}"
    return SigningBlock(SigningBlockKind.MESSAGE_ID, value, "test", number)


class NewStoreWork(StoreWork):
    """The same in a store that does not exist yet."""

    def prepare(self) -> None:
        """Leave the folder empty."""


class OldStoreWork(StoreWork):
    """A store of the first version, which the start upgrades, with a message in it."""

    old = message(1_000)

    def prepare(self) -> None:
        engine = writing_engine(StoreUrl.parse(self.url))
        upgrade_at_start(engine, "here", Migrations(MIGRATIONS.versions[:1]))
        columns = "message_id, raw, for_ever, size_bytes, created_at, used_at"
        with engine.begin() as connection:
            connection.run(
                f"INSERT INTO messages ({columns}) VALUES (?, ?, 1, 0, 0, 0)",
                self.old.id,
                self.old.raw,
            )
            add = "INSERT INTO shares SELECT key, ?, ?, 0 FROM messages"
            connection.run(add, share(1).public_key, share(1).signature)
        engine.dispose()

    async def read(self) -> list[int]:
        copy = self.folder / f"store.db.before-{HEAD}"
        if copy.exists():
            # Whole, whenever it has this name.
            with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as connection:
                query = "SELECT version_num FROM alembic_version"
                assert connection.execute(query).fetchall() == [("0001",)]
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        async with self._store() as store:
            assert store.status().schema_version == HEAD
            assert (await store.archive.load(self.old.id)).shares == (share(1),)
        return await super().read()


class UsageWork(Work):
    """Flushes of calls."""

    parts = tuple(make_calls(Random(number), 10, NOW - 60, NOW) for number in range(Work.count))

    @property
    def path(self) -> Path:
        return self.folder / "metrics.db"

    def prepare(self) -> None:
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with self._database():
            pass

    def _database(self) -> MetricsDatabase:
        metrics = database(self.url)
        if not self.server_url:
            pages = LOG_BYTES // PAGE_BYTES
            run_pragmas(metrics._engine, [f"wal_autocheckpoint = {pages}"])
        return metrics

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        async with self._database() as metrics:
            recorder = FakeRecorder()
            flusher = adding_flusher(metrics, recorder)
            while len(acknowledged) < self.count and not process.is_killed:
                number = len(acknowledged)
                recorder.calls += self.parts[number]
                await self._flush(flusher, process)
                if not process.is_killed:
                    acknowledged.append(number)
            if self.ends_killed:
                process.kill()

    @staticmethod
    async def _flush(flusher: Any, process: Process) -> None:
        # The daemon tries again with the same flusher, which numbers what it writes.
        while not process.is_killed:
            try:
                await flusher.flush()
                break
            except StoreDown:
                await asyncio.sleep(PAUSE_S)

    async def read(self) -> list[int]:
        async with self._database() as metrics:
            buckets = await metrics.read(read_buckets)
        calls: list[Call] = []
        for number in range(self.count + 1):
            with suppress(AssertionError):
                check(buckets, calls)
                return list(range(number))
            calls += self.parts[number] if number < self.count else []
        raise AssertionError("the sums are those of no number of flushes")


class OldUsageWork(UsageWork):
    """The same in a database of the first version."""

    def prepare(self) -> None:
        engine = writing_engine(StoreUrl.parse(self.url))
        upgrade_at_start(engine, "here", Migrations(USAGE_VERSIONS[:1]))
        engine.dispose()


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


WORKS: Final = (
    StoreWork,
    NewStoreWork,
    OldStoreWork,
    UsageWork,
    OldUsageWork,
    IndexWork,
    NewIndexWork,
    EvmIndexWork,
    NewEvmIndexWork,
)


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


@contextmanager
def closing_engine(engine: Engine) -> Iterator[Engine]:
    """Close the connections of an engine."""
    try:
        yield engine
    finally:
        engine.dispose()


@cache
def expected_rows(kind: type[_IndexWork], count: int) -> Rows:
    """Return the rows of an undisturbed index with so many blocks."""
    with TemporaryDirectory() as folder:
        work = kind(Path(folder))
        work.count = count
        with work.open() as writer:
            assert list(work.write_blocks(writer))[-1] == count
        return dump(work.place)
