"""What is deleted, and when: everything that may be evicted falls under a bound of age and one of bytes.

Never deleted: messages kept for ever with all their shares and signatures, origins, L1 transactions, ranges, tasks.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, func, select, text, true, tuple_

from warpseal.store.schema import ADDRESSES, EVICTABLE, MESSAGES
from warpseal.store.settings import StoreSettings

# Beyond the bound, so much is deleted that it is not reached again at once.
_LEFT: Final = 0.95
_ANY_NUMBER: Final = 10**9
_PAGES: Final = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
_DATABASE_SIZE: Final = text("SELECT pg_database_size(current_database())")


class Eviction:
    """Deletes in small pieces, least recently used first."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._shrinking = False
        self.evicted = 0
        self.evictable_bytes = 0
        self.size_bytes = 0

    def run_step(self, connection: Connection, now_unix_s: float) -> bool:
        """Delete a small piece of what is too old or too much; tell whether there is more."""
        oldest_s = now_unix_s - self._settings.max_age_s
        old = self._delete_messages(connection, MESSAGES.c.used_at < oldest_s)
        deleted = old + self._delete_addresses(connection, oldest_s)
        if not self._shrinking:
            self.evictable_bytes = evictable_bytes(connection)
            self.size_bytes = size_bytes(connection)
        self._shrinking = self.evictable_bytes > self._settings.max_bytes * (_LEFT if self._shrinking else 1.0)
        if self._shrinking:
            deleted += self._delete_messages(connection, true())
        self.evicted += deleted
        return self._shrinking or old == self._settings.prune_batch

    def _delete_messages(self, connection: Connection, which: ColumnElement[bool]) -> int:
        """Delete the least recently used of these; rows that another daemon uses now are left to the next time."""
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


def evictable_bytes(connection: Connection) -> int:
    """Return how many bytes may be evicted, about."""
    total = select(func.coalesce(func.sum(MESSAGES.c.size_bytes), 0)).where(EVICTABLE)
    return int(connection.execute(total).scalar_one())


def size_bytes(connection: Connection) -> int:
    """Return how many bytes the database takes."""
    query = _PAGES if connection.dialect.name == "sqlite" else _DATABASE_SIZE
    return int(connection.execute(query).scalar_one())
