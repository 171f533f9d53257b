"""Upgrades of a database to the schema version of this program; the source of truth is migrations/, run by Alembic.

All quick versions are made in one transaction with their DDL, so a crash leaves the version before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, inspect, text

from warpseal.runtime.locks import ThreadLock
from warpseal.store.errors import StoreNeedsUpgrade, StoreTooNew

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

# Alembic is loaded only for an upgrade; a test compares this with the newest module of versions/.
HEAD: Final = "0004"
VERSIONS: Final = Path(__file__).parent / "migrations" / "versions"
_VERSION_TABLE: Final = "alembic_version"
_UPGRADE_LOCK: Final = 0x57_41_52_50_53_45_41_4C
# Alembic's `op` is one object for the whole process.
_ALEMBIC: Final = ThreadLock()

Progress = Callable[[str, float], None]
"""Called with a version and the fraction of its upgrade that is done."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """The schema versions: the program's, and more in tests. head: the newest."""

    folders: tuple[Path, ...] = (VERSIONS,)
    head: str = HEAD


def read_version(connection: Connection) -> str | None:
    """Return the schema version of a database; None of an empty one."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()
    return found


def check_version(connection: Connection, where: str, migrations: Migrations = Migrations()) -> str:
    """Return the version if it is the newest. Raises StoreTooNew, StoreNeedsUpgrade."""
    version = read_version(connection)
    if version == migrations.head:
        return version
    _pending(version, where, migrations)
    raise StoreNeedsUpgrade(where, version or "none", migrations.head)


def upgrade_at_start(engine: Engine, where: str, migrations: Migrations = Migrations()) -> str:
    """Make quick upgrades in one transaction; return the version. Raises StoreTooNew, StoreNeedsUpgrade."""
    with engine.begin() as connection:
        if read_version(connection) == migrations.head:
            return migrations.head
    with engine.begin() as connection:
        _lock_upgrades(connection)
        version = read_version(connection)
        pending = _pending(version, where, migrations)
        if any(revision.is_slow for revision in pending):
            raise StoreNeedsUpgrade(where, version or "none", migrations.head)
        _upgrade(connection, pending, migrations)
    return migrations.head


def upgrade_all(engine: Engine, where: str, progress: Progress, migrations: Migrations = Migrations()) -> str:
    """Make all upgrades, slow ones step by step, each step in its own transaction.

    Returns the version. Raises StoreTooNew. An interrupted upgrade continues with the next call.
    """
    with engine.begin() as connection:
        pending = _pending(read_version(connection), where, migrations)
    for revision in pending:
        for done in _steps(engine, revision):
            progress(revision.name, done)
        with engine.begin() as connection:
            _lock_upgrades(connection)
            _upgrade(connection, [revision], migrations)
        progress(revision.name, 1.0)
    return migrations.head


@dataclass(frozen=True, slots=True)
class _Revision:
    name: str
    is_slow: bool
    step: Callable[[Connection], float] | None
    upgrade: Callable[[], None]


def _pending(version: str | None, where: str, migrations: Migrations) -> Sequence[_Revision]:
    """Return the versions after `version`, oldest first. Raises StoreTooNew for an unknown one."""
    revisions = list(_revisions(migrations))
    names = [revision.name for revision in revisions]
    if version is None:
        return revisions
    if version not in names:
        raise StoreTooNew(where, version, migrations.head)
    return revisions[names.index(version) + 1 :]


def _revisions(migrations: Migrations) -> Iterator[_Revision]:
    newest_first = list(_script(migrations).walk_revisions("base", migrations.head))
    for script in reversed(newest_first):
        module = script.module
        yield _Revision(script.revision, getattr(module, "SLOW", False), getattr(module, "step", None), module.upgrade)


def _steps(engine: Engine, revision: _Revision) -> Iterator[float]:
    done = 0.0 if revision.is_slow and revision.step is not None else 1.0
    while done < 1.0:
        assert revision.step is not None
        with engine.begin() as connection:
            _lock_upgrades(connection)
            done = revision.step(connection)
        yield min(done, 0.99)


def _upgrade(connection: Connection, revisions: Sequence[_Revision], migrations: Migrations) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    script = _script(migrations)
    with _ALEMBIC:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            for revision in revisions:
                revision.upgrade()
                context.stamp(script, revision.name)


def _script(migrations: Migrations) -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(VERSIONS.parent), version_locations=[str(folder) for folder in migrations.folders])


def _lock_upgrades(connection: Connection) -> None:
    """Keep other processes from upgrading until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
