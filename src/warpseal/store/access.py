"""Access of commands to a store: to read it while a daemon runs, or to write it with or without a
daemon.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final, TypeVar

from warpseal.runtime.lazy import psycopg
from warpseal.runtime.process import os_error_text
from warpseal.store.connection import Connection, DriverError, Engine, repeat_if_disconnected
from warpseal.store.engine import (
    create_private,
    describe_failure,
    is_disk_failure,
    reading_engine,
    rewrite_log,
    run_pragmas,
    settle_log,
    unusable_reason,
    with_outcome,
    writing_engine,
)
from warpseal.store.errors import StoreUnusable
from warpseal.store.locks import ServerLock, find_daemons, find_holder, locked_file, server_failures
from warpseal.store.url import StoreKind, StoreUrl
from warpseal.warp.codec import MalformedMessage

T = TypeVar("T")

_FLUSHES: Final = 3


@contextmanager
def open_read_only(url: StoreUrl, kind: str = "store") -> Iterator[Connection]:
    """Open a connection that reads; a daemon may run at the same time.

    kind: name of the kind of database in the text of an error.
    Raises StoreUnusable, also for errors inside.
    """
    with _opened(url, reading_engine, kind=kind) as engine, engine.connect() as connection:
        yield connection


def write_shared(url: StoreUrl, write: Callable[[Connection], T]) -> T:
    """Return the result of `write`, run in one short transaction while a daemon may run.

    The transaction survives a power cut.

    write: runs once more after a lost connection; a second run after a commit must change nothing
        and have the same result.
    Raises StoreUnusable, also for errors inside.
    """
    with _opened(url, writing_engine, is_short=True) as engine:
        # Not merged: what a daemon has written since the commit may not be flushed yet.
        if url.path is not None:
            run_pragmas(engine, ["wal_autocheckpoint = 0"])

        def transact() -> T:
            with engine.begin() as connection:
                return write(connection)

        try:
            return repeat_if_disconnected(transact)
        except DriverError as error:
            if url.path is not None and is_disk_failure(error):
                _keep_commits(engine, url.path)
            raise


@contextmanager
def open_exclusive(url: StoreUrl, *, create: bool = False) -> Iterator[Engine]:
    """Lock the store to write to it. Raises StoreInUse, which names its users, and StoreUnusable.

    create: whether a store that does not exist is made, empty.
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
        settle_log(engine)
        yield engine


def _keep_commits(engine: Engine, path: Path) -> None:
    """Flush what a daemon has committed, which a flush of this process that failed has lost."""
    for _ in range(_FLUSHES):
        with suppress(DriverError, OSError):
            with engine.begin():
                rewrite_log(path)
            return


@contextmanager
def _opened(
    url: StoreUrl, build: Callable[..., Engine], *, is_short: bool = False, kind: str = "store"
) -> Iterator[Engine]:
    """Raise errors of the database and damaged messages as StoreUnusable, without secrets."""
    _check_file(url, kind)
    # A command may read everything.
    engine = build(url, is_limited=is_short)
    try:
        yield engine
    except MalformedMessage as error:
        reason = f"a message in it is damaged ({error}); `warpseal store check` shows more"
        raise StoreUnusable(url.redacted, reason) from None
    except (DriverError, sqlite3.Error, psycopg.Error, UnicodeDecodeError) as error:
        reason = describe_failure(url, error, kind)
        if isinstance(error, DriverError):
            reason = with_outcome(error, reason)
        raise StoreUnusable(url.redacted, reason, kind=kind) from None
    finally:
        engine.dispose()


@contextmanager
def _locked_server(url: StoreUrl) -> Iterator[None]:
    lock = ServerLock(url, exclusive=True)
    # A thread renews the lease, so an interrupt ends the work of this one at once.
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="store-lock", daemon=True)
    thread.start()
    call = partial(asyncio.run_coroutine_threadsafe, loop=loop)
    work = call(lock.acquire())
    try:
        with suppress(*server_failures()):
            work.result()
        work = call(lock.run())
        yield
    finally:
        work.cancel()
        call(lock.close()).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def find_users(url: StoreUrl, connection: Connection) -> tuple[str, ...]:
    """Return the names of the other processes that use the store now."""
    if url.path is None:
        return find_daemons(connection)
    pid = find_holder(url.path)
    return () if pid is None else (f"process {pid}",)


def _check_file(url: StoreUrl, kind: str = "store") -> None:
    if url.kind is StoreKind.OFF:
        raise StoreUnusable(url.redacted, "store-url is off, so there is no store")
    if url.path is None:
        return
    reason = unusable_reason(url.path)
    if reason is None and not url.path.exists():
        reason = "there is no such file; a daemon creates it when it starts"
    if reason is not None:
        raise StoreUnusable(str(url.path), reason, kind=kind)
