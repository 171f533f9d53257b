"""The database of the index: a SQLite file, or a schema in a PostgreSQL database."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from warpseal.errors import StartupError
from warpseal.index.errors import IndexDamaged
from warpseal.index.migrations import VERSIONS
from warpseal.index.schema import create_all_tables
from warpseal.index.settings import PRIMARY_INDEX, IndexSettings
from warpseal.runtime.process import error_words, os_error_text
from warpseal.runtime.zstd import ZstdError
from warpseal.store.connection import DriverError, Engine
from warpseal.store.engine import (
    PAGE_BYTES,
    create_private,
    is_file_damage,
    reading_engine,
    run_pragmas,
    settle_log,
    writing_engine,
)
from warpseal.store.errors import StoreDown, StoreUnusable
from warpseal.store.locks import lock_while_connected
from warpseal.store.migrate import Migrations, upgrade_at_start
from warpseal.store.url import StoreKind, StoreUrl, in_schema, resolve_url

INDEX_NAME: Final = "index.db"
SCHEMA: Final = "warpseal_index"
MIGRATIONS: Final = Migrations(VERSIONS, create_all_tables)

UNDECODABLE: Final = (msgspec.DecodeError, ZstdError, UnicodeDecodeError)
"""Errors of decoding a row; sqlite3 raises the last one for a schema that is damaged later."""

BAD_ROWS: Final = (
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    struct.error,
)
"""Errors of code that reads rows which contradict each other, or hold what no writer wrote."""
BAD_ROWS_REASON: Final = "rows contradict each other"

# A page that is written repeatedly between two WAL checkpoints goes into the file once. The log
# takes half as much of the system's memory as the page cache.
_LOG_OF_CACHE: Final = 0.5


def index_url(settings: IndexSettings, folder: Path | None) -> StoreUrl:
    """Return the URL of the index.

    folder: folder that a daemon has for the network.

    Raises StartupError if there is no place for it.
    """
    place = settings.place(PRIMARY_INDEX)
    url = resolve_url(place.url, folder, INDEX_NAME)
    if url is None:
        raise StartupError("index-url is not set, and there is no folder for the index")
    return in_schema(url, SCHEMA, place.read_urls)


def writing_index(
    url: StoreUrl,
    settings: IndexSettings,
    migrations: Migrations = MIGRATIONS,
    schema: str = SCHEMA,
    log_of_cache: float = _LOG_OF_CACHE,
    *,
    page_bytes: int = PAGE_BYTES,
    has_lock: bool = False,
) -> Engine:
    """Return the engine of the one connection that writes, the database upgraded.

    Raises StartupError, StoreDown.

    log_of_cache: size of SQLite's log as a multiple of the size of its page cache.
    page_bytes: size of the pages of a new file.
    has_lock: a lock shows readers that a writer is connected.
    """
    if url.path is not None:
        try:
            create_private(url.path)
        except OSError as error:
            raise StoreUnusable(url.redacted, os_error_text(error), kind="index") from error
    engine = writing_engine(url, page_bytes)
    if has_lock:
        lock_while_connected(engine, url)
    if url.kind is StoreKind.SQLITE:
        log_bytes = int(settings.cache_bytes * log_of_cache)
        pragmas = (
            f"cache_size = -{settings.cache_bytes // 1024}",
            f"wal_autocheckpoint = {max(1, log_bytes // page_bytes)}",
            f"journal_size_limit = {log_bytes}",
            # The index has no secrets, so deleted rows need not be overwritten.
            "secure_delete = OFF",
        )
        run_pragmas(engine, pragmas)
    try:
        with translate_errors(engine):
            settle_log(engine)
            if url.kind is not StoreKind.SQLITE:
                with engine.begin() as connection:
                    connection.run(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            upgrade_at_start(engine, url.redacted, migrations)
    except BaseException:
        engine.dispose()
        raise
    return engine


def reading_index(url: StoreUrl, settings: IndexSettings) -> Engine:
    """Return an engine that reads; the first statement fails if the file does not exist yet."""
    return reading_engine(url, settings.readers)


@contextmanager
def translate_errors(engine: Engine) -> Iterator[None]:
    """Raise StoreDown or IndexDamaged for an error of the database, without its password."""
    try:
        yield
    except (DriverError, *UNDECODABLE) as error:
        cause = error.cause if isinstance(error, DriverError) else error
        kind = IndexDamaged if is_damage(error) else StoreDown
        raise kind(engine.url.redact(str(cause).strip() or error_words(cause))) from None


@contextmanager
def translate_bad_rows() -> Iterator[None]:
    """Raise IndexDamaged for an error of reading rows.

    The block only reads rows: an error of a caller's arguments would count as damage.
    """
    try:
        yield
    except UNDECODABLE:
        raise
    except BAD_ROWS as error:
        raise IndexDamaged(BAD_ROWS_REASON) from error


def file_number(path: Path | None) -> int:
    """Return the inode of a file; 0 for a server or a missing file."""
    try:
        return path.stat().st_ino if path is not None else 0
    except OSError:
        return 0


def rebuild_hint(url: StoreUrl) -> str:
    """Return what an operator does about a damaged index."""
    files = "its schema" if url.path is None else f"{url.path}, {url.path}-wal and {url.path}-shm"
    return (
        f"stop the daemon and the indexer, delete {files}, and start them: all blocks are indexed"
        " again"
    )


def is_damage(error: BaseException) -> bool:
    """Return whether an error says that the file, or a part of it, is no database."""
    return isinstance(error, UNDECODABLE) or is_file_damage(error)
