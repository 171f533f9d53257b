"""Reads of an index that another process writes: each in one snapshot, in a reading thread."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from warpseal.errors import WarpsealError
from warpseal.index.database import (
    BAD_ROWS,
    BAD_ROWS_REASON,
    UNDECODABLE,
    file_number,
    is_damage,
    reading_index,
    rebuild_hint,
    run_pragmas,
)
from warpseal.index.errors import IndexDamaged
from warpseal.index.read_session import MAX_CACHED, ReadCache, ReadSession
from warpseal.index.settings import IndexSettings
from warpseal.runtime.settings import MEBIBYTE
from warpseal.store.access import read_snapshot
from warpseal.store.engine import redacted_reason
from warpseal.store.errors import StoreDown
from warpseal.store.migrate import Migrations, read_version
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreKind, StoreUrl

log = logging.getLogger(__name__)

T = TypeVar("T")
_READ_CACHE_BYTES: Final = 64 * MEBIBYTE


class IndexReader:
    """Reads of one index. migrations: their newest version is the one that can be read."""

    def __init__(self, url: StoreUrl, settings: IndexSettings, migrations: Migrations) -> None:
        self._url = url
        self._settings = settings
        self._migrations = migrations
        self._engine: Engine = reading_index(url, settings)
        if url.kind is StoreKind.SQLITE:
            most_bytes = min(_READ_CACHE_BYTES, settings.cache_bytes // settings.readers)
            run_pragmas(self._engine, [f"cache_size = -{most_bytes // 1024}"])
        bounds = StoreSettings(readers=settings.readers, max_queued_reads=settings.max_queued_reads)
        self._reader = StoreReader(self._engine, bounds, self._translate)
        self.cache = ReadCache()
        # Whether the indexer has created no tables yet.
        self.is_empty = False
        self._is_checked = False
        # The reason, and the number of the file.
        self._damage: tuple[str, int] | None = None
        self._has_contradiction = False
        self._opened_file = 0

    def close(self) -> None:
        """Cancel the waiting reads, and close the idle connections."""
        self._reader.close()

    @property
    def exists(self) -> bool:
        """Whether the file of the index exists; true of a server."""
        return self._url.path is None or self._url.path.exists()

    def damage(self) -> str | None:
        """Return why the index is damaged; None if it is not, as far as is known."""
        return None if self._damage is None else self._damage[0]

    def forget_damage(self) -> None:
        """Forget the damage of a file that is there no longer."""
        if self._damage is not None and self._damage[1] != file_number(self._url.path):
            self._damage = None

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Return the result of a query. Raises StoreDown."""
        if (file := file_number(self._url.path)) != self._opened_file:
            # The file was deleted or made again, and open connections would show the old one.
            self._engine.dispose()
            self._opened_file, self._is_checked = file, False
        return await self._reader.read(lambda connection: self._query(connection, query), self._settings.read_timeout_s)

    def _query(self, connection: Connection, query: Callable[[ReadSession], T]) -> T:
        """Run a query in one snapshot."""
        try:
            if not self._is_checked:
                self._check(connection)
            self.cache.clear(MAX_CACHED)
            with read_snapshot(connection):
                return query(ReadSession(connection, self.cache))
        except (sqlite3.Error, psycopg.Error, SQLAlchemyError, *UNDECODABLE) as error:
            self._is_checked = False
            raise self._translate(error) from None
        except WarpsealError:
            raise
        except BAD_ROWS as error:
            raise self._contradiction(error) from None

    def _translate(self, error: BaseException) -> StoreDown:
        """Return the error for a caller, and remember damage. Later reads open the file again: it may be a new one."""
        reason = redacted_reason(self._url, error)
        if not is_damage(error):
            return StoreDown(reason)
        if self._damage is None:
            log.error("index is damaged", extra={"reason": reason, "hint": rebuild_hint(self._url)})
        self._damage = reason, file_number(self._url.path)
        self._engine.dispose()
        return IndexDamaged(reason)

    def _contradiction(self, error: Exception) -> IndexDamaged:
        """Return the error of a request whose rows contradict each other; others may be right. The first is logged."""
        if not self._has_contradiction:
            self._has_contradiction = True
            hint = f"`warpseal index verify` shows whether it is damaged; if so, {rebuild_hint(self._url)}"
            log.error("rows of the index contradict each other", exc_info=error, extra={"hint": hint})
        return IndexDamaged(BAD_ROWS_REASON)

    def _check(self, connection: Connection) -> None:
        version = read_version(connection)
        self.is_empty = version is None
        if self.is_empty:
            raise StoreDown("the indexer has not created the index yet")
        head = self._migrations.head
        if version != head:
            raise StoreDown(f"the index has schema version {version}, and this program reads {head}")
        self.cache.clear()
        self._is_checked = True
