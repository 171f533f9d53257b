"""Deletion of old rows: evictable messages and addresses have a bound of age and one of size.

Messages kept for ever with their shares and signatures, origins, L1 transactions, ranges and tasks are never deleted.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, select, true, tuple_

from warpseal.store.schema import ADDRESSES, EVICTABLE, MESSAGES
from warpseal.store.settings import StoreSettings
from warpseal.store.stats import evictable_bytes, size_bytes

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
        return self._is_shrinking or old == self._settings.prune_batch

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
