"""Leader election among the daemons of one store, by an advisory lock of the server in a session of its own.

The server releases the locks of a session when it ends. A SQLite file has one daemon, which always leads.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final
from zlib import crc32

import psycopg

log = logging.getLogger(__name__)

POLL_S: Final = 2.0
ANSWER_WAIT_S: Final = 3.0
CONNECT_WAIT_S: Final = 5.0
# The first of the two numbers of Warpseal's advisory locks; the second is a hash of the lock's name.
_LOCK_CLASS: Final = 0x57_41_52_50

_HOLDERS: Final = """
SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = %s AND l.objid::bigint = %s
ORDER BY a.backend_start
"""


class Leadership:
    """The leadership of a process. This class always leads, unless it is made with `held=False`."""

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

    def __init__(self, parameters: dict[str, Any], name: str) -> None:
        super().__init__(held=False)
        self._lock = AdvisoryLock(parameters, name)
        self._name = name

    async def run(self) -> None:
        """Take part until cancelled: a free leadership is acquired within two seconds, and lost with the session."""
        try:
            while True:
                with suppress(psycopg.Error, OSError, TimeoutError):
                    await self._contend()
                if self.is_leader:
                    log.warning("lost leadership", extra={"leadership": self._name})
                self._lose()
                await self._lock.close()
                await asyncio.sleep(POLL_S)
        finally:
            self._lose()
            await self._lock.close()

    async def _contend(self) -> None:
        while not await self._lock.acquire():
            await self._lock.watch(POLL_S)
        log.info("acquired leadership", extra={"leadership": self._name})
        self._acquire()
        while True:
            await self._lock.watch(POLL_S)


class AdvisoryLock:
    """One lock of the server and the session that holds it. parameters: what psycopg connects with.

    All methods raise psycopg.Error, OSError or TimeoutError if the server does not answer.
    """

    def __init__(self, parameters: dict[str, Any], name: str) -> None:
        self._parameters = parameters
        self._key = (_LOCK_CLASS, crc32(name.encode()) & 0x7FFFFFFF)
        self._session: psycopg.AsyncConnection[Any] | None = None

    async def acquire(self, *, shared: bool = False) -> bool:
        """Try to acquire it, shared or exclusively; return whether that succeeded."""
        function = "pg_try_advisory_lock_shared" if shared else "pg_try_advisory_lock"
        rows = await self._query(f"SELECT {function}(%s, %s)", self._key)
        return bool(rows[0][0])

    async def holders(self) -> tuple[str, ...]:
        """Return the application names of its other holders, oldest session first."""
        return tuple(row[0] for row in await self._query(_HOLDERS, self._key))

    async def watch(self, wait_s: float) -> None:
        """Wait, and check that the session is still alive; raise as soon as it is not."""
        session = await self._connected()
        async for _ in session.notifies(timeout=wait_s):
            pass
        await self._query("SELECT 1", ())

    async def close(self) -> None:
        """End the session, which releases the lock."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error, OSError):
                await session.close()

    async def _query(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        session = await self._connected()
        async with asyncio.timeout(ANSWER_WAIT_S):
            return await (await session.execute(query.encode(), values)).fetchall()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._session is None:
            async with asyncio.timeout(CONNECT_WAIT_S):
                self._session = await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
        return self._session
