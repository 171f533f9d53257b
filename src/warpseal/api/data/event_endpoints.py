"""The stream of the event log. Source of truth: the HTML standard's server-sent events."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from warpseal.api.data.errors import EventsNotEnabled
from warpseal.api.data.parameters import AFTER
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.event_stream import EventStreams
from warpseal.events.feed import EventFilter

MAX_LISTENERS: Final = 1_000
MAX_LISTENERS_PER_CLIENT: Final = 16
_LAST_EVENT_ID: Final = "last-event-id"


async def listen(streams: EventStreams, context: RequestContext) -> Response:
    """GET /v1/events. A broken stream is continued by the id of its last event, which clients send by themselves."""
    feed = context.services.events
    if feed is None:
        raise EventsNotEnabled
    values: dict[str, Any] = context.parameters()
    after, event_filter = values.get(AFTER.name), msgspec.convert(values, EventFilter)
    last_id = context.request.headers.get(_LAST_EVENT_ID)
    number, cursor = await (feed.start(AFTER.name, after) if not last_id else feed.start(_LAST_EVENT_ID, last_id))

    async def next_events() -> bytes:
        nonlocal number, cursor
        page = await feed.next_page(number, event_filter)
        number, cursor = page.last, page.cursor
        return b"".join([b"id: %b\ndata: %b\n\n" % (event.cursor.encode(), event.encoded) for event in page.events])

    # A client keeps the id of a part without data, too: it continues from there, although no event was for it.
    return streams.respond(context.request, next_events, lambda: b": \nid: %b\n\n" % cursor.encode())
