"""The thread that writes: it commits writes, and keeps them in memory while the database is down.

A failure of the database is not raised: it is logged once, and the writer reconnects.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeGuard, TypeVar

from warpseal.errors import StartupError
from warpseal.runtime.process import os_error_text
from warpseal.runtime.retry import Backoff, RetryDelays
from warpseal.store import archive_rows
from warpseal.store.connection import (
    Connection,
    DriverError,
    Engine,
    repeat_if_disconnected,
)
from warpseal.store.engine import flush_log, log_size, rewrite_log, with_outcome
from warpseal.store.errors import StoreDown
from warpseal.store.event_rows import add_events, message_signed
from warpseal.store.eviction import Eviction
from warpseal.store.secrets import begin_log, end_log
from warpseal.store.settings import StoreSettings
from warpseal.store.write_queue import WriteBatch, WriteCall, WriteQueue

log = logging.getLogger(__name__)

T = TypeVar("T")

# From this multiple of its bound on, a log is worth a wait for readers: those that overlap all the
# time would let it grow without end.
_MOST_LOG: Final = 16
_WAIT_INTERVAL_S: Final = 30.0

CommitObserver = Callable[[int, float], None]
"""Called in the writer's thread with the rows and seconds of each transaction."""


class StoreWriter:
    """Writes the entries of its queue.

    prepare: upgrades the database when it first answers and after each failure; returns the schema
        version.
    describe: returns an error's text without secrets.
    """

    def __init__(
        self,
        engine: Engine,
        settings: StoreSettings,
        prepare: Callable[[Engine], str],
        eviction: Eviction,
        on_commit: CommitObserver | None,
        describe: Callable[[BaseException], str] = str,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._prepare = prepare
        self._eviction = eviction
        self._on_commit = on_commit
        self._describe = describe
        self._retry_delays = RetryDelays(Backoff(settings.retry_first_s, settings.retry_cap_s))
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self.queue = WriteQueue(settings.max_queued_bytes, settings.gather_s)
        self.schema_version: str | None = None
        self._failure: str | None = "not opened"
        self._working_since = float("inf")
        # Time of the monotonic clock at which the log of a SQLite file is flushed.
        self._flush_at = float("inf")
        # Writes to the log may be lost, although reads still show them.
        self._has_lost_flush = False
        # A time of the same clock, before which no merge waits for readers.
        self._wait_at = 0.0
        self._has_begun_log = False
        self._committing = 0
        self._connection: Connection | None = None
        self.down_since_unix_s: float | None = None
        # Called in this thread after a commit that added events.
        self.on_events: Callable[[], None] = lambda: None

    @property
    def reason(self) -> str | None:
        """Why the database is down; None while it is up."""
        if self._failure is None and self.is_stuck:
            return "no answer for more than a second"
        return self._failure

    @property
    def is_up(self) -> bool:
        """Whether the last statement of the database succeeded, or still runs."""
        return self._failure is None

    @property
    def uncommitted(self) -> int:
        """The number of writes that are not committed yet."""
        return self.queue.writes + self._committing

    @property
    def is_stuck(self) -> bool:
        """Whether a transaction takes longer than callers wait for it."""
        return time.monotonic() - self._working_since > self._settings.commit_timeout_s

    def connect(self) -> None:
        """Prepare the database in the caller's thread.

        Raises StartupError, and DriverError if the database fails.
        """
        path = self._engine.url.path
        if path is not None and log_size(path):
            # A process that was killed may have lost a flush.
            self._has_lost_flush = True
        self.schema_version = self._prepare(self._engine)
        # A daemon starts although its disk is full. The first write tries again.
        with suppress(DriverError), self._engine.connect() as connection:
            self._begin_log(connection)
        self._failure = None
        if self.down_since_unix_s is not None:
            self.down_since_unix_s = None
            log.info("store is up again", extra={"waiting_writes": self.queue.writes})

    def set_down(self, error: BaseException) -> None:
        """Let writes wait in memory until the database can be connected to again."""
        self._failure = self._describe(error)
        self.down_since_unix_s = time.time()
        log.error("store is down, writes wait in memory", extra={"reason": self._failure})
        self._release()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the queue for at most `stop_timeout_s`, and end the thread; blocks until then."""
        self._give_up_at = time.monotonic() + self._settings.stop_timeout_s
        self._stopping.set()
        self.queue.stop()
        self._thread.join(self._settings.stop_timeout_s + 1)
        if self.queue.writes:
            log.error(
                "store was down at shutdown, writes are lost", extra={"writes": self.queue.writes}
            )
        self._engine.dispose()

    def call(
        self,
        write: Callable[[Connection], T],
        *,
        is_flushed: bool = False,
        is_idempotent: bool = False,
    ) -> Future[T]:
        """Run `write` in its own transaction.

        The future raises StoreDown, at once while the store is down. With `is_flushed` its result
        survives a power cut, unless the log has an error that the flush failed. With
        `is_idempotent` it runs once more after a lost connection.
        """
        future: Future[T] = Future()
        if self._failure is not None:
            future.set_exception(StoreDown(self._failure))
        else:
            self.queue.add_call(WriteCall(write, future, is_flushed, is_idempotent))
        return future

    def check(self) -> None:
        """Check whether the database answers, because a read failed."""
        self.call(lambda connection: connection.fetch("SELECT 1"))

    def _run(self) -> None:
        self._work()
        if not self.is_up and self.queue.writes:
            self._try_to_connect()
        while self.is_up and not self.queue.is_empty and time.monotonic() < self._give_up_at:
            self._write(self.queue.take(0.0))
        if self.is_up and self.queue.is_empty and not self._engine.is_postgresql:
            with suppress(DriverError), self._transaction() as connection:
                end_log(connection)
            self._flush()
            self._merge_log("TRUNCATE")
        self._failure = self._failure or "closed"
        self._disconnect()
        self._release()

    def _flush(self) -> None:
        """Let the commits to a SQLite file survive a power cut; repeat it later if it fails."""
        self._flush_at = float("inf")
        self._working_since = time.monotonic()
        is_flushed = self._try_to_flush() or self._try_to_flush()
        if is_flushed and not self._merge_long_log():
            is_flushed = self._try_to_flush()
        if not is_flushed:
            self._flush_at = time.monotonic() + self._settings.flush_s
        self._working_since = float("inf")

    def _try_to_flush(self, connection: Connection | None = None) -> bool:
        """Flush the log; write it once more if an earlier flush failed. Return whether it worked.

        connection: connection that is free; without one the writer's own is used.
        """
        path = self._engine.url.path
        assert path is not None
        try:
            if self._has_lost_flush:
                # Not merged: a power cut in a merge of a log that is not flushed damages the file.
                with (connection or self._open_connection()).begin():
                    rewrite_log(path)
            else:
                flush_log(path)
        except (OSError, DriverError) as error:
            self._lose_flush(error)
            return False
        self._has_lost_flush = False
        return True

    def _lose_flush(self, error: OSError | DriverError) -> None:
        if not self._has_lost_flush:
            reason = os_error_text(error) if isinstance(error, OSError) else self._describe(error)
            log.error("store could not be flushed, writing its log again", extra={"reason": reason})
        self._has_lost_flush = True

    def _begin_log(self, connection: Connection) -> None:
        """Record once, in a SQLite file, that this daemon uses it. Raises DriverError."""
        if self._engine.url.path is None or self._has_begun_log:
            return
        with connection.begin():
            begin_log(connection)
        self._has_begun_log = True
        # Before a reader sees an event: a power cut must not take the record together with it.
        if not self._try_to_flush(connection):
            self._flush_at = time.monotonic()

    def _merge_long_log(self) -> bool:
        """Merge the flushed log of a SQLite file if it is long; return whether nothing failed."""
        path = self._engine.url.path
        assert path is not None
        size = log_size(path)
        if size <= self._settings.log_bytes:
            return True
        if size <= self._settings.log_bytes * _MOST_LOG or time.monotonic() < self._wait_at:
            return self._merge_log("PASSIVE")
        is_merged = self._merge_log("TRUNCATE")
        if log_size(path):
            # A reader stays: a backup or an export reads for minutes.
            self._wait_at = time.monotonic() + _WAIT_INTERVAL_S
        return is_merged

    def _merge_log(self, mode: str) -> bool:
        """Write the log of a SQLite file into it; return whether nothing failed.

        mode: PASSIVE writes what no reader needs, and lets the next commit begin the log again if
            that was all of it; TRUNCATE waits for readers a moment, and empties the log.
        """
        try:
            self._open_connection().fetch(f"PRAGMA wal_checkpoint({mode})")
        except DriverError as error:
            # A merge flushes both files.
            self._lose_flush(error)
            return False
        return True

    def _open_connection(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _work(self) -> None:
        maintain_at = time.monotonic() + self._settings.first_prune_s
        while not self._is_over():
            if not self.is_up:
                self._stopping.wait(self._retry_delays.next())
                self._try_to_connect()
                continue
            self._retry_delays.reset()
            batch = self.queue.take(min(maintain_at, self._flush_at))
            self._committing = batch.writes
            self._write(batch)
            self._committing = 0
            if time.monotonic() >= self._flush_at:
                self._flush()
            if time.monotonic() >= maintain_at and self.is_up:
                has_more = self._maintain()
                pause_s = 0.0 if has_more else self._settings.prune_interval_s
                maintain_at = time.monotonic() + pause_s

    def _is_over(self) -> bool:
        if not self._stopping.is_set():
            return False
        return self.queue.is_empty or not self.is_up or time.monotonic() > self._give_up_at

    def _write(self, batch: WriteBatch) -> None:
        calls = batch.calls
        failure = self._try_to_commit(batch) if batch.has_rows else None
        if failure is not None:
            signatures = batch.signatures[:]
            self.queue.put_back(batch)
            self.set_down(failure)
            # No caller waits for a store that is down.
            for added in signatures:
                added.done()
        for call in calls:
            self._run_call(call)

    def _try_to_commit(self, batch: WriteBatch) -> DriverError | None:
        """Return the failure of the database.

        A second attempt helps after a closed connection or a deadlock.
        """
        failure = None
        for _ in range(2):
            try:
                self._commit(batch)
            except Exception as error:  # noqa: BLE001 - no error may end the thread
                if not _is_database_failure(error):
                    return self._commit_piecemeal(batch)
                failure = error
            else:
                return None
        return failure

    def _commit(self, batch: WriteBatch) -> None:
        began = time.perf_counter()
        with self._transaction() as connection, connection.pipelined():
            write = archive_rows.write_signed if batch.is_signed_only else archive_rows.write
            rows = write(connection, batch, time.time())
            if batch.signatures:
                # Last, because the lock of the event log is held until the commit.
                events = [message_signed(added, time.time()) for added in batch.signatures]
                add_events(connection, events)
        # Callers wait for their signatures: they come before readers of events, and before counts.
        for added in batch.signatures:
            added.done()
        if batch.signatures:
            self.on_events()
        if batch.is_signed_only:
            self.queue.recount_later(batch.signed_ids)
        if self._on_commit is not None:
            self._on_commit(rows, time.perf_counter() - began)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._working_since = time.monotonic()
        try:
            connection = self._open_connection()
            self._begin_log(connection)
            with connection.begin():
                yield connection
            if not self._engine.is_postgresql:
                self._flush_at = min(self._flush_at, time.monotonic() + self._settings.flush_s)
        except DriverError:
            self._disconnect()
            raise
        finally:
            self._working_since = float("inf")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def _commit_piecemeal(self, batch: WriteBatch) -> DriverError | None:
        """Write entry by entry; return the failure that ended it.

        Entries that the database refuses are dropped. After a failure `batch` has the entries that
        are not written.
        """
        pieces = batch.split()
        batch.clear()
        failure: DriverError | None = None
        refused: list[Exception] = []
        for position, piece in enumerate(pieces):
            try:
                self._commit(piece)
            except Exception as error:  # noqa: BLE001 - logged below
                if _is_database_failure(error):
                    failure = error
                    for left in pieces[position:]:
                        batch.extend(left)
                    break
                refused.append(error)
                for added in piece.signatures:
                    added.done()
        if refused:
            self.queue.dropped += len(refused)
            log.error(
                "the database refused entries, which are dropped",
                extra={"entries": len(refused)},
                exc_info=refused[0],
            )
        return failure

    def _run_call(self, call: WriteCall) -> None:
        if not self.is_up:
            return _fail(call, StoreDown(self._failure or "down"))
        transact = partial(self._transact, call.write)
        try:
            result = repeat_if_disconnected(transact) if call.is_idempotent else transact()
        except DriverError as error:
            _fail(call, StoreDown(with_outcome(error, self._describe(error))))
            if _is_database_failure(error):
                self.set_down(error)
        except Exception as error:  # noqa: BLE001 - the caller handles it
            _fail(call, error)
        else:
            if call.is_flushed and not self._engine.is_postgresql:
                self._flush()
            with suppress(InvalidStateError):
                call.future.set_result(result)
        return None

    def _transact(self, write: Callable[[Connection], T]) -> T:
        with self._transaction() as connection:
            return write(connection)

    def _maintain(self) -> bool:
        try:
            with self._transaction() as connection:
                return self._eviction.run_step(connection, time.time())
        except DriverError as error:
            self.set_down(error)
            return False

    def _try_to_connect(self) -> None:
        # A merge may have opened one, and the engine has no other.
        self._disconnect()
        try:
            self.connect()
        except (DriverError, StartupError) as error:
            self._failure = self._describe(error)
            self._release()

    def _release(self) -> None:
        for call in self.queue.release():
            _fail(call, StoreDown(self._failure or "down"))


def _is_database_failure(error: BaseException) -> TypeGuard[DriverError]:
    """Return whether the database failed, rather than refused an entry."""
    return isinstance(error, DriverError) and not error.is_refusal


def _fail(call: WriteCall, error: Exception) -> None:
    with suppress(InvalidStateError):
        call.future.set_exception(error)
