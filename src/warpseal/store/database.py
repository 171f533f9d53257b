"""The database behind a store: one that this process writes, one that is only read, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from warpseal.store.bloom import MessageFilter, NullMessageFilter
from warpseal.store.engine import create_private, reading_engine, server_parameters, writing_engine
from warpseal.store.errors import StoreDown, StoreUnusable
from warpseal.store.eviction import Eviction
from warpseal.store.leadership import Leadership, ServerLeadership
from warpseal.store.locks import StoreLock, hold_store
from warpseal.store.migrate import Migrations, check_version, upgrade_at_start
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import OFF, StoreKind, StoreUrl
from warpseal.store.values import StoreStatus
from warpseal.store.write_queue import WriteQueue
from warpseal.store.writer import CommitObserver, StoreWriter

T = TypeVar("T")

_MAX_REASON_CHARACTERS = 300


class ReadWriteDatabase:
    """A database that this process reads and writes."""

    def __init__(
        self, url: StoreUrl, settings: StoreSettings, on_commit: CommitObserver | None, migrations: Migrations
    ) -> None:
        self._url = url
        self._migrations = migrations
        self._eviction = Eviction(settings)
        describe = partial(redacted_reason, url)
        self._writer = StoreWriter(writing_engine(url), settings, self._prepare, self._eviction, on_commit, describe)
        self._reader = StoreReader(reading_engine(url, settings.readers), settings, self._writer.check, describe)
        self._stack = AsyncExitStack()
        self._lock = StoreLock()
        self.message_filter = MessageFilter() if url.kind is StoreKind.SQLITE else None

    @property
    def reads(self) -> StoreReader:
        """The side that reads."""
        return self._reader

    @property
    def writes(self) -> StoreWriter:
        """The side that writes."""
        return self._writer

    async def open(self) -> None:
        """Lock it, upgrade it and start the writer; a server that does not answer is retried. Raises StartupError."""
        async with AsyncExitStack() as stack:
            self._lock = await stack.enter_async_context(hold_store(self._url, self._parameters(), exclusive=False))
            stack.callback(self._reader.close)
            await asyncio.to_thread(self._open)
            self._writer.start()
            stack.push_async_callback(asyncio.to_thread, self._writer.stop)
            self._stack = stack.pop_all()

    async def run(self) -> None:
        """Keep the lock until cancelled."""
        await self._lock.run()

    async def close(self) -> None:
        """Write the queue, close the connections and release the lock."""
        await self._stack.aclose()

    def status(self) -> StoreStatus:
        """Return its status without a query."""
        writer = self._writer
        return StoreStatus(
            url=self._url.redacted,
            is_up=writer.reason is None,
            schema_version=writer.schema_version,
            reason=writer.reason,
            down_since_unix_s=writer.down_since_unix_s,
            waiting_writes=writer.uncommitted,
            waiting_bytes=writer.queue.size_bytes,
            dropped_writes=writer.queue.dropped,
            size_bytes=self._eviction.size_bytes,
            evictable_bytes=self._eviction.evictable_bytes,
            evicted=self._eviction.evicted,
        )

    def leadership(self, name: str) -> Leadership:
        """Return the election of a name among all daemons of this database."""
        return Leadership() if self._url.kind is StoreKind.SQLITE else ServerLeadership(self._parameters(), name)

    def _parameters(self) -> dict[str, object]:
        return server_parameters(self._url) if self._url.kind is StoreKind.POSTGRESQL else {}

    def _open(self) -> None:
        try:
            if self._url.path is not None:
                create_private(self._url.path)
            self._writer.open()
            if self.message_filter is not None:
                self._writer.load(self.message_filter.load)
        except OSError as error:
            raise StoreUnusable(self._url.redacted, error.strerror or str(error)) from error
        except DBAPIError as error:
            if self._url.kind is StoreKind.SQLITE:
                raise StoreUnusable(self._url.redacted, redacted_reason(self._url, error)) from None
            self._writer.open_later(error)

    def _prepare(self, engine: Engine) -> str:
        return upgrade_at_start(engine, self._url.redacted, self._migrations)


class ReadOnlyDatabase:
    """A database that is only read; a running daemon may use it meanwhile."""

    def __init__(self, url: StoreUrl, settings: StoreSettings, migrations: Migrations) -> None:
        self._url = url
        self._migrations = migrations
        self._version: str | None = None
        self._engine = reading_engine(url, settings.readers)
        self.reads = StoreReader(self._engine, settings, lambda: None, partial(redacted_reason, url))
        self.writes = NullWrites("it is open for reading only", is_up=True)
        self.message_filter = None

    async def open(self) -> None:
        """Check that it exists and has the schema version of this program. Raises StartupError."""
        await asyncio.to_thread(self._open)

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close the connections."""
        self.reads.close()

    def status(self) -> StoreStatus:
        """Return its status without a query."""
        return StoreStatus(self._url.redacted, self._version is not None, self._version)

    def leadership(self, name: str) -> Leadership:
        """Return an election that this process never wins, because it only reads."""
        return Leadership(held=False)

    def _open(self) -> None:
        if self._url.path is not None and not self._url.path.exists():
            raise StoreUnusable(self._url.redacted, "it does not exist yet; a daemon creates it")
        try:
            with self._engine.connect() as connection:
                self._version = check_version(connection, self._url.redacted, self._migrations)
        except DBAPIError as error:
            raise StoreUnusable(self._url.redacted, redacted_reason(self._url, error)) from None


class NullReads:
    """The read side of a store that is off. reason: why it is off."""

    is_stuck = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def read(self, query: Callable[[Connection], T], wait_s: float) -> T:
        """Raise StoreDown."""
        raise StoreDown(self._reason)


class NullWrites:
    """The write side of a store that is off or read only. is_up: whether it can be read."""

    is_stuck = False

    def __init__(self, reason: str, *, is_up: bool) -> None:
        self._reason = reason
        self.is_up = is_up
        # Without a byte of room the queue drops every write.
        self.queue = WriteQueue(0, 0.0)

    def call(self, write: Callable[[Connection], T]) -> Future[T]:
        """Return a future that raises StoreDown."""
        future: Future[T] = Future()
        future.set_exception(StoreDown(self._reason))
        return future


class NullDatabase:
    """The database of a store that is off."""

    def __init__(self, reason: str) -> None:
        self.reads = NullReads(reason)
        self.writes = NullWrites(reason, is_up=False)
        self.message_filter = NullMessageFilter()
        self._reason = reason

    async def open(self) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing."""

    def status(self) -> StoreStatus:
        """Return that the store is off, which is no failure."""
        return StoreStatus(OFF, True, reason=self._reason)

    def leadership(self, name: str) -> Leadership:
        """Return an election that this process has won."""
        return Leadership()


def redacted_reason(url: StoreUrl, error: BaseException) -> str:
    """Return a library's error as one line without secrets."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return url.redact(" ".join(str(original).split()))[:_MAX_REASON_CHARACTERS]
