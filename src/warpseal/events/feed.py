"""The feed of the event log, read and encoded once for all listeners of this daemon.

Listeners keep cursors and no queues. The log is read only while listeners wait: at once after a
commit of this daemon, and four times a second for those of others. A listener that is behind the
newest events reads the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.errors import StoreDown
from warpseal.store.values import Event

if TYPE_CHECKING:
    # The ports listen before the libraries of databases are loaded.
    from warpseal.store.events import EventLog

_MAX_RECENT: Final = 4_096
_MAX_PAGE: Final = 128
_POLL_S: Final = 0.25
_RETRY_S: Final = 1.0
# Many listeners that are behind must not take all reads of the store from others.
_MAX_READS: Final = 8


class EventFilter(Struct, frozen=True, rename="camel"):
    """The events that a listener gets, by types, chains and subnet. None stands for all of them."""

    types: frozenset[str] | None = None
    source_blockchain_id: str | None = None
    destination_blockchain_id: str | None = None
    subnet_id: str | None = None

    def matches(self, event: Event) -> bool:
        """Return whether a listener gets an event."""
        return (
            (self.types is None or event.type in self.types)
            and self.source_blockchain_id in (None, event.source_blockchain_id)
            and self.destination_blockchain_id in (None, event.destination_blockchain_id)
            and self.subnet_id in (None, event.subnet_id)
        )


class EncodedEvent(Struct, frozen=True):
    """An event as listeners get it.

    encoded: JSON, beginning with the cursor.
    """

    number: int
    event: Event
    cursor: str
    encoded: bytes


class EventPage(Struct, frozen=True):
    """The events of a filter up to a cursor."""

    last: int
    cursor: str
    events: Sequence[EncodedEvent]


class EventFeed:
    """Reads the event log for listeners, who share the reads. Used from one event loop."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        # The newest events that were read, and the number up to which they go.
        self._recent: deque[EncodedEvent] = deque(maxlen=_MAX_RECENT)
        self._end = 0
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._extending: SingleFlight[None, None] = SingleFlight()

    async def start(self, name: str, cursor: str | None) -> tuple[int, str]:
        """Return the number behind which a listener starts, and its cursor.

        Raises InvalidRequest, CursorExpired, StoreDown.
        name: parameter of the request that has the cursor.
        cursor: None starts behind the newest event.
        """
        if cursor is None:
            last = await self.log.last()
            return last, f"{await self.log.cursor_prefix()}{last}"
        after = await self.log.parse_cursor(name, cursor)
        # Not by the shared read, which would raise for all listeners if this cursor is wrong.
        async with self._reads:
            await self.log.read(after, 1)
        return after, cursor

    async def next_page(self, after: int, event_filter: EventFilter) -> EventPage:
        """Return some events that follow a number, oldest first; wait for one if there is none.

        A page may have no event of the filter. Raises CursorExpired.
        """
        while after >= self._end:
            await self._extending.run(None, lambda: self._extend(after))
        if self._recent and after >= self._recent[0].number - 1:
            start = after + 1 - self._recent[0].number
            # By index: most listeners read the end, and islice would walk there from the beginning.
            numbers = range(start, min(start + _MAX_PAGE, len(self._recent)))
            events: Sequence[EncodedEvent] = [self._recent[number] for number in numbers]
        else:
            events = await self._read(after)
        matching = [event for event in events if event_filter.matches(event.event)]
        return EventPage(events[-1].number, events[-1].cursor, matching)

    async def _extend(self, after: int) -> None:
        """Wait for events and add them to the recent ones.

        after: number of the event that a listener had last; no listener needs earlier ones.
        """
        if after > self._end:
            self._recent.clear()
            self._end = after
        loop, has_events = asyncio.get_running_loop(), asyncio.Event()

        def on_events() -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(has_events.set)

        # Listening comes before the first read, so that it misses no commit in between.
        self.log.listen(on_events)
        try:
            while not (events := await self._read(self._end)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await has_events.wait()
                has_events.clear()
        finally:
            self.log.listen(lambda: None)
        self._recent.extend(events)
        self._end = events[-1].number

    async def _read(self, after: int) -> Sequence[EncodedEvent]:
        """Read a page of the log; wait while the store is down."""
        while True:
            try:
                async with self._reads:
                    prefix, rows = (
                        await self.log.cursor_prefix(),
                        await self.log.read(after, _MAX_PAGE),
                    )
            except StoreDown:
                await asyncio.sleep(_RETRY_S)
                continue
            return [_encode(prefix, number, body) for number, body in rows]


def _encode(prefix: str, number: int, body: bytes) -> EncodedEvent:
    cursor = f"{prefix}{number}"
    # The body is an object with a type, so that other fields follow.
    encoded = b'{"cursor":"%b",%b' % (cursor.encode(), body[1:])
    return EncodedEvent(number, msgspec.json.decode(body, type=Event), cursor, encoded)
