"""Declarations of tables, and the statements that follow from a declaration, for both databases."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import Struct

from warpseal.store.connection import Connection, marks

# In SQLite and in PostgreSQL. SQLite numbers rows by a key of exactly its type.
_TYPES: Final = {
    "serial": ("INTEGER", "BIGSERIAL"),
    "key": ("INTEGER", "BIGINT"),
    "ref": ("INTEGER", "BIGINT"),
    "int64": ("BIGINT", "BIGINT"),
    "int32": ("INTEGER", "INTEGER"),
    "int16": ("SMALLINT", "SMALLINT"),
    "double": ("DOUBLE", "DOUBLE PRECISION"),
    "bytes": ("BLOB", "BYTEA"),
    "text": ("TEXT", "TEXT"),
    "text8": ("VARCHAR(8)", "VARCHAR(8)"),
    "text16": ("VARCHAR(16)", "VARCHAR(16)"),
    "text32": ("VARCHAR(32)", "VARCHAR(32)"),
}
_MARKS: Final = "*+?"


class Column(NamedTuple):
    """A column.

    kind: key of `_TYPES`.
    default: default value as SQL; an empty text stands for none.
    """

    name: str
    kind: str
    is_key: bool
    is_nullable: bool
    default: str = ""

    def type_of(self, *, is_postgresql: bool) -> str:
        """Return its type in one of the databases."""
        return _TYPES[self.kind][is_postgresql]

    def declaration(self, *, is_postgresql: bool) -> str:
        """Return its declaration in one of the databases."""
        text = f'"{self.name}" {self.type_of(is_postgresql=is_postgresql)}'
        if self.default:
            text += f" DEFAULT {self.default}"
        if not self.is_nullable:
            text += " NOT NULL"
        return text


class TableIndex:
    """An index.

    condition: condition of the rows in the index; an empty text stands for all rows.
    """

    def __init__(self, name: str, *columns: str, condition: str = "") -> None:
        self.name = name
        self.columns = columns
        self.condition = condition


class Table(Struct, frozen=True, eq=False, dict=True):
    """A table.

    constraints: SQL of its constraints besides the primary key.
    """

    name: str
    columns: tuple[Column, ...]
    indexes: tuple[TableIndex, ...]
    constraints: tuple[str, ...]
    has_rowid: bool

    @cached_property
    def key(self) -> tuple[Column, ...]:
        """The columns of the primary key."""
        return tuple(column for column in self.columns if column.is_key)

    @cached_property
    def names(self) -> str:
        """The names of all columns, as a statement lists them."""
        return ", ".join(f'"{column.name}"' for column in self.columns)

    @cached_property
    def insert_text(self) -> str:
        """The statement that adds a row, its values in the order of the columns."""
        return f"INSERT INTO {self.name} ({self.names}) VALUES {marks(len(self.columns))}"

    @cached_property
    def on_conflict(self) -> str:
        """The end of an INSERT that replaces the row with an equal key."""
        values = ", ".join(
            f'"{column.name}" = excluded."{column.name}"'
            for column in self.columns
            if not column.is_key
        )
        keys = ", ".join(f'"{column.name}"' for column in self.key)
        action = f"UPDATE SET {values}" if values else "NOTHING"
        return f" ON CONFLICT ({keys}) DO {action}"

    @property
    def upsert_text(self) -> str:
        """The statement that adds a row, or replaces the row with an equal key."""
        return self.insert_text + self.on_conflict

    def create(
        self, connection: Connection, *, if_missing: bool = False, is_temporary: bool = False
    ) -> None:
        """Create the table, empty, with its indexes.

        if_missing: whether a table that exists stays as it is.
        is_temporary: whether only this connection has the table, without its indexes; it hides a
            table of the same name.
        """
        if if_missing and connection.has_table(self.name):
            return
        is_postgresql = connection.is_postgresql
        parts = [column.declaration(is_postgresql=is_postgresql) for column in self.columns]
        keys = ", ".join(f'"{column.name}"' for column in self.key)
        body = ", ".join([*parts, f"PRIMARY KEY ({keys})", *self.constraints])
        options = "" if is_postgresql or self.has_rowid else " WITHOUT ROWID"
        kind = "TEMP TABLE" if is_temporary else "TABLE"
        connection.run(f"CREATE {kind} {self.name} ({body}){options}")
        if is_temporary:
            return
        for index in self.indexes:
            columns = ", ".join(f'"{name}"' for name in index.columns)
            where = f" WHERE {index.condition}" if index.condition else ""
            connection.run(f"CREATE INDEX {index.name} ON {self.name} ({columns}){where}")


class Tables(dict[str, Table]):
    """The tables of a database by name, in the order in which they can be created."""

    def create_all(self, connection: Connection, *, if_missing: bool = False) -> None:
        """Create all tables, empty.

        if_missing: whether tables that exist stay as they are.
        """
        for table in self.values():
            table.create(connection, if_missing=if_missing)

    def drop_all(self, connection: Connection) -> None:
        """Drop those that exist."""
        for name in reversed(self):
            connection.run(f"DROP TABLE IF EXISTS {name}")


def declare_table(
    tables: Tables, name: str, columns: str, *indexes: TableIndex, constraints: Iterable[str] = ()
) -> Table:
    """Add a table.

    columns: names with kinds, such as `id key, height int64?, body bytes, size int32=0`.

    `key` is the whole primary key, and so is `serial`, which numbers the rows by itself; `ref` is
    the key of a row of another table. The columns with `*` are the primary key of a table without
    rowid, those with `+` the primary key of a table with rowid. A column with `?` may be NULL, a
    column with `=` has a default.
    """
    listed: list[Column] = []
    for column in columns.split(","):
        column_name, declared = column.split()
        kind, _, default = declared.partition("=")
        is_key = kind in ("key", "serial") or kind[-1] in "*+"
        is_nullable = kind.endswith("?")
        listed.append(Column(column_name, kind.rstrip(_MARKS), is_key, is_nullable, default))
    has_rowid = "*" not in columns
    table = Table(name, tuple(listed), indexes, tuple(constraints), has_rowid)
    tables[name] = table
    return table
