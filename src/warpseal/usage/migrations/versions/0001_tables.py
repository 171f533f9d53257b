"""The first version: sums in encoded tables, of minutes and of buckets."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

_SQLITE_KEY = "INTEGER PRIMARY KEY"
_POSTGRESQL_KEY = "BIGSERIAL PRIMARY KEY"
_TABLES = (
    "CREATE TABLE minutes (key {key}, run {bytes} NOT NULL, sequence BIGINT NOT NULL, minute BIGINT NOT NULL,"
    " is_merged SMALLINT NOT NULL, combinations INTEGER NOT NULL, size_bytes INTEGER NOT NULL, sums {bytes} NOT NULL,"
    " UNIQUE (run, sequence))",
    "CREATE TABLE buckets (level SMALLINT NOT NULL, start BIGINT NOT NULL, dimension SMALLINT NOT NULL,"
    " size_bytes INTEGER NOT NULL, sums {bytes} NOT NULL, PRIMARY KEY (level, start, dimension))",
    "CREATE TABLE rollup (key {key}, merges BIGINT NOT NULL)",
    "CREATE TABLE page_tokens (id {bytes} NOT NULL PRIMARY KEY, expires_at BIGINT NOT NULL, body {bytes} NOT NULL)",
    "CREATE INDEX page_tokens_by_time ON page_tokens (expires_at)",
)


def upgrade() -> None:
    """Create all tables."""
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    key, type_of_bytes = (_SQLITE_KEY, "BLOB") if is_sqlite else (_POSTGRESQL_KEY, "BYTEA")
    for table in _TABLES:
        connection.exec_driver_sql(table.format(key=key, bytes=type_of_bytes))
