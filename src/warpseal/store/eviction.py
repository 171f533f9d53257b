"""The size of the store, and the deletion of old messages, addresses and events.

Messages kept for ever with their shares and signatures, origins, L1 transactions, ranges and tasks
are never deleted.
"""

from __future__ import annotations

from typing import Final

from warpseal.store.connection import Connection
from warpseal.store.event_rows import delete_old_events
from warpseal.store.schema import EVICTABLE
from warpseal.store.settings import StoreSettings
from warpseal.store.values import StoreContents

_PAGES: Final = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
_DATABASE_SIZE: Final = "SELECT pg_database_size(current_database())"
_EVICTABLE_BYTES: Final = f"SELECT coalesce(sum(size_bytes), 0) FROM messages WHERE {EVICTABLE}"
_ANY_NUMBER: Final = 10**9
_SELECT_MESSAGES: Final = f"""
SELECT key, size_bytes
FROM messages
WHERE {EVICTABLE} AND used_at < ?
ORDER BY used_at
LIMIT ?
"""
# Only PostgreSQL has other daemons: rows that one of them uses now are skipped.
_SKIP_LOCKED: Final = "FOR UPDATE SKIP LOCKED"
# Once the bound is exceeded, rows are deleted down to this part of it.
_TARGET: Final = 0.95
_DELETE_MESSAGE: Final = "DELETE FROM messages WHERE key = ?"
_DELETE_OLD_ADDRESSES: Final = "DELETE FROM addresses WHERE kept_at < ?"
_DELETE_ADDRESSES: Final = f"""
DELETE FROM addresses
WHERE (node_id, kind) IN (
  SELECT node_id, kind
  FROM addresses
  ORDER BY kept_at DESC
  LIMIT {_ANY_NUMBER}
  OFFSET ?
)
"""


def measure(connection: Connection) -> StoreContents:
    """Count the rows of every table; reads all of them."""

    def count(rows: str) -> int:
        return int(connection.value(f"SELECT count(*) FROM {rows}"))

    return StoreContents(
        messages=count("messages"),
        messages_for_ever=count("messages WHERE for_ever = 1"),
        shares=count("shares"),
        shares_verified=count("shares WHERE verified = 1"),
        signatures=count("signatures"),
        addresses=count("addresses"),
        origins=count("origins"),
        l1_transactions=count("l1_transactions"),
        eager_tasks=count("eager_tasks"),
        size_bytes=size_bytes(connection),
        evictable_bytes=evictable_bytes(connection),
    )


def evictable_bytes(connection: Connection) -> int:
    """Return the approximate size of the evictable messages."""
    return int(connection.value(_EVICTABLE_BYTES))


def size_bytes(connection: Connection) -> int:
    """Return the size of the database."""
    return int(connection.value(_DATABASE_SIZE if connection.is_postgresql else _PAGES))


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
        old = self._delete_messages(connection, oldest_s)
        deleted = old + connection.run(_DELETE_OLD_ADDRESSES, oldest_s)
        deleted += connection.run(_DELETE_ADDRESSES, self._settings.max_addresses)
        if not self._is_shrinking:
            self.evictable_bytes = evictable_bytes(connection)
            self.size_bytes = size_bytes(connection)
        part = _TARGET if self._is_shrinking else 1.0
        self._is_shrinking = self.evictable_bytes > self._settings.max_bytes * part
        if self._is_shrinking:
            deleted += self._delete_messages(connection, float("inf"))
        self.evicted += deleted
        has_more_events = delete_old_events(connection, self._settings, now_unix_s)
        return self._is_shrinking or has_more_events or old == self._settings.prune_batch

    def _delete_messages(self, connection: Connection, before_unix_s: float) -> int:
        """Delete some messages that were last used before a time, least recently used first."""
        lock = _SKIP_LOCKED if connection.is_postgresql else ""
        rows = connection.fetch(_SELECT_MESSAGES + lock, before_unix_s, self._settings.prune_batch)
        connection.run_many(_DELETE_MESSAGE, [(key,) for key, _ in rows])
        deleted_bytes = sum(size_bytes for _, size_bytes in rows)
        self.evictable_bytes = max(0, self.evictable_bytes - deleted_bytes)
        return len(rows)
