"""How commands come to a store: to read beside whoever uses it, or to write while nobody does."""

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
_SERVER_PATIENCE_S: Final = 1.0
_ASK_AGAIN_AFTER_S: Final = 0.05
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
    """Hold a connection that reads, beside a daemon or not. Raises StoreUnusable, for what fails within too."""
    _check_file(url)
    with _told(url):
        engine = _patient(reading_engine(url, connections=1))
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


@contextmanager
def open_shared(url: StoreUrl) -> Iterator[Connection]:
    """Hold one short transaction that writes, beside a daemon or not. Raises StoreUnusable, for what fails within."""
    _check_file(url)
    with _told(url):
        engine = writing_engine(url)
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()


@contextmanager
def open_exclusive(url: StoreUrl) -> Iterator[Engine]:
    """Hold the store to write to it, with nobody else. Raises StoreInUse naming who uses it, and StoreUnusable."""
    _check_file(url)
    # The loop runs in these two moments only, so that an interrupt ends the work between them at once.
    with _told(url), asyncio.Runner() as runner:
        hold = runner.run(_held(url))
        engine = _patient(writing_engine(url))
        try:
            yield engine
        finally:
            engine.dispose()
            runner.run(hold.__aexit__(None, None, None))


async def _held(url: StoreUrl) -> AbstractAsyncContextManager[StoreLock]:
    """Hold a store; a server may need a moment to notice that the process that used it last has ended."""
    parameters = {} if url.kind is StoreKind.SQLITE else server_parameters(url)
    patience_s = 0.0 if url.kind is StoreKind.SQLITE else _SERVER_PATIENCE_S
    while True:
        hold = hold_store(url, parameters, alone=True)
        try:
            await hold.__aenter__()
        except StoreInUse:
            if patience_s <= 0:
                raise
        else:
            return hold
        patience_s -= _ASK_AGAIN_AFTER_S
        await asyncio.sleep(_ASK_AGAIN_AFTER_S)


@contextmanager
def read_snapshot(connection: Connection) -> Iterator[None]:
    """Let all reads within see the store as of one moment; keep it short."""
    mode = " ISOLATION LEVEL REPEATABLE READ READ ONLY" if connection.dialect.name == "postgresql" else ""
    connection.exec_driver_sql("BEGIN" + mode)
    try:
        yield
    finally:
        connection.exec_driver_sql("ROLLBACK")


def find_users(url: StoreUrl, connection: Connection) -> tuple[str, ...]:
    """Return which other processes use the store now, as far as that can be told."""
    if url.path is None:
        return tuple(connection.execute(_USERS).scalars())
    pid = _holder_of(url.path)
    return () if pid is None else (f"process {pid}",)


def _holder_of(path: Path) -> str | None:
    with suppress(OSError):
        descriptor = os.open(path.with_name(path.name + LOCK_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, _MAX_PID_DIGITS, 0).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    return None


def _patient(engine: Engine) -> Engine:
    """Let statements take their time: those of a daemon are bounded, a command looks at everything."""
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _unbounded)
    return engine


def _unbounded(session: Any, _: object) -> None:
    session.execute("SET statement_timeout = 0")
    session.commit()


def _check_file(url: StoreUrl) -> None:
    if url.kind is StoreKind.OFF:
        raise StoreUnusable(url.redacted, "with store-url off nothing is kept")
    if url.path is not None and not url.path.is_file():
        raise StoreUnusable(str(url.path), "there is no such file; a daemon makes it when it starts")


@contextmanager
def _told(url: StoreUrl) -> Iterator[None]:
    """Turn what the database says into StoreUnusable, without secrets; damaged bytes in it too."""
    try:
        yield
    except MalformedMessage as error:
        reason = f"a message in it is damaged ({error}); `warpseal store check` tells more"
        raise StoreUnusable(url.redacted, reason) from None
    except DBAPIError as error:
        raise StoreUnusable(url.redacted, redacted_reason(url, error)) from None
