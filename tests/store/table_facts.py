"""What a database says about its own tables, in a form that does not depend on how they were
created.
"""

from __future__ import annotations

from typing import Any

from warpseal.store.connection import Connection

_COLUMNS = (
    "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable,"
    " column_default"
    " FROM information_schema.columns WHERE table_schema = current_schema()"
)
# Those of keys are below, and keep their name when the table is renamed.
_INDEXES = (
    "SELECT tablename, indexdef FROM pg_indexes"
    " WHERE schemaname = current_schema() AND NOT indexname LIKE '%_pkey'"
)
_CONSTRAINTS = (
    "SELECT c.relname, pg_get_constraintdef(t.oid)"
    " FROM pg_constraint t JOIN pg_class c ON c.oid = t.conrelid"
    " WHERE t.connamespace = current_schema()::regnamespace"
)
_VIEWS = "SELECT viewname, definition FROM pg_views WHERE schemaname = current_schema()"


def table_names(connection: Connection) -> set[str]:
    """Return the names of all tables."""
    text = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if connection.is_postgresql:
        text = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    return {str(name) for (name,) in connection.fetch(text)}


def table_facts(connection: Connection) -> dict[str, set[Any]]:
    """Return what each table and view consists of: columns, keys, indexes with their conditions."""
    facts: dict[str, set[Any]] = {name: set() for name in table_names(connection)}
    if connection.is_postgresql:
        for text in (_COLUMNS, _INDEXES, _CONSTRAINTS, _VIEWS):
            for name, *fact in connection.fetch(text):
                facts.setdefault(name, set()).add(tuple(fact))
        return facts
    for name in facts:
        for pragma in ("table_info", "foreign_key_list"):
            # The default of a number may have been declared as text, which is the same.
            rows = connection.fetch(f"PRAGMA {pragma}({name})")
            facts[name] |= {(pragma, *(str(value).strip("'") for value in row[1:])) for row in rows}
        for row in connection.records(f"PRAGMA index_list({name})"):
            columns = tuple(
                column[2] for column in connection.fetch(f"PRAGMA index_info({row.name})")
            )
            text = connection.value("SELECT sql FROM sqlite_master WHERE name = ?", row.name) or ""
            facts[name].add(
                (row.name, row.unique, row.origin, columns, text.partition(" WHERE ")[2])
            )
    for name, without_rowid in connection.fetch(
        "SELECT name, wr FROM pragma_table_list WHERE type = 'table'"
    ):
        if name in facts:
            facts[name].add(("without rowid", without_rowid))
    for name, text in connection.fetch("SELECT name, sql FROM sqlite_master WHERE type = 'view'"):
        facts[name] = {text}
    return facts
