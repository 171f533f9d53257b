"""The store: opens the database that the settings name, and offers the tables of each subject."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from warpseal.store.addresses import Addresses
from warpseal.store.api_keys import ApiKeys
from warpseal.store.archive import Archive
from warpseal.store.database import Database, ReadWriteDatabase
from warpseal.store.events import EventLog
from warpseal.store.l1_records import L1Records
from warpseal.store.migrate import MIGRATIONS, Migrations
from warpseal.store.settings import StoreSettings
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.store.uptime_rows import UptimeRows
from warpseal.store.url import StoreKind, resolve_url
from warpseal.store.writer import CommitObserver

STORE_NAME: Final = "store.db"


class Store:
    """The data that outlives the process. `async with` opens and closes it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.archive = Archive(database)
        self.addresses = Addresses(database)
        self.api_keys = ApiKeys(database)
        self.events = EventLog(database)
        self.l1 = L1Records(database)
        self.observed = UptimeRows(database)
        self.signing_blocks = SigningBlocks(database)
        self.confirm_start = database.confirm_start
        self.status = database.status
        self.leadership = database.leadership

    async def __aenter__(self) -> Store:
        await self.database.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.database.close()


def open_store(
    settings: StoreSettings,
    folder: Path | None,
    *,
    on_commit: CommitObserver | None = None,
    migrations: Migrations = MIGRATIONS,
) -> Store:
    """Return the store of these settings, to be opened by `async with`.

    folder: folder of a store without a url; None if no folder can be written.
    Raises StoreUnusable for a malformed url.
    """
    url = resolve_url(settings.url, folder, STORE_NAME)
    if url is None or url.kind is StoreKind.OFF:
        reason = (
            "store-url is off" if url else "the data-dir is read-only, and no store-url is given"
        )
        return Store(Database(settings, reason))
    return Store(ReadWriteDatabase(url, settings, on_commit, migrations))
