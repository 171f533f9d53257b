"""Reads in threads of their own, on connections of their own; bounded, and never longer than the caller waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from warpseal.runtime.locks import ThreadSemaphore, WorkerThreads
from warpseal.store.errors import StoreDown
from warpseal.store.settings import StoreSettings

T = TypeVar("T")


class StoreReader:
    """Runs functions that read. failed: called when the database did not answer; tell: an error without secrets."""

    def __init__(
        self,
        engine: Engine,
        settings: StoreSettings,
        failed: Callable[[], None],
        tell: Callable[[BaseException], str] = str,
    ) -> None:
        self._engine = engine
        self._failed = failed
        self._tell = tell
        self._abandoned = 0
        self._threads = WorkerThreads(settings.readers, "store-reader")
        self._room = ThreadSemaphore(settings.max_queued_reads)

    @property
    def is_stuck(self) -> bool:
        """Whether a read takes longer than anybody waited for it: the next one would, too."""
        return self._abandoned > 0

    async def read(self, query: Callable[[Connection], T], wait_s: float) -> T:
        """Return what `query` returns. Raises StoreDown, after `wait_s` at most, at once while it is stuck."""
        if self.is_stuck:
            raise StoreDown("no answer to earlier reads")
        if not self._room.acquire(blocking=False):
            raise StoreDown("too many reads wait")
        future = self._submit(query)
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            self._abandon(future)
            raise StoreDown(f"no answer within {wait_s:g} s") from None
        except SQLAlchemyError as error:
            self._failed()
            raise StoreDown(self._tell(error)) from None

    def close(self) -> None:
        """Drop what waits, and close the connections that are not in use."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.dispose()

    def _abandon(self, future: Future[T]) -> None:
        """Note a read that nobody waits for any more: until it ends, others need not try."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            self._abandoned -= 1

        def done(_: Future[T]) -> None:
            with suppress(RuntimeError):  # The loop was closed.
                loop.call_soon_threadsafe(ended)

        self._failed()
        self._abandoned += 1
        future.add_done_callback(done)

    def _submit(self, query: Callable[[Connection], T]) -> Future[T]:
        try:
            future = self._threads.submit(self._run, query)
        except RuntimeError:
            self._room.release()
            raise StoreDown("closed") from None
        future.add_done_callback(lambda _: self._room.release())
        return future

    def _run(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return query(connection)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        # The connection ended while nobody used it: another one may do.
        with self._engine.connect() as connection:
            return query(connection)
