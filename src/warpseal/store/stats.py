"""The numbers of stored rows and the sizes of the database. `measure` reads every table."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, FromClause, func, select, text

from warpseal.store.schema import (
    ADDRESSES,
    EAGER_TASKS,
    EVICTABLE,
    L1_TRANSACTIONS,
    MESSAGES,
    ORIGINS,
    SHARES,
    SIGNATURES,
)
from warpseal.store.values import StoreContents

_PAGES: Final = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
_DATABASE_SIZE: Final = text("SELECT pg_database_size(current_database())")


def measure(connection: Connection) -> StoreContents:
    """Count the rows of every table."""

    def count(table: FromClause, *which: object) -> int:
        query = select(func.count()).select_from(table).where(*which)  # type: ignore[arg-type]
        return connection.execute(query).scalar_one()

    return StoreContents(
        messages=count(MESSAGES),
        messages_for_ever=count(MESSAGES, MESSAGES.c.for_ever == 1),
        shares=count(SHARES),
        shares_verified=count(SHARES, SHARES.c.verified == 1),
        signatures=count(SIGNATURES),
        addresses=count(ADDRESSES),
        origins=count(ORIGINS),
        l1_transactions=count(L1_TRANSACTIONS),
        eager_tasks=count(EAGER_TASKS),
        size_bytes=size_bytes(connection),
        evictable_bytes=evictable_bytes(connection),
    )


def evictable_bytes(connection: Connection) -> int:
    """Return the approximate size of the evictable messages."""
    total = select(func.coalesce(func.sum(MESSAGES.c.size_bytes), 0)).where(EVICTABLE)
    return int(connection.execute(total).scalar_one())


def size_bytes(connection: Connection) -> int:
    """Return the size of the database."""
    query = _PAGES if connection.dialect.name == "sqlite" else _DATABASE_SIZE
    return int(connection.execute(query).scalar_one())
