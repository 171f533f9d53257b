"""The store: opens the database that the settings name, and offers the tables of each subject."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from sqlalchemy import Connection

from warpseal.store.addresses import Addresses
from warpseal.store.api_keys import ApiKeys
from warpseal.store.archive import Archive
from warpseal.store.database import NullDatabase, ReadOnlyDatabase, ReadWriteDatabase
from warpseal.store.errors import StoreUnusable
from warpseal.store.l1_records import L1Records
from warpseal.store.leadership import Leadership
from warpseal.store.migrate import Migrations
from warpseal.store.ports import Database
from warpseal.store.settings import StoreSettings
from warpseal.store.stats import measure
from warpseal.store.uptime_rows import UptimeRows
from warpseal.store.url import MalformedStoreUrl, StoreKind, StoreUrl, redacted_url
from warpseal.store.values import StoreContents, StoreStatus
from warpseal.store.writer import CommitObserver

T = TypeVar("T")

STORE_NAME: Final = "store.db"
_MEASURE_WAIT_S: Final = 600.0

log = logging.getLogger(__name__)


class Store:
    """The data that outlives the process. `async with` opens and closes it; `run` keeps its lock in between."""

    def __init__(self, database: Database, settings: StoreSettings) -> None:
        self._database = database
        self.archive = Archive(database.reads, database.writes, settings, database.message_filter)
        self.addresses = Addresses(database.reads, database.writes, settings)
        self.api_keys = ApiKeys(database.reads, database.writes, settings)
        self.l1 = L1Records(database.reads, database.writes, settings)
        self.observed = UptimeRows(database.reads, database.writes, settings)

    async def __aenter__(self) -> Store:
        await self._database.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._database.close()

    async def run(self) -> None:
        """Keep the lock of the store until cancelled."""
        await self._database.run()

    @property
    def is_up(self) -> bool:
        """Whether the database is up; True if the store is off."""
        return self._database.status().is_up

    def status(self) -> StoreStatus:
        """Return its status without a query."""
        return self._database.status()

    async def measure(self) -> StoreContents:
        """Count the stored rows, which reads every table. Raises StoreDown."""
        return await self.read(measure, _MEASURE_WAIT_S)

    async def leadership(self, name: str) -> Leadership:
        """Return the election of `name` among the daemons of one database; its `run` takes part."""
        return self._database.leadership(name)

    async def read(self, query: Callable[[Connection], T], wait_s: float) -> T:
        """Run a query of this package in a reading thread. Raises StoreDown."""
        return await self._database.reads.read(query, wait_s)

    async def write(self, write: Callable[[Connection], T]) -> T:
        """Run a write of this package in its own transaction, in the writer's thread. Raises StoreDown."""
        return await asyncio.wrap_future(self._database.writes.call(write))


def open_store(
    settings: StoreSettings,
    folder: Path | None,
    *,
    on_commit: CommitObserver | None = None,
    read_only: bool = False,
    migrations: Migrations | None = None,
) -> Store:
    """Return the store of these settings, to be opened by `async with`. Raises StoreUnusable for a malformed url.

    folder: of a store without a url; None if no folder can be written. read_only: a running daemon may use the store.
    migrations: by default the program's.
    """
    url = store_url(settings, folder)
    if url is None or url.kind is StoreKind.OFF:
        reason = "store-url is off" if url else "the data-dir is read-only, and no store-url is given"
        return Store(NullDatabase(reason), settings)
    if read_only:
        return Store(ReadOnlyDatabase(url, settings, migrations or Migrations()), settings)
    return Store(ReadWriteDatabase(url, settings, on_commit, migrations or Migrations()), settings)


def store_url(settings: StoreSettings, folder: Path | None) -> StoreUrl | None:
    """Return where the store is; None without a url and a folder. Raises StoreUnusable."""
    if settings.url:
        try:
            return StoreUrl.parse(settings.url)
        except MalformedStoreUrl as error:
            raise StoreUnusable(redacted_url(settings.url), str(error)) from None
    return StoreUrl.for_file(folder / STORE_NAME) if folder is not None else None
