"""/v1/webhooks: only with the admin token; the secret is in one response, and private servers are
refused.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.api.data.fixtures import DataApiSetup, client_of
from tests.api.fixtures import serving
from tests.api.openapi.documented_responses import assert_documented
from tests.events.receiver import receiving
from tests.eventually import until
from tests.indexer.evm.metadata_servers import PUBLIC
from tests.store.fixtures import sqlite_url, store_at
from tests.store.test_events import SUBNET, new_event
from warpseal.api.http.access import UsageAccess
from warpseal.cli.admin import _webhook_cells
from warpseal.cli.main import main
from warpseal.events.feed import EventFeed
from warpseal.events.webhooks import DECODER, MAX_WEBHOOKS, Webhook, WebhookDelivery
from warpseal.store.event_rows import add_events
from warpseal.store.store import Store
from warpseal.warp.ids import id_text

WEBHOOKS = "/v1/webhooks"
TOKEN = "an-admin-token-of-tests"
TARGET = "https://receiver.example/events"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An open store."""
    async with store_at(sqlite_url(tmp_path), first_prune_s=3_600.0) as opened:
        yield opened


def setup_of(store: Store, token: str = TOKEN, **data: Any) -> DataApiSetup:
    return DataApiSetup(
        events=EventFeed(store.events), usage_access=UsageAccess(admin_token=token)
    ).with_data(**data)


def client(setup: DataApiSetup, token: str = TOKEN) -> Any:
    return client_of(setup, headers={"authorization": f"Bearer {token}"} if token else {})


async def call(
    session: aiohttp.ClientSession, method: str, path: str, status: int = 200, body: Any = None
) -> Any:
    """Return the body of a response, which the OpenAPI document describes."""
    async with session.request(method, path, json=body) as response:
        content = await response.json()
        assert (response.status, response.headers["cache-control"]) == (status, "no-store"), content
    assert_documented(method, path, status, content)
    return content


async def test_a_webhook_is_added_listed_without_its_secret_and_removed(store: Store) -> None:
    await store.database.write(
        lambda connection: add_events(connection, [new_event(1), new_event(2)])
    )
    fields = {
        "url": TARGET,
        "types": ["validator_missing", "message_signed"],
        "subnetId": "0x" + SUBNET.hex(),
    }
    setup = setup_of(store)
    async with client(setup) as session:
        assert await call(session, "GET", WEBHOOKS) == {"webhooks": []}
        webhook = await call(session, "POST", WEBHOOKS, 201, fields)
        setup.clock.now += 1
        other = await call(
            session, "POST", WEBHOOKS, 201, {"url": "http://b.example", "types": "l1_halts_soon"}
        )
        secret = webhook.pop("secret")
        assert len(b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
        assert secret != other["secret"]
        assert webhook == {
            "url": TARGET,
            "types": ["message_signed", "validator_missing"],
            "subnetId": id_text(SUBNET),
            "id": webhook["id"],
            "createdAt": webhook["createdAt"],
            "cursor": f"{await store.events.cursor_prefix()}2",
            "deliveries": [],
        }
        listed = (await call(session, "GET", WEBHOOKS))["webhooks"]
        assert [entry["id"] for entry in listed] == [webhook["id"], other["id"]]
        assert secret not in str(await call(session, "GET", WEBHOOKS))
        assert await call(session, "DELETE", f"{WEBHOOKS}/{webhook['id']}") == webhook
        for method, path in (("DELETE", webhook["id"]), ("POST", f"{webhook['id']}:test")):
            assert (await call(session, method, f"{WEBHOOKS}/{path}", 404))["code"] == "not_found"
        async with session.put(WEBHOOKS) as response:
            allowed = set(response.headers["allow"].split(", "))
            assert (response.status, allowed) == (405, {"GET", "HEAD", "POST"})
    assert [
        DECODER.decode(body).id for body in (await store.events.exchange_webhooks()).values()
    ] == [other["id"]]


# The token of the daemon, that of a caller, and the response.
REFUSED_TOKENS = [
    (TOKEN, "", 401, "admin_token_required"),
    (TOKEN, "another-token-of-tests", 403, "admin_token_refused"),
    # A page in a browser of this machine could send what needs no token.
    ("", "", 403, "admin_token_refused"),
    ("", TOKEN, 403, "admin_token_refused"),
]


@pytest.mark.parametrize(("own", "token", "status", "code"), REFUSED_TOKENS)
async def test_every_path_needs_the_admin_token(
    store: Store, own: str, token: str, status: int, code: str
) -> None:
    async with client(setup_of(store, own), token) as session:
        for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/00"), ("POST", "/00:test")):
            body = {"url": TARGET} if (method, path) == ("POST", "") else None
            assert (await call(session, method, WEBHOOKS + path, status, body))["code"] == code
    assert await store.events.exchange_webhooks() == {}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "url"),
        ([], "body"),
        ({"url": 1}, "body"),
        ({"url": "receiver.example"}, "url"),
        ({"url": "ftp://receiver.example"}, "url"),
        ({"url": "https://" + "a" * 2_048}, "url"),
        ({"url": "https://[::1"}, "url"),
        ({"url": "http://[::1]@/x"}, "url"),
        ({"url": "https://user:key@receiver.example"}, "url"),
        ({"url": "https://receiver.example:8443"}, "url"),
        ({"url": "http://127.0.0.1"}, "url"),
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "http://[fd00::1]"}, "url"),
        ({"url": TARGET, "types": ["message_signed", "other"]}, "types"),
        ({"url": TARGET, "subnetId": "x"}, "subnetId"),
        ({"url": TARGET, "secret": "mine"}, "secret"),
    ],
)
async def test_wrong_fields_and_private_servers_are_refused(
    store: Store, fields: Any, field: str
) -> None:
    async with client(setup_of(store)) as session:
        assert (await call(session, "POST", WEBHOOKS, 400, fields))["detail"]["field"] == field
    assert await store.events.exchange_webhooks() == {}


async def test_the_number_of_webhooks_is_limited(store: Store) -> None:
    await store.events.exchange_webhooks(
        {str(number): (None, b"{}") for number in range(MAX_WEBHOOKS)}
    )
    async with client(setup_of(store)) as session:
        body = await call(session, "POST", WEBHOOKS, 400, {"url": TARGET})
    assert "there are 100 webhooks" in body["message"]


async def test_a_test_shows_its_outcome_and_a_success_resumes_the_webhook(store: Store) -> None:
    async with receiving(500) as receiver:
        setup = setup_of(store, webhook_allowed_hosts=((PUBLIC, receiver.port),))
        async with client(setup) as session:
            webhook = await call(session, "POST", WEBHOOKS, 201, {"url": receiver.url()})
            path = f"{WEBHOOKS}/{webhook['id']}"
            paused = {**webhook, "failingSince": 1, "pausedAt": 2}
            change = msgspec.json.encode(webhook), msgspec.json.encode(paused)
            await store.events.exchange_webhooks(
                {webhook["id"]: (decoded_and_encoded(change[0]), change[1])}
            )
            failure = await call(session, "POST", f"{path}:test")
            assert (failure["status"], failure["error"], failure["events"]) == (
                500,
                "status 500",
                0,
            )
            (entry,) = (await call(session, "GET", WEBHOOKS))["webhooks"]
            assert (entry["failingSince"], entry["pausedAt"]) == (1, 2)
            success = await call(session, "POST", f"{path}:test")
            (entry,) = (await call(session, "GET", WEBHOOKS))["webhooks"]
    assert success.keys() == {"time", "events", "status"}
    assert (entry.get("failingSince"), entry.get("pausedAt"), entry["deliveries"]) == (
        None,
        None,
        [success],
    )
    assert [request.numbers for request in receiver.requests] == [[], []]
    assert all(request.is_signed_with(webhook["secret"]) for request in receiver.requests)


async def test_a_success_resumes_the_webhook_whatever_was_stored_during_the_test(
    store: Store,
) -> None:
    """The daemon that sends stores its progress meanwhile, and a request of it may hang."""
    async with receiving(is_held=True) as receiver:
        setup = setup_of(store, webhook_allowed_hosts=((PUBLIC, receiver.port),))
        async with client(setup) as session:
            webhook = await call(session, "POST", WEBHOOKS, 201, {"url": receiver.url()})
            path = f"{WEBHOOKS}/{webhook['id']}"
            test = asyncio.create_task(call(session, "POST", f"{path}:test"))
            await until(lambda: receiver.open == 1)
            (before,) = (await store.events.exchange_webhooks()).values()
            paused = msgspec.json.encode({**webhook, "failingSince": 1, "pausedAt": 2})
            await store.events.exchange_webhooks({webhook["id"]: (before, paused)})
            receiver.held.set()
            first = await test
            (entry,) = (await call(session, "GET", WEBHOOKS))["webhooks"]
            assert (entry.get("failingSince"), entry.get("pausedAt")) == (None, None)
            # A request that hangs is not stored: each success lets the daemon begin again.
            second = await call(session, "POST", f"{path}:test")
            (entry,) = (await call(session, "GET", WEBHOOKS))["webhooks"]
    assert entry["deliveries"] == [first, second]


def decoded_and_encoded(body: bytes) -> bytes:
    """Return the body of a webhook as the daemon stores it."""
    return msgspec.json.encode(DECODER.decode(body))


async def test_a_daemon_without_a_store_has_no_webhooks() -> None:
    async with client(DataApiSetup(usage_access=UsageAccess(admin_token=TOKEN))) as session:
        assert (await call(session, "GET", WEBHOOKS, 404))["code"] == "events_not_enabled"


async def test_the_commands_print_tables_and_json_if_it_is_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", TOKEN)
    setup = setup_of(store)

    async def printed(*words: str, code: int = 0) -> str:
        assert await asyncio.to_thread(main, ["webhook", *words, "--url", server.url]) == code
        return capsys.readouterr().out

    async with serving(setup.app(), setup.settings) as server:
        assert await printed("list") == "no webhooks\n"
        added = await printed("add", TARGET, "--types", "message_signed")
        assert [
            line.split()[1] for line in added.splitlines() if line.startswith(("url:", "types:"))
        ] == [
            TARGET,
            "message_signed",
        ]
        assert "secret:" in added
        (webhook,) = json.loads(await printed("list", "--json"))["webhooks"]
        tested = await printed("test", webhook["id"], code=1)
        assert "error:" in tested
        head, row = (await printed("list")).splitlines()
        assert head.split()[:3] == ["ID", "URL", "EVENTS"]
        assert row.split()[:4] == [webhook["id"], TARGET, "message_signed", "working"]
        assert json.loads(await printed("remove", webhook["id"], "--json"))["id"] == webhook["id"]


def test_a_list_of_webhooks_shows_how_long_each_fails_and_its_last_delivery() -> None:
    failed = WebhookDelivery(time=1_700_000_000, events=3, error="no answer")
    webhook = Webhook(
        id="1f",
        url=TARGET,
        created_at=0,
        cursor="0",
        deliveries=(failed,),
        failing_since=1_600_000_000,
    )
    cells = _webhook_cells(msgspec.to_builtins(webhook))
    assert cells[2:] == (
        "all",
        "failing since 2020-09-13 12:26 UTC",
        "2023-11-14 22:13 UTC: 3 events, no answer",
    )
    paused = msgspec.structs.replace(webhook, paused_at=1_700_000_000)
    assert _webhook_cells(msgspec.to_builtins(paused))[3] == "paused since 2023-11-14 22:13 UTC"
