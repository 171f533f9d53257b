"""Opening of a store: locks, errors that name the reason, passwords that are never displayed."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import threading
from pathlib import Path

import psycopg
import pytest

from tests.eventually import until
from tests.store.fixtures import (
    exit_code_of,
    hasty_settings,
    load_beside,
    message,
    signature,
    sqlite_url,
    store_at,
)
from tests.store.postgres import PostgresServer
from tests.store.signed import create_store
from warpseal.store.access import open_exclusive, open_read_only
from warpseal.store.errors import StoreDown, StoreInUse, StoreUnusable
from warpseal.store.locks import ServerLock
from warpseal.store.store import open_store
from warpseal.store.url import StoreUrl
from warpseal.store.values import ArchiveEntry


async def test_a_second_daemon_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    async with store_at(sqlite_url(tmp_path)):
        with pytest.raises(
            StoreInUse, match=f"{tmp_path}/store.db is in use by process {os.getpid()}"
        ) as error:
            async with store_at(sqlite_url(tmp_path)):
                pass
        assert error.value.pid == os.getpid()
    async with store_at(sqlite_url(tmp_path)) as store:
        assert store.status().is_up


async def test_daemons_that_share_a_server_read_each_others_messages(postgres_url: str) -> None:
    async with store_at(postgres_url) as first, store_at(postgres_url) as second:
        await first.archive.store_signature(message(1), signature(1))
        await second.archive.store_signature(message(1), signature(2))
        assert set((await first.archive.load(message(1).id)).signatures) == {
            signature(1),
            signature(2),
        }


async def test_an_upgrade_or_import_is_refused_while_a_daemon_runs_and_the_daemon_while_it_runs(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url):
        with pytest.raises(StoreInUse) as error:
            await asyncio.to_thread(hold_alone, any_store_url)
        assert error.value.pid == os.getpid()
    held, over = threading.Event(), threading.Event()
    holding = asyncio.create_task(asyncio.to_thread(hold_alone, any_store_url, held, over))
    await asyncio.to_thread(held.wait)
    with pytest.raises(StoreInUse, match=str(os.getpid())):
        async with store_at(any_store_url):
            pass
    over.set()
    await holding
    async with store_at(any_store_url) as store:
        assert store.status().is_up


def hold_alone(
    url: str, held: threading.Event | None = None, over: threading.Event | None = None
) -> None:
    """Hold a store as an upgrade or an import does, from `held` until `over`."""
    with open_exclusive(StoreUrl.parse(url)) as engine, engine.connect() as connection:
        connection.fetch("SELECT 1")
        if held is not None and over is not None:
            held.set()
            over.wait()


async def test_a_lock_that_was_lost_is_acquired_again_after_the_import_that_took_it(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = StoreUrl.parse(postgres_url)
    lock, of_import = ServerLock(url), ServerLock(url, exclusive=True)
    await lock.acquire()
    ours = "datname = current_database() AND pid <> pg_backend_pid()"
    held = "SELECT holder, is_shared FROM leases WHERE expires_at > clock_timestamp()"
    with psycopg.connect(postgres_url, autocommit=True) as session:
        leases = session.execute(held).fetchall()
        session.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
        # As if it had not been renewed in time.
        session.execute("UPDATE leases SET expires_at = clock_timestamp()")
        await of_import.acquire()
        running = asyncio.create_task(lock.run())
        await until(lambda: "store is locked by an upgrade or an import" in caplog.messages)
        assert [is_shared for _, is_shared in session.execute(held).fetchall()] == [False]
        await of_import.close()
        await until(lambda: session.execute(held).fetchall() == leases)
        running.cancel()
        await asyncio.wait((running,))
        await lock.close()
        assert session.execute(held).fetchall() == []


async def test_a_killed_daemon_releases_the_store(any_store_url: str) -> None:
    program = (
        "import asyncio, os, signal, sys\n"
        "from warpseal.store.settings import StoreSettings\n"
        "from warpseal.store.store import open_store\n"
        "async def main():\n"
        "    async with open_store(StoreSettings(sys.argv[1]), None):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    assert await exit_code_of(program, any_store_url) == -signal.SIGKILL
    await asyncio.to_thread(hold_alone, any_store_url)


async def test_a_command_reads_with_and_without_a_running_daemon(any_store_url: str) -> None:
    async with store_at(any_store_url) as daemon:
        await daemon.archive.store_signature(message(1), signature(1))
        assert load_beside(any_store_url, message(1)).signatures == (signature(1),)
    assert load_beside(any_store_url, message(1)).signatures == (signature(1),)


def test_a_command_that_reads_cannot_write_to_a_file(tmp_path: Path) -> None:
    url = create_store(sqlite_url(tmp_path))
    with pytest.raises(StoreUnusable, match="readonly"), open_read_only(url) as connection:
        connection.run("DELETE FROM messages")


def test_reading_a_missing_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="there is no such file"):
        load_beside(sqlite_url(tmp_path), message(1))
    assert not (tmp_path / "store.db").exists()


async def test_without_a_url_the_store_is_a_private_file_in_the_folder(tmp_path: Path) -> None:
    async with open_store(hasty_settings(""), tmp_path / "5") as store:
        await store.archive.store_signature(message(1), signature(1))
    assert stat.S_IMODE((tmp_path / "5" / "store.db").stat().st_mode) == 0o600
    async with open_store(hasty_settings(""), None) as store:
        assert store.status().url == "off"


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough for a header " * 40, None]
)
async def test_a_file_that_is_no_store_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "store.db"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreUnusable, match=str(path)):
        async with store_at(sqlite_url(tmp_path)):
            pass
    assert content is None or path.read_bytes() == content


async def test_a_stopped_store_is_one_whole_file(tmp_path: Path) -> None:
    async with store_at(sqlite_url(tmp_path)) as store:
        await store.archive.store_signature(message(1), signature(1))
        assert (await store.archive.load(message(1).id)).signatures
        assert (tmp_path / "store.db-wal").stat().st_size
    assert sorted(os.listdir(tmp_path)) == ["store.db", "store.db.lock"]
    async with store_at(sqlite_url(tmp_path)) as store:
        assert set((await store.archive.load(message(1).id)).signatures) == {signature(1)}


@pytest.mark.parametrize("content", [None, b""])
async def test_a_log_without_its_store_is_refused_and_stays(
    tmp_path: Path, content: bytes | None
) -> None:
    store_file, log_file = tmp_path / "store.db", tmp_path / "store.db-wal"
    log_file.write_bytes(b"log")
    if content is not None:
        store_file.write_bytes(content)
    with pytest.raises(StoreUnusable, match=r"store.db-wal has data") as error:
        async with store_at(sqlite_url(tmp_path)):
            pass
    assert ("is missing" if content is None else "is empty") in str(error.value)
    assert log_file.read_bytes() == b"log"
    assert store_file.exists() is (content is not None)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnusable, match=r"file/store\.db"):
        async with store_at(sqlite_url(tmp_path / "file")):
            pass


async def test_a_daemon_starts_while_the_server_does_not_answer(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with postgres_server.stopped():
        store = store_at(postgres_url)
        await store.__aenter__()
        assert not store.status().is_up
        assert store.status().reason
        await store.archive.store_signature(message(1), signature(1))
        assert await store.archive.load(message(1).id) == ArchiveEntry(is_incomplete=True)
        with pytest.raises(StoreDown):
            await store.l1.tasks.schedule(bytes(32), 1.0, 0)
    await until(lambda: store.status().is_up and store.status().waiting_writes == 0)
    assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
    await store.__aexit__(None, None, None)


async def test_passwords_are_redacted_in_logs_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    url = "postgresql://alice:hush%20hush@127.0.0.1:1/warpseal?sslpassword=hush%20hush"
    async with store_at(url, stop_timeout_s=0.1) as store:
        status = store.status()
    result = (
        f"{status} {hasty_settings(url)} {caplog.text}"
        f" {[record.__dict__ for record in caplog.records]}"
    )
    assert "hush" not in result
    assert "alice" in status.url
    assert not status.is_up
