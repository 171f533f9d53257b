"""Access of commands to a store: to read it while a daemon runs, or to write it with or without a daemon."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError

from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.process import os_error_text
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.engine import create_private, describe_failure, reading_engine, unusable_reason, writing_engine
from warpseal.store.errors import StoreInUse, StoreUnusable
from warpseal.store.locks import ServerLock, find_holder, locked_file, server_failures
from warpseal.store.url import StoreKind, StoreUrl
from warpseal.warp.codec import MalformedMessage

if TYPE_CHECKING:
    import psycopg
else:
    psycopg = LazyModule("psycopg")

_RETRY: Final = Backoff(0.05, 0.05)
_SERVER_TIMEOUT_S: Final = 1.0
_USERS: Final = text(
    "SELECT DISTINCT application_name FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'warpseal %'"
    " AND application_name <> current_setting('application_name') ORDER BY 1"
)


@contextmanager
def open_read_only(url: StoreUrl, kind: str = "store") -> Iterator[Connection]:
    """Open a connection that reads; a daemon may run at the same time. Raises StoreUnusable, also for errors inside.

    kind: of StoreUnusable.
    """
    with _opened(url, reading_engine, kind=kind) as engine, engine.connect() as connection:
        yield connection


@contextmanager
def open_shared(url: StoreUrl) -> Iterator[Connection]:
    """Open one short transaction that writes while a daemon may run. Raises StoreUnusable, also for errors inside."""
    with _opened(url, writing_engine, is_short=True) as engine, engine.begin() as connection:
        yield connection


@contextmanager
def open_exclusive(url: StoreUrl, *, create: bool = False) -> Iterator[Engine]:
    """Lock the store to write to it. Raises StoreInUse, which names its users, and StoreUnusable.

    create: make the file of a store that does not exist, empty.
    """
    if create and url.path is not None:
        try:
            create_private(url.path)
        except OSError as error:
            raise StoreUnusable(url.redacted, os_error_text(error)) from error
    _check_file(url)
    with (
        locked_file(url.path) if url.path is not None else _locked_server(url),
        _opened(url, writing_engine) as engine,
    ):
        yield engine


@contextmanager
def _opened(
    url: StoreUrl, build: Callable[[StoreUrl], Engine], *, is_short: bool = False, kind: str = "store"
) -> Iterator[Engine]:
    """Raise errors of the database, and damaged messages in it, as StoreUnusable without secrets."""
    _check_file(url, kind)
    engine = build(url)
    if url.kind is StoreKind.POSTGRESQL and not is_short:
        # A command may read everything.
        event.listen(engine, "connect", _remove_time_limit)
    try:
        yield engine
    except MalformedMessage as error:
        reason = f"a message in it is damaged ({error}); `warpseal store check` shows more"
        raise StoreUnusable(url.redacted, reason) from None
    except (DBAPIError, sqlite3.Error, psycopg.Error, UnicodeDecodeError) as error:
        raise StoreUnusable(url.redacted, describe_failure(url, error, kind), kind=kind) from None
    finally:
        engine.dispose()


@contextmanager
def _locked_server(url: StoreUrl) -> Iterator[None]:
    # The loop runs only to lock and to release, so an interrupt ends the work in between at once.
    with asyncio.Runner() as runner:
        lock = ServerLock(url, exclusive=True)
        try:
            # A server needs a moment to notice that its last user has ended.
            with suppress(*server_failures()):
                runner.run(Retrier(_RETRY, {StoreInUse: "users"}, max_wait_s=_SERVER_TIMEOUT_S).call(lock.acquire))
            yield
        finally:
            runner.run(lock.close())


@contextmanager
def read_snapshot(connection: Connection) -> Iterator[None]:
    """Let all reads inside the block see the store at one moment; keep the block short."""
    mode = " ISOLATION LEVEL REPEATABLE READ READ ONLY" if connection.dialect.name == "postgresql" else ""
    connection.exec_driver_sql("BEGIN" + mode)
    try:
        yield
    finally:
        connection.exec_driver_sql("ROLLBACK")


def find_users(url: StoreUrl, connection: Connection) -> tuple[str, ...]:
    """Return the other processes that use the store now, as far as they are known."""
    if url.path is None:
        return tuple(connection.execute(_USERS).scalars())
    pid = find_holder(url.path)
    return () if pid is None else (f"process {pid}",)


def _remove_time_limit(session: Any, _: object) -> None:
    session.execute("SET statement_timeout = 0")
    session.commit()


def _check_file(url: StoreUrl, kind: str = "store") -> None:
    if url.kind is StoreKind.OFF:
        raise StoreUnusable(url.redacted, "store-url is off, so there is no store")
    if url.path is not None and (reason := unusable_reason(url.path)):
        raise StoreUnusable(str(url.path), reason, kind=kind)
    if url.path is not None and not url.path.exists():
        raise StoreUnusable(str(url.path), "there is no such file; a daemon creates it when it starts", kind=kind)
