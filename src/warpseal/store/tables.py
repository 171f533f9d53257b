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

    kind: one of `declare_table`.
    default: SQL, "" for none.
    """

    name: str
    kind: str
    is_key: bool
    is_nullable: bool
    default: str = ""

    def type_of(self, *, is_postgresql: bool) -> str:
        """Return its type in one of the databases."""
        return _TYPES[self.kind][is_postgresql]


class TableIndex:
    """An index.

    condition: of the rows in it, "" for all.
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
        return f" ON CONFLICT ({keys}) DO {f'UPDATE SET {values}' if values else 'NOTHING'}"

    @property
    def upsert_text(self) -> str:
        """The statement that adds a row, or replaces the one with an equal key."""
        return self.insert_text + self.on_conflict

    def create(
        self, connection: Connection, *, if_missing: bool = False, is_temporary: bool = False
    ) -> None:
        """Create it with its indexes, empty.

        if_missing: nothing happens if it exists.
        is_temporary: only this connection has it, without its indexes, and it hides a table of the
            same name.
        """
        if if_missing and connection.has_table(self.name):
            return
        is_postgresql = connection.is_postgresql
        parts = [
            f'"{column.name}" {column.type_of(is_postgresql=is_postgresql)}'
            f"{f' DEFAULT {column.default}' if column.default else ''}{'' if column.is_nullable else ' NOT NULL'}"
            for column in self.columns
        ]
        parts.append(
            "PRIMARY KEY ({})".format(", ".join(f'"{column.name}"' for column in self.key))
        )
        options = "" if is_postgresql or self.has_rowid else " WITHOUT ROWID"
        kind = "TEMP TABLE" if is_temporary else "TABLE"
        connection.run(
            f"CREATE {kind} {self.name} ({', '.join([*parts, *self.constraints])}){options}"
        )
        for index in () if is_temporary else self.indexes:
            where = f" WHERE {index.condition}" if index.condition else ""
            columns = ", ".join(f'"{name}"' for name in index.columns)
            connection.run(f"CREATE INDEX {index.name} ON {self.name} ({columns}){where}")


class Tables(dict[str, Table]):
    """The tables of a database by name, in the order in which they can be created."""

    def create_all(self, connection: Connection, *, if_missing: bool = False) -> None:
        """Create all of them, empty.

        if_missing: those that do not exist.
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

    columns: names, each with its kind, such as `id key, height int64?, body bytes, size int32=0`.

    `key` is the whole primary key, and so is `serial`, which numbers the rows by itself; `ref` is
    the key of a row of another table. The columns with `*` are the primary key of a table without
    rowid, those with `+` that of one with it. A column with `?` may be NULL, one with `=` has a
    default.
    """
    listed: list[Column] = []
    for column in columns.split(","):
        column_name, declared = column.split()
        kind, _, default = declared.partition("=")
        is_key = kind in ("key", "serial") or kind[-1] in "*+"
        listed.append(Column(column_name, kind.rstrip(_MARKS), is_key, kind.endswith("?"), default))
    table = tables[name] = Table(
        name, tuple(listed), indexes, tuple(constraints), "*" not in columns
    )
    return table
