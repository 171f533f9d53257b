"""Statements that SQLAlchemy compiles once for each database, and that then run with plain tuples.

Every aggregation writes about a hundred shares. Dictionaries and bound parameters would cost more than the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import dml
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.elements import ClauseElement

from warpseal.runtime.lazy import LazyModule

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql
else:
    postgresql = LazyModule("sqlalchemy.dialects.postgresql")

# PostgreSQL's `Insert` also has `on_conflict_do_nothing` and `on_conflict_do_update`, which mean the same.
Insert = sqlite.Insert
InsertInto = Callable[[Table], Insert]


def replacing(statement: Insert, *key: str, where: ColumnElement[bool] | None = None, **values: Any) -> Insert:
    """Let an INSERT change the row that has its key already, by default the primary key.

    values: the columns to set, by default all others to the new values. where: which rows change, by default all.
    """
    names = key or tuple(column.name for column in statement.table.primary_key)
    others = {name: statement.excluded[name] for name in statement.excluded.keys() if name not in names}  # noqa: SIM118
    return statement.on_conflict_do_update(index_elements=names, set_=values or others, where=where)


def inserter(database: str) -> InsertInto:
    """Return the function that begins an INSERT for "sqlite" or "postgresql"."""
    begin: Any = sqlite.insert if database == "sqlite" else postgresql.insert
    return lambda table: begin(table).inline()


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """Send the statements of the block to a server without waiting for each reply, in a transaction. Raises DBAPIError.

    Only `Prepared.run` runs within: with a server in another region each wait would cost a round trip.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    driver, session = connection.dialect.loaded_dbapi, connection.connection.driver_connection
    assert session is not None
    try:
        with session.pipeline():
            yield
    except driver.Error as error:
        raise _translated(connection, "pipeline", error) from error


class Prepared:
    """A statement with positional parameters.

    build: makes the statement, given the function that begins an INSERT. names: its parameters in the order of the
    tuples; of an INSERT the columns, in the order of the table.
    """

    def __init__(self, build: Callable[[InsertInto], Executable], *names: str) -> None:
        self._build = build
        self._names = names
        self._texts: dict[str, str] = {}

    def run(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run it once for each row, in a transaction. Raises DBAPIError.

        The driver's own cursor takes the rows: an execution of SQLAlchemy costs more than the database does for one.
        """
        if not rows:
            return
        text = self.text(connection.dialect.name)
        try:
            with closing(connection.connection.cursor()) as cursor:
                cursor.executemany(text, rows)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _translated(connection, text, error) from error

    def fetch(self, connection: Connection, row: tuple[Any, ...]) -> Sequence[Any]:
        """Run it once and return all rows."""
        return connection.exec_driver_sql(self.text(connection.dialect.name), row).fetchall()

    def text(self, database: str) -> str:
        """Return its text for "sqlite" or "postgresql"."""
        if database not in self._texts:
            self._texts[database] = self._compile(database)
        return self._texts[database]

    def _compile(self, database: str) -> str:
        statement = self._build(inserter(database))
        assert isinstance(statement, ClauseElement)
        is_plain_insert = isinstance(statement, dml.Insert) and statement.select is None
        columns = self._names if is_plain_insert else None
        compiled: Any = statement.compile(dialect=_positional_dialect(database), column_keys=columns)
        assert tuple(compiled.positiontup) == self._names, compiled.positiontup
        return str(compiled)


def _translated(connection: Connection, text: str, error: Exception) -> Exception:
    dialect = connection.dialect
    driver_error = dialect.loaded_dbapi.Error
    return DBAPIError.instance(text, None, error, driver_error, hide_parameters=True, dialect=dialect)


@cache
def _positional_dialect(database: str) -> Dialect:
    if database == "sqlite":
        return sqlite.dialect(paramstyle="qmark")
    return postgresql.psycopg.PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
