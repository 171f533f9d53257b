"""The feed: history first, then live, once and in order for each of many listeners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.eventually import finish, until
from tests.store.fixtures import sqlite_url, store_at
from tests.store.test_events import new_event
from warpseal.errors import InvalidRequest
from warpseal.events import feed as feed_module
from warpseal.events.feed import EventFeed, EventFilter
from warpseal.store.errors import CursorExpired, StoreDown
from warpseal.store.event_rows import (
    NewEvent,
    StoredEvent,
    add_events,
    delete_old_events,
    event_name,
)
from warpseal.store.store import Store
from warpseal.store.values import Event, EventType

ALL = EventFilter()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An open store."""
    async with store_at(sqlite_url(tmp_path), first_prune_s=3_600.0) as opened:
        yield opened


async def add(store: Store, *events: NewEvent) -> None:
    """Add events and wait for the commit; the feed is not notified."""
    await store.database.write(lambda connection: add_events(connection, events))


async def listen(
    feed: EventFeed, after: int, count: int, event_filter: EventFilter = ALL
) -> list[int]:
    """Return the numbers of the next events."""
    numbers: list[int] = []
    while len(numbers) < count:
        page = await feed.next_page(after, event_filter)
        assert page.last > after
        after = page.last
        numbers += [event.number for event in page.events]
    return numbers


async def test_history_comes_first_and_live_events_follow(store: Store) -> None:
    feed = EventFeed(store.events)
    await add(store, new_event(1), new_event(2))
    after, cursor = await feed.start("after", None)
    assert (after, cursor) == (2, f"{await store.events.cursor_prefix()}2")
    live = asyncio.create_task(listen(feed, after, 2))
    first, first_cursor = await feed.start("after", cursor.replace("-2", "-0"))
    assert (first, first_cursor) == (0, cursor.replace("-2", "-0"))
    everything = asyncio.create_task(listen(feed, first, 4))
    store.events.add([new_event(3)])
    await until(lambda: feed._end == 3)
    store.events.add([new_event(4)])
    assert await finish(live) == [3, 4]
    assert await finish(everything) == [1, 2, 3, 4]


async def test_an_event_has_its_cursor_and_all_that_was_stored(store: Store) -> None:
    feed = EventFeed(store.events)
    await add(store, new_event(7, 1_700_000_000))
    (event,) = (await feed.next_page(0, ALL)).events
    assert json.loads(event.encoded) == {
        "cursor": f"{await store.events.cursor_prefix()}1",
        "type": "validator_missing",
        "time": 1_700_000_000,
        "data": {"number": 7},
    }


async def test_a_filter_drops_other_events_and_the_listener_goes_on_behind_them(
    store: Store,
) -> None:
    feed = EventFeed(store.events)
    rows = []
    for number, (kind, source, destination, subnet) in enumerate(
        [
            ("a", "s", "d", "n"),
            ("b", "s", "d", "n"),
            ("a", "x", "d", "n"),
            ("a", "s", "x", "n"),
            ("a", "s", "d", "x"),
        ]
    ):
        event = Event(
            # A newer daemon on the same store may add types that this one does not have.
            type=kind,
            time=0,
            source_blockchain_id=source,
            destination_blockchain_id=destination,
            subnet_id=subnet,
            data={},
        )
        rows.append(NewEvent.of(event_name(EventType.MESSAGE_SIGNED, b"%d" % number), event))
    await add(store, *rows)
    page = await feed.next_page(0, EventFilter(frozenset({"a"}), "s", "d", "n"))
    assert ([event.number for event in page.events], page.last) == ([1], 5)
    for event_filter, numbers in (
        (EventFilter(types=frozenset({"b", "c"})), [2]),
        (EventFilter(source_blockchain_id="x"), [3]),
        (EventFilter(destination_blockchain_id="x"), [4]),
        (EventFilter(subnet_id="x"), [5]),
        (EventFilter(subnet_id="y"), []),
    ):
        assert [event.number for event in (await feed.next_page(0, event_filter)).events] == numbers


async def test_the_log_is_read_once_for_all_listeners_and_never_without_one(store: Store) -> None:
    feed = EventFeed(store.events)
    reads: list[int] = []
    read = store.events.read

    async def counted(after: int, limit: int) -> Sequence[StoredEvent]:
        reads.append(after)
        return await read(after, limit)

    store.events.read = counted  # type: ignore[method-assign]
    listeners = [asyncio.create_task(listen(feed, 0, 3)) for _ in range(100)]
    await until(lambda: reads)
    store.events.add([new_event(number) for number in range(3)])
    assert [await finish(listener) for listener in listeners] == [[1, 2, 3]] * 100
    # One that begins later reads what is in memory.
    before = len(reads)
    assert await finish(listen(feed, 0, 3)) == [1, 2, 3]
    assert len(reads) == before
    assert len(asyncio.all_tasks()) == 1
    store.events.add([new_event(9)])
    await until(lambda: store.status().waiting_writes == 0)
    assert len(reads) == before


async def test_a_listener_that_leaves_ends_the_reading(store: Store) -> None:
    feed = EventFeed(store.events)
    listening = [asyncio.create_task(listen(feed, 0, 1)) for _ in range(2)]
    await until(lambda: feed._extending.in_flight)
    for listener in listening:
        listener.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_events_of_other_daemons_are_seen_without_a_notice(store: Store) -> None:
    feed = EventFeed(store.events)
    listening = asyncio.create_task(listen(feed, 0, 1))
    await until(lambda: feed._extending.in_flight)
    await add(store, new_event(1))
    assert await finish(listening) == [1]


async def test_slow_and_fast_listeners_get_every_event_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The slow ones fall behind what is in memory, and the feed behind what was added while it had
    # no listener.
    monkeypatch.setattr(feed_module, "_MAX_RECENT", 16)
    monkeypatch.setattr(feed_module, "_MAX_PAGE", 5)
    feed, rnd, total = EventFeed(store.events), Random(3), 400

    async def listen_slowly(pauses: Random, pause_s: float) -> list[int]:
        numbers: list[int] = []
        while len(numbers) < total:
            page = await feed.next_page(numbers[-1] if numbers else 0, ALL)
            numbers += [event.number for event in page.events]
            if pauses.random() < 0.3:
                await asyncio.sleep(pause_s)
        return numbers

    added = 0
    listeners = []
    while added < total:
        count = rnd.randint(1, 20)
        store.events.add([new_event(number) for number in range(added, min(total, added + count))])
        added += count
        if rnd.random() < 0.2:
            listeners.append(
                asyncio.create_task(listen_slowly(Random(added), rnd.choice((0.0, 0.001, 0.01))))
            )
        await asyncio.sleep(rnd.choice((0.0, 0.002)))
    listeners.append(asyncio.create_task(listen_slowly(Random(0), 0.0)))
    for listener in listeners:
        assert await finish(listener) == list(range(1, total + 1))
    assert len(feed._recent) <= 16


async def test_a_wrong_cursor_is_refused_at_the_start_and_disturbs_no_listener(
    store: Store,
) -> None:
    feed = EventFeed(store.events)
    prefix = await store.events.cursor_prefix()
    listening = asyncio.create_task(listen(feed, 0, 3))
    await add(store, *[new_event(number, 0) for number in range(3)])
    assert await finish(listening) == [1, 2, 3]
    listening = asyncio.create_task(listen(feed, 3, 1))
    await until(lambda: feed._extending.in_flight)
    with pytest.raises(InvalidRequest, match="last-event-id: not a cursor"):
        await feed.start("last-event-id", "x")
    with pytest.raises(CursorExpired):
        await feed.start("after", f"{prefix}99")
    await store.database.write(
        lambda connection: delete_old_events(connection, store.database.settings, 10.0**9)
    )
    with pytest.raises(CursorExpired) as error:
        await feed.start("after", f"{prefix}0")
    assert error.value.detail == {"oldest": f"{prefix}2"}
    assert await feed.start("after", f"{prefix}2") == (2, f"{prefix}2")
    store.events.add([new_event(4)])
    assert await finish(listening) == [4]


async def test_listeners_wait_while_the_store_is_down(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_RETRY_S", 0.001)
    feed = EventFeed(store.events)
    read, failures = store.events.read, iter(range(3))

    async def failing(after: int, limit: int) -> Sequence[StoredEvent]:
        if next(failures, None) is not None:
            raise StoreDown("no answer")
        return await read(after, limit)

    store.events.read = failing  # type: ignore[method-assign]
    await add(store, new_event(1))
    assert await finish(listen(feed, 0, 1)) == [1]
    assert next(failures, None) is None
