"""Locks of a store: exclusive for a SQLite file, shared among the daemons of a PostgreSQL database.

An upgrade or an import locks either exclusively. A SQLite file has a lock file beside it with the pid of its holder.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from warpseal.store.errors import StoreInUse, StoreUnusable
from warpseal.store.leadership import POLL_S, AdvisoryLock
from warpseal.store.url import StoreKind, StoreUrl

log = logging.getLogger(__name__)

_NAME: Final = "daemons"
_PID: Final = re.compile(r"\bpid (\d+)\b")
_NO_ANSWER: Final = (psycopg.Error, OSError, TimeoutError)


class StoreLock:
    """A held lock of a store; `run` keeps it."""

    async def run(self) -> None:
        """Keep it until cancelled."""
        await asyncio.Event().wait()


class ServerStoreLock(StoreLock):
    """A lock of a PostgreSQL database, shared among daemons unless exclusive; `run` acquires it again if it is lost."""

    def __init__(self, lock: AdvisoryLock, redacted: str, *, exclusive: bool) -> None:
        self._lock = lock
        self._name = redacted
        self._exclusive = exclusive

    async def acquire(self) -> None:
        """Acquire it. Raises StoreInUse with the holders, and the errors of AdvisoryLock."""
        if await self._lock.acquire(shared=not self._exclusive):
            return
        names = await self._lock.holders()
        pid = _PID.search(names[0]) if names else None
        raise StoreInUse(self._name, names, int(pid[1]) if pid else None)

    async def run(self) -> None:
        """Acquire it again whenever the session is lost, until cancelled."""
        while True:
            with suppress(*_NO_ANSWER):
                while True:
                    await self._lock.watch(POLL_S)
            await self._lock.close()
            await asyncio.sleep(POLL_S)
            await self._try_to_acquire()

    async def _try_to_acquire(self) -> None:
        try:
            await self.acquire()
        except StoreInUse as error:
            log.warning("store is locked by an upgrade or an import", extra={"reason": str(error)})
        except _NO_ANSWER as error:
            log.debug("store cannot be locked now", extra={"reason": str(error)})


def hold_store(url: StoreUrl, parameters: dict[str, Any], *, exclusive: bool) -> AbstractAsyncContextManager[StoreLock]:
    """Lock a store inside the block. exclusive: against daemons as well; parameters: of the server's connection.

    Raises StoreInUse and StoreUnusable.
    """
    return _lock_file(url) if url.kind is StoreKind.SQLITE else _lock_server(url, parameters, exclusive)


@asynccontextmanager
async def _lock_file(url: StoreUrl) -> AsyncIterator[StoreLock]:
    assert url.path is not None
    with locked_file(url.path):
        yield StoreLock()


@asynccontextmanager
async def _lock_server(url: StoreUrl, parameters: dict[str, Any], exclusive: bool) -> AsyncIterator[StoreLock]:
    session = AdvisoryLock(parameters, _NAME)
    lock = ServerStoreLock(session, url.redacted, exclusive=exclusive)
    try:
        try:
            await lock.acquire()
        except _NO_ANSWER:
            await session.close()
        yield lock
    finally:
        await session.close()


LOCK_SUFFIX: Final = ".lock"
_MAX_PID_DIGITS: Final = 20


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock the store at `path` against every other process that writes. Raises StoreInUse, StoreUnusable."""
    descriptor = _open_lock_file(path)
    try:
        _flock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path.with_name(path.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnusable(str(path), error.strerror or str(error)) from error


def _flock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = _read_pid(descriptor)
        raise StoreInUse(str(path), (f"process {pid}",) if pid else (), pid) from None
    except OSError:
        log.warning("file system has no locks: make sure that no second daemon uses %s", path)


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, _MAX_PID_DIGITS, 0).strip()
    return int(text) if text.isdigit() else None
