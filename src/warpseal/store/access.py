"""Access of commands to a store: to read it beside a daemon, or to write it with or without one."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError

from warpseal.store.database import redacted_reason
from warpseal.store.engine import reading_engine, server_parameters, writing_engine
from warpseal.store.errors import StoreInUse, StoreUnusable
from warpseal.store.locks import LOCK_SUFFIX, StoreLock, hold_store
from warpseal.store.store import STORE_NAME
from warpseal.store.url import StoreKind, StoreUrl
from warpseal.warp.codec import MalformedMessage

_MAX_PID_DIGITS: Final = 20
_SERVER_TIMEOUT_S: Final = 1.0
_RETRY_S: Final = 0.05
_USERS: Final = text(
    "SELECT DISTINCT application_name FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'warpseal %'"
    " AND application_name <> current_setting('application_name') ORDER BY 1"
)


def stores_below(data_dir: Path) -> list[Path]:
    """Return the stores of all networks in a daemon's data folder."""
    return sorted(data_dir.glob(f"*/{STORE_NAME}"))


@contextmanager
def open_read_only(url: StoreUrl) -> Iterator[Connection]:
    """Open a connection that reads; a daemon may run meanwhile. Raises StoreUnusable, also for errors inside."""
    _check_file(url)
    with _translate_errors(url):
        engine = _without_time_limit(reading_engine(url, connections=1))
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


@contextmanager
def open_shared(url: StoreUrl) -> Iterator[Connection]:
    """Open one short transaction that writes beside a daemon. Raises StoreUnusable, also for errors inside."""
    _check_file(url)
    with _translate_errors(url):
        engine = writing_engine(url)
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()


@contextmanager
def open_exclusive(url: StoreUrl) -> Iterator[Engine]:
    """Lock the store to write to it. Raises StoreInUse, which names its users, and StoreUnusable."""
    _check_file(url)
    # The loop runs only to lock and to release, so an interrupt ends the work in between at once.
    with _translate_errors(url), asyncio.Runner() as runner:
        lock = runner.run(_lock(url))
        engine = _without_time_limit(writing_engine(url))
        try:
            yield engine
        finally:
            engine.dispose()
            runner.run(lock.__aexit__(None, None, None))


async def _lock(url: StoreUrl) -> AbstractAsyncContextManager[StoreLock]:
    """Lock a store; a server needs a moment to notice that its last user has ended."""
    parameters = {} if url.kind is StoreKind.SQLITE else server_parameters(url)
    left_s = 0.0 if url.kind is StoreKind.SQLITE else _SERVER_TIMEOUT_S
    while True:
        lock = hold_store(url, parameters, exclusive=True)
        try:
            await lock.__aenter__()
        except StoreInUse:
            if left_s <= 0:
                raise
        else:
            return lock
        left_s -= _RETRY_S
        await asyncio.sleep(_RETRY_S)


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
    pid = _read_holder(url.path)
    return () if pid is None else (f"process {pid}",)


def _read_holder(path: Path) -> str | None:
    with suppress(OSError):
        descriptor = os.open(path.with_name(path.name + LOCK_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, _MAX_PID_DIGITS, 0).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    return None


def _without_time_limit(engine: Engine) -> Engine:
    """Remove the time limit of statements: a command may read everything."""
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _remove_time_limit)
    return engine


def _remove_time_limit(session: Any, _: object) -> None:
    session.execute("SET statement_timeout = 0")
    session.commit()


def _check_file(url: StoreUrl) -> None:
    if url.kind is StoreKind.OFF:
        raise StoreUnusable(url.redacted, "store-url is off, so there is no store")
    if url.path is not None and not url.path.is_file():
        raise StoreUnusable(str(url.path), "there is no such file; a daemon creates it when it starts")


@contextmanager
def _translate_errors(url: StoreUrl) -> Iterator[None]:
    """Raise errors of the database, and damaged messages in it, as StoreUnusable without secrets."""
    try:
        yield
    except MalformedMessage as error:
        reason = f"a message in it is damaged ({error}); `warpseal store check` shows more"
        raise StoreUnusable(url.redacted, reason) from None
    except DBAPIError as error:
        raise StoreUnusable(url.redacted, redacted_reason(url, error)) from None
