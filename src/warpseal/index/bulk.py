"""Many rows at once, and rows by many keys, in both databases: COPY and arrays on PostgreSQL, prepared rows on SQLite.

Source of truth: SQLite `lang_insert.html`, `json1.html`; PostgreSQL `COPY`, `unnest`. Texts are made from the tables of
schema.py alone; values are always bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Table

Row = tuple[Any, ...]
POSTGRESQL: Final = "postgresql"


def insert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows, their values in the order of the table's columns; no row with an equal key may exist."""
    if not rows:
        return
    if connection.dialect.name == POSTGRESQL:
        _copy(connection, table, rows)
    else:
        connection.exec_driver_sql(_insert_text(table), list(rows))


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows; existing rows with an equal key stay."""
    if not rows:
        return
    text, mark = _insert_text(table), "?"
    if connection.dialect.name == POSTGRESQL:
        text, mark = text.replace("?", "%s"), "%s"
    assert mark in text
    connection.exec_driver_sql(text + " ON CONFLICT DO NOTHING", list(rows))


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


def delete_ids(connection: Connection, table: Table, ids: Sequence[tuple[int, bytes]]) -> None:
    """Remove the rows with these ids, taken apart into prefix and rest."""
    if not ids:
        return
    if connection.dialect.name == POSTGRESQL:
        text = (
            f"DELETE FROM {table.name} USING unnest(%s::bigint[], %s::bytea[]) AS gone(a, b)"
            f" WHERE {table.name}.prefix = gone.a AND {table.name}.rest = gone.b"
        )
        connection.exec_driver_sql(text, tuple(map(list, zip(*ids, strict=True))))
    else:
        connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE prefix = ? AND rest = ?", list(ids))


def run(connection: Connection, text: str, keys: Iterable[int], *values: Any) -> Sequence[Any]:
    """Run a statement of which `{keys}` is a list of numbers; the other values (`?`) come behind it in the text.

    Returns its rows, none for a statement without any.
    """
    if connection.dialect.name == POSTGRESQL:
        prepared, given = _postgresql_text(text), list(keys)
        result = connection.exec_driver_sql(prepared, (given, *values))
    else:
        result = connection.exec_driver_sql(_sqlite_text(text), (json.dumps(list(keys)), *values))
    return result.fetchall() if result.returns_rows else ()


def execute(connection: Connection, text: str, *values: Any) -> None:
    """Run a statement with `?` for its values."""
    if connection.dialect.name == POSTGRESQL:
        text = _marked(text)
    connection.exec_driver_sql(text, values)


def fetch(connection: Connection, text: str, *values: Any) -> Sequence[Any]:
    """Run a statement with `?` for its values, and return all its rows."""
    if connection.dialect.name == POSTGRESQL:
        text = _marked(text)
    return connection.exec_driver_sql(text, values).fetchall()


@cache
def _sqlite_text(text: str) -> str:
    return text.replace("{keys}", "(SELECT value FROM json_each(?))")


@cache
def _postgresql_text(text: str) -> str:
    return _marked(text).replace("IN {keys}", "= ANY(%s::bigint[])")


@cache
def _marked(text: str) -> str:
    return text.replace("%", "%%").replace("?", "%s")


@cache
def _insert_text(table: Table) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.c)
    return f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' for _ in table.c)})"


def _copy(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    names = ", ".join(f'"{column.name}"' for column in table.c)
    session: Any = connection.connection.driver_connection
    with session.cursor() as cursor, cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
