"""The metrics database: its place, its tables, and its failures."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.eventually import until
from tests.store.table_facts import table_facts
from warpseal.ops.health.checks import usage_check
from warpseal.runtime.settings import InvalidSetting
from warpseal.store.connection import Connection
from warpseal.store.engine import writing_engine
from warpseal.store.errors import StoreDown
from warpseal.store.migrate import upgrade_at_start
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreKind, StoreUrl, in_schema
from warpseal.usage.database import MIGRATIONS, SCHEMA, MetricsDatabase, metrics_database_url
from warpseal.usage.flusher import FlusherStatus
from warpseal.usage.schema import BUCKETS, TABLES
from warpseal.usage.settings import UsageSettings, metrics_url

READ = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("SELECT * FROM usage").fetchall()
database.close()
"""


def database(url: str, settings: UsageSettings | None = None) -> MetricsDatabase:
    """Return a database, to be opened by `async with`."""
    return MetricsDatabase(in_schema(StoreUrl.parse(url), SCHEMA), settings or UsageSettings())


def count(connection: Connection) -> int:
    """Return the rows of a small table."""
    return int(connection.value("SELECT count(*) FROM usage_buckets"))


def add(connection: Connection) -> None:
    """Add a row to that table."""
    connection.run(BUCKETS.insert_text, 0, count(connection), 0, 0)


def remove_files(folder: Path) -> None:
    """Remove all files of a folder."""
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("metrics", "store", "expected"),
    [
        ("", "", "/data/metrics.db"),
        ("", "off", "/data/metrics.db"),
        ("", "postgresql://user@host/store", "/data/metrics.db"),
        ("", "sqlite:////elsewhere/store.db", "/elsewhere/metrics.db"),
        ("sqlite:////there/usage.db", "sqlite:////elsewhere/store.db", "/there/usage.db"),
    ],
)
def test_the_metrics_database_is_in_the_folder_of_the_store_unless_it_has_a_url(
    metrics: str, store: str, expected: str
) -> None:
    url = metrics_database_url(UsageSettings(url=metrics), StoreSettings(url=store), Path("/data"))
    assert url is not None
    assert url.path == Path(expected)


@pytest.mark.parametrize("url", ["off", "mysql://user@host/name"])
def test_a_url_of_no_database_is_an_error_that_names_the_forms(url: str) -> None:
    with pytest.raises(InvalidSetting, match="metrics-db-url") as error:
        metrics_url(url, "metrics-db-url")
    assert 'expected "sqlite:///PATH" or "postgresql://..."; usage-enabled turns' in str(
        error.value
    )


def test_a_server_gives_it_a_schema_of_its_own() -> None:
    url = metrics_database_url(
        UsageSettings(url="postgresql://user@host/name"), StoreSettings(), None
    )
    assert url is not None
    assert url.kind is StoreKind.POSTGRESQL
    assert url.schema == "warpseal_metrics"
    assert metrics_database_url(UsageSettings(), StoreSettings(), None) is None


def test_the_migrations_make_the_tables_of_the_schema(any_metrics_url: str) -> None:
    engine, facts = writing_engine(StoreUrl.parse(any_metrics_url)), []
    for migrations in (MIGRATIONS, replace(MIGRATIONS, create_tables=None)):
        assert upgrade_at_start(engine, "here", migrations) == MIGRATIONS.head
        with engine.begin() as connection:
            facts.append(table_facts(connection))
            TABLES.drop_all(connection)
            connection.run("DROP TABLE alembic_version")
    engine.dispose()
    assert facts[0] == facts[1]
    assert facts[0].keys() == {*TABLES, "alembic_version"}


async def test_rows_outlive_the_process(any_metrics_url: str) -> None:
    async with database(any_metrics_url) as metrics:
        await metrics.write(add)
    async with database(any_metrics_url) as metrics:
        assert await metrics.read(count) == 1


async def test_a_file_that_is_deleted_is_made_again(tmp_path: Path) -> None:
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        await metrics.write(add)
        remove_files(tmp_path)
        await metrics.write(add)
        assert await metrics.read(count) == 1
    assert (tmp_path / "metrics.db").stat().st_mode & 0o777 == 0o600


async def test_usage_that_is_lost_while_the_daemon_runs_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        await metrics.write(add)
        remove_files(tmp_path)
        for _ in range(3):
            await metrics.write(add)
        assert await metrics.read(count) == 3
    lost = [
        record
        for record in caplog.records
        if record.getMessage() == "metrics database was made again"
    ]
    assert [record.levelname for record in lost] == ["WARNING"]


async def test_a_file_that_is_emptied_while_the_daemon_runs_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with database(f"sqlite:///{tmp_path}/metrics.db") as metrics:
        await metrics.write(add)
        (tmp_path / "metrics.db").write_bytes(b"")

        async def is_noticed() -> bool:
            with suppress(StoreDown):
                await metrics.write(add)
            return any(record.levelname == "WARNING" for record in caplog.records)

        await until(is_noticed)


async def test_connections_keep_their_locks_when_the_database_works_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    reading, end = threading.Event(), threading.Event()

    def read_slowly(connection: Connection) -> None:
        count(connection)
        reading.set()
        end.wait()

    async with database(f"sqlite:///{path}") as metrics:
        slow = asyncio.create_task(metrics.read(read_slowly))
        await asyncio.to_thread(reading.wait)
        with pytest.raises(StoreDown):
            await metrics.write(lambda connection: connection.fetch("SELECT * FROM nothing"))
        await metrics.write(add)
        end.set()
        await slow
        # If no other process seems to use the file, the end of this connection removes the log that
        # the daemon writes.
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", READ, path)
        assert await other.wait() == 0
        await metrics.write(add)
        assert path.with_name("metrics.db-wal").exists()
    async with database(f"sqlite:///{path}") as metrics:
        assert await metrics.read(count) == 2


async def test_a_failure_is_logged_once_and_its_end_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warpseal.usage.database")
    path = tmp_path / "metrics.db"
    async with database(f"sqlite:///{path}") as metrics:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for _ in range(2):
            with pytest.raises(StoreDown, match="locked"):
                await metrics.write(add)
        assert metrics.reason == "database is locked"
        other.close()
        await metrics.write(add)
        assert metrics.is_up
    assert [record.getMessage() for record in caplog.records] == [
        "metrics database is down, usage waits in memory",
        "metrics database is up again",
    ]


async def test_a_daemon_starts_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_bytes(b"")
    async with database(f"sqlite:///{folder}/metrics.db") as metrics:
        assert not metrics.is_up
        folder.unlink()
        await metrics.write(add)
        assert metrics.is_up


def write_text(path: Path) -> None:
    """Put a text in the place of a file."""
    path.write_text("no database\n" * 1_000)


def tear_pages(path: Path) -> None:
    """Damage the first sector of each page but the first one, which has the schema."""
    content = bytearray(path.read_bytes())
    for start in range(4_096, len(content), 4_096):
        content[start : start + 512] = bytes(range(256)) * 2
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (write_text, "file is not a database"),
        (tear_pages, "database disk image is malformed"),
    ],
)
async def test_a_damaged_file_is_named_with_what_to_do_until_it_was_moved_away(
    damage: Callable[[Path], None],
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "metrics.db"
    url = f"sqlite:///{path}"
    async with database(url) as metrics:
        await metrics.write(add)
    damage(path)
    async with database(url) as metrics:
        for _ in range(2):
            with pytest.raises(StoreDown):
                await metrics.write(add)
        assert metrics.reason == (
            f"{url} is damaged: {reason}: stop the daemon, move it and its log away, and start the"
            " daemon: it begins with a new one, without the usage so far"
        )
        degraded = usage_check(lambda: FlusherStatus(0, metrics.reason)).degraded
        assert degraded is not None
        (finding,) = degraded()
        assert metrics.reason in finding
    records = [record for record in caplog.records if record.name == "warpseal.usage.database"]
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("ERROR", "metrics database is damaged")
    ]
    path.rename(tmp_path / "damaged")
    async with database(url) as metrics:
        await metrics.write(add)
        assert metrics.is_up


async def test_damage_stays_named_while_other_parts_of_the_file_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warpseal.usage.database")
    path = tmp_path / "metrics.db"
    async with database(f"sqlite:///{path}") as metrics:
        await metrics.write(lambda connection: connection.run("CREATE TABLE other (a INTEGER)"))
        await metrics.write(lambda connection: connection.run("INSERT INTO other VALUES (1)"))
        root = await metrics.read(
            lambda connection: connection.value(
                "SELECT rootpage FROM sqlite_master WHERE name = 'other'"
            )
        )
    with path.open("r+b") as file:
        file.seek((root - 1) * 4_096)
        file.write(b"\xff" * 512)
    async with database(f"sqlite:///{path}") as metrics:
        for _ in range(2):
            with pytest.raises(StoreDown, match="is damaged"):
                await metrics.read(lambda connection: connection.value("SELECT a FROM other"))
            await metrics.write(add)
            assert not metrics.is_up
        path.unlink()
        path.with_name("metrics.db-wal").unlink()
        await metrics.write(add)
        assert metrics.is_up
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == [
        "metrics database is damaged",
        "metrics database was made again",
    ]
