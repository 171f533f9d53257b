"""GET /v1/events: history first, then live, without a gap or a double for a client that returns
with its cursor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from tests.api.data.fixtures import DataApiSetup, client_of, get
from tests.api.fixtures import serving
from tests.clients.published import Call, are_installed, outcomes
from tests.eventually import finish, until
from tests.store.fixtures import message, signature, sqlite_url, store_at
from tests.store.test_events import SUBNET, new_event
from warpseal.api.data.routes import MAX_LISTENERS_PER_CLIENT
from warpseal.events.feed import EventFeed
from warpseal.store.event_rows import add_events, delete_old_events
from warpseal.store.store import Store
from warpseal.warp.ids import id_text

EVENTS = "/v1/events"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An open store."""
    async with store_at(sqlite_url(tmp_path), first_prune_s=3_600.0) as opened:
        yield opened


def setup_of(store: Store) -> DataApiSetup:
    return DataApiSetup(events=EventFeed(store.events))


async def add(store: Store, *numbers: int) -> None:
    """Add events and wait for the commit."""
    await store.database.write(
        lambda connection: add_events(connection, list(map(new_event, numbers)))
    )


async def next_part(reply: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the fields of the next part, which may be a heartbeat without data."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(60):
        while line := (await reply.content.readline()).decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
    if not fields:
        raise ConnectionError("the stream ended")
    return fields


async def read_events(reply: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    """Return the next events; each one has its cursor as its id."""
    events: list[dict[str, Any]] = []
    while len(events) < count:
        part = await next_part(reply)
        if "data" in part:
            events.append(json.loads(part["data"]))
            assert events[-1]["cursor"] == part["id"]
    return events


async def test_stored_events_come_first_and_new_ones_follow(store: Store) -> None:
    await add(store, 1, 2)
    prefix = await store.events.cursor_prefix()
    async with (
        client_of(setup_of(store)) as client,
        client.get(EVENTS, params={"after": f"{prefix}1"}) as reply,
    ):
        assert (await next_part(reply))["id"] == f"{prefix}1"
        (second,) = await read_events(reply, 1)
        await store.archive.store_signature(message(3), signature(3), SUBNET)
        (third,) = await read_events(reply, 1)
    assert (second["cursor"], second["data"]) == (f"{prefix}2", {"number": 2})
    assert (third["cursor"], third["type"], third["subnetId"]) == (
        f"{prefix}3",
        "message_signed",
        id_text(SUBNET),
    )


async def test_without_a_cursor_a_stream_begins_now_and_says_where(store: Store) -> None:
    await add(store, 1)
    async with client_of(setup_of(store)) as client:
        async with client.get(EVENTS) as reply:
            begin = (await next_part(reply))["id"]
        # The client had its place before an event came, so it misses none when it returns.
        await add(store, 2)
        async with client.get(
            EVENTS, headers={"last-event-id": begin}, params={"after": "x"}
        ) as reply:
            assert [event["data"]["number"] for event in await read_events(reply, 1)] == [2]


async def test_filters_leave_other_events_out_and_move_the_cursor_on(store: Store) -> None:
    await add(store, 1)
    await store.archive.store_signature(message(2), signature(2), SUBNET)
    await add(store, 3)
    prefix = await store.events.cursor_prefix()
    async with client_of(setup_of(store)) as client:
        for params in (
            {"types": "message_signed,quorum_impossible"},
            {"subnetId": id_text(SUBNET)},
            {"subnetId": "0x" + SUBNET.hex(), "types": "message_signed"},
            {"sourceBlockchainId": id_text(message(2).source_chain_id)},
        ):
            async with client.get(EVENTS, params={"after": f"{prefix}0", **params}) as reply:
                assert [event["cursor"] for event in await read_events(reply, 1)] == [f"{prefix}2"]


async def test_readers_that_break_off_and_return_get_each_event_once(store: Store) -> None:
    total, rnd = 120, Random(11)
    prefix = await store.events.cursor_prefix()

    async def read(client: aiohttp.ClientSession, breaks: Random) -> list[int]:
        numbers: list[int] = []
        last_id = f"{prefix}0"
        while len(numbers) < total:
            async with client.get(EVENTS, headers={"last-event-id": last_id}) as reply:
                for _ in range(breaks.randint(1, 30)):
                    part = await next_part(reply)
                    last_id = part["id"]
                    if "data" in part:
                        numbers.append(json.loads(part["data"])["data"]["number"])
                    if len(numbers) == total:
                        break
        return numbers

    async with client_of(setup_of(store)) as client:
        readers = [asyncio.create_task(read(client, Random(seed))) for seed in range(8)]
        added = 0
        while added < total:
            count = rnd.randint(1, 9)
            store.events.add(
                [new_event(number) for number in range(added, min(total, added + count))]
            )
            added += count
            await asyncio.sleep(rnd.choice((0.0, 0.005)))
        for reader in readers:
            assert await finish(reader) == list(range(total))


async def test_wrong_parameters_and_cursors_are_refused(store: Store) -> None:
    setup = setup_of(store)
    prefix = await store.events.cursor_prefix()
    for params, field in (
        ({"after": "1"}, "after"),
        ({"types": "message_signed,other"}, "types"),
        ({"subnetId": "x"}, "subnetId"),
        ({"type": "message_signed"}, "type"),
    ):
        body = await get(setup, EVENTS, 400, **params)
        assert body["detail"]["field"] == field
    await add(store, 1, 2, 3)
    await store.database.write(
        lambda connection: delete_old_events(connection, store.database.settings, 10.0**10)
    )
    for cursor, reason in (
        (f"{prefix}1", "the event log begins after this cursor"),
        (f"{prefix}4", "the event log ends before this cursor"),
        ("00-3", "the event log is not the one that this cursor is of"),
    ):
        body = await get(setup, EVENTS, 400, after=cursor)
        assert (body["code"], body["detail"]["oldest"]) == ("cursor_expired", f"{prefix}2")
        assert body["message"] == f"{reason}: continue with {prefix}2"


async def test_a_daemon_without_a_store_says_that_it_has_no_events() -> None:
    body = await get(DataApiSetup(), EVENTS, 404)
    assert (body["code"], body["detail"]["setting"]) == ("events_not_enabled", "store-url")


async def test_keys_and_limits_are_those_of_other_paths(store: Store) -> None:
    assert (await get(setup_of(store).with_settings(require_api_key=True), EVENTS, 401))[
        "code"
    ] == "api_key_required"
    setup = setup_of(store).with_settings(rate_limit_loopback=True, rate_limit_per_minute=15)
    async with client_of(setup) as client:
        async with client.get(EVENTS) as reply:
            assert (reply.status, reply.headers["ratelimit-remaining"]) == (200, "5")
        async with client.get(EVENTS) as reply:
            assert (reply.status, (await reply.json())["code"]) == (429, "rate_limited")


async def test_listeners_of_one_client_are_limited_and_all_end_when_the_daemon_stops(
    store: Store,
) -> None:
    setup = setup_of(store)
    async with client_of(setup) as client:
        replies = [await client.get(EVENTS) for _ in range(MAX_LISTENERS_PER_CLIENT)]
        async with client.get(EVENTS) as refused:
            assert (refused.status, (await refused.json())["code"]) == (429, "too_many_requests")
        async with client.head(EVENTS) as head:
            assert (head.status, head.headers["content-type"]) == (
                200,
                "text/event-stream; charset=utf-8",
            )
        setup.stopping.set()
        for reply in replies:
            await finish(reply.read())


@pytest.mark.skipif(not are_installed(), reason="npm has not installed the published clients")
async def test_a_published_client_continues_by_itself_after_its_connection_breaks(
    store: Store,
) -> None:
    prefix = await store.events.cursor_prefix()
    await add(store, 1, 2)
    async with serving(setup_of(store).app()) as server:
        call: Call = (f"{EVENTS}?after={prefix}0", {"count": 5})
        listening = asyncio.create_task(outcomes("event_source.mjs", server.url, calls=[call]))
        await until(lambda: server._state.connections or listening.done())
        for numbers in ((3,), (4, 5)):
            await asyncio.sleep(0.2)
            for connection in list(server._state.connections):
                connection.transport.abort()
            await add(store, *numbers)
        (result,) = await listening
    assert [json.loads(event["data"])["data"]["number"] for event in result["events"]] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert [event["id"] for event in result["events"]] == [
        f"{prefix}{number}" for number in range(1, 6)
    ]
    assert result["errors"] >= 1
