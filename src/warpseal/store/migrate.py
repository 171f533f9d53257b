"""Upgrades of a database to the schema version of this program; the source of truth is migrations/, run by Alembic.

All quick versions are made in one transaction with their DDL, so a crash leaves the version before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.locks import ThreadLock
from warpseal.store.connection import Connection, Engine
from warpseal.store.errors import StoreNeedsUpgrade, StoreTooNew, StoreUnusable
from warpseal.store.schema import TABLES, UPGRADES
from warpseal.version import __version__

if TYPE_CHECKING:
    import sqlalchemy
    from alembic import operations
    from alembic import script as alembic_script
    from alembic.runtime import migration
    from alembic.script import Script, ScriptDirectory
else:
    sqlalchemy = LazyModule("sqlalchemy")
    operations = LazyModule("alembic.operations")
    migration = LazyModule("alembic.runtime.migration")
    alembic_script = LazyModule("alembic.script")

# Alembic and SQLAlchemy are loaded only for an upgrade; a test compares this with the newest module of versions/.
HEAD: Final = "0009"
VERSIONS: Final = Path(__file__).parent / "migrations" / "versions"
_VERSION_TABLE: Final = "alembic_version"
# As Alembic makes it.
_CREATE_VERSIONS: Final = (
    f"CREATE TABLE {_VERSION_TABLE} (version_num VARCHAR(32) NOT NULL,"
    " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)
_OWN: Final = "connection"
_UPGRADE_LOCK: Final = 0x57_41_52_50_53_45_41_4C
# Alembic's `op` is one object for the whole process.
_ALEMBIC: Final = ThreadLock()


class Migrations(Struct, frozen=True):
    """The schema versions: the program's, and more in tests.

    head: the newest. create_tables: creates its tables in an empty database; None: an empty one gets all versions.
    """

    folders: tuple[Path, ...] = (VERSIONS,)
    head: str = HEAD
    create_tables: Callable[[Connection], None] | None = None


MIGRATIONS: Final = Migrations(create_tables=TABLES.create_all)


def read_version(connection: Connection) -> str | None:
    """Return the schema version of a database; None of an empty one."""
    if not connection.has_table(_VERSION_TABLE):
        return None
    version: str | None = connection.value(f"SELECT version_num FROM {_VERSION_TABLE}")
    return version


def check_version(connection: Connection, where: str, migrations: Migrations = MIGRATIONS) -> str:
    """Return the version if it is the newest. Raises StoreTooNew, StoreNeedsUpgrade."""
    version = read_version(connection)
    if version == migrations.head:
        return version
    _pending(connection, version, where, migrations)
    raise StoreNeedsUpgrade(where, version, migrations.head)


def check_known(connection: Connection, where: str, migrations: Migrations = MIGRATIONS) -> None:
    """Check that this program can open a store, after an upgrade if necessary. Raises StoreUnusable, StoreTooNew."""
    version = read_version(connection)
    if version is None:
        raise StoreUnusable(where, "it is not a store")
    _pending(connection, version, where, migrations)


def upgrade_at_start(
    engine: Engine, where: str, migrations: Migrations = MIGRATIONS, keep_copy: Callable[[], None] = lambda: None
) -> str:
    """Make quick upgrades in one transaction; return the version. Raises StoreTooNew, StoreNeedsUpgrade.

    keep_copy: called before an older database is changed, while no other process can change it.
    """
    with engine.begin() as connection:
        if read_version(connection) == migrations.head:
            return migrations.head
    with engine.begin() as connection:
        _lock_upgrades(connection)
        if migrations.create_tables is not None and read_version(connection) is None:
            # Loading Alembic would take as long as a third of a start, and 28 MiB.
            migrations.create_tables(connection)
            connection.run(_CREATE_VERSIONS)
            connection.run(f"INSERT INTO {_VERSION_TABLE} (version_num) VALUES (?)", migrations.head)
            _record_upgrade(connection, migrations.head)
            return migrations.head
        pending = find_quick_upgrades(connection, where, migrations)
        if pending and read_version(connection) is not None:
            keep_copy()
        _upgrade(connection, pending, migrations)
    return migrations.head


def own_connection(bound: sqlalchemy.Connection) -> Connection:
    """Return the connection in which Alembic's `op.get_bind()` works."""
    connection: Connection = bound.info[_OWN]
    return connection


def find_quick_upgrades(connection: Connection, where: str, migrations: Migrations = MIGRATIONS) -> Sequence[Script]:
    """Return the upgrades that the start of a daemon makes, oldest first. Raises StoreTooNew, StoreNeedsUpgrade."""
    version = read_version(connection)
    pending = _pending(connection, version, where, migrations)
    if any(map(_is_slow, pending)):
        raise StoreNeedsUpgrade(where, version, migrations.head)
    return pending


def upgrade_all(
    engine: Engine,
    where: str,
    progress: Callable[[str, float], None],
    migrations: Migrations = MIGRATIONS,
    keep_copy: Callable[[], None] = lambda: None,
) -> str:
    """Make all upgrades, slow ones step by step, each step in its own transaction. progress: called with a version
    and the fraction of its upgrade that is done. keep_copy: called before an older database is changed.

    Returns the version. Raises StoreTooNew. An interrupted upgrade continues with the next call.
    """
    with engine.begin() as connection:
        version = read_version(connection)
        pending = _pending(connection, version, where, migrations)
    if version is not None and pending:
        keep_copy()
    for script in pending:
        done = 0.0 if _is_slow(script) else 1.0
        while done < 1.0:
            with engine.begin() as connection:
                _lock_upgrades(connection)
                done = script.module.step(connection)
            progress(script.revision, min(done, 0.99))
        with engine.begin() as connection:
            _lock_upgrades(connection)
            _upgrade(connection, [script], migrations)
        progress(script.revision, 1.0)
    return migrations.head


def _pending(connection: Connection, version: str | None, where: str, migrations: Migrations) -> Sequence[Script]:
    """Return the versions after `version`, oldest first. Raises StoreTooNew for an unknown one."""
    versions = list(_versions(migrations).walk_revisions("base", migrations.head))[::-1]
    names = [script.revision for script in versions]
    if version is None:
        return versions
    if version not in names:
        raise StoreTooNew(where, version, migrations.head, _read_program(connection, version))
    return versions[names.index(version) + 1 :]


def _read_program(connection: Connection, version: str) -> str | None:
    """Return the version of the program that upgraded a database to `version`; None if it is not recorded."""
    if not connection.has_table(UPGRADES.name):
        return None
    program: str | None = connection.value(
        f"SELECT program_version FROM {UPGRADES.name} WHERE schema_version = ?", version
    )
    return program


def _is_slow(version: Script) -> bool:
    """Return whether a version is not for the start of a daemon; see migrations/."""
    return getattr(version.module, "SLOW", False)


def _upgrade(connection: Connection, versions: Sequence[Script], migrations: Migrations) -> None:
    if not versions:
        return
    with _ALEMBIC, _in_sqlalchemy(connection) as bound:
        context = migration.MigrationContext.configure(bound)
        with operations.Operations.context(context):
            for version in versions:
                version.module.upgrade()
                context.stamp(_versions(migrations), version.revision)
    _record_upgrade(connection, versions[-1].revision)


def _record_upgrade(connection: Connection, version: str) -> None:
    if connection.has_table(UPGRADES.name):
        connection.run(UPGRADES.insert_text, version, __version__, time.time())


@contextmanager
def _in_sqlalchemy(connection: Connection) -> Iterator[sqlalchemy.Connection]:
    """Give Alembic a connection of SQLAlchemy's; it works in the transaction of this one, and does not end it."""
    name, options = ("postgresql+psycopg", {"use_native_hstore": False}) if connection.is_postgresql else ("sqlite", {})
    engine = sqlalchemy.create_engine(
        f"{name}://", creator=lambda: connection.driver, poolclass=sqlalchemy.StaticPool, **options
    )
    for step in ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate"):
        setattr(engine.dialect, step, lambda _: None)
    with engine.connect() as bound:
        bound.info[_OWN] = connection
        yield bound


def _versions(migrations: Migrations) -> ScriptDirectory:
    folders = [str(folder) for folder in migrations.folders]
    return alembic_script.ScriptDirectory(str(VERSIONS.parent), version_locations=folders)


def _lock_upgrades(connection: Connection) -> None:
    """Keep other processes from upgrading until the transaction ends."""
    if connection.is_postgresql:
        connection.fetch("SELECT pg_advisory_xact_lock(?)", _UPGRADE_LOCK)
