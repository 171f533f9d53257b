"""The database behind a store, and what stands for it if the store is off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from warpseal.runtime.process import running
from warpseal.store.archive_rows import MessageFilter
from warpseal.store.connection import Connection, DriverError
from warpseal.store.copies import keep_upgrade_copy, remove_upgrade_copies
from warpseal.store.engine import (
    MAY_BE_STORED,
    create_private,
    describe_failure,
    flushed_later,
    reading_engine,
    redacted_reason,
    writing_engine,
)
from warpseal.store.errors import StoreDown, StoreUnusable
from warpseal.store.eviction import Eviction
from warpseal.store.locks import (
    Leadership,
    ServerLeadership,
    ServerLock,
    locked_file,
    server_failures,
)
from warpseal.store.migrate import Migrations, upgrade_at_start
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import OFF, StoreKind, StoreUrl
from warpseal.store.values import StoreStatus
from warpseal.store.write_queue import WriteQueue
from warpseal.store.writer import CommitObserver, StoreWriter

T = TypeVar("T")


class Database:
    """A database; this class stands for a store that is off.

    reason: text that says why the store is off.
    queue: writes that may wait.
    """

    def __init__(
        self,
        settings: StoreSettings,
        reason: str = "",
        reader: StoreReader | None = None,
        writer: StoreWriter | None = None,
    ) -> None:
        self.settings = settings
        self._reason = reason
        self._reader = reader
        self._writer = writer
        # With a limit of 0 bytes the queue drops every write.
        self.queue = WriteQueue(0, 0.0) if writer is None else writer.queue
        # Called in another thread after events were added.
        self.on_events: Callable[[], None] = lambda: None
        # The stored messages, if no other process writes them.
        self._message_filter: MessageFilter | None = None

    @property
    def is_up(self) -> bool:
        """Whether the last statement of the writer succeeded, or still runs."""
        return self._reader is not None if self._writer is None else self._writer.is_up

    @property
    def is_stuck(self) -> bool:
        """Whether a read or a transaction takes longer than callers wait for it."""
        return any(side is not None and side.is_stuck for side in (self._reader, self._writer))

    def may_hold(self, message_id: bytes) -> bool:
        """Return whether it may hold rows of a message."""
        return self._reader is not None and (
            self._message_filter is None or message_id in self._message_filter
        )

    def note(self, message_id: bytes) -> None:
        """Remember that rows of a message are about to be written."""
        if self._message_filter is not None:
            self._message_filter.add(message_id)

    async def open(self) -> None:
        """Open it. Raises StartupError."""

    def confirm_start(self) -> None:
        """Remove the copy of a store that was kept in case that the daemon cannot serve."""

    async def close(self) -> None:
        """Write the queue, close the connections and release the lock."""

    async def read(self, query: Callable[[Connection], T], wait_s: float | None = None) -> T:
        """Return the result of `query`, run in a reading thread.

        Raises StoreDown after at most `wait_s`, by default half a minute; at once if earlier reads
        got no answer.
        """
        if self._reader is None:
            raise StoreDown(self._reason)
        return await self._reader.read(
            query, self.settings.call_timeout_s if wait_s is None else wait_s
        )

    async def records(self, text: str, *values: Any, wait_s: float | None = None) -> Sequence[Any]:
        """Return the rows of a query that has few, by the names of their columns.

        Raises StoreDown, as `read` does.
        """
        return await self.read(lambda connection: connection.records(text, *values), wait_s)

    async def write(
        self,
        write: Callable[[Connection], T],
        wait_s: float | None = None,
        *,
        is_flushed: bool = False,
        is_idempotent: bool = False,
    ) -> T:
        """Return the result of `write`, run in its own transaction in the writer's thread.

        is_flushed: whether the result survives a power cut.
        is_idempotent: whether `write` runs once more after a lost connection; then a second run
            after a commit must change nothing and have the same result.
        Raises StoreDown after at most `wait_s`, by default half a minute, although it may be
        written later.
        """
        wait_s = self.settings.call_timeout_s if wait_s is None else wait_s
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.wrap_future(
                    self.call(write, is_flushed=is_flushed, is_idempotent=is_idempotent)
                )
        except TimeoutError:
            raise StoreDown(f"no answer within {wait_s:g} s; {MAY_BE_STORED}") from None

    def call(
        self,
        write: Callable[[Connection], T],
        *,
        is_flushed: bool = False,
        is_idempotent: bool = False,
    ) -> Future[T]:
        """Run `write` in its own transaction.

        The future raises StoreDown, at once while the store is down.
        """
        if self._writer is not None:
            return self._writer.call(write, is_flushed=is_flushed, is_idempotent=is_idempotent)
        future: Future[T] = Future()
        future.set_exception(StoreDown(self._reason))
        return future

    def status(self) -> StoreStatus:
        """Return its status without a query; a store that is off is up."""
        return StoreStatus(OFF, True, reason=self._reason)

    def leadership(self, name: str) -> Leadership:
        """Return the election of a name among all daemons of this database."""
        return Leadership()


class ReadWriteDatabase(Database):
    """A database that this process reads and writes."""

    _reader: StoreReader
    _writer: StoreWriter

    def __init__(
        self,
        url: StoreUrl,
        settings: StoreSettings,
        on_commit: CommitObserver | None,
        migrations: Migrations,
    ) -> None:
        describe = partial(redacted_reason, url)
        prepare = partial(
            upgrade_at_start, where=url.redacted, migrations=migrations, keep_copy=self._keep_copy
        )
        self._url = url
        self._head = migrations.head
        self._is_upgraded = False
        self._eviction = Eviction(settings)
        self._engine = flushed_later(writing_engine(url), settings.log_bytes)
        self._writer = StoreWriter(
            self._engine, settings, prepare, self._eviction, on_commit, describe
        )
        self._reader: StoreReader = StoreReader(
            reading_engine(url, settings.readers),
            settings,
            lambda error: StoreDown(describe(error)),
            self._writer.check,
        )
        super().__init__(settings, "", self._reader, self._writer)
        self._writer.on_events = lambda: self.on_events()
        self._stack = AsyncExitStack()
        self._lock = None if url.kind is StoreKind.SQLITE else ServerLock(url)
        self._message_filter = MessageFilter() if url.kind is StoreKind.SQLITE else None

    async def open(self) -> None:
        """Lock it, upgrade it and start the writer; a server that does not answer is retried.

        Raises StartupError.
        """
        async with AsyncExitStack() as stack:
            if self._url.path is not None:
                stack.enter_context(locked_file(self._url.path))
            if self._lock is not None:
                stack.push_async_callback(self._lock.close)
                with suppress(*server_failures()):
                    await self._lock.acquire()
                await stack.enter_async_context(running(self._lock.run()))
            stack.callback(self._engine.dispose)
            await asyncio.to_thread(self._open)
            self._writer.start()
            stack.push_async_callback(asyncio.to_thread, self._writer.stop)
            # The readers are closed first: the last connection to a file merges its log.
            stack.callback(self._reader.close)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        """Write the queue, close the connections and release the lock."""
        await self._stack.aclose()

    def confirm_start(self) -> None:
        """Remove the copy that an earlier start kept, unless this start made an upgrade."""
        if self._url.path is not None and not self._is_upgraded:
            remove_upgrade_copies(self._url.path)

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
        if self._url.kind is StoreKind.SQLITE:
            return Leadership()
        return ServerLeadership(self._url, name)

    def _keep_copy(self) -> None:
        self._is_upgraded = True
        if self._url.path is not None:
            keep_upgrade_copy(self._url.path, self._head)

    def _open(self) -> None:
        try:
            if self._url.path is not None:
                create_private(self._url.path)
            self._writer.connect()
            if self._message_filter is not None:
                with self._engine.connect() as connection:
                    self._message_filter.load(connection)
        except OSError as error:
            raise StoreUnusable(self._url.redacted, error.strerror or str(error)) from error
        except DriverError as error:
            if self._url.kind is StoreKind.SQLITE:
                reason = describe_failure(self._url, error)
                raise StoreUnusable(self._url.redacted, reason) from None
            self._writer.set_down(error)
