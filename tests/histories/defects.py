"""Defects of the product that a run must find: each one breaks one promise in a daemon's process.

Only the processes of tests/histories/daemon_process.py import this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from warpseal.api.http import access, rate_limit
from warpseal.events import feed, webhooks
from warpseal.runtime.retry import Backoff
from warpseal.store import event_rows, locks, signing_blocks, writer


class Defect(Struct, frozen=True):
    """A defect.

    rules: the rules of the judge that name it; at least one of them does.
    plant: function that plants it in this process and takes its name.
    disturbances: what has to happen before it shows.
    """

    rules: frozenset[str]
    plant: Callable[[str], None]
    disturbances: Sequence[str] = ()


def send_again_after_a_return(_: str) -> None:
    """Begin one event too early for a reader that returns."""
    start = feed.EventFeed.start

    async def start_early(self: feed.EventFeed, name: str, cursor: str | None) -> Any:
        number, text = await start(self, name, cursor)
        if name == "last-event-id":
            number = max(0, number - 1)
        return number, text

    _set(feed.EventFeed, "start", start_early)


def skip_events(_: str) -> None:
    """Leave out every seventh event of the log."""
    next_page = feed.EventFeed.next_page

    async def next_part(self: feed.EventFeed, after: int, event_filter: Any) -> feed.EventPage:
        page = await next_page(self, after, event_filter)
        return replace(page, events=[event for event in page.events if event.number % 7])

    _set(feed.EventFeed, "next_page", next_part)


def add_events_twice(process: str) -> None:
    """Add each event of a signature a second time."""
    add_events = event_rows.add_events

    def add_twice(connection: Any, events: Sequence[event_rows.NewEvent]) -> None:
        again = [event._replace(name=event.name[::-1]) for event in events]
        add_events(connection, [*events, *again])

    _set(writer, "add_events", add_twice)


def number_events_for_each_daemon(process: str) -> None:
    """Give other contents to the events that this process reads."""
    encode = feed._encode

    def encode_with_name(prefix: str, number: int, body: bytes) -> feed.EncodedEvent:
        return encode(prefix, number, b'{"daemon":"%b",%b' % (process.encode(), body[1:]))

    _set(feed, "_encode", encode_with_name)


def lead_beside_others(_: str) -> None:
    """Acquire leases that other processes hold."""
    condition = "WHERE name = %(name)s\n    AND holder <> %(holder)s"
    assert condition in locks._ACQUIRE
    _set(locks, "_ACQUIRE", locks._ACQUIRE.replace(condition, "WHERE false"))


def never_lapse(_: str) -> None:
    """Lead on when the lease cannot be renewed."""
    _set(locks, "_HOLD_S", 3600.0)


def read_blocks_late(_: str) -> None:
    """Read the signing blocks once a minute."""
    _set(signing_blocks, "POLL_S", 60.0)


def send_for_ever(_: str) -> None:
    """Send to webhooks on when another process leads."""
    build = webhooks.WebhookSender.__init__

    def build_leading(self: Any, log: Any, leadership: Any, *more: Any, **options: Any) -> None:
        build(self, log, locks.Leadership(), *more, **options)

    _set(webhooks.WebhookSender, "__init__", build_leading)


def drop_deliveries(_: str) -> None:
    """Leave out the first event of each request to a webhook that has two."""
    send = webhooks.send

    async def send_rest(
        session: Any, policy: Any, webhook: Any, events: Sequence[Any], now_unix_s: float
    ) -> webhooks.WebhookResult:
        rest = events[1:] or events
        return await send(session, policy, webhook, rest, now_unix_s)

    _set(webhooks, "send", send_rest)


def confirm_failures(_: str) -> None:
    """Take each request to a webhook for a success, whatever its receiver does."""
    send = webhooks.send

    async def send_once(*arguments: Any) -> webhooks.WebhookResult:
        result = await send(*arguments)
        return result._replace(delivery=replace(result.delivery, error=UNSET))

    _set(webhooks, "send", send_once)


def send_after_410(_: str) -> None:
    """Treat 410 as any other failure, and send again after a second."""
    _set(webhooks, "_GONE", 0)
    _set(webhooks, "_RETRY", Backoff(1.0, 1.0))


def give_up(_: str) -> None:
    """Send to a webhook that has failed no more for an hour, unless an operator resumes it."""
    _set(webhooks, "_RETRY", Backoff(3600.0, 3600.0))


def remember_keys(_: str) -> None:
    """Believe for an hour that a key is valid."""
    _set(access, "KEY_TTL_S", 3600.0)


def count_no_units(_: str) -> None:
    """Look at the units of a key without counting."""
    consume = rate_limit.RateLimiter.consume

    def look(self: Any, *arguments: Any, **_: Any) -> Any:
        return consume(self, *arguments, is_trial=True)

    _set(rate_limit.RateLimiter, "consume", look)


def _set(owner: Any, name: str, value: object) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, value)


DEFECTS: Final[Mapping[str, Defect]] = {
    "cursor-back": Defect(frozenset({"cursors never go back"}), send_again_after_a_return),
    "event-lost": Defect(frozenset({"no event is lost"}), skip_events),
    "event-twice": Defect(frozenset({"each event is there once"}), add_events_twice),
    "other-order": Defect(frozenset({"events have one order"}), number_events_for_each_daemon),
    "two-leaders": Defect(frozenset({"each job has one leader"}), lead_beside_others),
    "no-lapse": Defect(frozenset({"each job has one leader"}), never_lapse, ("lose link",)),
    "late-block": Defect(frozenset({"a blocked message does not leave"}), read_blocks_late),
    "webhook-leader": Defect(
        frozenset({"one leader sends webhooks"}), send_for_ever, ("lose link",)
    ),
    "webhook-lost": Defect(frozenset({"webhooks come in order"}), drop_deliveries),
    "webhook-confirmed": Defect(
        frozenset({"webhooks come in order"}), confirm_failures, ("fail receiver",)
    ),
    "webhook-retry": Defect(frozenset({"webhooks get each event"}), give_up, ("fail receiver",)),
    "webhook-410": Defect(
        frozenset({"410 pauses a webhook"}), send_after_410, ("respond with 410",)
    ),
    "revoked-key": Defect(frozenset({"a revoked key is refused"}), remember_keys),
    "no-limit": Defect(frozenset({"units are limited"}), count_no_units),
}
"""By name."""
