"""Who holds a store: one process the SQLite file, any number of daemons a PostgreSQL database, one for an upgrade."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import psycopg

from warpseal.store.errors import StoreInUse
from warpseal.store.filelock import locked_file
from warpseal.store.leadership import POLL_S, AdvisoryLock
from warpseal.store.url import Kind, StoreUrl

log = logging.getLogger(__name__)

_NAME: Final = "daemons"
_PID: Final = re.compile(r"\bpid (\d+)\b")
_NO_ANSWER: Final = (psycopg.Error, OSError, TimeoutError)


class Hold:
    """A hold on a store; `run` keeps it alive."""

    async def run(self) -> None:
        """Keep it until cancelled."""
        await asyncio.Event().wait()


class ServerHold(Hold):
    """A hold on a PostgreSQL database, shared among daemons; a server that does not answer is asked again later."""

    def __init__(self, lock: AdvisoryLock, shown: str, *, alone: bool) -> None:
        self._lock = lock
        self._shown = shown
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


def held(url: StoreUrl, parameters: dict[str, Any], *, alone: bool) -> AbstractAsyncContextManager[Hold]:
    """Hold a store inside the block; `alone`: against daemons too. parameters: how its server is reached.

    Raises StoreInUse and StoreUnusable.
    """
    return _held_file(url) if url.kind is Kind.SQLITE else _held_server(url, parameters, alone)


@asynccontextmanager
async def _held_file(url: StoreUrl) -> AsyncIterator[Hold]:
    assert url.path is not None
    with locked_file(url.path):
        yield Hold()


@asynccontextmanager
async def _held_server(url: StoreUrl, parameters: dict[str, Any], alone: bool) -> AsyncIterator[Hold]:
    lock = AdvisoryLock(parameters, _NAME)
    hold = ServerHold(lock, url.shown, alone=alone)
    try:
        try:
            await hold.take()
        except _NO_ANSWER:
            await lock.close()
        yield hold
    finally:
        await lock.close()
