"""The database behind a store, opened and closed: one's own, one that is only read, or none at all."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from warpseal.store.bloom import MessageFilter, NullMessageFilter
from warpseal.store.engine import create_private, reading_engine, server_parameters, writing_engine
from warpseal.store.errors import StoreUnusable
from warpseal.store.eviction import Eviction
from warpseal.store.leadership import Leadership, ServerLeadership
from warpseal.store.locks import StoreLock, hold_store
from warpseal.store.migrate import Migrations, check_version, upgrade_at_start
from warpseal.store.ports import NullReads, NullWrites, ReadSide, WriteSide
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import OFF, StoreKind, StoreUrl
from warpseal.store.values import StoreStatus
from warpseal.store.writer import StoreObserver, StoreWriter

_MAX_REASON_CHARACTERS = 300


class Database(Protocol):
    """What a store stands on."""

    @property
    def reads(self) -> ReadSide:
        """The side that reads."""
        ...

    @property
    def writes(self) -> WriteSide:
        """The side that writes."""
        ...

    @property
    def known(self) -> MessageFilter | None:
        """What messages it may hold; None where that is not known."""
        ...

    async def open(self) -> None:
        """Open it. Raises StartupError."""

    async def run(self) -> None:
        """Keep it until cancelled."""

    async def close(self) -> None:
        """Write what waits, and close it."""

    def status(self) -> StoreStatus:
        """Tell how it is, without asking it."""
        ...

    def leadership(self, name: str) -> Leadership:
        """Return the contest for a name."""
        ...


class ReadWriteDatabase:
    """A database that this process writes."""

    def __init__(self, url: StoreUrl, settings: StoreSettings, observer: StoreObserver, migrations: Migrations) -> None:
        self._url = url
        self._migrations = migrations
        self._eviction = Eviction(settings)
        tell = partial(redacted_reason, url)
        self._writer = StoreWriter(writing_engine(url), settings, self._prepare, self._eviction, observer, tell)
        self._reader = StoreReader(reading_engine(url, settings.readers), settings, self._writer.suspect, tell)
        self._stack = AsyncExitStack()
        self._hold = StoreLock()
        self.known = MessageFilter() if url.kind is StoreKind.SQLITE else None

    @property
    def reads(self) -> StoreReader:
        """The side that reads."""
        return self._reader

    @property
    def writes(self) -> StoreWriter:
        """The side that writes."""
        return self._writer

    async def open(self) -> None:
        """Hold it, upgrade it and start writing; a server that does not answer may come later. Raises StartupError."""
        async with AsyncExitStack() as stack:
            self._hold = await stack.enter_async_context(hold_store(self._url, self._parameters(), alone=False))
            stack.callback(self._reader.close)
            await asyncio.to_thread(self._open)
            self._writer.start()
            stack.push_async_callback(asyncio.to_thread, self._writer.stop)
            self._stack = stack.pop_all()

    async def run(self) -> None:
        """Keep the hold until cancelled."""
        await self._hold.run()

    async def close(self) -> None:
        """Write what waits, and let go."""
        await self._stack.aclose()

    def status(self) -> StoreStatus:
        """Tell how it is, without asking it."""
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
        """Return the contest for a name among all daemons of this database."""
        return Leadership() if self._url.kind is StoreKind.SQLITE else ServerLeadership(self._parameters(), name)

    def _parameters(self) -> dict[str, object]:
        return server_parameters(self._url) if self._url.kind is StoreKind.POSTGRESQL else {}

    def _open(self) -> None:
        try:
            if self._url.path is not None:
                create_private(self._url.path)
            self._writer.open()
            if self.known is not None:
                self._writer.load(self.known.load)
        except OSError as error:
            raise StoreUnusable(self._url.redacted, error.strerror or str(error)) from error
        except DBAPIError as error:
            if self._url.kind is StoreKind.SQLITE:
                raise StoreUnusable(self._url.redacted, redacted_reason(self._url, error)) from None
            self._writer.open_later(error)

    def _prepare(self, engine: Engine) -> str:
        return upgrade_at_start(engine, self._url.redacted, self._migrations)


class ReadOnlyDatabase:
    """A database that may belong to a running daemon; nothing is written to it."""

    def __init__(self, url: StoreUrl, settings: StoreSettings, migrations: Migrations) -> None:
        self._url = url
        self._migrations = migrations
        self._version: str | None = None
        self._engine = reading_engine(url, settings.readers)
        self.reads = StoreReader(self._engine, settings, lambda: None, partial(redacted_reason, url))
        self.writes = NullWrites("it is opened for reading only", is_up=True)
        self.known = None

    async def open(self) -> None:
        """Look whether it is there, and of our schema version. Raises StartupError."""
        await asyncio.to_thread(self._open)

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close the connections."""
        self.reads.close()

    def status(self) -> StoreStatus:
        """Tell how it is, without asking it."""
        return StoreStatus(self._url.redacted, self._version is not None, self._version)

    def leadership(self, name: str) -> Leadership:
        """Return a contest that is never won: who only reads leads nothing."""
        return Leadership(held=False)

    def _open(self) -> None:
        if self._url.path is not None and not self._url.path.exists():
            raise StoreUnusable(self._url.redacted, "there is none yet; a daemon makes it")
        try:
            with self._engine.connect() as connection:
                self._version = check_version(connection, self._url.redacted, self._migrations)
        except DBAPIError as error:
            raise StoreUnusable(self._url.redacted, redacted_reason(self._url, error)) from None


class NullDatabase:
    """Where nothing is kept."""

    def __init__(self, reason: str) -> None:
        self.reads = NullReads(reason)
        self.writes = NullWrites(reason, is_up=False)
        self.known = NullMessageFilter()
        self._reason = reason

    async def open(self) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing."""

    def status(self) -> StoreStatus:
        """Tell that nothing is kept, which is as it should be."""
        return StoreStatus(OFF, True, reason=self._reason)

    def leadership(self, name: str) -> Leadership:
        """Return a contest that is always won."""
        return Leadership()


def redacted_reason(url: StoreUrl, error: BaseException) -> str:
    """Return a library's error as one line without secrets."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return url.redact(" ".join(str(original).split()))[:_MAX_REASON_CHARACTERS]
