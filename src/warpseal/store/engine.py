"""Engines for the two databases: their connections and transactions.

Source of truth: SQLite `pragma.html` and `wal.html`, libpq's connection parameters. Python's
sqlite3 begins and commits by itself around some statements. That is turned off, and every
transaction begins with an explicit statement.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from warpseal.runtime.lazy import psycopg
from warpseal.runtime.process import os_error_text
from warpseal.store.connection import DriverError, Engine
from warpseal.store.errors import StoreUnusable
from warpseal.store.url import StoreKind, StoreUrl

# No other process writes to a file, because it is locked.
BUSY_TIMEOUT_S: Final = 0.5
# For each host of a URL; libpq waits for at least two seconds.
CONNECT_TIMEOUT_S: Final = 2
PAGE_BYTES: Final = 4_096
DAMAGE_ADVICE: Final = (
    "restore a backup (`warpseal restore`), or move it away: the daemon then begins with a new one"
)
_INDEX_ADVICE: Final = (
    "stop the daemon and the indexer, move it away, and start them: all blocks are indexed again"
)
_METRICS_ADVICE: Final = (
    "stop the daemon, move it and its log away, and start the daemon: it begins with a new one,"
    " without the usage so far"
)
DISK_ADVICE: Final = "look for errors of its disk in the system's log, and try again"
_ADVICE_OF_KIND: Final = {"index": _INDEX_ADVICE, "metrics database": _METRICS_ADVICE}
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_IOERR: DISK_ADVICE,
    sqlite3.SQLITE_CANTOPEN: "check its folder, with owner and mode, and the limit of open files",
}
_CODES_OF_SYSTEM: Final = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EIO: sqlite3.SQLITE_IOERR,
}
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
MAY_BE_STORED: Final = "the change may have been stored"
_MAX_REASON_CHARACTERS: Final = 300
_TIME_LIMITS: Final = "-c statement_timeout=30s -c lock_timeout=10s"
_NO_TIME_LIMITS: Final = "-c statement_timeout=0 -c lock_timeout=0"
_WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_PRAGMAS: Final = (
    "journal_mode = WAL",
    # Each commit flushes the log, and a flush that fails is an error of its commit. With NORMAL
    # only a merge flushes it, and SQLite drops the errors of the merges that it begins by itself.
    "synchronous = FULL",
    "foreign_keys = ON",
    f"journal_size_limit = {_WAL_LIMIT_BYTES}",
)
# Each side notices within six seconds that the other has vanished.
_CLIENT_KEEPALIVE: Final = {
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
_SERVER_KEEPALIVE: Final = (
    "-c tcp_keepalives_idle=2 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3 -c"
    " tcp_user_timeout=5000"
)


def writing_engine(
    url: StoreUrl, page_bytes: int = PAGE_BYTES, *, is_limited: bool = True
) -> Engine:
    """Return the engine of the one connection that writes; its transactions take the lock at once.

    A commit to a file survives a power cut.
    page_bytes: size of the pages of a file that has none yet.
    is_limited: a server ends long statements.
    """
    if url.kind is StoreKind.POSTGRESQL:
        return _postgresql(url, 1, is_limited=is_limited)
    assert url.path is not None
    return Engine(url, partial(_open_sqlite, url.path, "rwc", page_bytes), begin="BEGIN IMMEDIATE")


def flushed_later(engine: Engine, log_bytes: int) -> Engine:
    """Let the caller flush and merge the log of a file, which SQLite then does only at the end.

    log_bytes: size to which the log is cut when it begins again after a merge.
    """
    if engine.url.kind is StoreKind.SQLITE:
        pragmas = (
            "synchronous = NORMAL",
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {log_bytes}",
        )
        run_pragmas(engine, pragmas)
    return engine


def run_pragmas(engine: Engine, pragmas: Sequence[str]) -> None:
    """Run pragmas on each new connection."""

    def connected(driver: Any) -> None:
        _run_all(driver, pragmas)

    engine.on_connect.append(connected)


def reading_engine(url: StoreUrl, connections: int = 1, *, is_limited: bool = True) -> Engine:
    """Return an engine that reads, each statement by itself, on at most `connections` connections.

    is_limited: a server ends long statements.
    """
    if url.kind is StoreKind.POSTGRESQL:
        return _postgresql(url, connections, is_limited=is_limited)
    assert url.path is not None
    return Engine(url, partial(_open_sqlite, url.path, "ro"), connections)


def server_parameters(url: StoreUrl, *, is_limited: bool = True) -> dict[str, Any]:
    """Return the parameters by which libpq connects to a server.

    Raises StoreUnusable for a wrong one.
    """
    try:
        parameters: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(url.text)
    except psycopg.ProgrammingError as error:
        reason = f"{redacted_reason(url, error)}: correct its URL"
        raise StoreUnusable(url.redacted, reason, kind="database") from None
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        # By this name, of at most 63 characters, the server lists the users of a database.
        "application_name": process_name(),
        **_CLIENT_KEEPALIVE,
    }
    if "," in parameters.get("host", ""):
        # Only the primary is of use, whichever host it is on.
        defaults["target_session_attrs"] = "read-write"
    options = (
        _SERVER_KEEPALIVE,
        _TIME_LIMITS,
        parameters.get("options", ""),
        "" if is_limited else _NO_TIME_LIMITS,
    )
    return {**defaults, **parameters, "options": " ".join(filter(None, options))}


def process_name() -> str:
    """Return the name by which other processes name this one."""
    return f"warpseal pid {os.getpid()} on {os.uname().nodename}"[:63]


def create_private(path: Path) -> None:
    """Create a database file that only its owner may read, if it does not exist. Raises OSError."""
    if reason := lone_log_reason(path):
        raise OSError(reason)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file that exists is not opened: to close it would release the locks that connections of this
    # process hold.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def flush_log(path: Path) -> None:
    """Flush the log of a database file, so that its commits survive a power cut.

    Raises OSError.
    """
    # Closing the log releases no lock: SQLite locks the database file and the shared memory.
    with suppress(FileNotFoundError), _log_of(path).open("rb") as log:
        os.fsync(log.fileno())


def rewrite_log(path: Path) -> None:
    """Write the log of a database file once more, byte for byte, and flush it.

    The system forgets writes whose flush has failed, although reads still show them, and a later
    flush succeeds without them. In a transaction that takes the lock at once no other connection
    changes the log. Raises OSError.
    """
    with suppress(FileNotFoundError), _log_of(path).open("r+b", buffering=0) as log:
        offset = 0
        while chunk := os.pread(log.fileno(), _CHUNK_BYTES, offset):
            offset += os.pwrite(log.fileno(), chunk, offset)
        os.fsync(log.fileno())


def settle_log(engine: Engine) -> None:
    """Flush the log that an ended process has left: its last flush may have failed.

    Raises DriverError.
    """
    path = engine.url.path
    if path is None or not log_size(path):
        return
    with engine.begin():
        try:
            rewrite_log(path)
        except OSError as error:
            raise DriverError(error) from error


def log_size(path: Path) -> int:
    """Return the bytes of the log of a database file; 0 without a log."""
    return _size(_log_of(path))


def lone_log_reason(path: Path) -> str | None:
    """Return why a database file must not be opened, or None.

    SQLite drops the log of a file that is missing or empty.
    """
    log_path = _log_of(path)
    if _size(path) or not _size(log_path):
        return None
    state = "is empty" if path.exists() else "is missing"
    return (
        f"it {state}, but its log {log_path.name} has data: put the file back next to it, or move"
        " the log away"
    )


def unusable_reason(path: Path) -> str | None:
    """Return why a path is no database file that may be opened, or None.

    None is also returned for a missing file without a log.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return lone_log_reason(path)
    except OSError as error:
        return f"it cannot be read: {os_error_text(error)}"
    if stat.S_ISDIR(mode):
        return "it is a folder, expected a file: name another file"
    if not os.access(path, os.R_OK):
        return "it cannot be read: permission denied: change its owner or its mode"
    return lone_log_reason(path)


def is_file_damage(error: BaseException) -> bool:
    """Return whether an error says that a file is no database, or that a part of it is damaged."""
    if isinstance(error, UnicodeDecodeError):
        return True
    return _primary_code(error) in _DAMAGED


def is_disk_failure(error: BaseException) -> bool:
    """Return whether an error says that the disk of a file did not read, write or flush."""
    return _primary_code(error) == sqlite3.SQLITE_IOERR


def describe_failure(url: StoreUrl, error: BaseException, kind: str = "store") -> str:
    """Return a library's error as one line without secrets, with advice about a file or its disk.

    kind: name of the kind of database, by which the advice differs: no backup has an index, and the
        usage of a backup is older than the store.
    """
    cause = error.cause if isinstance(error, DriverError) else error
    if isinstance(error, UnicodeDecodeError):
        reason = "a text in it is damaged"
    elif isinstance(cause, OSError):
        reason = os_error_text(cause)
    else:
        reason = redacted_reason(url, error)
    if is_file_damage(error):
        advice = _ADVICE_OF_KIND.get(kind, DAMAGE_ADVICE)
    else:
        advice = _ADVICE.get(_primary_code(error), "")
    return f"{reason}: {advice}" if advice else reason


def with_outcome(error: DriverError, reason: str) -> str:
    """Return the reason of a failure, with what it means for the transaction that failed."""
    return f"{reason}; {MAY_BE_STORED}" if error.may_be_committed else reason


def open_file(path: Path, mode: str, **arguments: Any) -> sqlite3.Connection:
    """Open a SQLite file; every connection to one begins here.

    mode: ro, rw or rwc.
    arguments: further arguments of sqlite3.connect.
    Raises sqlite3.Error, also for a log without its file.
    """
    if reason := unusable_reason(path):
        raise sqlite3.OperationalError(reason)
    connection: sqlite3.Connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, **arguments
    )
    try:
        # The first statement reads the schema, and sqlite3 cannot decode the error text of a
        # damaged one.
        connection.execute("PRAGMA encoding")
    except UnicodeDecodeError:
        connection.close()
        error = sqlite3.DatabaseError("the schema is damaged")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error from None
    except BaseException:
        connection.close()
        raise
    return connection


def redacted_reason(url: StoreUrl, error: BaseException) -> str:
    """Return a library's error as one line without secrets."""
    cause = error.cause if isinstance(error, DriverError) else error
    return url.redact(" ".join(str(cause).split()))[:_MAX_REASON_CHARACTERS]


def _primary_code(error: BaseException) -> int:
    """Return SQLite's code of an error; 0 of an error of another kind."""
    cause = error.cause if isinstance(error, DriverError) else error
    if isinstance(cause, OSError):
        return _CODES_OF_SYSTEM.get(cause.errno or 0, 0)
    # The low byte of an extended code is the primary one.
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF


def _open_sqlite(path: Path, mode: str, page_bytes: int = PAGE_BYTES) -> sqlite3.Connection:
    connection = open_file(
        path, mode, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    if mode == "rwc":
        try:
            _run_all(connection, (f"page_size = {page_bytes}", *_PRAGMAS))
        except BaseException:
            connection.close()
            raise
    return connection


def _run_all(connection: sqlite3.Connection, pragmas: Sequence[str]) -> None:
    for pragma in pragmas:
        # All rows: the change of the journal's mode is committed, or fails, after the first one.
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _postgresql(url: StoreUrl, connections: int, *, is_limited: bool) -> Engine:
    parameters = server_parameters(url, is_limited=is_limited)
    # The driver begins no transaction: a connection does, together with what the transaction needs.
    engine = Engine(url, lambda: psycopg.connect(**parameters, autocommit=True), connections)
    engine.on_connect.append(_look_for_pooler)
    return engine


def _look_for_pooler(session: psycopg.Connection[Any]) -> None:
    """Prepare no statements behind a pooler of transactions, which runs each one in any session.

    A pooler makes up the process id by which a client cancels statements, so it is not that of the
    server's process.
    """
    row = session.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != session.info.backend_pid:
        session.prepare_threshold = None
