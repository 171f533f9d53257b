"""Many rows at once, and rows by many keys, in both databases: COPY and arrays on PostgreSQL, prepared rows on SQLite.

Source of truth: SQLite `lang_insert.html`, `json1.html`; PostgreSQL `COPY`, `unnest`. Texts are made from the tables of
schema.py alone; values are always bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Column, Connection, Table

from warpseal.index.keys import prefix_of
from warpseal.runtime.lazy import LazyModule

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql
else:
    postgresql = LazyModule("sqlalchemy.dialects.postgresql")

Row = tuple[Any, ...]
POSTGRESQL: Final = "postgresql"
_BATCH_ROWS: Final = 2_000
_PAIRS: Final = "unnest(%s::bigint[], %s::bigint[]) AS p(a, b)"


def insert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows, their values in the order of the table's columns; no row with an equal key may exist."""
    if not rows:
        return
    if connection.dialect.name == POSTGRESQL:
        session: Any = connection.connection.driver_connection
        with session.cursor() as cursor, cursor.copy(f"COPY {table.name} ({_names(table)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    else:
        connection.exec_driver_sql(_insert_text(table), list(rows))


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows; existing rows with an equal key stay."""
    if not rows:
        return
    if connection.dialect.name == POSTGRESQL:
        connection.exec_driver_sql(f"{_arrays_text(table)} ON CONFLICT DO NOTHING", _arrays(rows))
    else:
        connection.exec_driver_sql(f"{_insert_text(table)} ON CONFLICT DO NOTHING", list(rows))


def replace(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Replace the rows with the same first column."""
    if rows:
        delete(connection, table, [row[0] for row in rows])
        insert(connection, table, rows)


def delete(connection: Connection, table: Table, keys: Sequence[int]) -> None:
    """Remove the rows whose first column is one of these keys."""
    if keys:
        column = next(iter(table.c)).name
        run(connection, f'DELETE FROM {table.name} WHERE "{column}" IN {{keys}}', keys)


def upsert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows, or replace those with an equal key."""
    if not rows:
        return
    if connection.dialect.name == POSTGRESQL:
        connection.exec_driver_sql(_upsert_text(table), _arrays(rows))
    else:
        connection.exec_driver_sql(_insert_text(table).replace("INSERT", "INSERT OR REPLACE", 1), list(rows))


def delete_pairs(connection: Connection, table: Table, pairs: Sequence[tuple[int, int | bytes]]) -> None:
    """Remove the rows whose first two columns are one of these pairs."""
    if not pairs:
        return
    first, second = list(table.c)[:2]
    if connection.dialect.name == POSTGRESQL:
        text = (
            f"DELETE FROM {table.name} AS t USING unnest({_array_marks((first, second))}) AS gone(a, b)"
            f" WHERE t.{first.name} = gone.a AND t.{second.name} = gone.b"
        )
        connection.exec_driver_sql(text, _arrays(pairs))
    else:
        text = f"DELETE FROM {table.name} WHERE {first.name} = ? AND {second.name} = ?"
        connection.exec_driver_sql(text, list(pairs))


def fetch_by_pairs(connection: Connection, text: str, pairs: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """Yield the rows of a statement that joins `{pairs}`, numbers p.a and p.b; some thousand at a time."""
    listed = sorted(pairs)
    for start in range(0, len(listed), _BATCH_ROWS):
        part = listed[start : start + _BATCH_ROWS]
        if connection.dialect.name == POSTGRESQL:
            yield from connection.exec_driver_sql(text.replace("{pairs}", _PAIRS), _arrays(part)).fetchall()
        else:
            yield from connection.exec_driver_sql(sqlite_pairs_text(text), (json.dumps(part),)).fetchall()


def fetch_by_keys(connection: Connection, text: str, keys: Iterable[int]) -> Iterator[Any]:
    """Yield the rows of a statement that names `{keys}`; some thousand keys at a time."""
    listed = sorted(keys)
    for start in range(0, len(listed), _BATCH_ROWS):
        yield from run(connection, text, listed[start : start + _BATCH_ROWS])


def fetch_by_prefix(connection: Connection, text: str, ids: Iterable[bytes]) -> Iterator[Any]:
    """Yield the rows whose prefixes, `{keys}` in the statement, belong to ids; other ids may have them as well."""
    return fetch_by_keys(connection, text, {prefix_of(raw) for raw in ids})


def fetch_by_id(connection: Connection, text: str, ids: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ids, found by their prefixes, `{keys}` in the statement. Its first column is the id."""
    searched = frozenset(ids)
    for raw, *columns in fetch_by_prefix(connection, text, searched):
        if (full_id := bytes(raw)) in searched:
            yield full_id, *columns


def run(connection: Connection, text: str, keys: Iterable[int], *values: Any) -> Sequence[Any]:
    """Run a statement of which `{keys}` is a list of numbers; the other values (`?`) come behind it in the text.

    Returns its rows, none for a statement without any.
    """
    listed = list(keys)
    if connection.dialect.name == POSTGRESQL:
        return fetch(connection, text.replace("IN {keys}", "= ANY(?::bigint[])"), _array(listed), *values)
    return fetch(connection, sqlite_text(text), json.dumps(listed), *values)


def fetch(connection: Connection, text: str, *values: Any) -> Sequence[Any]:
    """Run a statement with `?` for its values, and return its rows, none for a statement without any."""
    text = marked(text) if connection.dialect.name == POSTGRESQL else text
    result = connection.exec_driver_sql(text, values)
    return result.fetchall() if result.returns_rows else ()


def stream(connection: Connection, text: str) -> Iterator[Any]:
    """Yield the rows of a statement without holding all of them."""
    options = {"stream_results": True, "yield_per": _BATCH_ROWS}
    yield from connection.exec_driver_sql(text, execution_options=options)


@cache
def sqlite_text(text: str) -> str:
    """Return a statement whose `{keys}` are a JSON array."""
    return text.replace("{keys}", "(SELECT value FROM json_each(?))")


@cache
def sqlite_pairs_text(text: str) -> str:
    """Return a statement whose `{pairs}` are a JSON array of arrays; SQLite reads them first."""
    listed = "(SELECT json_extract(value, '$[0]') AS a, json_extract(value, '$[1]') AS b FROM json_each(?)) AS p"
    return text.replace("{pairs} JOIN", f"{listed} CROSS JOIN")


@cache
def marked(text: str) -> str:
    """Return a statement with psycopg's marks for its values."""
    return text.replace("%", "%%").replace("?", "%s")


@cache
def _insert_text(table: Table) -> str:
    return f"INSERT INTO {table.name} ({_names(table)}) VALUES ({', '.join('?' for _ in table.c)})"


@cache
def _upsert_text(table: Table) -> str:
    keys = ", ".join(f'"{column.name}"' for column in table.primary_key)
    values = ", ".join(f'"{column.name}" = excluded."{column.name}"' for column in table.c if not column.primary_key)
    action = f"UPDATE SET {values}" if values else "NOTHING"
    return f"{_arrays_text(table)} ON CONFLICT ({keys}) DO {action}"


@cache
def _arrays_text(table: Table) -> str:
    return f"INSERT INTO {table.name} ({_names(table)}) SELECT * FROM unnest({_array_marks(table.c)})"


def _arrays(rows: Iterable[Sequence[Any]]) -> tuple[str, ...]:
    """Return an array for each column."""
    return tuple(map(_array, zip(*rows, strict=True)))


def _array(values: Iterable[Any]) -> str:
    """Return the text of an array of numbers or bytes. psycopg would write a list by itself, item by item in Python."""
    texts = [
        str(item) if isinstance(item, int) else "NULL" if item is None else f'"\\\\x{item.hex()}"' for item in values
    ]
    return f"{{{','.join(texts)}}}"


def _array_marks(columns: Iterable[Column[Any]]) -> str:
    """Return psycopg's marks for an array of each column's type."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return ", ".join(f"%s::{column.type.compile(dialect)}[]" for column in columns)


def _names(table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.c)
