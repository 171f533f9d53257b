"""Locks of a store, exclusive for a SQLite file and shared among the daemons of a PostgreSQL database; leader election.

An upgrade or an import locks either exclusively. A SQLite file has a lock file with the pid of its holder. A
server has advisory locks, and releases the locks of a session when the session ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from zlib import crc32

from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.process import os_error_text, read_pid, write_pid
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.engine import server_parameters
from warpseal.store.errors import StoreInUse, StoreUnusable
from warpseal.store.url import StoreUrl

if TYPE_CHECKING:
    import psycopg
else:
    psycopg = LazyModule("psycopg")

log = logging.getLogger(__name__)

_POLL_S: Final = 2.0
_RECONNECT: Final = Backoff(_POLL_S, _POLL_S)
_REPLY_WAIT_S: Final = 3.0
_CONNECT_WAIT_S: Final = 5.0
# The first of the two numbers of Warpseal's advisory locks; the second is a hash of the lock's name.
_LOCK_CLASS: Final = 0x57_41_52_50
_HOLDERS: Final = """
SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = %s AND l.objid::bigint = %s
ORDER BY a.backend_start
"""
# Locks of writers; the second number is a hash of the schema that the session uses.
_WRITER_CLASS: Final = 0x57_41_52_58
_LOCK_WRITER: Final = "SELECT pg_advisory_lock_shared(%s, hashtext(current_setting('search_path')))"
_HAS_WRITER: Final = """
SELECT EXISTS (
  SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid::bigint = %s
  AND objid::bigint = hashtext(current_setting('search_path'))::bigint & 4294967295
)
"""
LOCK_SUFFIX: Final = ".lock"
_PID: Final = re.compile(r"\bpid (\d+)\b")


def server_failures() -> tuple[type[Exception], ...]:
    """Return the errors of a server that does not answer; TimeoutError is one of them."""
    return psycopg.Error, OSError


class AdvisoryLock:
    """One lock of a server, and the session that holds it. Methods but `repeat` and `close` raise `server_failures`."""

    def __init__(self, url: StoreUrl, name: str) -> None:
        self._parameters = server_parameters(url)
        self._name = name
        self._key = (_LOCK_CLASS, crc32(name.encode()) & 0x7FFFFFFF)
        self._session: psycopg.AsyncConnection[Any] | None = None

    async def repeat(self, hold: Callable[[], Awaitable[NoReturn]]) -> NoReturn:
        """Run `hold` until cancelled; when the server does not answer, run it again with a new session."""

        async def attempt() -> NoReturn:
            try:
                await hold()
            except server_failures() as error:
                log.debug("server does not lock now", extra={"lock": self._name, "reason": str(error)})
                await self.close()
                raise

        await Retrier(_RECONNECT, dict.fromkeys(server_failures(), "server")).call(attempt)

    async def acquire(self, *, shared: bool = False) -> None:
        """Acquire it, shared or exclusively, as soon as it is free."""
        while not await self.try_acquire(shared=shared):
            await self._check()

    async def try_acquire(self, *, shared: bool = False) -> bool:
        """Acquire it if it is free, shared or exclusively; return whether it was."""
        function = "pg_try_advisory_lock_shared" if shared else "pg_try_advisory_lock"
        rows = await self._query(f"SELECT {function}(%s, %s)", self._key)
        return bool(rows[0][0])

    async def holders(self) -> tuple[str, ...]:
        """Return the application names of its other holders, oldest session first."""
        return tuple(row[0] for row in await self._query(_HOLDERS, self._key))

    async def watch(self) -> NoReturn:
        """Raise as soon as the session has ended, or the server does not answer."""
        while True:
            await self._check()

    async def close(self) -> None:
        """End the session, which releases the lock."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(*server_failures()):
                await session.close()

    async def _check(self) -> None:
        """Check after two seconds that the session is alive; raise at once if it ends before."""
        async for _ in (await self._connected()).notifies(timeout=_POLL_S):
            pass
        await self._query("SELECT 1", ())

    async def _query(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        session = await self._connected()
        async with asyncio.timeout(_REPLY_WAIT_S):
            return await (await session.execute(query.encode(), values)).fetchall()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._session is None:
            async with asyncio.timeout(_CONNECT_WAIT_S):
                self._session = await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
        return self._session


class ServerLock:
    """The lock of a PostgreSQL database as a store: shared among daemons, exclusive for an upgrade or an import."""

    def __init__(self, url: StoreUrl, *, exclusive: bool = False) -> None:
        self._where = url.redacted
        self._shared = not exclusive
        self._lock = AdvisoryLock(url, "daemons")
        self.close = self._lock.close

    async def acquire(self) -> None:
        """Acquire it. Raises StoreInUse with the holders, and `server_failures`."""
        if not await self._lock.try_acquire(shared=self._shared):
            names = await self._lock.holders()
            pid = _PID.search(names[0]) if names else None
            raise StoreInUse(self._where, names, int(pid[1]) if pid else None)

    async def run(self) -> None:
        """Hold it until cancelled, and acquire it again whenever the session is lost; `close` releases it."""
        await self._lock.repeat(self._hold)

    async def _hold(self) -> NoReturn:
        try:
            await self.acquire()
        except StoreInUse as error:
            log.warning("store is locked by an upgrade or an import", extra={"reason": str(error)})
            await self._lock.acquire(shared=self._shared)
        await self._lock.watch()


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock the store at `path` against every other process that writes. Raises StoreInUse, StoreUnusable."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(path.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnusable(str(path), error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = read_pid(descriptor)
            raise StoreInUse(str(path), (f"process {pid}",) if pid else (), pid) from None
        except OSError:
            log.warning("file system has no locks: make sure that no second daemon uses %s", path)
        write_pid(descriptor)
        yield
    finally:
        os.close(descriptor)


def find_holder(path: Path) -> int | None:
    """Return the pid of the process that locks the store at `path`; None if none does, or its pid is not known."""
    with suppress(OSError), path.with_name(path.name + LOCK_SUFFIX).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_pid(file.fileno())
    return None


def lock_while_connected(engine: Engine, path: Path | None) -> None:
    """Hold a lock by which other processes see a writer, as long as its engine is connected. Raises StoreUnusable.

    Writers do not exclude each other by it. path: of the database file, which gets a lock file beside it; None: the
    server holds the lock for the session. It is one of the schema that the session uses.
    """

    def lock_file(_: object, record: ConnectionPoolEntry) -> None:
        assert path is not None
        try:
            descriptor = os.open(path.with_name(path.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnusable(str(path), os_error_text(error)) from error
        record.info[LOCK_SUFFIX] = descriptor
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)

    def unlock_file(_: object, record: ConnectionPoolEntry) -> None:
        if (descriptor := record.info.pop(LOCK_SUFFIX, None)) is not None:
            os.close(descriptor)

    def lock_session(session: Any, _: object) -> None:
        session.execute(_LOCK_WRITER, (_WRITER_CLASS,))
        session.commit()

    if path is None:
        event.listen(engine.pool, "connect", lock_session)
    else:
        event.listen(engine.pool, "connect", lock_file)
        event.listen(engine.pool, "close", unlock_file)


def has_writer(connection: Connection, path: Path | None) -> bool:
    """Return whether a writer is connected to a database; True also if the file system has no locks."""
    if path is None:
        return bool(connection.exec_driver_sql(_HAS_WRITER, (_WRITER_CLASS,)).scalar_one())
    try:
        with path.with_name(path.name + LOCK_SUFFIX).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class Leadership:
    """The leadership of a process. This class always leads, unless it is made with `held=False`.

    A SQLite file has one daemon, which always leads.
    """

    def __init__(self, *, held: bool = True) -> None:
        self._held = asyncio.Event()
        self._lost = asyncio.Event()
        (self._held if held else self._lost).set()

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now."""
        return self._held.is_set()

    async def wait_until_held(self) -> None:
        """Return as soon as this process leads."""
        await self._held.wait()

    async def wait_until_lost(self) -> None:
        """Return as soon as this process does not lead."""
        await self._lost.wait()

    async def run(self) -> None:
        """Take part in the election until cancelled, and release the leadership then."""
        await asyncio.Event().wait()

    def _acquire(self) -> None:
        self._lost.clear()
        self._held.set()

    def _lose(self) -> None:
        self._held.clear()
        self._lost.set()


class ServerLeadership(Leadership):
    """Leadership among all daemons that use one PostgreSQL database."""

    def __init__(self, url: StoreUrl, name: str) -> None:
        super().__init__(held=False)
        self._lock = AdvisoryLock(url, name)
        self._name = name

    async def run(self) -> None:
        """Take part until cancelled: a free leadership is acquired within two seconds, and lost with the session."""
        try:
            await self._lock.repeat(self._lead)
        finally:
            self._lose()
            await self._lock.close()

    async def _lead(self) -> NoReturn:
        await self._lock.acquire()
        log.info("acquired leadership", extra={"leadership": self._name})
        self._acquire()
        try:
            await self._lock.watch()
        except server_failures():
            log.warning("lost leadership", extra={"leadership": self._name})
            self._lose()
            raise
