"""Who holds a store: one process the SQLite file, any number of daemons a PostgreSQL database, one for an upgrade."""

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
    """A hold on a store; `run` keeps it alive."""

    async def run(self) -> None:
        """Keep it until cancelled."""
        await asyncio.Event().wait()


class ServerStoreLock(StoreLock):
    """A hold on a PostgreSQL database, shared among daemons; a server that does not answer is asked again later."""

    def __init__(self, lock: AdvisoryLock, redacted: str, *, alone: bool) -> None:
        self._lock = lock
        self._shown = redacted
        self._alone = alone

    async def take(self) -> None:
        """Take it. Raises StoreInUse, naming the others, and what the lock raises."""
        if await self._lock.take(shared=not self._alone):
            return
        names = await self._lock.holders()
        pid = _PID.search(names[0]) if names else None
        raise StoreInUse(self._shown, names, int(pid[1]) if pid else None)

    async def run(self) -> None:
        """Take it again whenever the session is lost, until cancelled."""
        while True:
            with suppress(*_NO_ANSWER):
                while True:
                    await self._lock.watch(POLL_S)
            await self._lock.close()
            await asyncio.sleep(POLL_S)
            await self._try_to_take()

    async def _try_to_take(self) -> None:
        try:
            await self.take()
        except StoreInUse as error:
            log.warning("the store is held by an upgrade or an import", extra={"reason": str(error)})
        except _NO_ANSWER as error:
            log.debug("the store cannot be held now", extra={"reason": str(error)})


def hold_store(url: StoreUrl, parameters: dict[str, Any], *, alone: bool) -> AbstractAsyncContextManager[StoreLock]:
    """Hold a store inside the block; `alone`: against daemons too. parameters: how its server is reached.

    Raises StoreInUse and StoreUnusable.
    """
    return _held_file(url) if url.kind is StoreKind.SQLITE else _held_server(url, parameters, alone)


@asynccontextmanager
async def _held_file(url: StoreUrl) -> AsyncIterator[StoreLock]:
    assert url.path is not None
    with locked_file(url.path):
        yield StoreLock()


@asynccontextmanager
async def _held_server(url: StoreUrl, parameters: dict[str, Any], alone: bool) -> AsyncIterator[StoreLock]:
    lock = AdvisoryLock(parameters, _NAME)
    hold = ServerStoreLock(lock, url.redacted, alone=alone)
    try:
        try:
            await hold.take()
        except _NO_ANSWER:
            await lock.close()
        yield hold
    finally:
        await lock.close()


LOCK_SUFFIX: Final = ".lock"
_MAX_PID_DIGITS: Final = 20


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the store at `path` against every other process that writes. Raises StoreInUse, StoreUnusable."""
    descriptor = _open(path)
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path.with_name(path.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnusable(str(path), error.strerror or str(error)) from error


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = _pid_in(descriptor)
        raise StoreInUse(str(path), (f"process {pid}",) if pid else (), pid) from None
    except OSError:
        log.warning("this file system has no locks: make sure that no second daemon uses %s", path)


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, _MAX_PID_DIGITS, 0).strip()
    return int(text) if text.isdigit() else None
