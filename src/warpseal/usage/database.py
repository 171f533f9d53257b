"""The metrics database: a SQLite file beside the store, or a schema in a PostgreSQL database.

The daemon starts, signs and forwards without it: it is prepared by the first use that reaches it,
and again when it has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from warpseal.errors import StartupError
from warpseal.runtime.process import os_error_text
from warpseal.store.connection import Connection, DriverError
from warpseal.store.engine import (
    create_private,
    describe_failure,
    is_file_damage,
    reading_engine,
    settle_log,
    writing_engine,
)
from warpseal.store.errors import StoreDown, StoreUnusable
from warpseal.store.locks import Leadership, ServerLeadership
from warpseal.store.migrate import Migrations, read_version, upgrade_at_start
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreKind, StoreUrl, in_schema, resolve_url
from warpseal.usage.migrations import VERSIONS
from warpseal.usage.schema import TABLES
from warpseal.usage.settings import UsageSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

METRICS_NAME: Final = "metrics.db"
SCHEMA: Final = "warpseal_metrics"
KIND: Final = "metrics database"
MIGRATIONS: Final = Migrations(VERSIONS, TABLES.create_all)


def metrics_database_url(
    settings: UsageSettings, store: StoreSettings, folder: Path | None
) -> StoreUrl | None:
    """Return the URL of the metrics database, by default in the folder of the store.

    Returns None if there is no place for it. Raises StartupError for a malformed URL.

    folder: folder of a daemon for its network.
    """
    if not settings.url:
        location = resolve_url(store.url, folder, METRICS_NAME)
        if location is not None and location.path is not None:
            folder = location.path.parent
    url = resolve_url(settings.url, folder, METRICS_NAME)
    return None if url is None else in_schema(url, SCHEMA)


class MetricsDatabase:
    """Reads and writes, each in a thread of its own and with an end to the wait."""

    def __init__(self, url: StoreUrl, settings: UsageSettings) -> None:
        self.url = url
        self._wait_s = settings.call_timeout_s
        self._engine = writing_engine(url)
        self._reading_engine = reading_engine(url, settings.reading_threads)
        one_thread = StoreSettings(readers=1)
        threads = StoreSettings(readers=settings.reading_threads)
        self._writer = StoreReader(self._engine, one_thread, self._down, prepare=self._prepare)
        self._reader = StoreReader(self._reading_engine, threads, self._down)
        # Inode of the file that the connections have open; 0 for a server.
        self._inode: int | None = None
        self._was_prepared = False
        # Damage that was found in a file, and the inode of that file: other parts of it may work.
        self._damage: str | None = None
        self._damaged_inode = 0
        self.reason: str | None = None

    @property
    def is_up(self) -> bool:
        """Whether the last use succeeded, or there was none, and no use has found damage."""
        return self.reason is None

    async def __aenter__(self) -> Self:
        await self.prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def prepare(self) -> None:
        """Create and upgrade the database. A failure is logged, and each write tries again."""
        with suppress(StoreDown):
            await self.write(lambda _: None)

    def close(self) -> None:
        """Cancel what waits, and close the idle connections."""
        self._reader.close()
        self._writer.close()

    async def read(self, query: Callable[[Connection], T], wait_s: float | None = None) -> T:
        """Return the result of `query`, run in a reading thread. Raises StoreDown."""
        return await self._use(self._reader, query, wait_s)

    async def write(self, write: Callable[[Connection], T], wait_s: float | None = None) -> T:
        """Return the result of `write`, run in a transaction of its own, one at a time.

        A write is run twice if its connection was closed. Raises StoreDown: the write may have been
        made then, or be made later.
        """

        def transaction(connection: Connection) -> T:
            with connection.begin():
                return write(connection)

        return await self._use(self._writer, transaction, wait_s)

    def leadership(self, name: str) -> Leadership:
        """Return the election of a name among all daemons of this database."""
        if self.url.kind is StoreKind.SQLITE:
            return Leadership()
        return ServerLeadership(self.url, name)

    async def _use(
        self, reader: StoreReader, use: Callable[[Connection], T], wait_s: float | None
    ) -> T:
        try:
            result = await reader.read(use, self._wait_s if wait_s is None else wait_s)
        except StoreDown as error:
            fields = {"reason": error.reason}
            if error.reason == self._damage:
                if self.reason != self._damage:
                    log.error("metrics database is damaged", extra=fields)
            elif self.reason is None:
                log.warning("metrics database is down, usage waits in memory", extra=fields)
            self.reason = error.reason
            raise
        if self.reason not in (None, self._damage):
            log.info("metrics database is up again", extra={"url": self.url.redacted})
        self.reason = self._damage
        return result

    def _prepare(self) -> None:
        """Create and upgrade the database if the connections are new. Raises StoreDown."""
        if self._inode is not None and self._inode == self._read_inode():
            return
        try:
            if self.url.path is not None:
                create_private(self.url.path)
            self._engine.dispose()
            self._reading_engine.dispose()
            settle_log(self._engine)
            if self.url.kind is not StoreKind.SQLITE:
                with self._engine.begin() as connection:
                    connection.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            with self._engine.connect() as connection:
                is_new = read_version(connection) is None
            upgrade_at_start(self._engine, self.url.redacted, MIGRATIONS)
        except StartupError as error:
            raise StoreDown(str(error)) from None
        except OSError as error:
            cause = StoreUnusable(self.url.redacted, os_error_text(error), kind="database")
            raise StoreDown(str(cause)) from None
        if is_new or self._read_inode() != self._damaged_inode:
            self._damage = None
        if is_new and self._was_prepared:
            reason = "it was deleted or emptied while the daemon ran: the usage in it is lost"
            fields = {"url": self.url.redacted, "reason": reason}
            log.warning("metrics database was made again", extra=fields)
        self._inode, self._was_prepared = self._read_inode(), True

    def _read_inode(self) -> int:
        """Return the inode of the file, by which another file is noticed; -1 without content."""
        if self.url.path is None:
            return 0
        try:
            status = self.url.path.stat()
        except OSError:
            return -1
        return status.st_ino if status.st_size else -1

    def _down(self, error: BaseException) -> StoreDown:
        if isinstance(error, DriverError):
            self._inode = None
        reason = describe_failure(self.url, error, KIND)
        if is_file_damage(error):
            reason = f"{self.url.redacted} is damaged: {reason}"
            self._damage, self._damaged_inode = reason, self._read_inode()
        return StoreDown(reason)
