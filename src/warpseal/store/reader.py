"""Reads in their own threads and connections: bounded in number, each with a timeout."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from warpseal.store.connection import Connection, DriverError, Engine
from warpseal.store.errors import StoreDown
from warpseal.store.settings import StoreSettings

T = TypeVar("T")


class StoreReader:
    """Runs functions that read.

    translate: returns the error that a caller gets for an error of the database.
    on_failure: called if the database fails.
    prepare: called in the reading thread before each connection.
    """

    def __init__(
        self,
        engine: Engine,
        settings: StoreSettings,
        translate: Callable[[BaseException], StoreDown],
        on_failure: Callable[[], object] = lambda: None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._engine = engine
        self._prepare = prepare
        self._on_failure = on_failure
        self._translate = translate
        # Reads whose callers have left.
        self._abandoned: list[Future[Any]] = []
        self._threads = ThreadPoolExecutor(settings.readers, "store-reader")
        self._slots = threading.BoundedSemaphore(settings.max_queued_reads)

    @property
    def is_stuck(self) -> bool:
        """Whether a read takes longer than its caller waited; the next read would take as long."""
        return any(not read.done() for read in self._abandoned)

    async def read(self, query: Callable[[Connection], T], wait_s: float) -> T:
        """Return the result of `query`.

        Raises StoreDown after at most `wait_s`, and at once while a read is stuck.
        """
        if self.is_stuck:
            raise StoreDown("no answer to earlier reads")
        if not self._slots.acquire(blocking=False):
            raise StoreDown("too many reads wait")
        future = self._submit(query)
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            self._abandoned = [read for read in (*self._abandoned, future) if not read.done()]
            self._on_failure()
            raise StoreDown(f"no answer within {wait_s:g} s") from None
        except DriverError as error:
            self._on_failure()
            raise self._translate(error) from None

    def close(self) -> None:
        """Cancel the waiting reads, and close the idle connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.dispose()

    def _submit(self, query: Callable[[Connection], T]) -> Future[T]:
        try:
            future = self._threads.submit(self._run, query)
        except RuntimeError:
            self._slots.release()
            raise StoreDown("closed") from None
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def _run(self, query: Callable[[Connection], T]) -> T:
        self._prepare()
        try:
            with self._engine.connect() as connection:
                return query(connection)
        except DriverError as error:
            if not error.is_disconnect:
                raise
        # The idle connection was closed by the server: another one may work.
        with self._engine.connect() as connection:
            return query(connection)
