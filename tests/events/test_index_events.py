"""What the indexes of EVM chains have of ICM becomes events once and in order, whenever a reader
ends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
import pytest

from tests.chains.evm.icm_logs import MESSENGER, NETWORK_ID, Message
from tests.eventually import until
from tests.index.evm.fixtures import small_settings
from tests.index.evm.icm_histories import (
    PEOPLE,
    RELAYERS,
    SECOND,
    A,
    B,
    IcmChain,
    IcmHistory,
    KnownMessage,
    block_of,
)
from tests.index.evm.icm_rows import icm_writer, icm_writers, join
from tests.indexer.evm_chains import Log
from tests.store.conftest import any_store_url, postgres_server, postgres_url
from tests.store.fixtures import PATIENCE_S, store_at
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.chains.evm.icm_events import ChangeKind, IcmChange, IcmReceive, IcmSend
from warpseal.events import index_events
from warpseal.events.index_events import IndexEvents
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.keys import block_key
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import IcmBatch, IcmOptions
from warpseal.runtime.background import BackgroundWork
from warpseal.store.connection import Connection as StoreConnection
from warpseal.store.database import Database
from warpseal.store.errors import StoreDown
from warpseal.store.events import EventLog
from warpseal.store.locks import Leadership
from warpseal.store.store import Store
from warpseal.store.url import StoreUrl
from warpseal.store.values import Event, EventType
from warpseal.warp.ids import ChainID, id_text
from warpseal.warp.message import AddressedCall, UnsignedMessage

__all__ = ["any_store_url", "postgres_server", "postgres_url"]

T = TypeVar("T")
Step = tuple[str, bytes]

KILLS = 3
NESTED_OPTIONS = IcmOptions(NETWORK_ID, (MESSENGER, SECOND), is_indexed=lambda chain_id: False)
NOW = 2_000_000_000


def write(
    url: str,
    history: IcmHistory,
    blocks: slice,
    *,
    node_height: int | None = None,
    is_behind: bool = False,
) -> None:
    """Write blocks of both chains.

    node_height: height of the nodes that the indexer reports; None: it reports no status.
    """
    with icm_writers(url) as writers:
        for chain_id, writer in writers.items():
            if chunk := history.chains[chain_id].blocks[blocks]:
                writer.write(chunk)
            if node_height is not None:
                writer.write_status(
                    ProgressRow(id_text(chain_id), node_height, is_behind, reported_at=NOW)
                )
        join(writers)


@asynccontextmanager
async def open_indexes(url: str) -> AsyncIterator[Mapping[ChainID, EvmIndex]]:
    """Hold readers of both indexes."""
    settings = small_settings(url)
    async with AsyncExitStack() as stack:
        yield {
            chain_id: await stack.enter_async_context(
                EvmIndex(evm_index_url(settings, None, chain_id), settings, lambda: NOW)
            )
            for chain_id in (A, B)
        }


@asynccontextmanager
async def reading_indexes(url: str, *stores: Store) -> AsyncIterator[None]:
    """Run a reader for each store, all of which believe that they lead."""
    async with open_indexes(url) as indexes, asyncio.TaskGroup() as tasks:
        readers = [
            tasks.create_task(
                IndexEvents(
                    store.events, Leadership(), lambda: indexes, NETWORK_ID, BackgroundWork()
                ).run()
            )
            for store in stores
        ]
        yield
        for reader in readers:
            reader.cancel()


def steps_of(chain: IcmChain, first: int) -> Iterator[tuple[Step, KnownMessage]]:
    """Yield what happened on a chain from a block on, by its blocks: type and id of the message,
    each once.
    """
    before = set[Step]()
    for number, block in enumerate(chain.blocks):
        for event in block.icm:
            names: list[str] = []
            entries = chain.incoming
            match event:
                case IcmSend():
                    names, entries = ["icm_sent"], chain.outgoing
                case IcmReceive():
                    names = [
                        "icm_received",
                        *{1: ["icm_executed"], 2: ["icm_failed"]}.get(event.outcome, []),
                    ]
                case IcmChange(kind=ChangeKind.EXECUTED):
                    names = ["icm_executed"]
                case _:
                    continue
            for step in ((name, event.message_id) for name in names):
                if event.message_id in entries and step not in before:
                    before.add(step)
                    if number >= first:
                        yield step, entries[event.message_id]


async def events_in(store: Store) -> list[Event]:
    """Return all events."""
    return [
        msgspec.json.decode(event.body, type=Event) for event in await store.events.read(0, 10_000)
    ]


def step_of(event: Event) -> Step:
    return event.type, bytes.fromhex(event.data["icmMessageId"][2:])


def assert_as_the_model(events: list[Event], history: IcmHistory, first: int) -> None:
    """Check that the events of each chain are those of its blocks, once and in order."""
    for chain in history.chains.values():
        name, expected = id_text(chain.id), list(steps_of(chain, first))
        own = [
            event
            for event in events
            if name
            == (
                event.source_blockchain_id
                if event.type == "icm_sent"
                else event.destination_blockchain_id
            )
        ]
        assert [step_of(event) for event in own] == [step for step, _ in expected]
        for event, (_, entry) in zip(own, expected, strict=True):
            message = entry.message
            assert event.source_blockchain_id == id_text(message.source)
            assert event.destination_blockchain_id == id_text(message.destination)
            if event.type == EventType.ICM_SENT:
                call = AddressedCall(message.adapter or message.messenger, message.payload)
                unsigned = UnsignedMessage.build(NETWORK_ID, message.source, call.encode())
                assert event.message_id == f"0x{unsigned.id.hex()}"
    assert {event.type for event in events} == {
        "icm_sent",
        "icm_received",
        "icm_executed",
        "icm_failed",
    }


async def until_complete(store: Store, history: IcmHistory, first: int) -> None:
    """Wait until the log has as many events as the model."""
    events = sum(len(list(steps_of(chain, first))) for chain in history.chains.values())

    async def is_complete() -> bool:
        return await store.events.last() >= events

    await until(is_complete)


async def positions(store: Store) -> list[int | None]:
    return [await store.events.position(id_text(chain_id)) for chain_id in (A, B)]


def history_of(seed: int, blocks: int = 24) -> IcmHistory:
    history = IcmHistory(seed)
    history.add_blocks(blocks)
    return history


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be read at a time, and often."""
    monkeypatch.setattr(index_events, "_POLL_S", 0.01)
    monkeypatch.setattr(index_events, "_MAX_ROWS", 2)


async def until_begun(store: Store) -> None:
    """Wait until both chains have a position."""

    async def has_begun() -> bool:
        return None not in await positions(store)

    await until(has_begun)


async def test_a_new_chain_begins_with_the_blocks_that_its_nodes_do_not_have_yet(
    any_store_url: str, tmp_path: Path
) -> None:
    url, history = f"sqlite:///{tmp_path}/index.db", history_of(51)
    async with store_at(any_store_url) as store:
        # Without the height of a node it is not known how much of the chain is history.
        write(url, history, slice(0, 5))
        for node_height in (None, 30):
            write(url, history, slice(0, 0), node_height=node_height, is_behind=True)
            async with reading_indexes(url, store):
                await asyncio.sleep(0.05)
            assert await positions(store) == [None, None]
        write(url, history, slice(5, 10), node_height=15)
        async with reading_indexes(url, store):
            await until_begun(store)
            # A backfill, then new blocks.
            write(url, history, slice(10, 24), node_height=23)
            await until_complete(store, history, 16)
        assert_as_the_model(await events_in(store), history, 16)


async def test_two_readers_at_once_add_each_event_once_although_writes_fail(
    any_store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_shared = StoreUrl.parse(any_store_url).path is None
    url = any_store_url if is_shared else f"sqlite:///{tmp_path}/index.db"
    random, history = Random(53), history_of(53)
    write(url, history, slice(0, 1), node_height=0)
    commit = Database.write

    async def write_or_fail(
        database: Database, change: Callable[[StoreConnection], T], wait_s: float | None = None
    ) -> T:
        outcome = random.random()
        if outcome < 0.1:
            raise StoreDown("before the commit")
        result = await commit(database, change, wait_s)
        if outcome < 0.3:
            raise StoreDown("committed, but too late for the caller")
        return result

    async with AsyncExitStack() as stack:
        first = second = await stack.enter_async_context(store_at(any_store_url))
        if is_shared:
            second = await stack.enter_async_context(store_at(any_store_url))
        async with reading_indexes(url, first, second):
            await until_begun(first)
            monkeypatch.setattr(Database, "write", write_or_fail)
            write(url, history, slice(1, 24), node_height=23)
            await until_complete(first, history, 1)
        monkeypatch.undo()
        assert_as_the_model(await events_in(first), history, 1)


def read_until_killed(store_url: str, url: str, transactions: int, pipe: Pipe) -> None:
    """Run in a child process: read the indexes, send a word before the last transaction, and do no
    more.
    """
    add_from_source, numbers = EventLog.add_from_source, count(1)

    async def report_and_add(log: EventLog, *arguments: Any) -> bool:
        if (number := next(numbers)) == transactions:
            pipe.send("last")
        elif number > transactions:
            await asyncio.Event().wait()
        return await add_from_source(log, *arguments)

    EventLog.add_from_source = report_and_add  # type: ignore[assignment, method-assign]
    index_events._MAX_ROWS = 2  # type: ignore[misc]
    asyncio.run(_read_forever(store_url, url))


async def _read_forever(store_url: str, url: str) -> None:
    async with store_at(store_url) as store, reading_indexes(url, store):
        await asyncio.Event().wait()


async def test_killed_readers_and_a_new_index_lose_no_event_and_add_none_twice(
    any_store_url: str, tmp_path: Path
) -> None:
    random, history, url = Random(52), history_of(52), f"sqlite:///{tmp_path}/index.db"
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    write(url, history, slice(0, 1), node_height=0)
    async with store_at(any_store_url) as store, reading_indexes(url, store):
        await until_begun(store)
    write(url, history, slice(1, 24), node_height=23)
    for _ in range(KILLS):
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(
            target=read_until_killed, args=(any_store_url, url, random.randrange(1, 6), theirs)
        )
        child.start()
        theirs.close()
        try:
            assert await asyncio.to_thread(ours.poll, PATIENCE_S)
            assert ours.recv() == "last"
            # A transaction takes about so long.
            await asyncio.sleep(random.uniform(0.0, 0.004))
        finally:
            child.kill()
            await asyncio.to_thread(child.join, PATIENCE_S)
    # The index of a chain is made again, with other numbers for its addresses.
    path = evm_index_url(small_settings(url), None, B).path
    assert path is not None
    path.unlink()
    with icm_writers(url) as writers:
        writers[B].write(history.chains[B].blocks[:12])
    async with store_at(any_store_url) as store:
        before = await store.events.last()
        async with reading_indexes(url, store):
            with icm_writers(url) as writers:
                writers[B].write(history.chains[B].blocks[12:])
            await until_complete(store, history, 1)
        assert 0 < before < await store.events.last()
        assert_as_the_model(await events_in(store), history, 1)


def nested_logs(first_nonce: int) -> tuple[list[Log], list[Step]]:
    """Return the logs of a transaction of B in which recipients send, and receive of another
    messenger, meanwhile.

    The steps are in the order of the logs.
    """
    nonces = count(first_nonce)
    outer, inner, plain, late = (
        Message(A, B, next(nonces), PEOPLE[0], PEOPLE[1], messenger=messenger)
        for messenger in (MESSENGER, SECOND, MESSENGER, MESSENGER)
    )
    sends = [Message(B, A, next(nonces), PEOPLE[1], PEOPLE[0]) for _ in range(4)]
    receive_logs = {
        message.id: message.received(*RELAYERS, is_executed=None)
        for message in (outer, inner, plain, late)
    }
    parts: list[tuple[str, Message, list[Log]]] = [
        ("icm_received", plain, receive_logs[plain.id]),
        ("icm_failed", plain, plain.failed()),
        ("icm_received", outer, receive_logs[outer.id]),
        ("icm_sent", sends[0], sends[0].sent()),
        ("icm_received", inner, receive_logs[inner.id]),
        ("icm_sent", sends[1], sends[1].sent()),
        ("icm_executed", inner, inner.executed()),
        ("icm_executed", outer, outer.executed()),
        ("icm_sent", sends[2], sends[2].sent()),
        ("icm_received", late, receive_logs[late.id]),
        ("icm_sent", sends[3], sends[3].sent()),
        ("icm_executed", late, late.executed()),
    ]
    return [log for _, _, logs in parts for log in logs], [
        (name, message.id) for name, message, _ in parts
    ]


def write_to_b(url: str, *blocks: EvmBlockFacts) -> None:
    """Write blocks of B, of which the nodes say that none is history."""
    with icm_writer(url, B, NESTED_OPTIONS) as writer:
        writer.write(blocks)
        writer.write_status(ProgressRow(id_text(B), 0, False, reported_at=NOW))


@asynccontextmanager
async def reading_b(
    url: str, store: Store, leadership: Leadership | None = None
) -> AsyncIterator[None]:
    """Run a reader of the index of B, which leads unless a leadership says otherwise."""
    settings = small_settings(url)
    async with EvmIndex(evm_index_url(settings, None, B), settings, lambda: NOW) as index:
        events = IndexEvents(
            store.events,
            leadership or Leadership(),
            lambda: {B: index},
            NETWORK_ID,
            BackgroundWork(),
        )
        reader = asyncio.create_task(events.run())
        try:
            yield
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def until_last(store: Store, number: int) -> list[Step]:
    """Wait until the log has that many events; return their steps."""

    async def is_complete() -> bool:
        return await store.events.last() >= number

    await until(is_complete)
    return list(map(step_of, await events_in(store)))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 200])
async def test_events_of_a_transaction_are_in_the_order_of_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(index_events, "_MAX_ROWS", rows)
    url, (logs, steps) = f"sqlite:///{tmp_path}/index.db", nested_logs(1)
    write_to_b(url, block_of(0, []))
    async with store_at(f"sqlite:///{tmp_path}/store.db") as store, reading_b(url, store):

        async def has_begun() -> bool:
            return await store.events.position(id_text(B)) is not None

        await until(has_begun)
        write_to_b(url, block_of(1, [logs]))
        assert await until_last(store, len(steps)) == steps


async def test_a_reader_that_loses_its_leadership_during_a_read_adds_nothing_until_it_leads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, (logs, steps) = f"sqlite:///{tmp_path}/index.db", nested_logs(1)
    write_to_b(url, block_of(0, []))
    leadership, read = Leadership(), EvmIndex.icm_after

    async def read_and_lose(index: EvmIndex, position: int, limit: int) -> IcmBatch:
        batch = await read(index, position, limit)
        if batch.occurrences:
            leadership._lose()
        return batch

    async with (
        store_at(f"sqlite:///{tmp_path}/store.db") as store,
        reading_b(url, store, leadership),
    ):

        async def has_begun() -> bool:
            return await store.events.position(id_text(B)) is not None

        await until(has_begun)
        monkeypatch.setattr(EvmIndex, "icm_after", read_and_lose)
        write_to_b(url, block_of(1, [logs]))
        await leadership.wait_until_lost()
        await asyncio.sleep(0.2)
        assert await events_in(store) == []
        monkeypatch.undo()
        leadership._acquire()
        assert await until_last(store, len(steps)) == steps


@pytest.mark.parametrize("read_before", range(1, 13))
async def test_an_upgrade_in_the_middle_of_a_transaction_neither_loses_nor_repeats_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_before: int
) -> None:
    """The version before had an execution at the place of its receive, and a new index has it
    behind what was sent.
    """
    monkeypatch.setattr(index_events, "_MAX_ROWS", 1)
    url, (logs, steps) = f"sqlite:///{tmp_path}/index.db", nested_logs(1)
    (more_logs, more_steps) = nested_logs(100)
    blocks = block_of(0, []), block_of(1, [logs]), block_of(2, [more_logs])
    path = evm_index_url(small_settings(url), None, B).path
    assert path is not None
    async with store_at(f"sqlite:///{tmp_path}/store.db") as store:
        write_to_b(url, *blocks[:2])
        await store.events.add_from_source(id_text(B), None, block_key(1) - 1, ())
        with sqlite3.connect(path) as database:
            database.execute("UPDATE icm_receives SET inner_events = NULL")
        async with reading_b(url, store):
            before = await until_last(store, read_before)
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        write_to_b(url, *blocks)
        async with reading_b(url, store):
            events = await until_last(store, len(steps) + len(more_steps))
            await asyncio.sleep(0.05)
            events = await until_last(store, len(events))
    assert events[: len(before)] == before
    assert sorted(events) == sorted((*steps, *more_steps))
    assert events[len(steps) :] == more_steps
