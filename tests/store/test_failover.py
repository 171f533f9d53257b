"""A server that is no primary any more, leases, and a pooler of transactions between the daemon and
the server.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from tests.eventually import until
from tests.store.fixtures import message, signature, store_at, wait_for_entry
from tests.store.postgres import PostgresServer
from warpseal.index.database import index_url, reading_index, writing_index
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.settings import IndexSettings
from warpseal.runtime.process import running
from warpseal.store import locks
from warpseal.store.access import open_exclusive
from warpseal.store.errors import StoreInUse
from warpseal.store.locks import ServerLeadership, has_writer
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase, metrics_database_url
from warpseal.usage.settings import UsageSettings
from warpseal.warp.ids import ChainID

POOLER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


@pytest.fixture
def pooler_url(postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
    """Serve a database through two sessions that every transaction may change."""
    if not Path(POOLER).exists():
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    folder = postgres_server.make_folder("pooler")
    (folder / "ini").write_text(
        f"[databases]\n* = host={folder.parent} user=postgres\n[pgbouncer]\nunix_socket_dir ="
        f" {folder}\nauth_type = any\npool_mode = transaction\ndefault_pool_size ="
        " 2\nignore_startup_parameters = options\n"
    )
    process = postgres_server.run_program(POOLER, ["-q", str(folder / "ini")], subprocess.DEVNULL)
    while not (folder / ".s.PGSQL.6432").exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield postgres_url.replace(f"host={folder.parent}", f"host={folder}&port=6432")
    process.terminate()
    process.wait()


async def test_a_server_that_is_no_primary_any_more_is_left_and_nothing_is_lost(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with AsyncExitStack() as stack:
        # As after a failover: a host that is down, and the primary.
        store = await stack.enter_async_context(
            store_at(postgres_url.replace("host=/", "host=/nowhere,/"))
        )
        await store.archive.store_signature(message(1), signature(1))
        with psycopg.connect(postgres_server.url(), autocommit=True) as session:
            stack.callback(set_read_only, postgres_server, is_read_only=False)
            set_read_only(postgres_server, is_read_only=True)

            async def is_refused() -> bool:
                await store.archive.store_signature(message(2), signature(2))
                return "read-only" in (store.status().reason or "")

            # A session notices the change a moment later.
            await until(is_refused)
            # A new session to it is refused.
            await until(lambda: "session is read-only" in (store.status().reason or ""))
            set_read_only(postgres_server, is_read_only=False)
            session.execute("SELECT 1")
        await wait_for_entry(store, message(2), lambda entry: entry.signatures == (signature(2),))
        assert (await store.archive.load(message(1).id)).signatures == (signature(1),)


def set_read_only(server: PostgresServer, *, is_read_only: bool) -> None:
    """Let all sessions of a server refuse writes, as those of a standby do."""
    with psycopg.connect(server.url(), autocommit=True) as session:
        session.execute("SET default_transaction_read_only = off")
        value = "on" if is_read_only else "off"
        session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        session.execute("SELECT pg_reload_conf()")


async def test_a_leader_that_cannot_renew_its_lease_stops_before_another_one_leads(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_LEASE_S", 1.5)
    monkeypatch.setattr(locks, "_HOLD_S", 0.5)
    monkeypatch.setattr(locks, "_RENEW_S", 0.1)
    url = StoreUrl.parse(postgres_url)
    first, second = ServerLeadership(url, "job"), ServerLeadership(url, "job")

    async def fail() -> bool:
        raise OSError("unreachable")

    async with running(first.run()):
        await first.wait_until_held()
        async with running(second.run()):
            await asyncio.sleep(1.0)
            assert (first.is_leader, second.is_leader) == (True, False)
            with monkeypatch.context() as patch:
                patch.setattr(first._lease, "try_acquire", fail)
                await second.wait_until_held()
                assert not first.is_leader
        # The second one released it.
        await first.wait_until_held()
    assert not first.is_leader


async def test_everything_works_through_a_pooler_of_transactions(pooler_url: str) -> None:
    usage_url = metrics_database_url(UsageSettings(url=pooler_url), StoreSettings(), None)
    assert usage_url is not None
    chain_id, settings = ChainID(bytes(32)), IndexSettings(pooler_url)
    evm_url = evm_index_url(settings, None, chain_id)
    async with store_at(pooler_url) as store, MetricsDatabase(usage_url, UsageSettings()) as usage:
        assert (store.status().reason, usage.reason) == (None, None)
        with pytest.raises(StoreInUse) as error:
            await asyncio.to_thread(open_exclusive(StoreUrl.parse(pooler_url)).__enter__)
        assert error.value.pid == os.getpid()
        leaders = store.leadership("job"), store.leadership("job"), usage.leadership("job")
        async with running(leaders[0].run()), running(leaders[1].run()), running(leaders[2].run()):
            await leaders[2].wait_until_held()
            await until(lambda: leaders[0].is_leader != leaders[1].is_leader)
            engines = (
                writing_index(index_url(settings, None), settings),
                writing_evm_index(evm_url, settings, chain_id),
            )
            readers = [reading_index(url, settings) for url in (index_url(settings, None), evm_url)]
            # Enough for prepared statements, if there were any, and for each session to serve each
            # schema.
            for number in range(20):
                await store.archive.store_signature(message(number), signature(number))
                assert (await store.archive.load(message(number).id)).signatures == (
                    signature(number),
                )
                tables = [await usage.read(lambda c: c.value("SELECT current_schema()"))]
                for engine in (*engines, *readers):
                    with engine.connect() as connection, connection.snapshot():
                        tables.append(connection.value("SELECT current_schema()"))
                assert tables == [
                    "warpseal_metrics",
                    *["warpseal_index", "warpseal_evm_0000000000000000"] * 2,
                ]
            with readers[1].connect() as connection:
                assert has_writer(connection, None)
            engines[1].dispose()
            with readers[1].connect() as connection:
                assert not has_writer(connection, None)
            for engine in (*engines, *readers):
                engine.dispose()
        assert store.status().is_up
