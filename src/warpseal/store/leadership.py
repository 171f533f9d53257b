"""Leader election among the daemons of one store, by an advisory lock of the server.

A SQLite file has one daemon, which always leads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

from warpseal.store.locks import NO_ANSWER, AdvisoryLock
from warpseal.store.url import StoreUrl

log = logging.getLogger(__name__)


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
        except NO_ANSWER:
            log.warning("lost leadership", extra={"leadership": self._name})
            self._lose()
            raise
