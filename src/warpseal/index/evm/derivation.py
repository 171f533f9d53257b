"""Derives the rows of an EVM chain's index again from its facts, and compares them with the stored
rows.

The rows go into temporary tables, which have the names of the stored tables and hide them, so that
the code that writes an index derives them here as well. Only the connection of the comparison sees
them. Both sides are streamed in the order of their keys, so memory stays bounded.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.index.consistency import Inconsistency
from warpseal.index.database import BAD_ROWS
from warpseal.index.evm import schema
from warpseal.index.evm.derived import DerivedRows
from warpseal.index.evm.rows import read_chain_row
from warpseal.index.evm.schema import LayeredTable
from warpseal.runtime.process import Progress, error_words
from warpseal.store.connection import Connection, DriverError
from warpseal.store.errors import StoreDown
from warpseal.store.tables import Table

# Entries in memory and rows of the small tables, as of a writer with default settings.
_CACHED: Final = 200_000
_CACHE_KIB: Final = 64 * 1024
# The temporary tables of a tiny index take more pages than the index.
_LEAST_BYTES: Final = 64 * 1024 * 1024
_SHARE_OF_FREE_BYTES: Final = 0.9
# Where SQLite puts temporary files, https://sqlite.org/tempfiles.html, section 5.
_FOLDER_VARIABLES: Final = ("SQLITE_TMPDIR", "TMPDIR")
_FOLDERS: Final = ("/var/tmp", "/usr/tmp", "/tmp", ".")
_SHOWN_ROWS: Final = 5
_BYTES_IN_SCHEMA: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)"
    " FROM pg_class"
    " WHERE relkind = 'r' AND relnamespace = {}"
)
# The rows of NFT holders were changed by the batch of blocks that held the change, and nothing
# stores where batches ended.
_CHANGED: Final = "CASE WHEN asset > 0 THEN changed END AS changed"


class _Comparison(Struct, frozen=True):
    """A table, or the view of a layered one, whose rows follow from facts alone.

    key: names of the columns of the primary key.
    columns: names of all compared columns, those of the key first.
    condition: SQL condition of the compared rows, "" for all rows.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    condition: str = ""

    def query(self, space: str) -> str:
        """Return the query of the rows, in the order of their keys.

        space: name of the schema that has the table.
        """
        texts = [_CHANGED if name == "changed" else name for name in self.columns]
        where = f" WHERE {self.condition}" if self.condition else ""
        return (
            f"SELECT {', '.join(texts)}"
            f" FROM {space}.{self.name}{where}"
            f" ORDER BY {', '.join(self.key)}"
        )

    def compare(self, expected: Iterator[Any], stored: Iterator[Any]) -> Iterator[Inconsistency]:
        """Yield the first rows that differ, and the number of the others.

        expected, stored: the rows of both sides, in the order of their keys.
        """
        different = 0
        size = len(self.key)
        expected_row, stored_row = next(expected, None), next(stored, None)
        while expected_row is not None or stored_row is not None:
            if expected_row == stored_row:
                expected_row, stored_row = next(expected, None), next(stored, None)
                continue
            different += 1
            right = None if expected_row is None else _plain(expected_row)
            wrong = None if stored_row is None else _plain(stored_row)
            is_missing = wrong is None or (right is not None and right[:size] < wrong[:size])
            is_extra = right is None or (wrong is not None and wrong[:size] < right[:size])
            if different <= _SHOWN_ROWS:
                yield self._describe(None if is_extra else right, None if is_missing else wrong)
            if not is_extra:
                expected_row = next(expected, None)
            if not is_missing:
                stored_row = next(stored, None)
        if different > _SHOWN_ROWS:
            yield Inconsistency(self.name, f"{different - _SHOWN_ROWS} more rows are wrong")

    def _describe(
        self, expected: tuple[Any, ...] | None, stored: tuple[Any, ...] | None
    ) -> Inconsistency:
        """Return how a row differs; at most one of both sides lacks it."""
        size = len(self.key)
        row = expected or stored or ()
        subject = f"{self.name}, {self._values(self.key, row[:size])}"
        rest = self._values(self.columns[size:], row[size:])
        if stored is None:
            return Inconsistency(subject, f"missing; expected {rest}")
        if expected is None:
            return Inconsistency(subject, f"not expected; stored {rest}")
        places = [at for at, value in enumerate(expected) if value != stored[at]]
        names = [self.columns[at] for at in places]
        expected_text = self._values(names, [expected[at] for at in places])
        stored_text = self._values(names, [stored[at] for at in places])
        return Inconsistency(subject, f"expected {expected_text}; stored {stored_text}")

    @staticmethod
    def _values(names: Sequence[str], values: Sequence[Any]) -> str:
        """Return values with the names of their columns."""
        texts = [value.hex() if isinstance(value, bytes) else value for value in values]
        pairs = zip(names, texts, strict=True)
        return ", ".join(f"{name} {text}" for name, text in pairs) or "a row"


def _compare_table(
    table: Table | LayeredTable, without: Sequence[str] = (), condition: str = ""
) -> _Comparison:
    """Return the comparison of all columns except some."""
    declared = table.older if isinstance(table, LayeredTable) else table
    name = declared.name.removeprefix("older_")
    key = [column.name for column in declared.key]
    others = [column.name for column in declared.columns if not column.is_key]
    compared = [name for name in others if name not in without]
    return _Comparison(name, tuple(key), (*key, *compared), condition)


# Former rows of holders depend on the batches in which blocks were written, and deliveries and open
# messages on the indexes of other chains: consistency.py checks these by themselves.
_COMPARISONS: Final = (
    _compare_table(schema.DERIVED_STATE, without=("advanced_at",)),
    _compare_table(schema.DAYS),
    _compare_table(schema.BLOCK_HASHES),
    _compare_table(schema.OWNERS),
    _compare_table(schema.HOLDINGS),
    _compare_table(schema.INCONSISTENT),
    _compare_table(schema.ADDRESS_TRANSFERS),
    _compare_table(schema.ADDRESS_PARTITIONS),
    _compare_table(schema.TRANSFER_PARTITIONS),
    _compare_table(schema.ADDRESS_CREATIONS),
    _compare_table(schema.HOLDERS),
    _compare_table(schema.RANKS),
    # A collection has no row if a batch minted and burned all that it ever had.
    _compare_table(schema.NFT_TOTALS, ("changed",), "holders <> 0 OR tokens <> 0"),
    _compare_table(schema.ICM_ROUTES),
    _compare_table(schema.ICM_ARRIVALS),
    _compare_table(schema.ICM_ADDRESSES),
    _compare_table(schema.ICM_MESSAGE_CHANGES),
)


def allow_temporary_tables(connection: Connection) -> None:
    """Let a snapshot on a server create temporary tables; call it before its first query.

    Nothing waits for the statements of the snapshot, so the server ends none of them.
    """
    if connection.is_postgresql:
        connection.run("SET TRANSACTION READ WRITE")
        connection.run("SET LOCAL statement_timeout = 0")


def find_wrong_rows(
    connection: Connection, progress: Progress
) -> Generator[Inconsistency, None, bool]:
    """Derive all rows again and yield how the stored ones differ; return whether that was possible.

    connection: a snapshot for which `allow_temporary_tables` was called.
    Raises StoreDown if the temporary tables take too many bytes.
    """
    stored_space, derived_space = "main", "temp"
    if connection.is_postgresql:
        stored_space, derived_space = connection.value("SELECT current_schema()"), "pg_temp"
    with _temporary_tables(connection):
        try:
            _derive(connection, stored_space, progress)
        except BAD_ROWS as error:
            yield _underivable(error_words(error))
            return False
        except DriverError as error:
            if not error.is_refusal:
                raise
            yield _underivable(error_words(error.cause))
            return False
        for comparison in _COMPARISONS:
            yield from comparison.compare(
                connection.stream(comparison.query(derived_space)),
                connection.stream(comparison.query(stored_space)),
            )
    return True


def _underivable(reason: str) -> Inconsistency:
    return Inconsistency("derived rows", f"they cannot be derived from the facts: {reason}")


@contextmanager
def _temporary_tables(connection: Connection) -> Iterator[None]:
    """Hide the derived tables behind empty temporary ones while the block runs."""
    schema.create_temporary_tables(connection)
    try:
        yield
    finally:
        try:
            schema.drop_temporary_tables(connection)
        except DriverError:
            # The transaction ended by an error. Tables that are left would hide the stored ones
            # from the next user of the connection.
            connection.invalidate()


def _derive(connection: Connection, stored_space: str, progress: Progress) -> None:
    """Derive rows up to the height up to which the index has them."""
    chain = read_chain_row(connection)
    height = connection.value(f"SELECT height FROM {stored_space}.derived_state")
    if chain is None or height is None:
        return
    # The rows of later blocks do not exist yet while an indexer rebuilds them.
    chain = replace(chain, height=min(chain.height, height))
    limit = _limit_bytes(connection)
    step = f"deriving rows again, in at most {limit / 2**20:.0f} MiB of {_place(connection)}"
    derived = DerivedRows(connection, _CACHED, _CACHED)
    derived.height = chain.first_height - 1
    while derived.height < chain.height:
        try:
            derived.rebuild(connection, chain, 0)
        except DriverError as error:
            if getattr(error.cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise _too_large(connection, limit) from None
            raise
        if connection.is_postgresql and _server_bytes(connection, "pg_my_temp_schema()") > limit:
            raise _too_large(connection, limit)
        progress(step, derived.height, chain.height)


def _limit_bytes(connection: Connection) -> int:
    """Return how many bytes the temporary tables may take, and let SQLite refuse more.

    They hold a part of the rows of the index, so a right index never needs as much as it has.
    """
    if connection.is_postgresql:
        return max(_LEAST_BYTES, _server_bytes(connection, "current_schema()::regnamespace"))
    connection.run(f"PRAGMA temp.cache_size = -{_CACHE_KIB}")
    stored: int = connection.value("PRAGMA main.page_count")
    stored *= connection.value("PRAGMA main.page_size")
    free = shutil.disk_usage(temporary_folder()).free
    limit = min(max(_LEAST_BYTES, stored), int(free * _SHARE_OF_FREE_BYTES))
    page_bytes: int = connection.value("PRAGMA temp.page_size")
    connection.run(f"PRAGMA temp.max_page_count = {max(1, limit // page_bytes)}")
    return limit


def _server_bytes(connection: Connection, space: str) -> int:
    """Return the bytes of the tables of a schema, which an expression names."""
    return int(connection.value(_BYTES_IN_SCHEMA.format(space)))


def _place(connection: Connection) -> str:
    """Return where the temporary tables are."""
    return "the server" if connection.is_postgresql else str(temporary_folder())


def _too_large(connection: Connection, limit: int) -> StoreDown:
    reason = (
        f"rows that are derived again take more than {limit / 2**20:.0f} MiB of"
        f" {_place(connection)}: that is the size of the index, or what is free"
    )
    if connection.is_postgresql:
        return StoreDown(reason)
    return StoreDown(f"{reason}; SQLITE_TMPDIR names another folder")


def temporary_folder() -> Path:
    """Return the folder in which SQLite puts temporary files."""
    folders = [*filter(None, map(os.environ.get, _FOLDER_VARIABLES)), *_FOLDERS]
    usable = (Path(name) for name in folders if os.access(name, os.W_OK | os.X_OK))
    return next(usable, Path())


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row without the views that a server's driver may give for bytes."""
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
