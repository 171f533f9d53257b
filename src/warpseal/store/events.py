"""The event log of a store: each event once, in one order for all daemons, read by a cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from warpseal.errors import InvalidRequest
from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.errors import CursorExpired
from warpseal.store.event_rows import (
    NEWEST,
    READ,
    NewEvent,
    StoredEvent,
    WebhookChanges,
    add_events,
    exchange_webhooks,
)
from warpseal.store.schema import EVENT_SOURCES
from warpseal.store.secrets import ensure_log_id, find_log_id

_MAX_DIGITS: Final = 18
_POSITION: Final = "SELECT position FROM event_sources WHERE source = ?"
_BEGIN_SOURCE: Final = f"{EVENT_SOURCES.insert_text} ON CONFLICT DO NOTHING"
_MOVE_SOURCE: Final = "UPDATE event_sources SET position = ? WHERE source = ? AND position = ?"


class EventLog:
    """Adds events, and reads them by number.

    A cursor is the id of the log and the number of the last event read.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._id: str | None = None

    @property
    def is_up(self) -> bool:
        """Whether events can be added; False also without a store."""
        return self._database.is_up

    def add(self, events: Sequence[NewEvent]) -> None:
        """Add events in a transaction of their own; they are lost if the store goes down before."""
        if events:
            future = self._database.call(lambda connection: add_events(connection, events))
            future.add_done_callback(lambda _: self._database.on_events())

    async def position(self, source: str) -> int | None:
        """Return the position up to which a source was read, or None. Raises StoreDown."""
        position: int | None = await self._database.read(
            lambda connection: connection.value(_POSITION, source)
        )
        return position

    async def add_from_source(
        self,
        source: str,
        before: int | None,
        position: int,
        events: Sequence[NewEvent],
        write: Callable[[Connection], object] = lambda connection: None,
    ) -> bool:
        """Add the events of a source and its new position in one transaction; return whether.

        Nothing is added if the position is not `before` any more: another daemon has read the
        source.

        before: position up to which the source was read; None for a new source.
        write: called in the transaction, to write rows that belong to the events.
        Raises StoreDown, although the events may be added later.
        """

        def add(connection: Connection) -> bool:
            # First, because it locks the row: a second daemon waits here, and then sees the new
            # position.
            if before is None:
                rows = connection.run(_BEGIN_SOURCE, source, position)
            else:
                rows = connection.run(_MOVE_SOURCE, position, source, before)
            if rows:
                write(connection)
                add_events(connection, events)
            return rows > 0

        is_added = await self._database.write(add)
        if events:
            self._database.on_events()
        return is_added

    def listen(self, on_events: Callable[[], None]) -> None:
        """Call a function in another thread after this daemon added events.

        It replaces the function of an earlier call.
        """
        self._database.on_events = on_events

    async def last(self) -> int:
        """Return the number of the newest event; 0 if there never was one. Raises StoreDown."""
        return await self._database.read(lambda connection: connection.value(NEWEST)) or 0

    async def read(self, after: int, limit: int) -> Sequence[StoredEvent]:
        """Return the events that follow a number.

        Raises CursorExpired if some are deleted, or if the log ends before the number, and
        StoreDown.
        """
        rows = await self._database.read(lambda connection: connection.fetch(READ, after, limit))
        if rows and rows[0][0] != after + 1:
            raise await self._expired("begins after this cursor")
        if not rows and after > await self.last():
            raise await self._expired("ends before this cursor")
        return [StoredEvent(*row) for row in rows]

    async def cursor_prefix(self) -> str:
        """Return the text with which each cursor of this log begins. Raises StoreDown."""
        if self._id is None:
            self._id = await self._database.read(find_log_id)
            self._id = self._id or await self._database.write(ensure_log_id, is_idempotent=True)
        return f"{self._id}-"

    async def parse_cursor(self, name: str, text: str) -> int:
        """Return the number in a cursor.

        name: name of the parameter that has the cursor.
        Raises InvalidRequest, CursorExpired, StoreDown.
        """
        log_id, _, digits = text.partition("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
            raise InvalidRequest(name, "not a cursor; take it from the id of an event")
        if f"{log_id}-" != await self.cursor_prefix():
            raise await self._expired("is not the one that this cursor is of")
        return int(digits)

    async def exchange_webhooks(self, changes: WebhookChanges | None = None) -> dict[str, bytes]:
        """Change webhooks that no other process has changed; return the bodies of all by id.

        Webhooks that are added or removed survive a power cut on return. Raises StoreDown.
        """
        exchange = partial(exchange_webhooks, changes=changes or {})
        if not changes:
            return await self._database.read(exchange)
        # The sender changes the progress of deliveries every two seconds.
        is_flushed = any(None in change for change in changes.values())
        return await self._database.write(exchange, is_flushed=is_flushed, is_idempotent=True)

    async def _expired(self, reason: str) -> CursorExpired:
        rows = await self._database.read(lambda connection: connection.fetch(READ, 0, 1))
        oldest = rows[0][0] - 1 if rows else 0
        return CursorExpired(f"{await self.cursor_prefix()}{oldest}", reason)
