"""What the product does with each of its SQLite files, while their disk fails.

A work has numbered items, written one after the other by the product's own code. It does not stop
at a typed error of the product: as an operator would, it starts the product again.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from tests.disks.disk import SimulatedDisk
from tests.eventually import until
from tests.index import fixtures as primary
from tests.index.evm import fixtures as evm
from tests.index.evm.histories import History
from tests.store.fixtures import message, share, signature, store_at
from tests.usage.test_database import database
from tests.usage.test_sums import NOW, adding_flusher, check, read_buckets
from tests.usage.traffic import Call, FakeRecorder, make_calls
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.errors import StartupError
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.records import Record
from warpseal.index.writer import IndexWriter
from warpseal.resources.chains import PrimaryChain
from warpseal.store.engine import writing_engine
from warpseal.store.errors import StoreDown
from warpseal.store.migrate import HEAD, MIGRATIONS, Migrations, upgrade_at_start
from warpseal.store.store import Store
from warpseal.store.url import StoreUrl
from warpseal.store.values import Event, SigningBlock, SigningBlockKind
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.migrations import VERSIONS as USAGE_VERSIONS

Rows = dict[str, list[tuple[Any, ...]]]

# Columns whose values are drawn at random.
# Tables of which a session of the writer decides when rows go from one to the other.
_PARTS: Final = re.compile("^(recent|older)_")
_DRAWN_COLUMNS: Final = {"epoch"}
PAUSE_S = 0.002
# A failure is tried again at once, and nothing happens by a timer.
QUICK: dict[str, Any] = {
    "gather_s": 0.0,
    "flush_s": 0.0,
    "retry_first_s": PAUSE_S,
    "retry_cap_s": PAUSE_S,
    "first_prune_s": 3_600.0,
    "readers": 1,
}


class Work(ABC):
    """Items that are written to one file.

    count: number of the items.
    ends_killed: the process is killed after the last item, while the file is open.
    refusals: texts of the errors with which the product refused to start.
    """

    count = 4

    def __init__(self, folder: Path, *, ends_killed: bool = False) -> None:
        self.folder = folder
        self.ends_killed = ends_killed
        self.refusals: list[str] = []

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the file as it is before the work, on a disk that does not fail."""

    async def run(self, disk: SimulatedDisk, stored: int = 0) -> list[int]:
        """Write the items until all are acknowledged, or the process is killed.

        stored: number of items that an earlier process has written.
        Returns the numbers of acknowledged items.
        """
        acknowledged = list(range(stored))
        while len(acknowledged) < self.count and not disk.is_killed:
            try:
                await self._write(disk, acknowledged)
            except StoreDown:
                await asyncio.sleep(PAUSE_S)
            except StartupError as error:
                self.refusals.append(str(error))
        return acknowledged

    @abstractmethod
    async def _write(self, disk: SimulatedDisk, acknowledged: list[int]) -> None:
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
    """Signed messages with their events, and a signing block after each of them."""

    @property
    def path(self) -> Path:
        return self.folder / "store.db"

    def prepare(self) -> None:
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with self._store():
            pass

    def _store(self) -> Store:
        return store_at(f"sqlite:///{self.path}", **QUICK)

    async def _write(self, disk: SimulatedDisk, acknowledged: list[int]) -> None:
        async with self._store() as store:
            while len(acknowledged) < self.count:
                number = len(acknowledged)
                store.archive.pin(message(number))
                store.archive.store_shares(message(number), [share(number)])
                await store.archive.store_signature(message(number), signature(number))
                await until(lambda: self._is_committed(store) or disk.is_killed)
                await store.signing_blocks.add(block(number))
                # Before the writer's thread runs another call, it flushes the item.
                await store.database.write(lambda _: None)
                if disk.is_killed:
                    break
                acknowledged.append(number)
            if self.ends_killed:
                disk.kill()

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
            events = await store.events.read(0, 1_000)
            assert [event.number for event in events] == list(range(1, len(numbers) + 1))
            signed = [msgspec.json.decode(event.body, type=Event).message_id for event in events]
            assert signed == [f"0x{message(number).id.hex()}" for number in numbers]
            # Each item ends with its block.
            return [number for number in numbers if number < len(blocks)]


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
        engine = writing_engine(StoreUrl.for_file(self.path))
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
        return database(f"sqlite:///{self.path}")

    async def _write(self, disk: SimulatedDisk, acknowledged: list[int]) -> None:
        async with self._database() as metrics:
            recorder = FakeRecorder()
            flusher = adding_flusher(metrics, recorder)
            while len(acknowledged) < self.count and not disk.is_killed:
                number = len(acknowledged)
                recorder.calls += self.parts[number]
                await self._flush(flusher, disk)
                if not disk.is_killed:
                    acknowledged.append(number)
            if self.ends_killed:
                disk.kill()

    @staticmethod
    async def _flush(flusher: Any, disk: SimulatedDisk) -> None:
        # The daemon tries again with the same flusher, which numbers what it writes.
        while not disk.is_killed:
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
        engine = writing_engine(StoreUrl.for_file(self.path))
        upgrade_at_start(engine, "here", Migrations(USAGE_VERSIONS[:1]))
        engine.dispose()


class _IndexWork(Work):
    """Blocks, one in each transaction. The blocking parts are those of the index process."""

    count = 5

    @property
    def url(self) -> str:
        """The URL of the indexes."""
        return f"sqlite:///{self.folder}/index.db"

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

    async def _write(self, disk: SimulatedDisk, acknowledged: list[int]) -> None:
        with self.open() as writer:
            for number in self.write_blocks(writer):
                if disk.is_killed:
                    break
                acknowledged[:] = range(number)
            if self.ends_killed:
                disk.kill()

    def write_blocks(self, writer: Any) -> Iterator[int]:
        """Write the missing blocks; yield their number before, and after each of them."""
        while (number := self.read_count(writer)) < self.count:
            yield number
            self.write_block(writer, number)
        yield number

    async def read(self) -> list[int]:
        with self.open() as writer:
            number = self.read_count(writer)
        assert dump(self.path) == expected_rows(type(self), number)
        return list(range(number))


class IndexWork(_IndexWork):
    """Blocks of the P-Chain with the state of its ledger."""

    @property
    def path(self) -> Path:
        return self.folder / "index.db"

    def open(self) -> AbstractContextManager[IndexWriter]:
        return primary.open_writer(self.url, primary.made_up_params())

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


class NewIndexWork(IndexWork):
    """The same in an index that does not exist yet."""

    def prepare(self) -> None:
        """Leave the folder empty."""


class EvmIndexWork(_IndexWork):
    """Blocks of an EVM chain with transfers of tokens."""

    @property
    def path(self) -> Path:
        path = evm.index_url(self.url).path
        assert path is not None
        return path

    def open(self) -> AbstractContextManager[EvmIndexWriter]:
        return evm.open_writer(self.url)

    def read_count(self, writer: EvmIndexWriter) -> int:
        checkpoint = writer.start(evm.IDENTITY)
        return 0 if checkpoint is None else checkpoint.height + 1

    def write_block(self, writer: EvmIndexWriter, height: int) -> None:
        writer.write([evm_blocks()[height]])


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


def dump(path: Path) -> Rows:
    """Return all rows of an index, by table."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        rows: Rows = {}
        for (name,) in names:
            columns = [
                column
                for _, column, *_ in connection.execute(
                    "SELECT * FROM pragma_table_info(?)", (name,)
                )
                if column not in _DRAWN_COLUMNS
            ]
            text = f"SELECT {', '.join(columns)} FROM {name}"
            rows.setdefault(_PARTS.sub("", name), []).extend(connection.execute(text))
        return {name: sorted(values, key=repr) for name, values in rows.items()}


@cache
def expected_rows(kind: type[_IndexWork], count: int) -> Rows:
    """Return the rows of an undisturbed index with so many blocks."""
    with TemporaryDirectory() as folder:
        work = kind(Path(folder))
        work.count = count
        with work.open() as writer:
            assert list(work.write_blocks(writer))[-1] == count
        return dump(work.path)
