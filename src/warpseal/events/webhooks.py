"""Sends the event log to webhooks: in order and at least once, by the daemon that leads the store.

Source of truth of the headers, the secret, 410 and Retry-After: Standard Webhooks 1.0.

Each webhook has a task with one request at a time, so that a dead one delays no other. Once a
second, one transaction stores how far all of them are and reads which ones there are: what a killed
process sent after it is sent again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from warpseal.events.feed import EncodedEvent, EventFeed, EventFilter
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.runtime.http_session import aiohttp
from warpseal.runtime.http_url import parse_http_url
from warpseal.runtime.process import error_words
from warpseal.runtime.retry import Backoff, RetryDelays
from warpseal.runtime.settings import DAY_S, HOUR_S
from warpseal.store.errors import CursorExpired, StoreDown
from warpseal.store.locks import Leadership
from warpseal.upstream.address_policy import AddressPolicy, AddressRefused
from warpseal.upstream.checked_resolver import checked_session
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.limits import parse_retry_after

if TYPE_CHECKING:
    from dns import asyncresolver as dns_client

log = logging.getLogger(__name__)

MAX_WEBHOOKS: Final = 100
MAX_EVENTS: Final = 100
MAX_DELIVERIES: Final = 20
TIMEOUT_S: Final = 10.0
RETRY_FOR_S: Final = DAY_S
_RETRY: Final = Backoff(10.0, HOUR_S)
_POLL_S: Final = 1.0
# After a request with few events, so that the next one has all events of this time.
_GATHER_S: Final = 0.25
_SECRET_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32
_GONE: Final = 410


class WebhookDelivery(Resource, frozen=True, gc=False, kw_only=True):
    """A request to a webhook, with or without a response; or a gap in the events."""

    time: int
    events: int
    status: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Webhook(Resource, frozen=True, gc=False, kw_only=True):
    """A webhook.

    types to subnetId: the filter.
    cursor: up to where it has the events.
    deliveries: the oldest first.

    failingSince: the first failure after the last success.
    secret: the key of the signatures, only of a new webhook.
    """

    id: str
    url: str
    created_at: int
    types: tuple[str, ...] | UnsetType = UNSET
    source_blockchain_id: str | UnsetType = UNSET
    destination_blockchain_id: str | UnsetType = UNSET
    subnet_id: str | UnsetType = UNSET
    cursor: str
    deliveries: tuple[WebhookDelivery, ...]
    failing_since: int | UnsetType = UNSET
    paused_at: int | UnsetType = UNSET
    secret: str | UnsetType = UNSET

    def with_delivery(self, delivery: WebhookDelivery, **changes: Any) -> Webhook:
        """Return the webhook after a delivery."""
        return replace(self, deliveries=(*self.deliveries, delivery)[-MAX_DELIVERIES:], **changes)


class WebhookList(Resource, frozen=True, gc=False, kw_only=True):
    """All webhooks, oldest first."""

    webhooks: tuple[Webhook, ...]


DECODER: Final = msgspec.json.Decoder(Webhook)


class WebhookResult(NamedTuple):
    """A request to a webhook, and the pause that the response asks for by Retry-After, in seconds."""

    delivery: WebhookDelivery
    pause_s: float = 0.0


def new_secret() -> str:
    """Return a secret: its prefix, and the Base64 of the bytes with which libraries of Standard
    Webhooks verify.
    """
    return _SECRET_PREFIX + b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def _sign(webhook: Webhook, message_id: str, body: bytes, now_unix_s: float) -> dict[str, str]:
    """Return the headers that sign a request: those of Standard Webhooks, ours, and that of the
    published SDK.
    """
    secret, timestamp = str(webhook.secret), b"%d" % now_unix_s
    key = secret.encode()
    # A secret of before 0.2.0 has no prefix: there a receiver's library gets the Base64 of its
    # text.
    standard_key = (
        b64decode(secret.removeprefix(_SECRET_PREFIX)) if secret.startswith(_SECRET_PREFIX) else key
    )
    signed = b"%b.%b.%b" % (message_id.encode(), timestamp, body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp.decode(),
        "webhook-signature": (
            "v1," + b64encode(hmac.digest(standard_key, signed, "sha256")).decode()
        ),
        "x-warpseal-timestamp": timestamp.decode(),
        "x-warpseal-signature": (
            "v1=" + hmac.digest(key, b"%b.%b" % (timestamp, body), "sha256").hex()
        ),
        # As chainkit verifies it, without the time.
        "x-signature": b64encode(hmac.digest(key, body, "sha256")).decode(),
    }


def _message_id(webhook: Webhook, events: Sequence[EncodedEvent]) -> str:
    """Return the id of a request: the same for the same events, since receivers ignore an id that
    they had before.
    """
    content = (
        f"{events[0].cursor}_{events[-1].number}" if events else f"test_{secrets.token_hex(8)}"
    )
    return f"msg_{webhook.id}_{content}"


async def send(
    session: aiohttp.ClientSession,
    policy: AddressPolicy,
    webhook: Webhook,
    events: Sequence[EncodedEvent],
    now_unix_s: float,
) -> WebhookResult:
    """Send events, as JSON, in a signed request; everything but a status of 2xx within ten seconds
    is an error.
    """
    encoded = b",".join([event.encoded for event in events])
    body = b'{"webhookId":"%b","events":[%b]}' % (webhook.id.encode(), encoded)
    headers = {"content-type": "application/json"} | _sign(
        webhook, _message_id(webhook, events), body, now_unix_s
    )
    status: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    pause_s: float | None = None
    try:
        url = parse_http_url(webhook.url)
        policy.check_url(url)
        request = session.post(url, data=body, headers=headers, allow_redirects=False)
        # The body of a response is not read.
        async with asyncio.timeout(TIMEOUT_S), request as response:
            status = response.status
            pause_s = parse_retry_after(
                response.headers.get("Retry-After"), now_unix_s, RETRY_FOR_S
            )
        error = UNSET if 200 <= status < 300 else f"status {status}"
    except (aiohttp.ClientError, OSError, ValueError) as failure:
        cause = failure.__cause__ or failure
        error = str(cause) if isinstance(cause, AddressRefused) else error_words(failure)
    delivery = WebhookDelivery(time=int(now_unix_s), events=len(events), status=status, error=error)
    return WebhookResult(delivery, pause_s or 0.0)


class WebhookSender(Struct):
    """Used from one event loop.

    unix_clock: Unix time in seconds.

    report_paused: called each second with the number of paused webhooks, and with None when this
        process stops sending.
    _webhooks, _bodies: by id, with how far the deliveries are, and as they are in the store.
    """

    feed: EventFeed
    leadership: Leadership
    policy: AddressPolicy
    dns_resolver: dns_client.Resolver | None = None
    unix_clock: Callable[[], float] = time.time
    report_paused: Callable[[int | None], None] = lambda count: None
    _webhooks: dict[str, Webhook] = {}
    _bodies: dict[str, bytes] = {}

    async def run(self) -> None:
        """Send while this process leads, until cancelled."""
        while True:
            await self.leadership.wait_until_held()
            async with asyncio.TaskGroup() as leading:
                sending = leading.create_task(self._lead())
                await self.leadership.wait_until_lost()
                sending.cancel()

    async def _lead(self) -> None:
        tasks: dict[str, asyncio.Task[None]] = {}
        self._webhooks.clear()
        self._bodies.clear()
        try:
            async with (
                checked_session(self.policy, self.dns_resolver) as session,
                asyncio.TaskGroup() as group,
            ):
                while True:
                    with suppress(StoreDown):
                        rows = await self._store()
                        # Those that were removed, or resumed, by another process.
                        for webhook_id in [
                            name for name, body in self._bodies.items() if rows.get(name) != body
                        ]:
                            tasks.pop(webhook_id).cancel()
                            del self._webhooks[webhook_id], self._bodies[webhook_id]
                        for webhook_id in rows.keys() - self._bodies.keys():
                            self._bodies[webhook_id] = rows[webhook_id]
                            self._webhooks[webhook_id] = DECODER.decode(rows[webhook_id])
                            tasks[webhook_id] = group.create_task(
                                self._send_all(session, webhook_id)
                            )
                    self.report_paused(
                        sum(hook.paused_at is not UNSET for hook in self._webhooks.values())
                    )
                    await asyncio.sleep(_POLL_S)
        finally:
            self.report_paused(None)
            with suppress(StoreDown, TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._store()

    async def _store(self) -> dict[str, bytes]:
        """Store how far the deliveries are, and return the bodies of all webhooks.

        Raises StoreDown.
        """
        bodies = {
            webhook_id: msgspec.json.encode(webhook)
            for webhook_id, webhook in self._webhooks.items()
        }
        changes = {
            name: (self._bodies[name], body)
            for name, body in bodies.items()
            if self._bodies[name] != body
        }
        rows = await self.feed.log.exchange_webhooks(changes)
        self._bodies = bodies
        return rows

    async def _send_all(self, session: aiohttp.ClientSession, webhook_id: str) -> None:
        """Send the events of a webhook until it pauses."""
        event_filter = msgspec.json.decode(self._bodies[webhook_id], type=EventFilter)
        delays = RetryDelays(_RETRY)
        while self._webhooks[webhook_id].paused_at is UNSET:
            delay_s = await self._send_next(session, webhook_id, event_filter, delays)
            await asyncio.sleep(delay_s)

    async def _send_next(
        self,
        session: aiohttp.ClientSession,
        webhook_id: str,
        event_filter: EventFilter,
        delays: RetryDelays,
    ) -> float:
        """Wait for events and send them once; return the delay before the next call in seconds."""
        webhook = self._webhooks[webhook_id]
        fields = {"webhook": webhook_id, "server": NodeEndpoint(webhook.url).display}
        try:
            number, _ = await self.feed.start("cursor", webhook.cursor)
        except CursorExpired as error:
            gap = WebhookDelivery(time=int(self.unix_clock()), events=0, error=f"gap: {error}")
            self._webhooks[webhook_id] = webhook.with_delivery(gap, cursor=error.detail["oldest"])
            log.warning("webhook lacks events", extra={**fields, "reason": str(error)})
            return 0.0
        except StoreDown:
            return _POLL_S
        try:
            page = await self.feed.next_page(number, event_filter)
        except CursorExpired:
            # Of another listener, or by now of this one.
            return _POLL_S
        events = page.events[:MAX_EVENTS]
        cursor = page.cursor if len(events) == len(page.events) else events[-1].cursor
        pause_s = _GATHER_S if page.last - number < MAX_EVENTS else 0.0
        if not events:
            self._webhooks[webhook_id] = replace(webhook, cursor=cursor)
            return pause_s
        delivery, retry_pause_s = await send(
            session, self.policy, webhook, events, self.unix_clock()
        )
        if delivery.error is UNSET:
            delays.reset()
            self._webhooks[webhook_id] = webhook.with_delivery(
                delivery, cursor=cursor, failing_since=UNSET
            )
            return pause_s
        since = delivery.time if webhook.failing_since is UNSET else webhook.failing_since
        is_over = delivery.status == _GONE or delivery.time - since >= RETRY_FOR_S
        paused_at = delivery.time if is_over else UNSET
        self._webhooks[webhook_id] = webhook.with_delivery(
            delivery, failing_since=since, paused_at=paused_at
        )
        if paused_at is not UNSET:
            log.warning("webhook paused", extra={**fields, "reason": delivery.error})
        elif webhook.failing_since is UNSET:
            log.info("webhook failed", extra={**fields, "reason": delivery.error})
        return max(delays.next(), retry_pause_s)
