"""The one thread that writes: it gathers and commits, and keeps all in memory while the database fails.

Nothing here raises for a database that fails: the store is down then, which is logged once, and tried again and again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Final, Protocol, TypeGuard, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from warpseal.errors import StartupError
from warpseal.runtime.backoff import Backoff
from warpseal.runtime.retry import RetryDelays
from warpseal.store import archive_rows
from warpseal.store.errors import StoreDown
from warpseal.store.settings import StoreSettings
from warpseal.store.write_queue import WriteBatch, WriteCall, WriteQueue

log = logging.getLogger(__name__)

T = TypeVar("T")

_ALIVE: Final = text("SELECT 1")


class StoreObserver(Protocol):
    """What is reported as it happens, from the writer's thread."""

    def observe_commit(self, rows: int, seconds: float) -> None:
        """Note one transaction."""


class Upkeep(Protocol):
    """What is done now and then between writes."""

    def tidy(self, connection: Connection, now_unix_s: float) -> bool:
        """Do a small piece; tell whether there is more."""
        ...


class StoreWriter:
    """Writes what waits. prepare: makes the database ready, when it answers for the first time and after each failure.

    tell: turns a library's error into text without secrets.
    """

    def __init__(
        self,
        engine: Engine,
        settings: StoreSettings,
        prepare: Callable[[Engine], str],
        upkeep: Upkeep,
        observer: StoreObserver,
        tell: Callable[[BaseException], str] = str,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._prepare = prepare
        self._upkeep = upkeep
        self._observer = observer
        self._tell = tell
        self._retry_delays = RetryDelays(Backoff(settings.retry_first_s, settings.retry_cap_s))
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self.queue = WriteQueue(settings.max_queued_bytes, settings.gather_s)
        self.schema_version: str | None = None
        self._failure: str | None = "not opened"
        self._working_since = float("inf")
        self._in_hand = 0
        self._connection: Connection | None = None
        self.down_since_unix_s: float | None = None

    @property
    def reason(self) -> str | None:
        """Why the database does not work; None while it does."""
        if self._failure is None and self.is_stuck:
            return "no answer for more than a second"
        return self._failure

    @property
    def is_up(self) -> bool:
        """Whether the last thing asked of the database worked, or may still do so."""
        return self._failure is None

    @property
    def uncommitted(self) -> int:
        """How many writes are not committed yet."""
        return self.queue.writes + self._in_hand

    @property
    def is_stuck(self) -> bool:
        """Whether a transaction takes longer than anybody waits for it."""
        return time.monotonic() - self._working_since > self._settings.commit_timeout_s

    def open(self) -> None:
        """Make the database ready, on the caller's thread. Raises StartupError, and DBAPIError of one that fails."""
        self._come_up()

    def load(self, query: Callable[[Connection], None]) -> None:
        """Read something before the thread starts, on the caller's thread. Raises DBAPIError."""
        with self._engine.connect() as connection:
            query(connection)

    def open_later(self, error: DBAPIError) -> None:
        """Take it that the database fails for now."""
        self._go_down(error)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, for `stop_timeout_s` at most, and end; blocks until then."""
        self._give_up_at = time.monotonic() + self._settings.stop_timeout_s
        self._stopping.set()
        self.queue.stop()
        self._thread.join(self._settings.stop_timeout_s + 1)
        if self.queue.writes:
            log.error("the store was down at the end: writes are lost", extra={"writes": self.queue.writes})
        self._engine.dispose()

    def call(self, write: Callable[[Connection], T]) -> Future[T]:
        """Run `write` in a transaction of its own; the future raises StoreDown, at once while the store is down."""
        future: Future[T] = Future()
        if self._failure is not None:
            future.set_exception(StoreDown(self._failure))
        else:
            self.queue.call(WriteCall(write, future))
        return future

    def suspect(self) -> None:
        """Look whether the database still answers: somebody who read found that it does not."""
        self.call(lambda connection: connection.execute(_ALIVE))

    def _run(self) -> None:
        self._work()
        if not self.is_up and self.queue.writes:
            self._try_to_come_up()
        while self.is_up and not self.queue.is_empty and time.monotonic() < self._give_up_at:
            self._write(self.queue.take(0.0))
        self._failure = self._failure or "closed"
        self._disconnect()
        self._release()

    def _work(self) -> None:
        tidy_at = time.monotonic() + self._settings.first_prune_s
        while not self._is_over():
            if not self.is_up:
                self._stopping.wait(self._retry_delays.next())
                self._try_to_come_up()
                continue
            self._retry_delays.reset()
            batch = self.queue.take(tidy_at)
            self._in_hand = batch.writes
            self._write(batch)
            self._in_hand = 0
            if time.monotonic() >= tidy_at and self.is_up:
                tidy_at = time.monotonic() + (0.0 if self._tidy() else self._settings.prune_interval_s)

    def _is_over(self) -> bool:
        if not self._stopping.is_set():
            return False
        return self.queue.is_empty or not self.is_up or time.monotonic() > self._give_up_at

    def _write(self, batch: WriteBatch) -> None:
        waited_for, calls = batch.signatures[:], batch.calls
        failure = self._try_to_commit(batch) if batch.has_rows else None
        if failure is not None:
            self.queue.put_back(batch)
            self._go_down(failure)
        for keep in waited_for:
            keep.done()
        for call in calls:
            self._make(call)

    def _try_to_commit(self, batch: WriteBatch) -> DBAPIError | None:
        """Return why the database failed. A connection that ended meanwhile, or a deadlock, heals with a second try."""
        failure = None
        for _ in range(2):
            try:
                self._commit(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, no batch may end the thread
                if not _is_fault_of_database(error):
                    return self._commit_piecemeal(batch)
                failure = error
            else:
                return None
        return failure

    def _commit(self, batch: WriteBatch) -> None:
        began = time.perf_counter()
        with self._transaction() as connection:
            write = archive_rows.write_signed if batch.is_signed_only else archive_rows.write
            rows = write(connection, batch, time.time())
        if batch.is_signed_only:
            self.queue.settle_later(batch.signed_ids)
        self._observer.observe_commit(rows, time.perf_counter() - began)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._working_since = time.monotonic()
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            with self._connection.begin():
                yield self._connection
        except DBAPIError:
            self._disconnect()
            raise
        finally:
            self._working_since = float("inf")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.invalidate()
                connection.close()

    def _commit_piecemeal(self, batch: WriteBatch) -> DBAPIError | None:
        """Write entry by entry, leaving out those that no database takes; of the rest, `batch` keeps what failed."""
        pieces = batch.pieces()
        batch.clear()
        failure: DBAPIError | None = None
        refused: list[Exception] = []
        for piece in pieces:
            try:
                if failure is None:
                    self._commit(piece)
                    continue
            except Exception as error:  # noqa: BLE001 - told below
                if not _is_fault_of_database(error):
                    refused.append(error)
                    continue
                failure = error
            batch.extend(piece)
        if refused:
            self.queue.dropped += len(refused)
            log.error(
                "entries cannot be written and are given up", extra={"entries": len(refused)}, exc_info=refused[0]
            )
        return failure

    def _make(self, call: WriteCall) -> None:
        if not self.is_up:
            return _fail(call, StoreDown(self._failure or "down"))
        try:
            with self._transaction() as connection:
                result = call.write(connection)
        except DBAPIError as error:
            _fail(call, StoreDown(self._tell(error)))
            if _is_fault_of_database(error):
                self._go_down(error)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            _fail(call, error)
        else:
            with suppress(InvalidStateError):
                call.future.set_result(result)
        return None

    def _tidy(self) -> bool:
        try:
            with self._transaction() as connection:
                return self._upkeep.tidy(connection, time.time())
        except DBAPIError as error:
            self._go_down(error)
            return False

    def _try_to_come_up(self) -> None:
        try:
            self._come_up()
        except (SQLAlchemyError, StartupError) as error:
            self._failure = self._tell(error)
            self._release()

    def _come_up(self) -> None:
        self.schema_version = self._prepare(self._engine)
        self._failure = None
        if self.down_since_unix_s is not None:
            self.down_since_unix_s = None
            log.info("the store is up again", extra={"waiting_writes": self.queue.writes})

    def _go_down(self, error: BaseException) -> None:
        self._failure = self._tell(error)
        self.down_since_unix_s = time.time()
        log.error("the store is down; what is to be kept waits in memory", extra={"reason": self._failure})
        self._release()

    def _release(self) -> None:
        for call in self.queue.release():
            _fail(call, StoreDown(self._failure or "down"))


def _is_fault_of_database(error: BaseException) -> TypeGuard[DBAPIError]:
    """Tell apart a database that fails from an entry that it refuses."""
    return isinstance(error, DBAPIError) and not isinstance(error, IntegrityError | DataError)


def _fail(call: WriteCall, error: Exception) -> None:
    with suppress(InvalidStateError):
        call.future.set_exception(error)
