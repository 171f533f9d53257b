"""Connections to the two databases, whose drivers get statements as text.

A statement has `?` for its values, which are always bound. Source of truth: Python's sqlite3,
psycopg 3.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from typing import Any, Final, Self, TypeVar

from warpseal.runtime.lazy import psycopg
from warpseal.store.url import StoreKind, StoreUrl

T = TypeVar("T")

_FETCHED_ROWS: Final = 2_000
_MOST_TEXTS: Final = 1_000
_POOL_WAIT_S: Final = 30.0
_TABLE_OF_FILE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_COLUMN_OF_FILE: Final = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"
_COLUMN_OF_SERVER: Final = """
SELECT 1
FROM pg_attribute
JOIN pg_class ON pg_class.oid = attrelid
WHERE relname = ? AND attname = ?
  AND relkind = 'r' AND NOT attisdropped AND pg_table_is_visible(pg_class.oid)
"""
# `to_regclass` alone may not see a table that was committed while its transaction waited for a
# lock.
_TABLE_OF_SERVER: Final = """
SELECT 1
FROM pg_class
WHERE relname = ? AND relkind = 'r' AND pg_table_is_visible(oid)
"""


class DriverError(Exception):
    """An error of a driver.

    cause: error of the driver; its text may have secrets, which this error never shows.
    is_refusal: whether the database works, and refuses an entry.
    is_disconnect: whether the connection is of no use any more.
    may_be_committed: whether the connection ended at a COMMIT, so that the server may have run it.
    """

    def __init__(
        self, cause: Exception, *, is_refusal: bool = False, is_disconnect: bool = False
    ) -> None:
        super().__init__(type(cause).__name__)
        self.cause = cause
        self.is_refusal = is_refusal
        self.is_disconnect = is_disconnect
        self.may_be_committed = False


class Connection:
    """A connection, used by one thread at a time.

    driver: connection of the driver.
    Methods raise DriverError.

    Each statement is a transaction, unless one was begun. With a schema on a server, the first
    statement begins one that ends when the connection is closed.
    """

    def __init__(self, driver: Any, engine: Engine) -> None:
        self.driver = driver
        self.is_postgresql = engine.is_postgresql
        self._engine = engine
        self._errors = engine.driver_errors()
        self._needs_path = engine.is_postgresql and bool(engine.url.schema)
        self._is_valid = True
        self._in_transaction = False
        # The transactions of `begin` are of one moment: all reads see the same rows.
        self._is_snapshot = False
        # Each query of `stream` has a cursor of its own name.
        self._streams = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the driver's connection back; an open transaction is rolled back."""
        driver, self.driver = self.driver, None
        if driver is not None:
            self._engine.give_back(driver, is_valid=self._is_valid)

    def invalidate(self) -> None:
        """Let the driver's connection be closed instead of being used again."""
        self._is_valid = False

    def fetch(self, text: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        """Run a statement, and return its rows; none for a statement without any."""
        try:
            cursor = self._run(text, values)
            return () if cursor.description is None else cursor.fetchall()
        except self._errors as error:
            raise self._translate(error) from error

    def records(self, text: str, *values: Any) -> Sequence[Any]:
        """Run a query, and return its rows as named tuples, by the names of its columns."""
        try:
            cursor = self._run(text, values)
            rows = cursor.fetchall()
        except self._errors as error:
            raise self._translate(error) from error
        make = _record_maker(cursor)
        return [make(row) for row in rows]

    def value(self, text: str, *values: Any) -> Any:
        """Run a query, and return the first value of its first row; None without a row."""
        rows = self.fetch(text, *values)
        return rows[0][0] if rows else None

    def run(self, text: str, *values: Any) -> int:
        """Run a statement, and return how many rows it changed."""
        with self._translated():
            return int(self._run(text, values).rowcount)

    def run_many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        if rows:
            self._begin_for_path()
            with self._translated():
                cursor = self.driver.cursor()
                cursor.executemany(marked(text) if self.is_postgresql else text, rows)
                cursor.close()

    def stream(self, text: str, *values: Any) -> Iterator[Any]:
        """Yield the rows of a query as `records` does, without holding all of them.

        Several queries may be open at a time. On a server they need a transaction, and the first
        one begins it.
        """
        with self._translated():
            if self.is_postgresql:
                if not self._in_transaction:
                    self._begin()
                self._streams += 1
                cursor = self.driver.cursor(name=f"stream_{self._streams}")
                cursor.execute(marked(text), values)
            else:
                cursor = self._run(text, values)
            make = _record_maker(cursor)
            while rows := cursor.fetchmany(_FETCHED_ROWS):
                yield from map(make, rows)
            cursor.close()

    def copy(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """Send rows with a COPY statement to a server."""
        self._begin_for_path()
        with self._translated(), self.driver.cursor() as cursor, cursor.copy(text) as copy:
            for row in rows:
                copy.write_row(row)

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of this name."""
        text = _TABLE_OF_SERVER if self.is_postgresql else _TABLE_OF_FILE
        return self.value(text, name) is not None

    def has_column(self, table: str, name: str) -> bool:
        """Return whether a table has a column of this name."""
        text = _COLUMN_OF_SERVER if self.is_postgresql else _COLUMN_OF_FILE
        return self.value(text, table, name) is not None

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Run the statements of the block in one transaction, which an error rolls back."""
        if self._in_transaction:
            self._end("ROLLBACK")
        self._begin()
        try:
            yield
        except BaseException:
            with suppress(DriverError):
                self._end("ROLLBACK")
            raise
        try:
            self._end("COMMIT")
        except DriverError as error:
            error.may_be_committed = error.is_disconnect
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let the queries of the block see the database at one moment; keep the block short."""
        self._is_snapshot = True
        try:
            with self.begin():
                yield
        finally:
            self._is_snapshot = False

    @contextmanager
    def pipelined(self) -> Iterator[None]:
        """Send the statements of a transaction to a server without waiting for each reply.

        Only `run_many` runs within: with a server in another region each wait would cost a round
        trip.
        """
        if not self.is_postgresql:
            yield
            return
        with self._translated(), self.driver.pipeline():
            yield

    def _run(self, text: str, values: Sequence[Any]) -> Any:
        if self.is_postgresql:
            self._begin_for_path()
            return self.driver.execute(marked(text), values)
        return self.driver.execute(text, values)

    def _begin_for_path(self) -> None:
        if self._needs_path and not self._in_transaction:
            self._begin()

    def _begin(self) -> None:
        with self._translated():
            for prepare in self._engine.on_begin:
                prepare(self.driver)
            self.driver.execute(self._engine.begin_text(is_snapshot=self._is_snapshot))
        self._in_transaction = True

    def _end(self, text: str) -> None:
        self._in_transaction = False
        with self._translated():
            # SQLite has ended a transaction itself after some errors.
            if self.is_postgresql or self.driver.in_transaction:
                self.driver.execute(text)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> DriverError:
        failure = self._engine.translate(error, self.driver)
        self._is_valid = self._is_valid and not failure.is_disconnect
        return failure


class Engine:
    """The connections of this process to one database, at most `size`; threads share it.

    open_driver: returns a new connection of the driver.
    size: largest number of connections.
    begin: statement that begins a transaction.
    on_connect, on_close: called with each connection of the driver, new or about to be closed.
    """

    def __init__(
        self, url: StoreUrl, open_driver: Callable[[], Any], size: int = 1, begin: str = "BEGIN"
    ) -> None:
        self.url = url
        self.is_postgresql = url.kind is StoreKind.POSTGRESQL
        self.on_connect: list[Callable[[Any], None]] = []
        self.on_close: list[Callable[[Any], None]] = []
        # Called with the driver's connection before each transaction.
        self.on_begin: list[Callable[[Any], None]] = []
        self._open_driver = open_driver
        self._begin = begin
        self._slots = threading.BoundedSemaphore(size)
        # The last used one at the end: its cache of pages is the most useful one.
        self._idle: list[Any] = []
        self._used: set[int] = set()

    def connect(self) -> Connection:
        """Return a connection, to be closed.

        Raises DriverError, after half a minute if none becomes free.
        """
        if not self._slots.acquire(timeout=_POOL_WAIT_S):
            raise DriverError(TimeoutError(f"no connection was free within {_POOL_WAIT_S:g} s"))
        try:
            driver = self._take()
        except BaseException:
            self._slots.release()
            raise
        self._used.add(id(driver))
        return Connection(driver, self)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Return a connection in a transaction, which is committed at the end of the block."""
        with self.connect() as connection, connection.begin():
            yield connection

    def dispose(self) -> None:
        """Close the idle connections now, and the others when they are given back."""
        self._used.clear()
        while True:
            try:
                driver = self._idle.pop()
            except IndexError:
                return
            self._close(driver)

    def give_back(self, driver: Any, *, is_valid: bool) -> None:
        """Take back a connection of the driver."""
        try:
            is_current = id(driver) in self._used
            self._used.discard(id(driver))
            if is_current and is_valid and self._is_reset(driver):
                self._idle.append(driver)
            else:
                self._close(driver)
        finally:
            self._slots.release()

    def begin_text(self, *, is_snapshot: bool) -> str:
        """Return the statements that begin a transaction."""
        if not self.is_postgresql:
            return self._begin
        mode = " ISOLATION LEVEL REPEATABLE READ READ ONLY" if is_snapshot else ""
        # The search path is of this transaction only: a pooler may give the session to others.
        path = f"; SET LOCAL search_path TO {self.url.schema}" if self.url.schema else ""
        return f"BEGIN{mode}{path}"

    def driver_errors(self) -> type[Exception]:
        """Return the class of the driver's errors."""
        return psycopg.Error if self.is_postgresql else sqlite3.Error

    def translate(self, error: Exception, driver: Any = None) -> DriverError:
        """Return the error of a driver for a caller."""
        if not self.is_postgresql:
            is_refusal = isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)
            return DriverError(error, is_refusal=is_refusal)
        is_read_only = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        is_disconnect = is_read_only or (driver is not None and driver.closed)
        if is_disconnect:
            # The other connections have ended as well, or the server is no primary any more: new
            # ones find the new one.
            self.dispose()
        is_refusal = isinstance(error, psycopg.IntegrityError | psycopg.DataError)
        return DriverError(error, is_refusal=is_refusal, is_disconnect=is_disconnect)

    def _take(self) -> Any:
        with suppress(IndexError):
            return self._idle.pop()
        driver = None
        try:
            driver = self._open_driver()
            for connected in self.on_connect:
                connected(driver)
        except BaseException as error:
            if driver is not None:
                self._close(driver)
            if isinstance(error, self.driver_errors()):
                raise self.translate(error) from error
            raise
        return driver

    def _is_reset(self, driver: Any) -> bool:
        """End a transaction that was left open; return whether the connection is still of use."""
        try:
            if not self.is_postgresql:
                if driver.in_transaction:
                    driver.rollback()
                return True
            if driver.closed:
                return False
            if driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                driver.execute("ROLLBACK")
        except self.driver_errors():
            return False
        return True

    def _close(self, driver: Any) -> None:
        with suppress(self.driver_errors()):
            for closing in self.on_close:
                closing(driver)
        with suppress(self.driver_errors()):
            driver.close()


def repeat_if_disconnected(transact: Callable[[], T]) -> T:
    """Return the result of a transaction; run it once more if its connection ends.

    transact: runs the transaction; after a commit a second run of it changes nothing and has the
        same result. It may wait for the first run, which the server may not have ended yet.
    Raises DriverError, whose `may_be_committed` is about both runs.
    """
    try:
        return transact()
    except DriverError as error:
        if not error.is_disconnect:
            raise
        may_be_committed = error.may_be_committed
    try:
        return transact()
    except DriverError as error:
        error.may_be_committed = error.may_be_committed or may_be_committed
        raise


@lru_cache(_MOST_TEXTS)
def marked(text: str) -> str:
    """Return a statement with psycopg's marks for its values."""
    return text.replace("%", "%%").replace("?", "%s")


def marks(count: int) -> str:
    """Return that many marks for values, as a list in brackets."""
    return f"({', '.join('?' * count)})"


def _record_maker(cursor: Any) -> Callable[[Sequence[Any]], Any]:
    """Return the function that makes a named tuple of a row."""
    names = tuple(column[0] for column in cursor.description)
    make: Callable[[Sequence[Any]], Any] = _record_type(names)._make
    return make


@cache
def _record_type(names: tuple[str, ...]) -> Any:
    return namedtuple("Record", names, rename=True)
