"""The file of blocks that were read before the index got to them: SQLite, some blocks to a row, one version.

Source of truth: this module. To lose the file costs reading those blocks again, so what cannot be used is thrown away.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import zstandard

from warpseal.errors import StoreDown
from warpseal.indexer.proposervm_blocks import RawBlock
from warpseal.store.engine import create_private

T = TypeVar("T")

WAITING_NAME: Final = "waiting-blocks.db"
GROUP_BLOCKS: Final = 32
"""Blocks of one row: those whose heights, divided by it, are the row's number."""
FORGOTTEN_AT_ONCE: Final = 256
VERSION: Final = 1

_LEVEL: Final = 3
_MOST_GROUP_BYTES: Final = 64 * 1024 * 1024
# Of one answer to whoever reads; a few of them wait to be written at once.
_MOST_READ_BYTES: Final = 64 * 1024 * 1024
# What is written next to it matters more.
_LEFT_FREE_BYTES: Final = 256 * 1024 * 1024
_BUSY_S: Final = 0.5
_READ_BUSY_S: Final = 0.2
_WAL_BYTES: Final = 16 * 1024 * 1024
_SIDE_FILES: Final = ("", "-wal", "-shm")
# The file is as it should be; it only cannot be written now.
_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
_SELECT: Final = "SELECT body FROM groups WHERE number = ?"

Slots = list[tuple[bool, bytes] | None]
"""The blocks of a row by their place in it: whether each is a container, and its bytes; None: it is not there."""
_SLOTS: Final = msgspec.msgpack.Decoder(Slots)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Blocks by height. next_height: about where those begin that lie behind what was asked for; None: none do."""

    found: dict[int, RawBlock] = field(default_factory=dict)
    next_height: int | None = None


class WaitingFile:
    """The one who writes. Used from one thread; every method raises StoreDown where the file cannot be used now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)

    def put(self, blocks: Mapping[int, RawBlock]) -> None:
        """Keep blocks by height; those that are there already are replaced."""
        self._on_file(lambda connection: self._put(connection, blocks))

    def group(self, number: int) -> dict[int, RawBlock]:
        """Return the blocks of one row, by height."""
        return self._on_file(lambda connection: _blocks_of(number, connection.execute(_SELECT, (number,)).fetchone()))

    def take_out(self, height: int) -> None:
        """Forget one block."""
        self._on_file(lambda connection: self._take_out(connection, height))

    def forget(self, height: int) -> int:
        """Forget the lowest rows of those that end at or below a height, FORGOTTEN_AT_ONCE at most; return how many."""
        return self._on_file(lambda connection: _forget(connection, height))

    def is_empty(self) -> bool:
        """Tell whether nothing waits."""
        return self._on_file(lambda connection: not connection.execute("SELECT 1 FROM groups LIMIT 1").fetchall())

    def shrink(self) -> None:
        """Give the room of what was forgotten back."""
        self._on_file(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _put(self, connection: sqlite3.Connection, blocks: Mapping[int, RawBlock]) -> None:
        if shutil.disk_usage(self._path.parent).free < _LEFT_FREE_BYTES:
            raise StoreDown("the disk is almost full")
        for number, heights in groupby(sorted(blocks), key=lambda height: height // GROUP_BLOCKS):
            held = _blocks_of(number, connection.execute(_SELECT, (number,)).fetchone())
            held |= {height: blocks[height] for height in heights}
            self._write(connection, number, held)

    def _take_out(self, connection: sqlite3.Connection, height: int) -> None:
        number = height // GROUP_BLOCKS
        held = _blocks_of(number, connection.execute(_SELECT, (number,)).fetchone())
        if held.pop(height, None) is not None:
            self._write(connection, number, held)

    def _write(self, connection: sqlite3.Connection, number: int, held: Mapping[int, RawBlock]) -> None:
        slots: Slots = [None] * GROUP_BLOCKS
        for height, block in held.items():
            slots[height % GROUP_BLOCKS] = (block.is_container, block.raw)
        body = self._compressor.compress(msgspec.msgpack.encode(slots))
        connection.execute("INSERT OR REPLACE INTO groups (number, body) VALUES (?, ?)", (number, body))

    def _on_file(self, do: Callable[[sqlite3.Connection], T]) -> T:
        """Do something in one transaction; a file that is broken is begun anew, once."""
        try:
            return self._once(do)
        except sqlite3.Error as error:
            self.close()
            if _is_passing(error):
                raise StoreDown(str(error)) from None
        except OSError as error:
            self.close()
            raise StoreDown(error.strerror or type(error).__name__) from None
        try:
            self._throw_away()
            return self._once(do)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StoreDown(str(error)) from None

    def _once(self, do: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._opened()
        with self._connection as connection:
            return do(connection)

    def _opened(self) -> sqlite3.Connection:
        create_private(self._path)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
        try:
            return _prepared(connection)
        except BaseException:
            connection.close()
            raise

    def _throw_away(self) -> None:
        for suffix in _SIDE_FILES:
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


def waiting_between(path: Path, first: int, last: int) -> Waiting:
    """Return which of the blocks from `first` to `last` wait in a file that another process may be writing.

    A file that is not there, or cannot be read now, has none. At most 64 MiB are returned.
    """
    if not path.is_file():
        return Waiting()
    try:
        with closing(_reading(path)) as connection:
            return _between(connection, first, last)
    except sqlite3.Error:
        return Waiting()


def _between(connection: sqlite3.Connection, first: int, last: int) -> Waiting:
    if connection.execute("PRAGMA user_version").fetchone() != (VERSION,):
        return Waiting()
    found: dict[int, RawBlock] = {}
    size = 0
    low, high = first // GROUP_BLOCKS, last // GROUP_BLOCKS
    text = "SELECT number, body FROM groups WHERE number BETWEEN ? AND ? ORDER BY number"
    for number, body in connection.execute(text, (low, high)):
        for height, block in _blocks_of(number, (body,)).items():
            size += len(block.raw)
            if first <= height <= last and size <= _MOST_READ_BYTES:
                found[height] = block
    behind = connection.execute("SELECT min(number) FROM groups WHERE number > ?", (high,)).fetchone()[0]
    return Waiting(found, behind * GROUP_BLOCKS if isinstance(behind, int) else None)


def _reading(path: Path) -> sqlite3.Connection:
    # Opened each time: another process may throw the file away.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_READ_BUSY_S, isolation_level=None)


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return a connection to a file of this version. Raises sqlite3.DatabaseError where it is of another."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"version {version}")
    # Has to come before anything else is written.
    connection.execute("PRAGMA auto_vacuum = FULL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if version == 0:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE groups (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")
            connection.execute(f"PRAGMA user_version = {VERSION}")
    return connection


def _forget(connection: sqlite3.Connection, height: int) -> int:
    below = (height + 1) // GROUP_BLOCKS
    text = "DELETE FROM groups WHERE number IN (SELECT number FROM groups WHERE number < ? ORDER BY number LIMIT ?)"
    return connection.execute(text, (below, FORGOTTEN_AT_ONCE)).rowcount


def _blocks_of(number: int, row: tuple[object] | None) -> dict[int, RawBlock]:
    """Return the blocks of a row by height; none where its bytes are no blocks."""
    body = row[0] if row else None
    if not isinstance(body, bytes):
        return {}
    try:
        if not 0 <= zstandard.frame_content_size(body) <= _MOST_GROUP_BYTES:
            return {}
        slots = _SLOTS.decode(zstandard.ZstdDecompressor().decompress(body))
    except (zstandard.ZstdError, msgspec.MsgspecError):
        return {}
    first = number * GROUP_BLOCKS
    return {first + n: RawBlock(slot[1], slot[0]) for n, slot in enumerate(slots[:GROUP_BLOCKS]) if slot is not None}


def _is_passing(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in _PASSING
