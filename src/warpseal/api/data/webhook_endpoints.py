"""Webhooks: the administrator adds, lists, removes and tests them."""

from __future__ import annotations

import secrets
import time
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.responses import Response
from yarl import URL

from warpseal.api.data.errors import EventsNotEnabled
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.errors import NotFound
from warpseal.api.http.responses import unstored_response
from warpseal.errors import InvalidRequest
from warpseal.events.feed import EventFeed
from warpseal.events.webhooks import DECODER, MAX_WEBHOOKS, Webhook, WebhookList, send
from warpseal.resources.base import UNSET
from warpseal.upstream.address_policy import AddressRefused
from warpseal.upstream.checked_resolver import checked_session

_MAX_URL_CHARACTERS: Final = 2_048


async def list_or_add(context: RequestContext) -> Response:
    """GET or POST /v1/webhooks."""
    feed, rows = await _load(context)
    if context.request.method == "POST":
        return await _add(context, feed, len(rows))
    webhooks = sorted(map(DECODER.decode, rows.values()), key=lambda webhook: webhook.created_at)
    return unstored_response(WebhookList(webhooks=tuple([replace(webhook, secret=UNSET) for webhook in webhooks])))


async def remove(context: RequestContext) -> Response:
    """DELETE /v1/webhooks/{webhookId}."""
    feed, rows = await _load(context)
    webhook_id = context.request.path_params["webhookId"]
    # The sender may change it in the meantime.
    while webhook_id in rows:
        body = rows[webhook_id]
        rows = await feed.log.exchange_webhooks({webhook_id: (body, None)})
    return unstored_response(replace(DECODER.decode(body), secret=UNSET))


async def test(context: RequestContext) -> Response:
    """POST /v1/webhooks/{webhookId}:test. A success resumes the deliveries of a webhook that fails or is paused."""
    feed, rows = await _load(context)
    body = rows[context.request.path_params["webhookId"]]
    webhook, policy = DECODER.decode(body), context.settings.webhook_policy
    async with checked_session(policy) as session:
        delivery = await send(session, policy, webhook, (), time.time())
    if delivery.error is UNSET and webhook.failing_since is not UNSET:
        resumed = webhook.with_delivery(delivery, failing_since=UNSET, paused_at=UNSET)
        await feed.log.exchange_webhooks({webhook.id: (body, msgspec.json.encode(resumed))})
    return unstored_response(delivery)


async def _load(context: RequestContext) -> tuple[EventFeed, dict[str, bytes]]:
    """Return the feed, and the bodies of all webhooks by id. Raises NotFound if the path names another one."""
    feed = context.services.events
    if feed is None:
        raise EventsNotEnabled
    rows = await feed.log.exchange_webhooks()
    webhook_id = context.request.path_params.get("webhookId")
    if webhook_id is not None and webhook_id not in rows:
        raise NotFound("no webhook has this id; GET /v1/webhooks lists all")
    return feed, rows


async def _add(context: RequestContext, feed: EventFeed, count: int) -> Response:
    values = await context.read_fields()
    try:
        url = URL(values["url"])
        if url.scheme not in ("http", "https") or not url.raw_host or len(values["url"]) > _MAX_URL_CHARACTERS:
            raise ValueError(f"expected http:// or https:// and a host, in {_MAX_URL_CHARACTERS} characters")
        context.settings.webhook_policy.check_url(url)
    except (ValueError, AddressRefused) as error:
        raise InvalidRequest("url", str(error)) from None
    if count >= MAX_WEBHOOKS:
        raise InvalidRequest("url", f"there are {MAX_WEBHOOKS} webhooks, and no more are allowed: remove one")
    _, cursor = await feed.start("cursor", None)
    values |= {
        "id": secrets.token_hex(8),
        "createdAt": int(context.now),
        "deliveries": (),
        "secret": secrets.token_hex(32),
    }
    webhook = msgspec.convert({**values, "cursor": cursor}, Webhook)
    await feed.log.exchange_webhooks({webhook.id: (None, msgspec.json.encode(webhook))})
    return unstored_response(webhook, 201)
