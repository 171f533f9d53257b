"""A store that fails: no request fails or waits for it, and no record is lost."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.eventually import until
from tests.store.fixtures import finish_at_once, message, share, signature, store_at, wait_for_entry
from tests.store.postgres import PostgresServer
from warpseal.store.errors import StoreDown
from warpseal.store.eviction import measure
from warpseal.store.url import StoreUrl
from warpseal.store.values import AddressKind, AddressRow, ArchiveEntry, StoredShare
from warpseal.warp.ids import P_CHAIN, NodeID

Outage = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def outage(request: pytest.FixtureRequest, any_store_url: str) -> Outage:
    """Make the database of a test fail: a server that is stopped, a file that another process
    writes to.
    """
    path = StoreUrl.parse(any_store_url).path
    if path is None:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.stopped

    @contextmanager
    def locked() -> Iterator[None]:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.close()

    return locked


async def test_writes_during_an_outage_are_committed_after_it(
    any_store_url: str, outage: Outage
) -> None:
    async with store_at(any_store_url) as store:
        await store.archive.store_signature(message(1), signature(1))
        with outage():
            store.archive.store_shares(message(1), [share(1), share(2)])
            await store.archive.store_signature(message(1), signature(2))
            assert not store.status().is_up
            store.archive.reject_share(message(1).id, share(2).public_key, share(2).signature)
            store.archive.pin(message(2))
            await store.archive.store_signature(message(2), signature(3))
            assert store.status().waiting_writes >= 4
        await until(lambda: store.status().is_up and store.status().waiting_writes == 0)
        entry = await store.archive.load(message(1).id)
        assert (entry.shares, entry.signatures) == ((share(1),), (signature(2), signature(1)))
        assert (await store.archive.load(message(2).id)).signatures == (signature(3),)
        assert (await store.database.read(measure)).messages_for_ever == 1


async def test_during_an_outage_calls_return_at_once_and_only_the_l1_index_raises(
    any_store_url: str, outage: Outage
) -> None:
    async with store_at(any_store_url) as store:
        with outage():
            await store.archive.store_signature(message(1), signature(1))
            for number in range(50):
                assert store.archive.store_signature(message(number), signature(number)).done()
                assert finish_at_once(store.archive.load(message(number).id)) == ArchiveEntry(
                    is_incomplete=True
                )
            row = AddressRow(NodeID(bytes(20)), AddressKind.WORKED, "203.0.113.1", 9651, 1.0, 0)
            await store.addresses.replace([row])
            with pytest.raises(StoreDown):
                await store.l1.tasks.schedule(bytes(32), 1.0, 0)
        await until(lambda: store.status().is_up)
        await store.addresses.replace([row])
        assert await store.addresses.load() == [row]
        await store.l1.tasks.schedule(bytes(32), 1.0, 0)
        assert await store.l1.ranges(P_CHAIN) == ()


async def test_an_outage_is_logged_once_with_its_reason_and_its_end(
    any_store_url: str, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with store_at(any_store_url) as store:
        with outage():
            for number in range(5):
                await store.archive.store_signature(message(number), signature(number))
            status = store.status()
            assert status.reason
            assert status.down_since_unix_s is not None
            assert abs(status.down_since_unix_s - time.time()) < 60
            await asyncio.sleep(0.3)
        await until(lambda: store.status().is_up)
        assert store.status().reason is None
        assert store.status().down_since_unix_s is None
    logged = [record.message for record in caplog.records if record.name == "warpseal.store.writer"]
    assert logged == ["store is down, writes wait in memory", "store is up again"]


async def test_a_failed_read_makes_the_writer_check_the_database(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with store_at(postgres_url) as store:
        with postgres_server.stopped():
            assert await store.archive.load(message(1).id) == ArchiveEntry(is_incomplete=True)
            await until(lambda: not store.status().is_up)
        await until(lambda: store.status().is_up)


async def test_a_server_restart_between_two_calls_is_no_outage(
    postgres_server: PostgresServer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with store_at(postgres_url, first_prune_s=3600.0, gather_s=3600.0) as store:
        await store.archive.store_signature(message(1), signature(1))
        with postgres_server.stopped():
            pass
        assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
        await store.archive.store_signature(message(2), signature(2))
        assert (await store.archive.load(message(2).id)).signatures == (signature(2),)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_hanging_server_delays_calls_for_a_limited_time(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with store_at(postgres_url, commit_timeout_s=0.2, load_timeout_s=0.2) as store:
        await store.archive.store_signature(message(1), signature(1))
        with postgres_server.paused():
            await store.archive.store_signature(message(2), signature(2))
            assert await store.archive.load(message(2).id) == ArchiveEntry(is_incomplete=True)
            for number in range(3, 60):
                assert store.archive.store_signature(message(number), signature(number)).done()
                assert finish_at_once(store.archive.load(message(number).id)) == ArchiveEntry(
                    is_incomplete=True
                )
            assert not store.status().is_up
        await until(lambda: store.status().is_up and store.status().waiting_writes == 0)
        await wait_for_entry(store, message(59), lambda entry: entry.signatures == (signature(59),))


async def test_the_daemon_can_stop_while_the_store_is_down(
    any_store_url: str, outage: Outage
) -> None:
    async with store_at(any_store_url, stop_timeout_s=0.2) as store:
        context = outage()
        context.__enter__()
        await store.archive.store_signature(message(1), signature(1))
    context.__exit__(None, None, None)
    async with store_at(any_store_url) as store:
        assert await store.archive.load(message(1).id) == ArchiveEntry()


async def test_an_entry_that_the_database_rejects_is_dropped_and_others_are_written(
    any_store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    nameless = StoredShare(b"", None, False)  # type: ignore[arg-type]
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1)])
        store.archive.store_shares(message(1), [nameless])
        store.archive.store_shares(message(2), [share(2)])
        store.archive.pin(message(3))
        await store.archive.store_signature(message(2), signature(2))
        await until(lambda: store.status().waiting_writes == 0)
        assert store.status().is_up
        assert store.status().dropped_writes == 1
    logged = [record.message for record in caplog.records if record.name.startswith("warpseal")]
    assert logged == ["the database refused entries, which are dropped"]
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).shares == (share(1),)
        entry = await store.archive.load(message(2).id)
        assert (entry.shares, entry.signatures) == ((share(2),), (signature(2),))
        assert (await store.database.read(measure)).messages_for_ever == 1
