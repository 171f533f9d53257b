"""Page tokens of the Metrics API: random UUIDs that name rows in the metrics database.

Every daemon on the database takes them, also after a restart. Expired rows are removed as new ones
are added, and in the background by the daemon that removes old usage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID, uuid4

from msgspec import Struct

from warpseal.store.connection import Connection
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.errors import TooManyPageTokens
from warpseal.usage.schema import PAGE_TOKENS

VALID_S: Final = 24 * 3600
MAX_TOKENS: Final = 1_000_000
_REMOVED_AT_ONCE: Final = 100
_COUNTED_EVERY: Final = 1_000
_UUID_CHARACTERS: Final = 36
_INSERT: Final = f"{PAGE_TOKENS.insert_text} ON CONFLICT DO NOTHING"
_FIND: Final = "SELECT expires_at, body FROM page_tokens WHERE id = ?"
_COUNT: Final = "SELECT count(*) FROM page_tokens"
_REMOVE_EXPIRED: Final = """\
DELETE FROM page_tokens
WHERE id IN (
    SELECT id
    FROM page_tokens
    WHERE expires_at < ?
    ORDER BY expires_at
    LIMIT ?
)
"""


class PageTokenRow(Struct, frozen=True):
    """The row that a token names.

    expires_at: unix seconds.
    """

    expires_at: int
    body: bytes


def remove_expired(connection: Connection, now: int) -> bool:
    """Remove some rows that are expired; return whether there may be more.

    now: unix seconds.
    """
    return connection.run(_REMOVE_EXPIRED, now, _REMOVED_AT_ONCE) == _REMOVED_AT_ONCE


class PageTokenStore:
    """Adds and finds rows.

    now: unix seconds.
    """

    def __init__(
        self,
        database: MetricsDatabase,
        now: Callable[[], float] = time.time,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self._database = database
        self._now = now
        self._max_tokens = max_tokens
        # The number of rows that may be added before all are counted again.
        self._room = 0

    async def add(self, body: bytes) -> str:
        """Return the token of a new row. Raises StoreDown, TooManyPageTokens."""
        token = uuid4()
        add = partial(self._add, token=token, body=body, now=int(self._now()))
        if not await self._database.write(add):
            raise TooManyPageTokens(self._max_tokens)
        return str(token)

    async def find(self, token: str) -> PageTokenRow | None:
        """Return the row of a token, expired or not; None if there is none. Raises StoreDown."""
        if len(token) != _UUID_CHARACTERS:
            return None
        try:
            key = UUID(token)
        except ValueError:
            return None
        rows = await self._database.read(lambda connection: connection.fetch(_FIND, key.bytes))
        return PageTokenRow(*rows[0]) if rows else None

    def _add(self, connection: Connection, token: UUID, body: bytes, now: int) -> bool:
        """Add a row, and remove expired ones; return whether there was room for it."""
        remove_expired(connection, now)
        if self._room <= 0:
            self._room = min(_COUNTED_EVERY, self._max_tokens - connection.value(_COUNT))
            if self._room <= 0:
                return False
        connection.run(_INSERT, token.bytes, now + VALID_S, body)
        self._room -= 1
        return True
