"""Writes many rows at once and reads rows by many keys, in both databases.

PostgreSQL gets COPY and arrays, SQLite prepared rows and JSON.

An id that many rows name is stored once, and has a key.

Source of truth: SQLite `lang_insert.html`, `json1.html`; PostgreSQL `COPY`, `unnest`. Texts are
made from the tables of schema.py alone; values are always bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from warpseal.index.keys import prefix_of
from warpseal.index.schema import IDS
from warpseal.store.connection import Connection
from warpseal.store.tables import Column, Table

Row = tuple[Any, ...]
_BATCH_ROWS: Final = 2_000
# A few texts hold numbers, so that there is no end of them.
_MOST_TEXTS: Final = 1_000
_PAIRS: Final = "unnest(?::bigint[], ?::bigint[]) AS p(a, b)"


def insert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows in the order of the table's columns; no row with an equal key may exist."""
    if not rows:
        return
    if connection.is_postgresql:
        connection.copy(f"COPY {table.name} ({table.names}) FROM STDIN", rows)
    else:
        connection.run_many(table.insert_text, rows)


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows; existing rows with an equal key stay."""
    _insert(connection, table, rows, " ON CONFLICT DO NOTHING")


def replace(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Replace the rows with the same first column."""
    if rows:
        delete(connection, table, [row[0] for row in rows])
        insert(connection, table, rows)


def delete(connection: Connection, table: Table, keys: Sequence[int]) -> None:
    """Remove the rows whose first column is one of these keys."""
    if keys:
        run(
            connection,
            f'DELETE FROM {table.name} WHERE "{table.columns[0].name}" IN {{keys}}',
            keys,
        )


def upsert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows, or replace those with an equal key."""
    _insert(connection, table, rows, table.on_conflict)


def delete_pairs(
    connection: Connection, table: Table, pairs: Sequence[tuple[int, int | bytes]]
) -> None:
    """Remove the rows whose first two columns are one of these pairs."""
    if not pairs:
        return
    first, second = table.columns[:2]
    if connection.is_postgresql:
        text = (
            f"DELETE FROM {table.name} AS t"
            f" USING unnest({_array_marks((first, second))}) AS gone(a, b)"
            f" WHERE t.{first.name} = gone.a AND t.{second.name} = gone.b"
        )
        connection.run(text, *_arrays(pairs))
    else:
        connection.run_many(
            f"DELETE FROM {table.name} WHERE {first.name} = ? AND {second.name} = ?", pairs
        )


def fetch_by_pairs(
    connection: Connection, text: str, pairs: Iterable[tuple[int, int]]
) -> Iterator[Any]:
    """Yield the rows of a statement that joins `{pairs}`, numbers p.a and p.b."""
    sorted_pairs = sorted(pairs)
    for start in range(0, len(sorted_pairs), _BATCH_ROWS):
        part = sorted_pairs[start : start + _BATCH_ROWS]
        if connection.is_postgresql:
            yield from connection.fetch(text.replace("{pairs}", _PAIRS), *_arrays(part))
        else:
            yield from connection.fetch(_sqlite_pairs_text(text), json.dumps(part))


def fetch_by_keys(connection: Connection, text: str, keys: Iterable[int]) -> Iterator[Any]:
    """Yield the rows of a statement that names `{keys}`; some thousand keys at a time."""
    sorted_keys = sorted(keys)
    for start in range(0, len(sorted_keys), _BATCH_ROWS):
        yield from run(connection, text, sorted_keys[start : start + _BATCH_ROWS])


def fetch_by_prefix(connection: Connection, text: str, ids: Iterable[bytes]) -> Iterator[Any]:
    """Yield the rows whose prefixes, `{keys}` in the statement, are those of ids, or of others."""
    return fetch_by_keys(connection, text, {prefix_of(raw) for raw in ids})


def fetch_by_id(
    connection: Connection, text: str, ids: Iterable[bytes]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ids, found by their prefixes, `{keys}` in the statement.

    Its first column is the id.
    """
    searched = frozenset(ids)
    for raw, *columns in fetch_by_prefix(connection, text, searched):
        if (full_id := bytes(raw)) in searched:
            yield full_id, *columns


def run(connection: Connection, text: str, keys: Iterable[int], *values: Any) -> Sequence[Any]:
    """Run a statement in which a list of numbers, `{keys}`, comes before the other values (`?`).

    Returns its rows, none for a statement without any.
    """
    key_list = list(keys)
    if connection.is_postgresql:
        return connection.fetch(
            text.replace("IN {keys}", "= ANY(?::bigint[])"), _array(key_list), *values
        )
    return connection.fetch(_sqlite_text(text), json.dumps(key_list), *values)


class IdTable:
    """Keys of ids.

    `load` reads all ids of a batch at a time, then `keys` has them.
    capacity: number of keys in memory.
    """

    def __init__(self, connection: Connection, capacity: int) -> None:
        self._capacity = capacity
        self.keys: dict[bytes, int] = {}
        self._new: list[tuple[int, int, bytes]] = []
        ((last,),) = connection.fetch("SELECT max(key) FROM ids")
        self._next = (last or 0) + 1

    def load(self, connection: Connection, ids: Iterable[bytes]) -> None:
        """Find the keys of ids, or assign new ones, which `flush` writes."""
        keys = self.keys
        if len(keys) > self._capacity:
            for raw in list(keys)[: self._capacity // 2]:
                del keys[raw]
        missing = {raw for raw in ids if raw not in keys}
        keys.update(
            fetch_by_id(connection, "SELECT id, key FROM ids WHERE prefix IN {keys}", missing)
        )
        # In one order, so that equal batches give equal keys.
        for raw in sorted(missing - keys.keys()):
            keys[raw] = self._next
            self._new.append((self._next, prefix_of(raw), raw))
            self._next += 1

    def flush(self, connection: Connection) -> None:
        """Write the new ids."""
        insert(connection, IDS, self._new)
        self._new = []


@lru_cache(_MOST_TEXTS)
def _sqlite_text(text: str) -> str:
    return text.replace("{keys}", "(SELECT value FROM json_each(?))")


@lru_cache(_MOST_TEXTS)
def _sqlite_pairs_text(text: str) -> str:
    """Return a statement whose `{pairs}` are a JSON array of arrays; SQLite reads them first."""
    rows = (
        "(SELECT json_extract(value, '$[0]') AS a, json_extract(value, '$[1]') AS b"
        " FROM json_each(?)) AS p"
    )
    return text.replace("{pairs} JOIN", f"{rows} CROSS JOIN")


def _insert(connection: Connection, table: Table, rows: Sequence[Row], on_conflict: str) -> None:
    if rows and connection.is_postgresql:
        text = (
            f"INSERT INTO {table.name} ({table.names})"
            f" SELECT * FROM unnest({_array_marks(table.columns)})"
        )
        connection.run(text + on_conflict, *_arrays(rows))
    else:
        connection.run_many(table.insert_text + on_conflict, rows)


def _arrays(rows: Iterable[Sequence[Any]]) -> tuple[str, ...]:
    return tuple(map(_array, zip(*rows, strict=True)))


def _array(values: Iterable[Any]) -> str:
    """Return the text of an array of numbers or bytes.

    psycopg would write a list by itself, item by item in Python.
    """
    texts = [
        str(item) if isinstance(item, int) else "NULL" if item is None else f'"\\\\x{item.hex()}"'
        for item in values
    ]
    return f"{{{','.join(texts)}}}"


def _array_marks(columns: Iterable[Column]) -> str:
    """Return marks for an array of each column's type on a server."""
    return ", ".join(f"?::{column.type_of(is_postgresql=True)}[]" for column in columns)
