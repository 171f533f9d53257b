"""Schema versions: made in one transaction, refused when newer, left alone when a process dies
half-way.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.store.fixtures import (
    exit_code_of,
    hasty_settings,
    message,
    share,
    signature,
    sqlite_url,
    store_at,
)
from tests.store.table_facts import table_facts, table_names
from warpseal.store.connection import Connection, DriverError, Engine
from warpseal.store.engine import writing_engine
from warpseal.store.errors import StoreNeedsUpgrade, StoreTooNew, StoreUnusable
from warpseal.store.migrate import (
    HEAD,
    MIGRATIONS,
    Migration,
    Migrations,
    check_version,
    read_version,
    upgrade_all,
    upgrade_at_start,
)
from warpseal.store.schema import BLOCK_RANGES, TABLES
from warpseal.store.store import open_store
from warpseal.store.url import StoreUrl
from warpseal.version import __version__

FIRST = Migrations(MIGRATIONS.versions[:1])
PREVIOUS = Migrations(MIGRATIONS.versions[:-1])
ALL = Migrations(MIGRATIONS.versions)


def with_quick(then: Callable[[], object]) -> Migrations:
    """Return the migrations of the program and a further one, which calls a function at its end."""

    def upgrade(connection: Connection) -> None:
        connection.run("CREATE TABLE extra (number INTEGER PRIMARY KEY)")
        connection.run("ALTER TABLE messages ADD COLUMN extra INTEGER")
        connection.run("UPDATE messages SET extra = 7")
        then()

    return Migrations((*ALL.versions, Migration("0901", upgrade)))


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


QUICK = with_quick(lambda: None)
FAILING = with_quick(lambda: 1 / 0)


def with_slow(fails_at: int) -> Migrations:
    """Return the migrations of the program and a further one of four steps.

    fails_at: the step that fails.
    """

    def step(connection: Connection) -> float:
        connection.run("CREATE TABLE IF NOT EXISTS progress (number INTEGER PRIMARY KEY)")
        done: int = connection.value("SELECT count(*) FROM progress")
        if done == fails_at:
            raise RuntimeError("the power went")
        connection.run("INSERT INTO progress VALUES (?)", done)
        return (done + 1) / 4

    def upgrade(connection: Connection) -> None:
        connection.run("ALTER TABLE progress RENAME TO finished")

    return Migrations((*ALL.versions, Migration("0901", upgrade, step)))


@pytest.fixture
def engine(any_store_url: str) -> Iterator[Engine]:
    """The database of a test, to look into."""
    store_engine = writing_engine(StoreUrl.parse(any_store_url))
    yield store_engine
    store_engine.dispose()


def add_message(connection: Connection) -> None:
    """Store a message in the columns that every version of the schema has."""
    connection.run(
        "INSERT INTO messages (message_id, raw, for_ever, size_bytes, created_at, used_at)"
        " VALUES (?, ?, 1, 0, 0, 0)",
        message(1).id,
        message(1).raw,
    )


def version(engine: Engine) -> str | None:
    with engine.begin() as connection:
        return read_version(connection)


def tables(engine: Engine) -> set[str]:
    with engine.begin() as connection:
        # The leases of a server's database are of no version.
        return table_names(connection) - {"leases"}


@pytest.mark.parametrize("migrations", [MIGRATIONS, ALL], ids=["at-once", "version-by-version"])
def test_an_empty_database_gets_the_schema(engine: Engine, migrations: Migrations) -> None:
    assert upgrade_at_start(engine, "here", migrations) == HEAD
    with engine.begin() as connection:
        assert connection.fetch("SELECT schema_version FROM upgrades") == [(HEAD,)]


def test_a_database_made_at_once_equals_one_made_version_by_version(engine: Engine) -> None:
    facts = []
    for migrations in (MIGRATIONS, ALL):
        upgrade_at_start(engine, "here", migrations)
        with engine.begin() as connection:
            facts.append(table_facts(connection))
            TABLES.drop_all(connection)
            connection.run("DROP TABLE alembic_version")
    assert facts[0] == facts[1]
    assert facts[0].keys() == {*TABLES, "alembic_version"}


def test_of_two_daemons_that_start_on_an_empty_server_only_one_creates_the_tables(
    postgres_url: str,
) -> None:
    first, second = (writing_engine(StoreUrl.parse(postgres_url)) for _ in range(2))
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(1) as threads:
        starts: list[Future[str]] = []

        def wait_for_second(connection: Connection) -> None:
            # It creates no tables: of many changes a server informs even a session that waits for a
            # lock.
            starts.append(threads.submit(upgrade_at_start, second, "here"))
            while not connection.fetch(waiting):
                assert not starts[0].done()
                time.sleep(0.01)

        assert (
            upgrade_at_start(first, "here", replace(MIGRATIONS, create_tables=wait_for_second))
            == HEAD
        )
        assert starts[0].result() == HEAD
    first.dispose()
    second.dispose()


def test_a_foreign_database_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as session:
        session.execute("CREATE TABLE messages (text)")
    with pytest.raises(DriverError) as error:
        upgrade_at_start(writing_engine(StoreUrl.for_file(tmp_path / "foreign.db")), "here")
    assert "already exists" in str(error.value.cause)


async def test_an_older_version_is_upgraded_at_start_without_data_loss(
    any_store_url: str, engine: Engine
) -> None:
    upgrade_at_start(engine, "here", FIRST)
    assert "eager_tasks" not in tables(engine)
    with engine.begin() as connection:
        add_message(connection)
        add = "INSERT INTO shares SELECT key, ?, ?, 0 FROM messages"
        connection.run(add, share(1).public_key, share(1).signature)
    async with store_at(any_store_url) as store:
        assert store.status().schema_version == HEAD
        assert (await store.archive.load(message(1).id)).shares == (share(1),)
        assert await store.archive.unverified(10) == ((message(1), (share(1),)),)
        await store.l1.tasks.schedule(bytes(32), 1.0, 0)


async def test_a_newer_version_is_refused_and_not_changed(
    any_store_url: str, engine: Engine
) -> None:
    upgrade_at_start(engine, "here", QUICK)
    before = tables(engine)
    versions = (
        rf"written by warpseal {__version__} \(schema version 0901\), and this is warpseal .*"
        rf" version {HEAD}\)"
    )
    with pytest.raises(StoreTooNew, match=versions):
        async with store_at(any_store_url):
            pass
    with pytest.raises(StoreTooNew), engine.connect() as connection:
        check_version(connection, "here")
    with pytest.raises(StoreTooNew):
        upgrade_all(engine, "here", lambda *_: None)
    assert (version(engine), tables(engine)) == ("0901", before)


def test_a_failed_migration_is_rolled_back(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError):
        upgrade_at_start(engine, "here", FAILING)
    assert (version(engine), tables(engine)) == (None, set())
    upgrade_at_start(engine, "here", FIRST)
    before = tables(engine)
    with pytest.raises(ZeroDivisionError):
        upgrade_at_start(engine, "here", FAILING)
    assert (version(engine), tables(engine)) == ("0001", before)


async def test_a_process_killed_half_way_through_an_upgrade_leaves_the_old_version_intact(
    any_store_url: str, engine: Engine
) -> None:
    async with store_at(any_store_url) as store:
        await store.archive.store_signature(message(1), signature(1))
    before = tables(engine)
    engine.dispose()
    program = f"""
        from tests.store.test_migrations import kill_itself, with_quick
        from warpseal.store.engine import writing_engine
        from warpseal.store.migrate import upgrade_at_start
        from warpseal.store.url import StoreUrl
        engine = writing_engine(StoreUrl.parse({any_store_url!r}))
        upgrade_at_start(engine, "here", with_quick(kill_itself))
    """
    assert await exit_code_of(textwrap.dedent(program)) == -signal.SIGKILL
    assert (version(engine), tables(engine)) == (HEAD, before)
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
    assert upgrade_at_start(engine, "here", QUICK) == "0901"
    with engine.begin() as connection:
        assert connection.fetch("SELECT extra FROM messages") == [(7,)]


async def test_a_slow_upgrade_is_refused_at_start_and_the_error_names_the_command(
    any_store_url: str, engine: Engine
) -> None:
    async with store_at(any_store_url):
        pass
    migrations = with_slow(99)
    with pytest.raises(StoreNeedsUpgrade, match="warpseal store upgrade"):
        async with open_store(hasty_settings(any_store_url), None, migrations=migrations):
            pass
    with pytest.raises(StoreNeedsUpgrade) as refused, engine.connect() as connection:
        check_version(connection, "here", migrations)
    # Its start would not upgrade it.
    assert "start the daemon" not in str(refused.value)


def test_a_slow_upgrade_resumes_after_an_interruption(engine: Engine) -> None:
    upgrade_at_start(engine, "here")
    with pytest.raises(RuntimeError, match="the power went"):
        upgrade_all(engine, "here", lambda *_: None, with_slow(2))
    assert version(engine) == HEAD
    results: list[tuple[str, float]] = []
    migrations = with_slow(99)
    assert upgrade_all(engine, "here", lambda *step: results.append(step), migrations) == "0901"
    assert version(engine) == "0901"
    assert results == [("0901", 0.75), ("0901", 0.99), ("0901", 1.0)]
    with engine.begin() as connection:
        assert connection.value("SELECT count(*) FROM finished") == 4


def test_an_upgrade_of_an_empty_database_creates_the_schema(engine: Engine) -> None:
    assert upgrade_all(engine, "here", lambda *_: None) == version(engine) == HEAD


def files(folder: Path) -> list[str]:
    """Return the names of a folder without the lock."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def previous(tmp_path: Path) -> str:
    """The URL of a SQLite store of the previous schema, with one message."""
    url = sqlite_url(tmp_path)
    engine = writing_engine(StoreUrl.parse(url))
    upgrade_at_start(engine, "here", PREVIOUS)
    with engine.begin() as connection:
        add_message(connection)
    engine.dispose()
    return url


async def test_a_copy_from_before_an_upgrade_is_kept_until_the_next_good_start(
    tmp_path: Path, previous: str
) -> None:
    copy = tmp_path / f"store.db.before-{HEAD}"
    (tmp_path / "store.db.before-0002").write_bytes(b"of an earlier upgrade")
    for _ in range(2):
        async with store_at(previous):
            # Without `confirm_start` the daemon does not come to serve.
            assert copy.exists()
    assert files(tmp_path) == ["store.db", copy.name]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [
            (PREVIOUS.head,)
        ]
        assert connection.execute("SELECT message_id FROM messages").fetchall() == [
            (message(1).id,)
        ]
    # The start that upgrades is not the next one.
    copy.replace(tmp_path / "store.db")
    async with store_at(previous) as store:
        store.confirm_start()
        assert copy.exists()
    async with store_at(previous) as store:
        store.confirm_start()
    assert files(tmp_path) == ["store.db"]


async def test_without_room_for_the_copy_an_upgrade_is_refused_with_the_numbers(
    tmp_path: Path, previous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (tmp_path / "store.db").stat().st_size
    monkeypatch.setattr(
        "warpseal.store.copies.shutil.disk_usage", lambda _: SimpleNamespace(free=size - 1)
    )
    words = (
        f"to schema version {HEAD} keeps a copy, for which {size} bytes are needed and {size - 1}"
        " are free"
    )
    with pytest.raises(StoreUnusable, match=words) as error:
        async with store_at(previous):
            pass
    assert "\n" not in str(error.value)
    assert files(tmp_path) == ["store.db"]
    monkeypatch.undo()
    async with store_at(previous) as store:
        assert store.status().schema_version == HEAD


async def test_a_failed_upgrade_leaves_the_store_and_a_copy(tmp_path: Path, previous: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_store(hasty_settings(previous), None, migrations=FAILING):
            pass
    assert files(tmp_path) == ["store.db", "store.db.before-0901"]
    async with store_at(previous) as store:
        assert store.status().schema_version == HEAD
        assert await store.archive.load(message(1).id)
    assert files(tmp_path) == ["store.db", f"store.db.before-{HEAD}"]


def test_the_lowest_block_range_of_each_chain_is_kept(engine: Engine) -> None:
    """The ranges above it, as earlier versions left them, have gaps between them."""
    upgrade_at_start(engine, "here", Migrations(MIGRATIONS.versions[:9]))
    first, second = bytes([1]) * 32, bytes([2]) * 32
    ranges = [(first, 76, 91), (first, 50, 60), (first, 1, 40), (second, 5, 9), (second, 20, 30)]
    with engine.begin() as connection:
        for chain_id, low, high in ranges:
            connection.run(BLOCK_RANGES.insert_text, chain_id, low, high, b"parent", b"block")
    assert upgrade_at_start(engine, "here", MIGRATIONS) == HEAD
    with engine.begin() as connection:
        rows = connection.fetch("SELECT chain_id, low, high FROM block_ranges ORDER BY chain_id")
    assert [(bytes(chain_id), low, high) for chain_id, low, high in rows] == [
        (first, 1, 40),
        (second, 5, 9),
    ]
