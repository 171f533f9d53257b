"""Defects of the product that a run must find: each one breaks one promise in a daemon's process.

Only the processes of tests/histories/daemon_process.py import this.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from warpseal.api.http import access, rate_limit
from warpseal.events import feed, index_events, webhooks
from warpseal.runtime.retry import Backoff
from warpseal.store import api_keys, event_rows, locks, signing_blocks, writer
from warpseal.store import events as store_events
from warpseal.store.api_key import ApiKey
from warpseal.store.errors import StoreDown


class Defect(Struct, frozen=True):
    """A defect.

    rules: the rules of the judge that name it; all of them do.
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


def add_signatures_twice(_: str) -> None:
    """Add each event of a signature a second time."""
    _add_events_twice(writer)


def add_chain_events_twice(_: str) -> None:
    """Add each event of a chain a second time."""
    _add_events_twice(store_events)


def _add_events_twice(module: Any) -> None:
    """Add what a module adds to the log a second time, by another name."""
    add_events = event_rows.add_events

    def add_twice(connection: Any, events: Sequence[event_rows.NewEvent]) -> None:
        again = [event._replace(name=event.name[::-1]) for event in events]
        add_events(connection, [*events, *again])

    _set(module, "add_events", add_twice)


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


def miss_blocks_of_an_outage(_: str) -> None:
    """Take in no signing block that was made while the store was down."""
    load = signing_blocks.SigningBlocks.load
    missed = set[tuple[str, str]]()
    was_down = False

    async def load_rest(self: signing_blocks.SigningBlocks) -> Any:
        nonlocal was_down
        before = set(self._blocks or ())
        try:
            blocks = await load(self)
        except StoreDown:
            was_down = True
            raise
        subjects = self._blocks or {}
        if was_down:
            missed.update(subjects.keys() - before)
            was_down = False
        self._blocks = {name: block for name, block in subjects.items() if name not in missed}
        return blocks

    _set(signing_blocks.SigningBlocks, "load", load_rest)


def send_for_ever(_: str) -> None:
    """Send to webhooks on when another process leads."""
    _lead_always(webhooks.WebhookSender)


def report_always(_: str) -> None:
    """Add the events of chains also while another process leads."""
    _lead_always(index_events.IndexEvents)


def report_again(process: str) -> None:
    """Add the events of chains also from a position that another process has left."""
    report_always(process)
    condition, query = "AND position = ?", store_events._MOVE_SOURCE
    assert condition in query
    _set(store_events, "_MOVE_SOURCE", query.replace(condition, "AND position >= ?"))


def _lead_always(service: Any) -> None:
    """Let a service believe that its process always leads."""
    build = service.__init__

    def build_leading(self: Any, log: Any, leadership: Any, *more: Any, **options: Any) -> None:
        build(self, log, locks.Leadership(), *more, **options)

    _set(service, "__init__", build_leading)


def drop_chain_events(_: str) -> None:
    """Leave out the first event of a chain wherever two are added at once."""
    _change_chain_events(lambda events: events[1:] or events)


def reverse_chain_events(_: str) -> None:
    """Add the events of a chain in the wrong order."""
    _change_chain_events(lambda events: events[::-1])


def _change_chain_events(change: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    add = store_events.EventLog.add_from_source

    async def add_changed(
        self: Any, source: str, before: int | None, position: int, events: Any, *write: Any
    ) -> bool:
        return await add(self, source, before, position, change(events), *write)

    _set(store_events.EventLog, "add_from_source", add_changed)


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


def forget_keys(_: str) -> None:
    """Read a key for each request."""
    _set(access, "KEY_TTL_S", 0.0)


def refuse_keys(_: str) -> None:
    """Refuse every seventh request with a key."""
    calls = itertools.count(1)

    async def find_or_refuse(self: access.ApiAccess, digest: bytes) -> ApiKey | None:
        key = await find(self, digest)
        return key if next(calls) % 7 else None

    find = access.ApiAccess._find
    _set(access.ApiAccess, "_find", find_or_refuse)


def admit_unknown_keys(_: str) -> None:
    """Take a key that the store does not have for a key without limits."""
    find = access.ApiAccess._find

    async def find_or_admit(self: access.ApiAccess, digest: bytes) -> ApiKey | None:
        return await find(self, digest) or ApiKey("unknown", digest, "", 0, 0, 0.0)

    _set(access.ApiAccess, "_find", find_or_admit)


def take_the_store_for_down(_: str) -> None:
    """Answer every fifth search for a key as if the store were down."""
    calls = itertools.count(1)
    find_key = api_keys.ApiKeys.find_key

    async def find_or_fail(self: api_keys.ApiKeys, digest: bytes) -> ApiKey | None:
        if next(calls) % 5 == 0:
            raise StoreDown("planted")
        return await find_key(self, digest)

    _set(api_keys.ApiKeys, "find_key", find_or_fail)


def count_no_units_of_a_day(_: str) -> None:
    """Take a key for one without units of a day."""
    _change_limits(lambda limits: replace(limits, per_day=0))


def halve_units(_: str) -> None:
    """Admit half of the units of a key."""

    def halve(limits: rate_limit.ComputeUnitLimits) -> rate_limit.ComputeUnitLimits:
        return rate_limit.ComputeUnitLimits(limits.per_minute // 2, limits.per_day // 2)

    _change_limits(halve)


def _change_limits(
    change: Callable[[rate_limit.ComputeUnitLimits], rate_limit.ComputeUnitLimits],
) -> None:
    consume = rate_limit.RateLimiter.consume

    def consume_changed(
        self: Any, caller: str, limits: Any, units: int, now: float, *, is_trial: bool = False
    ) -> Any:
        return consume(self, caller, change(limits), units, now, is_trial=is_trial)

    _set(rate_limit.RateLimiter, "consume", consume_changed)


def limit_keys_without_limits(_: str) -> None:
    """Refuse every seventh request that costs units of a caller without limits."""
    consume, calls = rate_limit.RateLimiter.consume, itertools.count(1)

    def consume_or_refuse(self: Any, *arguments: Any, **more: Any) -> Any:
        result = consume(self, *arguments, **more)
        if result is not None or next(calls) % 7:
            return result
        return rate_limit.RateLimitResult(False, 1, 60, 0, 1)

    _set(rate_limit.RateLimiter, "consume", consume_or_refuse)


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
    "event-twice": Defect(frozenset({"each event is there once"}), add_signatures_twice),
    "other-order": Defect(frozenset({"events have one order"}), number_events_for_each_daemon),
    "chain-twice": Defect(frozenset({"each event is there once"}), add_chain_events_twice),
    "chain-lost": Defect(frozenset({"no event is lost"}), drop_chain_events),
    "chain-order": Defect(
        frozenset({"events have the order of their chain"}), reverse_chain_events
    ),
    "chain-leader": Defect(frozenset({"one leader adds events of chains"}), report_always),
    "chain-position": Defect(frozenset({"each part of an index is added once"}), report_again),
    "two-leaders": Defect(
        frozenset({"p-chain has one leader", "icm has one leader", "usage has one leader"}),
        lead_beside_others,
    ),
    # Several times, so that each daemon loses it while it leads in one of the jobs.
    "no-lapse": Defect(
        frozenset({"p-chain has one leader", "icm has one leader", "usage has one leader"}),
        never_lapse,
        ("lose link",) * 3,
    ),
    "late-block": Defect(frozenset({"a blocked message does not leave"}), read_blocks_late),
    # Each outage is followed by a time in which the daemon has its store again.
    "missed-block": Defect(
        frozenset({"a blocked message does not leave"}),
        miss_blocks_of_an_outage,
        ("lose link", *("fail receiver",) * 5) * 2,
    ),
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
    "forgotten-key": Defect(
        frozenset({"a daemon remembers a key"}), forget_keys, ("lose link",) * 2
    ),
    "refused-key": Defect(frozenset({"a valid key is admitted"}), refuse_keys),
    "unknown-key": Defect(frozenset({"an unknown key is refused"}), admit_unknown_keys),
    "undecided-key": Defect(frozenset({"a daemon decides about a key"}), take_the_store_for_down),
    "no-limit": Defect(
        frozenset({"units of a minute are limited", "units of a day are limited"}), count_no_units
    ),
    "no-day-limit": Defect(frozenset({"units of a day are limited"}), count_no_units_of_a_day),
    "half-limit": Defect(frozenset({"a key gets its units"}), halve_units),
    "new-limit": Defect(frozenset({"a key gets its units"}), limit_keys_without_limits),
}
"""By name."""
