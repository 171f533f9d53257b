"""Sends the event log to webhooks: in order and at least once, by the daemon that leads the store.

Source of truth of the headers, the secret, 410 and Retry-After: Standard Webhooks 1.0.

Each webhook has a task with one request at a time, so that a dead webhook delays no other. Once a
second, one transaction stores the progress of all webhooks and reads their list. After a kill, the
next leader sends again what this process sent since the last transaction.
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
# Pause after a request with few events: the next request has all events of this time.
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
    cursor: position behind the last event that the webhook has received.
    deliveries: last deliveries, the oldest first.
    failingSince: time of the first failure after the last success.
    secret: key of the signatures; only a new webhook shows it.
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
    """A request to a webhook, and the seconds of Retry-After in its response."""

    delivery: WebhookDelivery
    pause_s: float = 0.0


def new_secret() -> str:
    """Return a secret of Standard Webhooks: a prefix, and the Base64 of the key's bytes."""
    return _SECRET_PREFIX + b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def _sign(webhook: Webhook, message_id: str, body: bytes, now_unix_s: float) -> dict[str, str]:
    """Return the headers that sign a request: Standard Webhooks, Warpseal, and the SDK."""
    secret, timestamp = str(webhook.secret), b"%d" % now_unix_s
    key = standard_key = secret.encode()
    # A secret of before 0.2.0 has no prefix: there a receiver's library gets the Base64 of its
    # text.
    if secret.startswith(_SECRET_PREFIX):
        standard_key = b64decode(secret.removeprefix(_SECRET_PREFIX))
    standard_text = b"%b.%b.%b" % (message_id.encode(), timestamp, body)
    standard_digest = hmac.digest(standard_key, standard_text, "sha256")
    own_digest = hmac.digest(key, b"%b.%b" % (timestamp, body), "sha256")
    # The SDK (chainkit) verifies the body alone, without the time.
    sdk_digest = hmac.digest(key, body, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp.decode(),
        "webhook-signature": f"v1,{b64encode(standard_digest).decode()}",
        "x-warpseal-timestamp": timestamp.decode(),
        "x-warpseal-signature": f"v1={own_digest.hex()}",
        "x-signature": b64encode(sdk_digest).decode(),
    }


def _message_id(webhook: Webhook, events: Sequence[EncodedEvent]) -> str:
    """Return the ID of a request.

    It is the same for the same events, since receivers ignore an ID that they have received before.
    """
    content = f"test_{secrets.token_hex(8)}"
    if events:
        content = f"{events[0].cursor}_{events[-1].number}"
    return f"msg_{webhook.id}_{content}"


async def send(
    session: aiohttp.ClientSession,
    policy: AddressPolicy,
    webhook: Webhook,
    events: Sequence[EncodedEvent],
    now_unix_s: float,
) -> WebhookResult:
    """Send events, as JSON, in a signed request.

    Any result but a status of 2xx within ten seconds is an error.
    """
    encoded = b",".join([event.encoded for event in events])
    body = b'{"webhookId":"%b","events":[%b]}' % (webhook.id.encode(), encoded)
    signature = _sign(webhook, _message_id(webhook, events), body, now_unix_s)
    headers = {"content-type": "application/json", **signature}
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


class WebhookSender:
    """Sends events to webhooks while this process leads. Used from one event loop.

    unix_clock: clock in Unix seconds.
    report_paused: function that takes the number of paused webhooks each second, and None when
        this process stops sending.
    """

    def __init__(
        self,
        feed: EventFeed,
        leadership: Leadership,
        policy: AddressPolicy,
        *,
        dns_resolver: dns_client.Resolver | None = None,
        unix_clock: Callable[[], float] = time.time,
        report_paused: Callable[[int | None], None] = lambda count: None,
    ) -> None:
        self._feed = feed
        self._leadership = leadership
        self._policy = policy
        self._dns_resolver = dns_resolver
        self._unix_clock = unix_clock
        self._report_paused = report_paused
        # By ID: the webhooks with the progress of their deliveries, and their bodies in the store.
        self._webhooks: dict[str, Webhook] = {}
        self._bodies: dict[str, bytes] = {}

    async def run(self) -> None:
        """Send while this process leads, until cancelled."""
        while True:
            await self._leadership.wait_until_held()
            async with asyncio.TaskGroup() as leading:
                sending = leading.create_task(self._lead())
                await self._leadership.wait_until_lost()
                sending.cancel()

    async def _lead(self) -> None:
        tasks: dict[str, asyncio.Task[None]] = {}
        self._webhooks.clear()
        self._bodies.clear()
        try:
            async with (
                checked_session(self._policy, self._dns_resolver) as session,
                asyncio.TaskGroup() as group,
            ):
                while True:
                    with suppress(StoreDown):
                        rows = await self._store()
                        # Another process may have removed or resumed a webhook: its task ends
                        # before a new one begins.
                        changed = [
                            name for name, body in self._bodies.items() if rows.get(name) != body
                        ]
                        for webhook_id in changed:
                            tasks.pop(webhook_id).cancel()
                            del self._webhooks[webhook_id], self._bodies[webhook_id]
                        for webhook_id in rows.keys() - self._bodies.keys():
                            self._bodies[webhook_id] = rows[webhook_id]
                            self._webhooks[webhook_id] = DECODER.decode(rows[webhook_id])
                            sending = self._send_all(session, webhook_id)
                            tasks[webhook_id] = group.create_task(sending)
                    paused = [hook.paused_at is not UNSET for hook in self._webhooks.values()]
                    self._report_paused(sum(paused))
                    await asyncio.sleep(_POLL_S)
        finally:
            self._report_paused(None)
            with suppress(StoreDown, TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._store()

    async def _store(self) -> dict[str, bytes]:
        """Store the progress of the deliveries, and return the bodies of all webhooks.

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
        rows = await self._feed.log.exchange_webhooks(changes)
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
            number, _ = await self._feed.start("cursor", webhook.cursor)
        except CursorExpired as error:
            gap = WebhookDelivery(time=int(self._unix_clock()), events=0, error=f"gap: {error}")
            self._webhooks[webhook_id] = webhook.with_delivery(gap, cursor=error.detail["oldest"])
            log.warning("webhook lacks events", extra={**fields, "reason": str(error)})
            return 0.0
        except StoreDown:
            return _POLL_S
        try:
            page = await self._feed.next_page(number, event_filter)
        except CursorExpired:
            # Listeners share a read: another one's cursor has expired, or this one's by now, which
            # the next call notes as a gap.
            return _POLL_S
        events = page.events[:MAX_EVENTS]
        cursor = page.cursor if len(events) == len(page.events) else events[-1].cursor
        pause_s = _GATHER_S if page.last - number < MAX_EVENTS else 0.0
        if not events:
            self._webhooks[webhook_id] = replace(webhook, cursor=cursor)
            return pause_s
        delivery, retry_pause_s = await send(
            session, self._policy, webhook, events, self._unix_clock()
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
