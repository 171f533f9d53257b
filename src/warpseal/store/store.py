"""The store: opens the database that the settings name, and offers the tables of each subject."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

from warpseal.store.addresses import Addresses
from warpseal.store.api_keys import ApiKeys
from warpseal.store.archive import Archive
from warpseal.store.database import Database, ReadOnlyDatabase, ReadWriteDatabase
from warpseal.store.errors import StoreUnusable
from warpseal.store.l1_records import L1Records
from warpseal.store.migrate import MIGRATIONS, Migrations
from warpseal.store.settings import StoreSettings
from warpseal.store.stats import measure
from warpseal.store.uptime_rows import UptimeRows
from warpseal.store.url import MalformedStoreUrl, StoreKind, StoreUrl, redacted_url
from warpseal.store.values import StoreContents
from warpseal.store.writer import CommitObserver

STORE_NAME: Final = "store.db"
_MEASURE_WAIT_S: Final = 600.0


class Store:
    """The data that outlives the process. `async with` opens and closes it; `run` keeps its lock in between."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.archive = Archive(database)
        self.addresses = Addresses(database)
        self.api_keys = ApiKeys(database)
        self.l1 = L1Records(database)
        self.observed = UptimeRows(database)
        self.run = database.run
        self.status = database.status
        self.leadership = database.leadership

    async def __aenter__(self) -> Store:
        await self.database.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.database.close()

    async def measure(self) -> StoreContents:
        """Count the stored rows, which reads every table. Raises StoreDown."""
        return await self.database.read(measure, _MEASURE_WAIT_S)


def open_store(
    settings: StoreSettings,
    folder: Path | None,
    *,
    on_commit: CommitObserver | None = None,
    read_only: bool = False,
    migrations: Migrations = MIGRATIONS,
) -> Store:
    """Return the store of these settings, to be opened by `async with`. Raises StoreUnusable for a malformed url.

    folder: of a store without a url; None if no folder can be written. read_only: a running daemon may use the store.
    """
    url = store_url(settings, folder)
    if url is None or url.kind is StoreKind.OFF:
        reason = "store-url is off" if url else "the data-dir is read-only, and no store-url is given"
        return Store(Database(settings, reason))
    if read_only:
        return Store(ReadOnlyDatabase(url, settings, migrations))
    return Store(ReadWriteDatabase(url, settings, on_commit, migrations))


def store_url(settings: StoreSettings, folder: Path | None) -> StoreUrl | None:
    """Return where the store is; None without a url and a folder. Raises StoreUnusable."""
    if settings.url:
        try:
            return StoreUrl.parse(settings.url)
        except MalformedStoreUrl as error:
            raise StoreUnusable(redacted_url(settings.url), str(error)) from None
    return StoreUrl.for_file(folder / STORE_NAME) if folder is not None else None
