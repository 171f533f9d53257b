"""The size of the store, and deletion of old rows: evictable messages, addresses and events have bounds.

Messages kept for ever with their shares and signatures, origins, L1 transactions, ranges and tasks are never deleted.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Connection, FromClause, delete, func, select, text, true, tuple_

from warpseal.store.event_rows import delete_old_events
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
from warpseal.store.settings import StoreSettings
from warpseal.store.values import StoreContents

_PAGES: Final = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
_DATABASE_SIZE: Final = text("SELECT pg_database_size(current_database())")


def measure(connection: Connection) -> StoreContents:
    """Count the rows of every table; reads all of them."""

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


# Once the bound is exceeded, rows are deleted down to this part of it.
_TARGET: Final = 0.95
_ANY_NUMBER: Final = 10**9


class Eviction:
    """Deletes in small steps, the least recently used rows first."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._is_shrinking = False
        self.evicted = 0
        self.evictable_bytes = 0
        self.size_bytes = 0

    def run_step(self, connection: Connection, now_unix_s: float) -> bool:
        """Delete some rows that are too old or exceed the size; return whether there are more."""
        oldest_s = now_unix_s - self._settings.max_age_s
        old = self._delete_messages(connection, MESSAGES.c.used_at < oldest_s)
        deleted = old + self._delete_addresses(connection, oldest_s)
        if not self._is_shrinking:
            self.evictable_bytes = evictable_bytes(connection)
            self.size_bytes = size_bytes(connection)
        self._is_shrinking = self.evictable_bytes > self._settings.max_bytes * (_TARGET if self._is_shrinking else 1.0)
        if self._is_shrinking:
            deleted += self._delete_messages(connection, true())
        self.evicted += deleted
        has_more_events = delete_old_events(connection, self._settings, now_unix_s)
        return self._is_shrinking or has_more_events or old == self._settings.prune_batch

    def _delete_messages(self, connection: Connection, which: ColumnElement[bool]) -> int:
        """Delete the least recently used of these; rows that another daemon uses now are skipped."""
        chosen = (
            select(MESSAGES.c.key, MESSAGES.c.size_bytes)
            .where(EVICTABLE, which)
            .order_by(MESSAGES.c.used_at)
            .limit(self._settings.prune_batch)
            .with_for_update(skip_locked=True)
        )
        rows = connection.execute(chosen).all()
        if rows:
            connection.execute(delete(MESSAGES).where(MESSAGES.c.key.in_([row.key for row in rows])))
            self.evictable_bytes = max(0, self.evictable_bytes - sum(row.size_bytes for row in rows))
        return len(rows)

    def _delete_addresses(self, connection: Connection, oldest_s: float) -> int:
        old = connection.execute(delete(ADDRESSES).where(ADDRESSES.c.kept_at < oldest_s)).rowcount
        row = tuple_(ADDRESSES.c.node_id, ADDRESSES.c.kind)
        beyond = (
            select(ADDRESSES.c.node_id, ADDRESSES.c.kind)
            .order_by(ADDRESSES.c.kept_at.desc())
            .limit(_ANY_NUMBER)
            .offset(self._settings.max_addresses)
        )
        return old + connection.execute(delete(ADDRESSES).where(row.in_(beyond))).rowcount
