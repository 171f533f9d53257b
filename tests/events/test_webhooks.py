"""Webhooks: every event in order and at least once, whatever a receiver does; a dead one delays no
other.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest
import standardwebhooks

from tests.clients.published import are_installed, outcomes
from tests.events.receiver import Receiver, WebhookRequestRecord, receiving, webhook_fields
from tests.eventually import finish, until
from tests.indexer.evm.metadata_servers import PRIVATE, PUBLIC, dns_server
from tests.store.fixtures import sqlite_url, store_at
from tests.store.test_events import new_event
from warpseal.events import webhooks
from warpseal.events.feed import EventFeed
from warpseal.events.webhooks import (
    DECODER,
    MAX_DELIVERIES,
    MAX_EVENTS,
    Webhook,
    WebhookSender,
    new_secret,
)
from warpseal.runtime.retry import Backoff
from warpseal.store.errors import StoreDown
from warpseal.store.event_rows import add_events, delete_old_events
from warpseal.store.locks import Leadership
from warpseal.store.store import Store
from warpseal.upstream.address_policy import AddressPolicy


class AnyPort(frozenset[int]):
    """All ports."""

    def __contains__(self, port: object) -> bool:
        return True


POLICY = AddressPolicy(ports=AnyPort(), is_allowed=lambda address: address == ip_address(PUBLIC))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An open store."""
    async with store_at(sqlite_url(tmp_path), first_prune_s=3_600.0) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_POLL_S", 0.01)
    monkeypatch.setattr(webhooks, "_GATHER_S", 0.001)
    monkeypatch.setattr(webhooks, "_RETRY", Backoff(0.001, 0.002))


async def add(store: Store, *numbers: int) -> None:
    """Add events and wait for the commit."""
    await store.database.write(
        lambda connection: add_events(connection, list(map(new_event, numbers)))
    )


async def add_webhook(store: Store, receiver: Receiver, after: int = 0, **changes: Any) -> str:
    """Add a webhook that has the events up to a number; return its id."""
    cursor = f"{await store.events.cursor_prefix()}{after}"
    webhook = msgspec.convert(webhook_fields(receiver, cursor=cursor, **changes), Webhook)
    await store.events.exchange_webhooks({webhook.id: (None, msgspec.json.encode(webhook))})
    return webhook.id


async def stored(store: Store, webhook_id: str) -> Webhook:
    return DECODER.decode((await store.events.exchange_webhooks())[webhook_id])


async def until_at(store: Store, webhook_id: str, number: int) -> Webhook:
    """Wait until a webhook has the events up to a number."""

    async def is_there() -> bool:
        return (await stored(store, webhook_id)).cursor.endswith(f"-{number}")

    await until(is_there)
    return await stored(store, webhook_id)


@asynccontextmanager
async def sending(
    store: Store, leadership: Leadership | None = None, **options: Any
) -> AsyncIterator[WebhookSender]:
    """Run a sender."""
    sender = WebhookSender(EventFeed(store.events), leadership or Leadership(), POLICY, **options)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await finish(task)


def errors_of(webhook: Webhook) -> list[Any]:
    return [
        delivery.error for delivery in webhook.deliveries if delivery.error is not msgspec.UNSET
    ]


async def test_events_come_in_order_in_signed_batches_one_request_at_a_time(store: Store) -> None:
    await add(store, *range(250))
    async with receiving() as receiver:
        webhook_id = await add_webhook(store, receiver)
        async with sending(store):
            webhook = await until_at(store, webhook_id, 250)
            await add(store, 250)
            await until_at(store, webhook_id, 251)
    assert receiver.numbers == list(range(1, 252))
    assert max(len(request.numbers) for request in receiver.requests) == MAX_EVENTS
    assert receiver.most_open == 1
    assert all(request.is_signed_with("s" * 64) for request in receiver.requests)
    assert {(delivery.status, delivery.error) for delivery in webhook.deliveries} == {
        (200, msgspec.UNSET)
    }
    assert sum(delivery.events for delivery in webhook.deliveries) == 250
    first = msgspec.json.decode(receiver.requests[0].body)
    assert (first["webhookId"], first["events"][0]["data"]) == (webhook_id, {"number": 0})


async def test_a_webhook_gets_the_events_of_its_filter_and_goes_on_behind_the_others(
    store: Store,
) -> None:
    await add(store, 1, 2)
    async with receiving() as receiver, receiving() as other:
        webhook_id = await add_webhook(store, receiver, types=["message_signed"])
        await add_webhook(store, other, types=["message_signed", "validator_missing"])
        async with sending(store):
            webhook = await until_at(store, webhook_id, 2)
            await until(lambda: other.numbers == [1, 2])
    assert (receiver.requests, webhook.deliveries) == ([], ())


async def test_failures_and_redirects_are_repeated_and_the_last_deliveries_are_kept(
    store: Store,
) -> None:
    await add(store, 1)
    statuses = [500, 404, 302, 307, 429] * 5
    async with receiving(*statuses) as receiver:
        webhook_id = await add_webhook(store, receiver)
        async with sending(store):
            webhook = await until_at(store, webhook_id, 1)
    assert receiver.numbers == [1] * 26
    assert len(webhook.deliveries) == MAX_DELIVERIES
    assert errors_of(webhook) == [f"status {status}" for status in statuses[-19:]]
    assert webhook.failing_since is msgspec.UNSET


async def test_a_receiver_that_is_gone_gets_no_more_and_may_be_resumed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await add(store, 1)
    async with receiving(410) as gone, receiving() as other:
        gone_id, other_id = [await add_webhook(store, receiver) for receiver in (gone, other)]
        async with sending(store):
            await until(lambda: gone.requests)

            async def is_paused() -> bool:
                return (await stored(store, gone_id)).paused_at is not msgspec.UNSET

            await until(is_paused)
            await add(store, 2)
            await until_at(store, other_id, 2)
    assert len(gone.requests) == 1
    assert errors_of(await stored(store, gone_id)) == ["status 410"]
    assert ("WARNING", "webhook paused") in [
        (record.levelname, record.message) for record in caplog.records
    ]


@pytest.mark.parametrize("retry_after", ["3600", "Fri, 31 Dec 2049 23:59:59 GMT"])
async def test_a_receiver_is_left_alone_for_the_time_of_its_retry_after(
    store: Store, retry_after: str
) -> None:
    await add(store, 1)
    async with receiving(*[429] * 100) as patient, receiving(*[429] * 100) as other:
        patient.retry_after = retry_after
        await add_webhook(store, patient)
        await add_webhook(store, other)
        async with sending(store):
            await until(lambda: patient.requests and len(other.requests) >= 20)
    assert len(patient.requests) == 1


async def test_a_receiver_without_a_response_delays_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(store, *range(200))
    async with (
        receiving(is_held=True) as silent,
        receiving() as other,
        receiving(*[503] * 1_000) as broken,
    ):
        silent_id, other_id = [await add_webhook(store, receiver) for receiver in (silent, other)]
        await add_webhook(store, broken)
        async with sending(store):
            await until(lambda: silent.open)
            await until_at(store, other_id, 200)
            assert (silent.open, len(silent.requests)) == (1, 1)
        monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.01)
        async with sending(store):
            await until(lambda: len(silent.requests) > 2)
            monkeypatch.setattr(webhooks, "TIMEOUT_S", 10.0)
            silent.held.set()
            webhook = await until_at(store, silent_id, 200)
    assert set(errors_of(webhook)) == {"timed out"}
    assert other.numbers == list(range(1, 201))


async def test_after_a_day_of_failures_only_that_webhook_pauses_until_it_is_resumed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_000_000.0
    await add(store, 1)
    async with receiving(*[500] * 10_000) as dead, receiving() as other:
        dead_id, other_id = [await add_webhook(store, receiver) for receiver in (dead, other)]
        with caplog.at_level(logging.INFO, "warpseal.events"):
            counts: list[int | None] = []
            async with sending(store, unix_clock=lambda: now, report_paused=counts.append):
                await until(lambda: len(dead.requests) > 3)
                assert set(counts) == {0}
                now += webhooks.RETRY_FOR_S

                async def is_paused() -> bool:
                    return (await stored(store, dead_id)).paused_at is not msgspec.UNSET

                await until(is_paused)
                requests = len(dead.requests)
                await add(store, 2)
                await until_at(store, other_id, 2)
                paused = await stored(store, dead_id)
                assert (len(dead.requests), paused.cursor[-2:]) == (requests, "-0")
            assert counts[-2:] == [1, None]
            # A restart does not resume it, but a change by another process does.
            async with sending(store):
                await add(store, 3)
                await until_at(store, other_id, 3)
                assert len(dead.requests) == requests
                dead.statuses.clear()
                resumed = msgspec.structs.replace(
                    paused, failing_since=msgspec.UNSET, paused_at=msgspec.UNSET
                )
                change = msgspec.json.encode(paused), msgspec.json.encode(resumed)
                await store.events.exchange_webhooks({dead_id: change})
                await until_at(store, dead_id, 3)
    assert paused.failing_since == 1_000_000
    messages = [(record.levelname, record.message) for record in caplog.records]
    assert messages == [("INFO", "webhook failed"), ("WARNING", "webhook paused")]
    assert "s" * 64 not in str([vars(record) for record in caplog.records])
    assert "/hook" not in str([vars(record) for record in caplog.records])


async def test_private_addresses_are_refused_in_urls_and_in_names(store: Store) -> None:
    await add(store, 1)
    async with (
        receiving(host=PRIVATE) as private,
        dns_server({"private.test": [[PUBLIC, PRIVATE]]}) as (_, resolver),
    ):
        urls = [private.url(PRIVATE), private.url("private.test"), private.url("user@127.0.0.2")]
        webhook_ids = [
            await add_webhook(store, private, id=f"{place:016x}", url=url)
            for place, url in enumerate(urls)
        ]
        async with sending(store, dns_resolver=resolver):

            async def have_failed() -> bool:
                return all(
                    [(await stored(store, webhook_id)).deliveries for webhook_id in webhook_ids]
                )

            await until(have_failed)
        errors = [
            (await stored(store, webhook_id)).deliveries[0].error for webhook_id in webhook_ids
        ]
    assert errors == ["refused: address 127.0.0.1"] * 2 + ["refused: userinfo in the URL"]
    assert private.requests == []


async def test_events_that_are_deleted_are_noted_and_the_oldest_one_follows(store: Store) -> None:
    await add(store, 1, 2, 3)
    await store.database.write(
        lambda connection: delete_old_events(connection, store.database.settings, 10.0**10)
    )
    async with receiving() as receiver:
        webhook_id = await add_webhook(store, receiver)
        async with sending(store):
            webhook = await until_at(store, webhook_id, 3)
    assert receiver.numbers == [3]
    oldest = f"{await store.events.cursor_prefix()}2"
    assert errors_of(webhook) == [
        f"gap: the event log begins after this cursor: continue with {oldest}"
    ]


async def test_webhooks_come_and_go_while_the_sender_runs_and_the_store_may_be_down(
    store: Store,
) -> None:
    await add(store, 1)
    async with receiving() as first, receiving(is_held=True) as second:
        async with sending(store):
            first_id, second_id = [
                await add_webhook(store, receiver) for receiver in (first, second)
            ]
            await until_at(store, first_id, 1)
            await until(lambda: second.open)
            rows = await store.events.exchange_webhooks()
            await store.events.exchange_webhooks({second_id: (rows[second_id], None)})
            await until(lambda: not second.open)
            exchange, failures = store.events.exchange_webhooks, iter(range(3))

            async def failing(changes: Any = None) -> dict[str, bytes]:
                if changes and next(failures, None) is not None:
                    raise StoreDown("no answer")
                return await exchange(changes)

            store.events.exchange_webhooks = failing  # type: ignore[method-assign]
            await add(store, 2)
            await until_at(store, first_id, 2)
        assert (await store.events.exchange_webhooks()).keys() == {first_id}
    assert (first.numbers, second.numbers, next(failures, None)) == ([1, 2], [1], None)


async def test_only_the_leader_sends_and_its_end_stores_how_far_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_POLL_S", 60.0)
    await add(store, 1)
    leadership = Leadership(held=False)
    async with receiving() as receiver:
        webhook_id = await add_webhook(store, receiver)
        async with sending(store, leadership) as sender:
            for number in (1, 2, 3):
                assert receiver.numbers == list(range(1, number))
                leadership._acquire()
                await until(partial(is_at, sender, webhook_id, number))
                assert (await stored(store, webhook_id)).cursor.endswith(f"-{number - 1}")
                leadership._lose()
                await until_at(store, webhook_id, number)
                await add(store, number + 1)


def is_at(sender: WebhookSender, webhook_id: str, number: int) -> bool:
    webhook = sender._webhooks.get(webhook_id)
    return webhook is not None and webhook.cursor.endswith(f"-{number}")


KILLED = """
import asyncio, sys
from tests.store.fixtures import store_at
from warpseal.events import feed, webhooks
from warpseal.store.locks import Leadership
from warpseal.upstream.address_policy import AddressPolicy, ExemptServer

async def run():
    webhooks._POLL_S = 3_600.0
    policy = AddressPolicy(frozenset({ExemptServer("127.0.0.2", None, "/")}))
    async with store_at(sys.argv[1]) as store:
        await webhooks.WebhookSender(feed.EventFeed(store.events), Leadership(), policy).run()

asyncio.run(run())
"""


async def test_what_a_killed_process_did_not_store_is_sent_again(
    store: Store, tmp_path: Path
) -> None:
    await add(store, 1, 2)
    async with receiving() as receiver:
        webhook_id = await add_webhook(store, receiver)
        await store.__aexit__(None, None, None)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, sqlite_url(tmp_path)
        )
        await until(lambda: receiver.numbers and not receiver.open)
        process.kill()
        await process.wait()
        async with store_at(sqlite_url(tmp_path)) as after:
            assert (await stored(after, webhook_id)).cursor.endswith("-0")
            async with sending(after):
                await until_at(after, webhook_id, 2)
    assert receiver.numbers == [1, 2, 1, 2]


async def test_an_id_is_repeated_with_the_same_events_and_is_another_for_others(
    store: Store,
) -> None:
    await add(store, 1)
    async with receiving(500, 500) as receiver:
        webhook_id = await add_webhook(store, receiver)
        async with sending(store):
            await until_at(store, webhook_id, 1)
            await add(store, 2)
            await until_at(store, webhook_id, 2)
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(ids) == 4
    assert (len(set(ids[:3])), len(set(ids))) == (1, 2)
    assert not any("." in message_id for message_id in ids)


def verify_in_python(secret: str, request: WebhookRequestRecord) -> bool:
    """Return whether the published Python library of Standard Webhooks accepts a request."""
    try:
        standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))
    except standardwebhooks.WebhookVerificationError:
        return False
    return True


@pytest.mark.skipif(not are_installed(), reason="npm has not installed the published clients")
async def test_the_published_libraries_of_standard_webhooks_verify_requests(
    store: Store,
) -> None:
    secret = new_secret()
    earlier_secret = "5" * 64
    await add(store, 1)
    async with receiving() as receiver, receiving() as earlier:
        await add_webhook(store, receiver, secret=secret)
        await add_webhook(store, earlier, secret=earlier_secret)
        async with sending(store):
            await until(lambda: receiver.requests and earlier.requests)
    (request,), (earlier_request,) = receiver.requests, earlier.requests
    changed = WebhookRequestRecord(request.headers, request.body.replace(b"events", b"evil"))
    calls = [
        (secret, request),
        ("whsec_" + b64encode(earlier_secret.encode()).decode(), earlier_request),
        (new_secret(), request),
        (secret, changed),
    ]
    assert [verify_in_python(*call) for call in calls] == [True, True, False, False]
    arguments = [(key, dict(record.headers), record.body.decode()) for key, record in calls]
    verified = await outcomes("standard_webhook.mjs", calls=arguments)
    assert verified == [
        {"verified": True},
        {"verified": True},
        {"verified": False},
        {"verified": False},
    ]


@pytest.mark.skipif(not are_installed(), reason="npm has not installed the published clients")
async def test_the_published_sdk_verifies_a_signature(store: Store) -> None:
    await add(store, 1)
    async with receiving() as receiver:
        await add_webhook(store, receiver)
        async with sending(store):
            await until(lambda: receiver.requests)
    (request,) = receiver.requests
    calls = [
        (secret, request.headers["x-signature"], request.body.decode())
        for secret in ("s" * 64, "t" * 64)
    ]
    valid, invalid = await outcomes("webhook.mjs", calls=calls)
    assert (valid, invalid) == (
        {"error": "SDKValidationError"},
        {"error": "WebhookAuthenticationError"},
    )
