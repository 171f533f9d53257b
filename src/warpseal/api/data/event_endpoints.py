"""The stream of the event log, and the webhooks of the administrator.

Source of truth: the HTML standard's server-sent events.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from warpseal.api.data.errors import EventsNotEnabled
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.errors import NotFound
from warpseal.api.http.responses import unstored_response
from warpseal.errors import InvalidRequest
from warpseal.events.feed import EventFeed, EventFilter
from warpseal.events.webhooks import (
    DECODER,
    MAX_WEBHOOKS,
    Webhook,
    WebhookDelivery,
    WebhookList,
    new_secret,
    send,
)
from warpseal.resources.base import UNSET
from warpseal.runtime.http_url import InvalidUrl, parse_http_url
from warpseal.store.events import EventLog
from warpseal.upstream.address_policy import AddressRefused
from warpseal.upstream.checked_resolver import checked_session

_LAST_EVENT_ID: Final = "last-event-id"
_MAX_URL_CHARACTERS: Final = 2_048


async def listen(context: RequestContext, feed: EventFeed | None) -> Response:
    """GET /v1/events.

    A broken stream is continued by the id of its last event, which clients send by themselves.
    """
    if feed is None:
        raise EventsNotEnabled
    values: dict[str, Any] = context.parameters()
    after, event_filter = values.get("after"), msgspec.convert(values, EventFilter)
    last_id = context.request.headers.get(_LAST_EVENT_ID)
    if last_id:
        number, cursor = await feed.start(_LAST_EVENT_ID, last_id)
    else:
        number, cursor = await feed.start("after", after)

    async def next_events() -> bytes:
        nonlocal number, cursor
        page = await feed.next_page(number, event_filter)
        number, cursor = page.last, page.cursor
        return b"".join(
            [
                b"id: %b\ndata: %b\n\n" % (event.cursor.encode(), event.encoded)
                for event in page.events
            ]
        )

    def heartbeat() -> bytes:
        # A client also keeps the id of a part without data, and continues from there.
        return b": \nid: %b\n\n" % cursor.encode()

    return context.event_streams.respond(context.request, next_events, heartbeat)


async def list_webhooks(context: RequestContext, feed: EventFeed | None) -> Response:
    """GET /v1/webhooks."""
    _, rows = await _load_webhooks(context, feed)
    webhooks = sorted(map(DECODER.decode, rows.values()), key=lambda webhook: webhook.created_at)
    without_secrets = [replace(webhook, secret=UNSET) for webhook in webhooks]
    return unstored_response(WebhookList(webhooks=tuple(without_secrets)))


async def add_webhook(context: RequestContext, feed: EventFeed | None) -> Response:
    """POST /v1/webhooks."""
    feed, rows = await _load_webhooks(context, feed)
    values = await context.read_fields()
    if len(values["url"]) > _MAX_URL_CHARACTERS:
        raise InvalidRequest("url", f"expected at most {_MAX_URL_CHARACTERS} characters")
    try:
        context.settings.webhook_policy.check_url(parse_http_url(values["url"]))
    except (InvalidUrl, AddressRefused) as error:
        raise InvalidRequest("url", str(error)) from None
    if len(rows) >= MAX_WEBHOOKS:
        raise InvalidRequest(
            "url", f"there are {MAX_WEBHOOKS} webhooks, and no more are allowed: remove one"
        )
    _, cursor = await feed.start("cursor", None)
    values |= {
        "id": secrets.token_hex(8),
        "createdAt": int(context.now),
        "deliveries": (),
        "secret": new_secret(),
    }
    webhook = msgspec.convert({**values, "cursor": cursor}, Webhook)
    await feed.log.exchange_webhooks({webhook.id: (None, msgspec.json.encode(webhook))})
    return unstored_response(webhook, 201)


async def remove_webhook(context: RequestContext, feed: EventFeed | None) -> Response:
    """DELETE /v1/webhooks/{webhookId}."""
    feed, rows = await _load_webhooks(context, feed)
    webhook_id = context.request.path_params["webhookId"]
    # The sender may change the row in the meantime.
    while webhook_id in rows:
        body = rows[webhook_id]
        rows = await feed.log.exchange_webhooks({webhook_id: (body, None)})
    return unstored_response(replace(DECODER.decode(body), secret=UNSET))


async def test_webhook(context: RequestContext, feed: EventFeed | None) -> Response:
    """POST /v1/webhooks/{webhookId}:test.

    A success resumes the deliveries of a webhook that fails or is paused, or whose request hangs.
    """
    feed, rows = await _load_webhooks(context, feed)
    webhook_id, policy = context.request.path_params["webhookId"], context.settings.webhook_policy
    async with checked_session(policy) as session:
        webhook = DECODER.decode(rows[webhook_id])
        delivery, _ = await send(session, policy, webhook, (), time.time())
    if delivery.error is UNSET:
        await _resume(feed.log, webhook_id, delivery)
    return unstored_response(delivery)


async def _resume(log: EventLog, webhook_id: str, delivery: WebhookDelivery) -> None:
    """Let the daemon that sends begin again at the cursor, whatever it has stored since."""
    rows = await log.exchange_webhooks()
    while (body := rows.get(webhook_id)) is not None:
        webhook = DECODER.decode(body).with_delivery(delivery, failing_since=UNSET, paused_at=UNSET)
        resumed = msgspec.json.encode(webhook)
        rows = await log.exchange_webhooks({webhook_id: (body, resumed)})
        if rows.get(webhook_id) == resumed:
            return


async def _load_webhooks(
    context: RequestContext, feed: EventFeed | None
) -> tuple[EventFeed, dict[str, bytes]]:
    """Return the feed, and the bodies of all webhooks by id.

    Raises EventsNotEnabled, and NotFound if the path names another webhook.
    """
    if feed is None:
        raise EventsNotEnabled
    rows = await feed.log.exchange_webhooks()
    webhook_id = context.request.path_params.get("webhookId")
    if webhook_id is not None and webhook_id not in rows:
        raise NotFound("no webhook has this id; GET /v1/webhooks lists all")
    return feed, rows
