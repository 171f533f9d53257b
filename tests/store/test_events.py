"""The event log: one order for all writers, each event once, and cursors that miss nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

import msgspec
import pytest

from tests.eventually import until
from tests.store.fixtures import CHAIN, PATIENCE_S, hasty_settings, message, signature, store_at
from warpseal.errors import InvalidRequest
from warpseal.store.connection import Engine
from warpseal.store.engine import writing_engine
from warpseal.store.errors import CursorExpired, StoreDown
from warpseal.store.event_rows import (
    EVENT_BYTES,
    MAX_DELETED,
    NewEvent,
    StoredEvent,
    add_events,
    delete_old_events,
    event_name,
)
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.store.url import StoreUrl
from warpseal.store.values import Event, EventType
from warpseal.store.write_queue import AddSignature
from warpseal.warp.ids import SubnetID, id_text

SUBNET = SubnetID(b"\x05" * 32)
DAY_S = 86_400


def new_event(number: int, at_s: int | None = None) -> NewEvent:
    """Return an event by its number, whose body says the number."""
    event = Event(
        type=EventType.VALIDATOR_MISSING,
        time=int(time.time()) if at_s is None else at_s,
        data={"number": number},
    )
    return NewEvent.of(event_name(EventType.VALIDATOR_MISSING, b"%d" % number), event)


def numbers_in(events: Sequence[StoredEvent]) -> list[int]:
    """Return which events these are."""
    return [msgspec.json.decode(event.body, type=Event).data["number"] for event in events]


async def add(store: Store, *numbers: int) -> None:
    """Add events and wait for the commit."""
    await store.database.write(
        lambda connection: add_events(connection, list(map(new_event, numbers)))
    )


async def read_all(store: Store, after: int = 0, limit: int = 1_000) -> list[StoredEvent]:
    """Read to the end of the log."""
    events: list[StoredEvent] = []
    while page := await store.events.read(events[-1].number if events else after, limit):
        events += page
    return events


@pytest.fixture
def engines(any_store_url: str) -> Iterator[tuple[Engine, Engine]]:
    """Two writers of one database."""
    first, second = (writing_engine(StoreUrl.parse(any_store_url)) for _ in range(2))
    yield first, second
    first.dispose()
    second.dispose()


async def test_a_committed_signature_is_an_event(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        began = int(time.time())
        await store.archive.store_signature(message(1), signature(1), SUBNET)
        await store.archive.store_signature(message(1), signature(2, 1, 2, 3))
        await store.archive.store_signature(message(1), signature(1), SUBNET)
        first, second = [
            msgspec.json.decode(event.body, type=Event) for event in await read_all(store)
        ]
    assert first == Event(
        type=EventType.MESSAGE_SIGNED,
        time=first.time,
        source_blockchain_id=id_text(CHAIN),
        subnet_id=id_text(SUBNET),
        message_id=f"0x{message(1).id.hex()}",
        data={"signers": 2},
    )
    assert began <= first.time <= time.time()
    assert (second.subnet_id, second.data) == (msgspec.UNSET, {"signers": 3})


async def test_a_refused_signature_is_no_event(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        done = threading.Event()
        refused = msgspec.structs.replace(signature(2), signature=None)
        writes = [
            AddSignature(message(1), signature(1), lambda: None),
            AddSignature(message(2), refused, lambda: None),
        ]
        writes.append(AddSignature(message(3), signature(3), done.set))
        for write in writes:
            store.database.queue.add_signature(write)
        assert await asyncio.to_thread(done.wait, PATIENCE_S)
        events = [msgspec.json.decode(event.body, type=Event) for event in await read_all(store)]
    assert {event.message_id for event in events} == {
        f"0x{message(number).id.hex()}" for number in (1, 3)
    }


async def test_an_event_that_is_in_the_log_takes_no_number(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await add(store, 1, 2, 1)
        await add(store, 2, 3)
        events = await read_all(store)
    assert ([event.number for event in events], numbers_in(events)) == ([1, 2, 3], [1, 2, 3])


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_later_writer_waits_for_the_number_of_an_earlier_one(
    any_store_url: str, engines: tuple[Engine, Engine], is_committed: bool
) -> None:
    first, second = engines

    def write_second() -> None:
        with second.begin() as connection:
            add_events(connection, [new_event(2)])

    async with store_at(any_store_url, first_prune_s=3_600.0) as store:
        with contextlib.suppress(ZeroDivisionError), first.begin() as connection:
            add_events(connection, [new_event(1)])
            writing = asyncio.create_task(asyncio.to_thread(write_second))
            # A reader of the second event alone would never get the first one.
            assert await read_all(store) == []
            assert not writing.done()
            if not is_committed:
                raise ZeroDivisionError
        await asyncio.wait_for(writing, PATIENCE_S)
        events = await read_all(store)
    assert numbers_in(events) == ([1, 2] if is_committed else [2])
    assert [event.number for event in events] == list(range(1, len(events) + 1))


async def test_readers_of_several_writers_see_one_order_and_each_event_once(
    any_store_url: str,
) -> None:
    writers = 2 if StoreUrl.parse(any_store_url).path is None else 1
    stores = [store_at(any_store_url) for _ in range(writers)]
    messages = range(60)
    views: list[list[StoredEvent]] = [[] for _ in range(4)]

    async def write(store: Store, numbers: Sequence[int]) -> None:
        for number in numbers:
            await store.archive.store_signature(message(number), signature(number))
            # Both writers report this one.
            store.events.add([new_event(number // 2)])

    async def read(view: list[StoredEvent], seed: int) -> None:
        rnd = Random(seed)
        while len(view) < len(messages) * 3 // 2:
            view += await rnd.choice(stores).events.read(
                view[-1].number if view else 0, rnd.randint(1, 5)
            )
            await asyncio.sleep(0)

    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        for store in stores:
            await stack.enter_async_context(store)
        reading = [read(view, seed) for seed, view in enumerate(views)]
        writing = [write(stores[number % writers], messages[number::2]) for number in range(2)]
        await asyncio.gather(*reading, *writing)
    assert [event.number for event in views[0]] == list(range(1, len(messages) * 3 // 2 + 1))
    assert len({event.body for event in views[0]}) == len(views[0])
    assert views == [views[0]] * len(views)


def model_deletes(model: list[tuple[int, int, int]], settings: StoreSettings, now: int) -> None:
    """Delete from a list of (number, size, time) what the log must not keep."""
    while len(model) > 1:
        number, _, at_s = model[0]
        size_behind = sum(size for other, size, _ in model if other > number)
        if at_s >= now - settings.events_max_age_s and size_behind < settings.events_max_bytes:
            return
        model.pop(0)


async def test_readers_with_cursors_agree_with_a_plain_list(any_store_url: str) -> None:
    rnd = Random(7)
    settings = hasty_settings(
        any_store_url,
        events_max_bytes=2_000,
        events_max_age_s=50.0,
        first_prune_s=3_600.0,
        prune_interval_s=3_600.0,
    )
    names: set[bytes] = set()
    model: list[tuple[int, int, int]] = []
    last, now, cursors = 0, 1_000_000, [0, 0, 0]
    expired_reads = 0
    async with open_store(settings, None) as store:
        for _ in range(300):
            now += rnd.randint(0, 2)
            added = [new_event(rnd.randrange(400), now) for _ in range(rnd.randrange(4))]
            await store.database.write(partial(add_events, events=added))
            for event in added:
                if event.name not in names:
                    names.add(event.name)
                    last += 1
                    model.append((last, EVENT_BYTES + len(event.body), event.time))
            if rnd.random() < 0.2:
                await store.database.write(
                    partial(delete_old_events, settings=settings, now_unix_s=now)
                )
                model_deletes(model, settings, now)
                names = {
                    row.name for row in await store.database.records("SELECT name FROM events")
                }
            reader = rnd.randrange(len(cursors))
            if model and cursors[reader] < model[0][0] - 1:
                with pytest.raises(CursorExpired) as error:
                    await store.events.read(cursors[reader], 5)
                cursors[reader] = await store.events.parse_cursor(
                    "after", error.value.detail["oldest"]
                )
                expired_reads += 1
            events = await store.events.read(cursors[reader], 5)
            expected = [number for number, _, _ in model if number > cursors[reader]][:5]
            assert [event.number for event in events] == expected
            cursors[reader] = expected[-1] if expected else cursors[reader]
            assert await store.events.last() == last
    assert expired_reads


async def test_the_newest_event_stays_and_others_go_in_steps(any_store_url: str) -> None:
    async with store_at(any_store_url, first_prune_s=3_600.0) as store:
        old = [new_event(number, 0) for number in range(MAX_DELETED + 2)]
        await store.database.write(lambda connection: add_events(connection, old))
        for has_more, count in ((True, 2), (False, 1), (False, 1)):
            delete = partial(
                delete_old_events, settings=store.database.settings, now_unix_s=time.time()
            )
            assert await store.database.write(delete) is has_more
            oldest = await expired_cursor(store, 0)
            assert len(await store.events.read(oldest, 10)) == count
        await add(store, -1)
        assert (await store.events.last(), await expired_cursor(store, 0)) == (
            MAX_DELETED + 3,
            MAX_DELETED + 1,
        )


async def test_events_of_a_time_when_the_clock_was_behind_are_as_young_as_those_before_them(
    any_store_url: str,
) -> None:
    now = int(time.time())
    async with store_at(any_store_url, first_prune_s=3_600.0) as store:
        times = (now - 60, now - 40 * DAY_S, now - 40 * DAY_S, now)
        events = [new_event(number, at_s) for number, at_s in enumerate(times)]
        await store.database.write(lambda connection: add_events(connection, events))
        delete = partial(delete_old_events, settings=store.database.settings)
        assert await store.database.write(partial(delete, now_unix_s=now)) is False
        assert numbers_in(await store.events.read(0, 10)) == [0, 1, 2, 3]
        later_s = now + store.database.settings.events_max_age_s - 30
        await store.database.write(partial(delete, now_unix_s=later_s))
        assert await expired_cursor(store, 0) == 3


async def expired_cursor(store: Store, after: int) -> int:
    """Return the oldest cursor, which the error of an expired one has."""
    with pytest.raises(CursorExpired) as error:
        await store.events.read(after, 1)
    return await store.events.parse_cursor("after", error.value.detail["oldest"])


async def test_the_daemon_deletes_old_events(any_store_url: str) -> None:
    async with store_at(any_store_url, events_max_age_s=3_600.0) as store:
        await store.database.write(
            lambda connection: add_events(connection, [new_event(1, 0), new_event(2)])
        )

        async def is_deleted() -> bool:
            with contextlib.suppress(CursorExpired):
                return len(await store.events.read(0, 10)) == 1
            return True

        await until(is_deleted)
        assert numbers_in(await store.events.read(1, 10)) == [2]


async def test_cursors_of_another_log_or_beyond_the_end_are_expired(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        prefix = await store.events.cursor_prefix()
        assert await store.events.parse_cursor("after", f"{prefix}0") == 0
        assert await store.events.read(0, 10) == []
        await add(store, 1)
        with pytest.raises(CursorExpired, match=f"continue with {prefix}0"):
            await store.events.parse_cursor("after", "00-1")
        # After a restored backup the log may be shorter than a reader remembers.
        assert await expired_cursor(store, 2) == 0
        for text in ("", "1", prefix, f"{prefix}-1", f"{prefix}x", prefix + "9" * 19):
            with pytest.raises(InvalidRequest, match="after: not a cursor"):
                await store.events.parse_cursor("after", text)
    async with store_at(any_store_url) as store:
        assert await store.events.cursor_prefix() == prefix


async def test_a_source_moves_with_its_events_from_the_position_that_its_reader_has_seen(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url) as store:
        log = store.events
        assert await log.position("source") is None
        assert not await log.add_from_source("source", 1, 2, [new_event(0)])
        assert await log.add_from_source("source", None, 5, [new_event(1)])
        assert not await log.add_from_source("source", None, 7, [new_event(2)])
        assert not await log.add_from_source(
            "source", 4, 7, [new_event(2)], lambda connection: 1 // 0
        )
        with pytest.raises(ZeroDivisionError):
            await log.add_from_source("source", 5, 7, [new_event(2)], lambda connection: 1 // 0)
        assert (await log.position("source"), await log.position("other")) == (5, None)
        assert await log.add_from_source("source", 5, 7, [new_event(2)])
        assert (await log.position("source"), numbers_in(await read_all(store))) == (7, [1, 2])


async def test_a_store_that_is_off_has_no_events() -> None:
    async with store_at("off") as store:
        assert not store.events.is_up
        store.events.add([new_event(1)])
        with pytest.raises(StoreDown):
            await store.events.read(0, 1)
