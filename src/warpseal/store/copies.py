"""Whole copies of a SQLite store: for a backup, and before an upgrade of the schema.

SQLite's online backup makes them.

The copy before an upgrade, `store.db.before-<version>`, stays until a daemon has served without
another upgrade.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from warpseal.store.engine import (
    DAMAGE_ADVICE,
    DISK_ADVICE,
    describe_failure,
    is_file_damage,
    open_file,
)
from warpseal.store.errors import StoreUnusable
from warpseal.store.url import StoreUrl

log = logging.getLogger(__name__)

_CHECK_CODE: Final = re.compile(r"\berror code=(\d+)")
_UNFINISHED: Final = ".partial"
_PAGES_PER_STEP: Final = 1_000


def copy_store(
    path: Path, target: Path, progress: Callable[[int, int], None] = lambda *_: None
) -> None:
    """Write the store at `path`, as it is at one moment, to a private file, and flush it.

    A daemon may write in the meantime. The copy has no log file.

    progress: called with the number of copied pages and of all pages.
    Raises StoreUnusable for a damaged store, sqlite3.Error, OSError.
    """
    try:
        source = open_file(path, "ro")
    except sqlite3.Error as error:
        raise StoreUnusable(str(path), describe_failure(StoreUrl.for_file(path), error)) from None

    def report(_: int, left: int, total: int) -> None:
        progress(total - left, total)

    with closing(source):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with closing(open_file(target, "rw")) as copy:
            try:
                # Without a snapshot that lasts for all steps, the copy would begin again after each
                # write of another process.
                source.execute("BEGIN")
                source.execute("SELECT 1 FROM sqlite_master").fetchone()
                source.backup(copy, pages=_PAGES_PER_STEP, progress=report)
            except sqlite3.Error as error:
                if not is_file_damage(error):
                    raise
                reason = describe_failure(StoreUrl.for_file(path), error)
                raise StoreUnusable(str(path), reason) from None
    check_pages(target, str(path))
    with target.open("rb") as file:
        os.fsync(file.fileno())


def check_pages(path: Path, where: str, advice: str = DAMAGE_ADVICE) -> None:
    """Check the pages of a store that no process uses, and leave no log file.

    advice: text of an error, for an operator whose file is damaged.
    Raises StoreUnusable, with another text if the disk fails.
    """
    try:
        with closing(open_file(path, "rw")) as connection:
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.DatabaseError as error:
        if not is_file_damage(error):
            reason = describe_failure(StoreUrl.for_file(path), error)
            raise StoreUnusable(where, f"its pages cannot be checked: {reason}") from error
        result = str(error)
    # The check goes on after a page that the disk does not read, and names it as damaged.
    if (code := _CHECK_CODE.search(result)) and int(code[1]) & 0xFF == sqlite3.SQLITE_IOERR:
        raise StoreUnusable(where, f"its pages cannot be read: {DISK_ADVICE}")
    if result != "ok":
        raise StoreUnusable(where, f"it is damaged: {' '.join(str(result).split())}: {advice}")


def remove_database(path: Path) -> None:
    """Remove a database file, with the logs that a disk which fails has left. Raises OSError."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def upgrade_copy(path: Path, version: str) -> Path:
    """Return the file that keeps a store as it was before its upgrade to `version`."""
    return path.with_name(f"{path.name}.before-{version}")


def keep_upgrade_copy(path: Path, version: str) -> None:
    """Keep a copy of a store, and no earlier one, before its upgrade to `version`.

    Raises StoreUnusable, also if there is no room for it.
    """
    log_path = path.with_name(path.name + "-wal")
    needed_bytes = sum(file.stat().st_size for file in (path, log_path) if file.exists())
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < needed_bytes:
        raise StoreUnusable(
            str(path),
            f"its upgrade to schema version {version} keeps a copy, for which {needed_bytes} bytes"
            f" are needed and {free_bytes} are free: make room on the disk",
        )
    copy = upgrade_copy(path, version)
    unfinished = copy.with_name(copy.name + _UNFINISHED)
    try:
        copy_store(path, unfinished)
        unfinished.replace(copy)
    except (OSError, sqlite3.Error) as error:
        reason = describe_failure(StoreUrl.for_file(path), error)
        raise StoreUnusable(
            str(path), f"it cannot be copied before its upgrade: {reason}"
        ) from error
    finally:
        remove_database(unfinished)
    for other in _upgrade_copies(path):
        if other != copy:
            other.unlink(missing_ok=True)
    fields = {
        "path": str(copy),
        "upgraded_to": version,
        "kept_until": "the next start that serves without an upgrade",
    }
    log.info("kept a copy of the store before its upgrade", extra=fields)


def remove_upgrade_copies(path: Path) -> None:
    """Remove the copy that an earlier start kept."""
    for copy in _upgrade_copies(path):
        with suppress(OSError):
            copy.unlink()
            log.info("removed the copy of the store before its upgrade", extra={"path": str(copy)})


def _upgrade_copies(path: Path) -> list[Path]:
    return sorted(path.parent.glob(glob.escape(upgrade_copy(path, "").name) + "*"))
