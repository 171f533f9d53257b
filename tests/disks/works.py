"""The work of the product on each of its databases, while their disk or server fails.

A work has numbered items, written one after the other by the product's own code. It does not stop
at a typed error of the product: as an operator would, it starts the product again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tests.eventually import TIMEOUT_S, until
from tests.store.fixtures import message, share, signature, store_at
from warpseal.errors import StartupError
from warpseal.store.connection import Engine
from warpseal.store.engine import writing_engine
from warpseal.store.errors import StoreDown
from warpseal.store.event_rows import NewEvent
from warpseal.store.migrate import HEAD, MIGRATIONS, Migrations, upgrade_at_start
from warpseal.store.store import Store
from warpseal.store.url import StoreUrl
from warpseal.store.values import Event, EventType, SigningBlock, SigningBlockKind

T = TypeVar("T")
Rows = dict[str, list[tuple[Any, ...]]]

PAUSE_S: Final = 0.002
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


class LivingProcess:
    """A process that is not killed."""

    is_killed = False

    def kill(self) -> None:
        """Only a disk ends its process."""


async def repeat(step: Callable[[], Awaitable[T]], process: Process | None = None) -> T:
    """Run a step until the database is up.

    Raises StoreDown if the process is killed, and TimeoutError.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await step()
            except StoreDown:
                if process is not None and process.is_killed:
                    raise
                await asyncio.sleep(PAUSE_S)


class Work(ABC):
    """Items that are written to one database.

    server_url: URL of the database, if it is no file in the folder.
    count: number of the items.
    flushes_per_seed: flushes that fail in turn, for each seed.
    ends_killed: the process is killed after the last item, while the file is open.
    refusals: texts of the errors with which the product refused to start.
    """

    count = 4
    flushes_per_seed = 6

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
            await repeat(partial(step, store, number), process)

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


STORE_WORKS: Final = (StoreWork, NewStoreWork, OldStoreWork)


@contextmanager
def closing_engine(engine: Engine) -> Iterator[Engine]:
    """Close the connections of an engine."""
    try:
        yield engine
    finally:
        engine.dispose()
