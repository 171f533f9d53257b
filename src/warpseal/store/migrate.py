"""Upgrades of a database to the schema version of this program, and the versions of the store.

All quick versions are made in one transaction with their DDL, so a crash leaves the version before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct

from warpseal.store.connection import Connection, Engine
from warpseal.store.errors import StoreNeedsUpgrade, StoreTooNew, StoreUnusable
from warpseal.store.schema import EVICTABLE, TABLES, UNAUDITED, UPGRADES
from warpseal.store.tables import TableIndex, Tables, declare_table
from warpseal.version import __version__

# The name is that of Alembic, which made the upgrades of earlier programs.
_VERSION_TABLE: Final = "alembic_version"
_CREATE_VERSIONS: Final = f"""
CREATE TABLE {_VERSION_TABLE} (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""
_FIND_PROGRAM: Final = f"SELECT program_version FROM {UPGRADES.name} WHERE schema_version = ?"
_COUNT_CANDIDATES: Final = """
UPDATE messages
SET candidates = (
  SELECT count(*)
  FROM shares
  WHERE shares.message_key = messages.key AND shares.verified = 0
)
"""
_DELETE_HIGHER_RANGES: Final = """
DELETE FROM block_ranges
WHERE low > (
  SELECT min(lowest.low)
  FROM block_ranges AS lowest
  WHERE lowest.chain_id = block_ranges.chain_id
)
"""
_UPGRADE_LOCK: Final = 0x57_41_52_50_53_45_41_4C


class Migration(NamedTuple):
    """A version, and the way to it from the version before, which never changes after a release.

    upgrade: makes the version in one transaction.
    step: function of a version that is too slow for the start of a daemon. It does a bounded piece
        of the work in a transaction of its own, can be repeated, and returns the fraction that is
        done; at 1.0 `upgrade` follows.
    """

    version: str
    upgrade: Callable[[Connection], None]
    step: Callable[[Connection], float] | None = None


class Migrations(Struct, frozen=True):
    """The schema versions of a database, oldest first.

    create_tables: creates the newest tables in an empty database. Without it an empty database gets
        all versions, one after another.
    """

    versions: tuple[Migration, ...]
    create_tables: Callable[[Connection], None] | None = None

    @property
    def head(self) -> str:
        """The newest version."""
        return self.versions[-1].version


def _create(connection: Connection, names: Sequence[str]) -> None:
    """Create tables of the newest schema.

    A version that added a table uses its newest declaration, until a later version changes the
    table: then the earlier version gets a declaration of its own, as `messages` has. A test
    compares the result of all versions with the schema.
    """
    for name in names:
        TABLES[name].create(connection)


_FIRST_MESSAGES: Final = declare_table(
    Tables(),
    "messages",
    "key serial, message_id bytes, raw bytes, for_ever int16, size_bytes int32, created_at double,"
    " used_at double",
    TableIndex("messages_evictable", "used_at", "size_bytes", condition=EVICTABLE),
    constraints=("UNIQUE (message_id)",),
)


def _create_first_tables(connection: Connection) -> None:
    _FIRST_MESSAGES.create(connection)
    _create(
        connection,
        ["shares", "signatures", "addresses", "origins", "l1_transactions", "block_ranges"],
    )


def _count_candidates(connection: Connection) -> None:
    connection.run("ALTER TABLE messages ADD COLUMN candidates INTEGER DEFAULT 0 NOT NULL")
    connection.run(_COUNT_CANDIDATES)
    connection.run(f"CREATE INDEX messages_unaudited ON messages (key) WHERE {UNAUDITED}")
    _create(connection, ["eager_tasks"])


def _keep_lowest_ranges(connection: Connection) -> None:
    """Keep the lowest range of each chain, from which its cursor of new blocks rises.

    The ranges above it have gaps between them. Their blocks are read again, and their rows stay.
    """
    connection.run(_DELETE_HIGHER_RANGES)


MIGRATIONS: Final = Migrations(
    (
        Migration("0001", _create_first_tables),
        Migration("0002", _count_candidates),
        Migration("0003", partial(_create, names=["api_keys", "secrets"])),
        Migration("0004", partial(_create, names=["observed_validations", "observed_hours"])),
        Migration("0005", partial(_create, names=["upgrades"])),
        Migration("0006", partial(_create, names=["events"])),
        Migration("0007", partial(_create, names=["event_sources", "icm_tasks"])),
        Migration("0008", partial(_create, names=["webhooks"])),
        Migration("0009", partial(_create, names=["signing_blocks"])),
        Migration("0010", _keep_lowest_ranges),
    ),
    TABLES.create_all,
)
HEAD: Final = MIGRATIONS.head


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
    pending = _pending(connection, version, where, migrations)
    is_quick = all(migration.step is None for migration in pending)
    raise StoreNeedsUpgrade(where, version, migrations.head, is_quick=is_quick)


def check_upgradable(
    connection: Connection, where: str, migrations: Migrations = MIGRATIONS
) -> None:
    """Check that this program can open a store, if necessary after an upgrade.

    Raises StoreUnusable, StoreTooNew.
    """
    version = read_version(connection)
    if version is None:
        raise StoreUnusable(where, "it is not a store")
    _pending(connection, version, where, migrations)


def upgrade_at_start(
    engine: Engine,
    where: str,
    migrations: Migrations = MIGRATIONS,
    keep_copy: Callable[[], None] = lambda: None,
) -> str:
    """Make quick upgrades in one transaction; return the version.

    keep_copy: called before an older database is changed, while no other process can change it.
    Raises StoreTooNew, StoreNeedsUpgrade.
    """
    with engine.begin() as connection:
        if read_version(connection) == migrations.head:
            return migrations.head
    with engine.begin() as connection:
        _lock_upgrades(connection)
        if migrations.create_tables is not None and read_version(connection) is None:
            migrations.create_tables(connection)
            _record_upgrade(connection, migrations.head)
            return migrations.head
        pending = find_quick_upgrades(connection, where, migrations)
        if pending and read_version(connection) is not None:
            keep_copy()
        _upgrade(connection, pending)
    return migrations.head


def find_quick_upgrades(
    connection: Connection, where: str, migrations: Migrations = MIGRATIONS
) -> tuple[Migration, ...]:
    """Return the upgrades that the start of a daemon makes, oldest first.

    Raises StoreTooNew, StoreNeedsUpgrade.
    """
    version = read_version(connection)
    pending = _pending(connection, version, where, migrations)
    if any(migration.step is not None for migration in pending):
        raise StoreNeedsUpgrade(where, version, migrations.head, is_quick=False)
    return pending


def upgrade_all(
    engine: Engine,
    where: str,
    progress: Callable[[str, float], None],
    migrations: Migrations = MIGRATIONS,
    keep_copy: Callable[[], None] = lambda: None,
) -> str:
    """Make all upgrades, slow ones step by step; return the version.

    Each step has its own transaction. An interrupted upgrade continues with the next call.

    progress: called with a version and the fraction of its upgrade that is done.
    keep_copy: called before an older database is changed.
    Raises StoreTooNew.
    """
    with engine.begin() as connection:
        version = read_version(connection)
        pending = _pending(connection, version, where, migrations)
    if version is not None and pending:
        keep_copy()
    for migration in pending:
        if migration.step is not None:
            done = 0.0
            while done < 1.0:
                with engine.begin() as connection:
                    _lock_upgrades(connection)
                    done = migration.step(connection)
                progress(migration.version, min(done, 0.99))
        with engine.begin() as connection:
            _lock_upgrades(connection)
            _upgrade(connection, (migration,))
        progress(migration.version, 1.0)
    return migrations.head


def _pending(
    connection: Connection, version: str | None, where: str, migrations: Migrations
) -> tuple[Migration, ...]:
    """Return the versions after `version`, oldest first. Raises StoreTooNew for an unknown one."""
    versions = [None, *(migration.version for migration in migrations.versions)]
    if version not in versions:
        raise StoreTooNew(where, version or "", migrations.head, _read_program(connection, version))
    return migrations.versions[versions.index(version) :]


def _read_program(connection: Connection, version: str | None) -> str | None:
    """Return the version of the program that upgraded a database to `version`, if it is stored."""
    if not connection.has_table(UPGRADES.name):
        return None
    program: str | None = connection.value(_FIND_PROGRAM, version)
    return program


def _upgrade(connection: Connection, migrations: tuple[Migration, ...]) -> None:
    for migration in migrations:
        migration.upgrade(connection)
    if migrations:
        _record_upgrade(connection, migrations[-1].version)


def _record_upgrade(connection: Connection, version: str) -> None:
    if not connection.has_table(_VERSION_TABLE):
        connection.run(_CREATE_VERSIONS)
    connection.run(f"DELETE FROM {_VERSION_TABLE}")
    connection.run(f"INSERT INTO {_VERSION_TABLE} (version_num) VALUES (?)", version)
    if connection.has_table(UPGRADES.name):
        connection.run(UPGRADES.insert_text, version, __version__, time.time())


def _lock_upgrades(connection: Connection) -> None:
    """Keep other processes from upgrading until the transaction ends."""
    if connection.is_postgresql:
        connection.fetch("SELECT pg_advisory_xact_lock(?)", _UPGRADE_LOCK)
