"""Locks of a store, and the election of a leader.

The lock of a SQLite file is exclusive, and daemons share the lock of a PostgreSQL database. An
upgrade or an import locks either one exclusively. A SQLite file has a lock file with the pid of its
holder. A server has a table of leases: a pooler of transactions or a new primary would lose the
locks of a session.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn
from uuid import uuid4
from zlib import crc32

from warpseal.runtime.lazy import psycopg
from warpseal.runtime.process import os_error_text, read_pid, write_pid
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.connection import Connection, Engine
from warpseal.store.engine import process_name, server_parameters
from warpseal.store.errors import StoreInUse, StoreUnusable
from warpseal.store.url import StoreUrl

log = logging.getLogger(__name__)

_RENEW_S: Final = 2.0
_RECONNECT: Final = Backoff(_RENEW_S, _RENEW_S)
# A holder gives a lease up two seconds before another process may acquire it, by its own clock.
_LEASE_S: Final = 8.0
_HOLD_S: Final = _LEASE_S - 2
# A writer renews its lease with its transactions, at least with each status.
_WRITER_LEASE_S: Final = 60.0
_WRITER_RENEW_S: Final = 10.0
_REPLY_WAIT_S: Final = 3.0
_CONNECT_WAIT_S: Final = 5.0
_DAEMONS: Final = "daemons"
_WRITER: Final = "writer"
# The first of the two numbers of an advisory lock; the second is a hash of the lease's name.
_LOCK_CLASS: Final = 0x57_41_52_50
_CREATE_SCHEMA: Final = "CREATE SCHEMA IF NOT EXISTS {schema};"
_CREATE: Final = """
SELECT pg_advisory_xact_lock(%(class)s, 0);
{create_schema}
CREATE TABLE IF NOT EXISTS {leases} (
  name text NOT NULL,
  holder text NOT NULL,
  process text NOT NULL,
  is_shared boolean NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (name, holder)
)
"""
# The statements of one message are one transaction. The lock orders them, because an INSERT does
# not see another one.
_ACQUIRE: Final = """
SELECT pg_advisory_xact_lock(%(class)s, %(key)s);
DELETE FROM {leases}
WHERE name = %(name)s
  AND expires_at <= clock_timestamp()
  AND holder <> %(holder)s;
INSERT INTO {leases} AS own (name, holder, process, is_shared, expires_at)
SELECT
  %(name)s,
  %(holder)s,
  %(process)s,
  %(shared)s,
  clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE NOT EXISTS (
  SELECT 1
  FROM {leases}
  WHERE name = %(name)s
    AND holder <> %(holder)s
    AND NOT (is_shared AND %(shared)s)
)
ON CONFLICT (name, holder) DO UPDATE SET expires_at = excluded.expires_at
RETURNING own.holder
"""
_RELEASE: Final = "DELETE FROM {leases} WHERE name = %(name)s AND holder = %(holder)s"
_HOLDERS: Final = """
SELECT process, expires_at
FROM {leases}
WHERE name = %(name)s
  AND holder <> %(holder)s
  AND expires_at > clock_timestamp()
ORDER BY process
"""
_VALID_HOLDERS: Final = """
SELECT DISTINCT process
FROM leases
WHERE name = ? AND expires_at > clock_timestamp()
ORDER BY process
"""
LOCK_SUFFIX: Final = ".lock"
_PID: Final = re.compile(r"\bpid (\d+)\b")


def server_failures() -> tuple[type[Exception], ...]:
    """Return the errors of a server that does not answer; TimeoutError is one of them."""
    return psycopg.Error, OSError


class LeaseStatements:
    """The statements of one lease in the schema of a URL, with their values.

    seconds: time for which the lease is valid without a renewal.
    """

    def __init__(self, url: StoreUrl, name: str, *, is_shared: bool, seconds: float) -> None:
        create_schema = _CREATE_SCHEMA.format(schema=url.schema) if url.schema else ""
        leases = f"{url.schema}.leases" if url.schema else "leases"
        self.create = _CREATE.format(leases=leases, create_schema=create_schema).encode()
        self.acquire = _ACQUIRE.format(leases=leases).encode()
        self.release = _RELEASE.format(leases=leases).encode()
        self.holders = _HOLDERS.format(leases=leases).encode()
        self.values = {
            "class": _LOCK_CLASS,
            "key": crc32(f"{leases} {name}".encode()) & 0x7FFFFFFF,
            "name": name,
            "holder": uuid4().hex,
            "process": process_name(),
            "shared": is_shared,
            "seconds": seconds,
        }


class Lease:
    """One lease of a server, and the session that renews it.

    is_shared: whether other processes may hold it as well, if their leases are shared.
    Methods raise `server_failures`, unless they say otherwise.
    """

    def __init__(self, url: StoreUrl, name: str, *, is_shared: bool = False) -> None:
        self._parameters = server_parameters(url)
        self._name = name
        self._statements = LeaseStatements(url, name, is_shared=is_shared, seconds=_LEASE_S)
        self._session: psycopg.AsyncConnection[Any] | None = None

    async def repeat(self, on_attempt: Callable[[float | None], None]) -> NoReturn:
        """Acquire and renew it until cancelled; an error leads to a new session.

        on_attempt: called with the time of the event loop until which this process holds the lease,
            or with None while another process holds it.
        """

        async def attempt() -> NoReturn:
            try:
                while True:
                    await self._connected()
                    # The server counts from a later moment.
                    hold_until = asyncio.get_running_loop().time() + _HOLD_S
                    on_attempt(hold_until if await self.try_acquire() else None)
                    await asyncio.sleep(_RENEW_S)
            except server_failures() as error:
                fields = {"lease": self._name, "reason": str(error)}
                log.debug("lease cannot be renewed now", extra=fields)
                await self._disconnect()
                raise

        await Retrier(_RECONNECT, dict.fromkeys(server_failures(), "server")).call(attempt)

    async def try_acquire(self) -> bool:
        """Acquire it if it is free, or renew it; return whether this process holds it."""
        return bool(await self._query(self._statements.acquire))

    async def holders(self) -> dict[str, Any]:
        """Return the end of the lease of each other holder, by the name of its process."""
        return dict(await self._query(self._statements.holders))

    async def close(self) -> None:
        """Release it, and end the session; raise nothing."""
        if self._session is not None:
            with suppress(*server_failures()):
                await self._query(self._statements.release)
        await self._disconnect()

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(*server_failures()):
                await session.close()

    async def _query(self, query: bytes) -> list[tuple[Any, ...]]:
        """Return the rows of the last statement of a query, run as one transaction."""
        session = await self._connected()
        async with asyncio.timeout(_REPLY_WAIT_S):
            try:
                cursor = await session.execute(query, self._statements.values)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                await session.execute(self._statements.create, self._statements.values)
                cursor = await session.execute(query, self._statements.values)
            while cursor.nextset():
                pass
            return [] if cursor.description is None else await cursor.fetchall()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._session is None:
            async with asyncio.timeout(_CONNECT_WAIT_S):
                # The client binds the values, as a message of several statements requires.
                self._session = await psycopg.AsyncConnection.connect(
                    **self._parameters, autocommit=True, cursor_factory=psycopg.AsyncClientCursor
                )
        return self._session


class ServerLock:
    """The lock of a PostgreSQL database: shared for daemons, exclusive for upgrades and imports."""

    def __init__(self, url: StoreUrl, *, exclusive: bool = False) -> None:
        self._where = url.redacted
        self._lease = Lease(url, _DAEMONS, is_shared=not exclusive)
        self._is_held = True
        self.close = self._lease.close

    async def acquire(self) -> None:
        """Acquire it. Raises StoreInUse with the holders, and `server_failures`.

        A process that was killed does not renew its lease: this waits for its end.
        """
        first = await self._try_acquire()
        while first is not None:
            await asyncio.sleep(_RENEW_S / 4)
            holders = await self._try_acquire()
            if holders is None:
                return
            running = tuple(
                name for name, expires_at in holders.items() if first.get(name) != expires_at
            )
            if running:
                match = _PID.search(running[0])
                pid = int(match[1]) if match else None
                raise StoreInUse(self._where, running, pid)

    async def run(self) -> None:
        """Hold it until cancelled, and acquire it again if it is lost; `close` releases it."""
        await self._lease.repeat(self._on_attempt)

    def _on_attempt(self, hold_until: float | None) -> None:
        is_held = hold_until is not None
        if self._is_held and not is_held:
            log.warning("store is locked by an upgrade or an import")
        self._is_held = is_held

    async def _try_acquire(self) -> dict[str, Any] | None:
        """Return None if this process holds it now; else the holders that exclude this process."""
        return None if await self._lease.try_acquire() else await self._lease.holders()


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock the store at `path` against every other process that writes.

    Raises StoreInUse, StoreUnusable.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            path.with_name(path.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
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
    """Return the pid of the process that locks the store at `path`, if there is one."""
    with suppress(OSError), path.with_name(path.name + LOCK_SUFFIX).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_pid(file.fileno())
    return None


def lock_while_connected(engine: Engine, url: StoreUrl) -> None:
    """Hold a lock by which other processes see a writer, as long as its engine is connected.

    Writers do not exclude each other by it. A file has a lock file next to it. On a server it is a
    lease, which ends a minute after the last transaction of a writer that was killed.

    Raises StoreUnusable.
    """
    path = url.path
    if path is None:
        statements = LeaseStatements(url, _WRITER, is_shared=True, seconds=_WRITER_LEASE_S)
        _lease_while_connected(engine, statements)
        return
    lock_path = path.with_name(path.name + LOCK_SUFFIX)
    descriptors: list[int] = []

    def lock_file(_: object) -> None:
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnusable(str(path), os_error_text(error)) from error
        descriptors.append(descriptor)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)

    def unlock_file(_: object) -> None:
        if descriptors:
            os.close(descriptors.pop())

    engine.on_connect.append(lock_file)
    engine.on_close.append(unlock_file)


def _lease_while_connected(engine: Engine, statements: LeaseStatements) -> None:
    renew_at = float("-inf")

    def acquire(session: psycopg.Connection[Any]) -> None:
        psycopg.ClientCursor(session).execute(statements.create, statements.values)
        renew(session)

    def renew(session: psycopg.Connection[Any]) -> None:
        nonlocal renew_at
        psycopg.ClientCursor(session).execute(statements.acquire, statements.values)
        renew_at = time.monotonic() + _WRITER_RENEW_S

    def renew_if_due(session: psycopg.Connection[Any]) -> None:
        if time.monotonic() >= renew_at:
            renew(session)

    def release(session: psycopg.Connection[Any]) -> None:
        if session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                psycopg.ClientCursor(session).execute(statements.release, statements.values)

    engine.on_connect.append(acquire)
    engine.on_close.append(release)
    # The lease is committed by itself, before the transaction.
    engine.on_begin.append(renew_if_due)


def has_writer(connection: Connection, path: Path | None) -> bool:
    """Return whether a writer is connected to a database, or may be: a file system has no locks."""
    if path is None:
        return bool(_valid_holders(connection, _WRITER))
    try:
        with path.with_name(path.name + LOCK_SUFFIX).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def find_daemons(connection: Connection) -> tuple[str, ...]:
    """Return the names of the processes that hold the lock of a server's database."""
    return _valid_holders(connection, _DAEMONS)


def _valid_holders(connection: Connection, name: str) -> tuple[str, ...]:
    if not connection.has_table("leases"):
        return ()
    return tuple(process for (process,) in connection.fetch(_VALID_HOLDERS, name))


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
        self._lease = Lease(url, name)
        self._name = name
        self._lapse: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Take part until cancelled; release the leadership then.

        A leadership that its holder does not renew is acquired within ten seconds.
        """
        try:
            await self._lease.repeat(self._on_attempt)
        finally:
            self._on_attempt(None)
            await self._lease.close()

    def _on_attempt(self, hold_until: float | None) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
        if hold_until is None:
            self._on_lapse()
            return
        # A timer of its own, because a query to a server that hangs may end later.
        self._lapse = asyncio.get_running_loop().call_at(hold_until, self._on_lapse)
        if not self.is_leader:
            log.info("acquired leadership", extra={"leadership": self._name})
            self._acquire()

    def _on_lapse(self) -> None:
        if self.is_leader:
            log.warning("lost leadership", extra={"leadership": self._name})
            self._lose()
