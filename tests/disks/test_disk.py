"""The simulated disk itself: SQLite works on it, and loses what SQLite says that it may lose."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.disks.disk import Operation, SimulatedDisk

ROWS = 40
SEEDS = 25


def open_database(path: Path, synchronous: str = "FULL") -> sqlite3.Connection:
    """Open a file with a write-ahead log, each statement its own transaction."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 20")
    return connection


def add_rows(connection: sqlite3.Connection, first: int = 0) -> None:
    """Add rows, each in its own transaction."""
    for number in range(first, first + ROWS):
        connection.execute("INSERT INTO items VALUES (?, ?)", (number, bytes(1_500)))


def read_rows(path: Path) -> list[int]:
    """Return the numbers of the rows of an undamaged file."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [number for (number,) in connection.execute("SELECT number FROM items")]


def create_items(path: Path, synchronous: str = "FULL") -> sqlite3.Connection:
    """Open a new file with an empty table that survives a power cut."""
    connection = open_database(path, synchronous)
    connection.execute("CREATE TABLE items (number INTEGER PRIMARY KEY, bytes BLOB)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return connection


def test_two_connections_see_each_other_and_files_are_plain_ones(tmp_path: Path) -> None:
    path = tmp_path / "items.db"
    with SimulatedDisk(tmp_path) as disk:
        writer, reader = create_items(path), open_database(path)
        add_rows(writer)
        assert reader.execute("SELECT count(*) FROM items").fetchone() == (ROWS,)
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            reader.execute("INSERT INTO items VALUES (-1, NULL)")
        writer.execute("ROLLBACK")
        writer.close()
        reader.close()
        assert disk.counts[Operation.WRITE] > ROWS
        assert [file.name for file in tmp_path.iterdir()] == ["items.db"]
    assert read_rows(path) == list(range(ROWS))


# Without EXTRA the folder is not flushed after a journal was removed, which is the commit.
@pytest.mark.parametrize(("mode", "synchronous"), [("WAL", "FULL"), ("DELETE", "EXTRA")])
def test_a_flushed_commit_survives_every_power_cut(
    tmp_path: Path, mode: str, synchronous: str
) -> None:
    for seed in range(SEEDS):
        path = tmp_path / f"{seed}.db"
        with SimulatedDisk(tmp_path) as disk:
            connection = create_items(path, synchronous)
            connection.execute(f"PRAGMA journal_mode = {mode}")
            add_rows(connection)
            disk.lose_power(Random(seed), is_torn=seed % 2 == 0)
            disk.restart()
            assert read_rows(path) == list(range(ROWS))
            # The interrupted process left connections behind, which must do no harm.
            with pytest.raises(sqlite3.Error):
                connection.execute("INSERT INTO items VALUES (-1, NULL)")
            connection.close()
            assert read_rows(path) == list(range(ROWS))


def test_a_power_cut_takes_the_last_commits_that_were_not_flushed(tmp_path: Path) -> None:
    row_counts = set()
    for seed in range(SEEDS):
        path = tmp_path / f"{seed}.db"
        with SimulatedDisk(tmp_path) as disk:
            connection = create_items(path, "NORMAL")
            add_rows(connection)
            disk.lose_power(Random(seed), is_torn=seed % 2 == 0)
            disk.restart()
            rows = read_rows(path)
            assert rows == list(range(len(rows)))
            row_counts.add(len(rows))
    assert len(row_counts) > 3


def test_without_flushes_a_power_cut_damages_a_file(tmp_path: Path) -> None:
    damaged = 0
    for seed in range(SEEDS):
        path = tmp_path / f"{seed}.db"
        with SimulatedDisk(tmp_path) as disk:
            connection = create_items(path, "OFF")
            add_rows(connection)
            disk.lose_power(Random(seed))
            disk.restart()
            try:
                read_rows(path)
            except (sqlite3.DatabaseError, AssertionError):
                damaged += 1
    assert damaged > 0


def test_a_killed_process_leaves_its_log_and_the_next_one_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "items.db"
    with SimulatedDisk(tmp_path) as disk:
        connection = create_items(path, "NORMAL")
        add_rows(connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM items")
        disk.kill()
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            read_rows(path)
        disk.restart()
        assert (tmp_path / "items.db-wal").stat().st_size > 0
        assert read_rows(path) == list(range(ROWS))
        connection.close()


@pytest.mark.parametrize(
    ("operation", "error", "words"),
    [
        (Operation.WRITE, errno.ENOSPC, "full"),
        (Operation.WRITE, errno.EIO, "disk I/O error"),
        (Operation.READ, errno.EIO, "disk I/O error"),
        (Operation.SYNC, errno.EIO, "disk I/O error"),
        (Operation.OPEN, errno.EIO, "unable to open"),
    ],
)
def test_an_operation_fails_at_its_number_and_later_ones_succeed(
    tmp_path: Path, operation: Operation, error: int, words: str
) -> None:
    path = tmp_path / "items.db"
    with SimulatedDisk(tmp_path) as disk:
        with closing(create_items(path)) as connection:
            add_rows(connection)

        def work() -> None:
            with closing(open_database(path)) as connection:
                connection.execute("INSERT INTO items VALUES (9999, NULL)")

        disk.fail(operation, error=error)
        with pytest.raises(sqlite3.Error, match=words):
            work()
        assert disk.failures == 1
        work()
    assert read_rows(path) == [*range(ROWS), 9999]


def test_a_failed_flush_is_forgotten_and_a_flush_by_the_program_counts(tmp_path: Path) -> None:
    def lose(flush: Callable[[SimulatedDisk, int], None], seed: int) -> int:
        path = tmp_path / f"{flush.__name__}{seed}.db"
        with SimulatedDisk(tmp_path) as disk:
            connection = create_items(path, "NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            add_rows(connection)
            fd = os.open(f"{path}-wal", os.O_RDONLY)
            flush(disk, fd)
            os.close(fd)
            disk.lose_power(Random(seed))
            disk.restart()
            return len(read_rows(path))

    def succeed(_: SimulatedDisk, fd: int) -> None:
        os.fsync(fd)

    def fail_once(disk: SimulatedDisk, fd: int) -> None:
        disk.fail(Operation.SYNC)
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(fd)
        os.fsync(fd)

    assert {lose(succeed, seed) for seed in range(5)} == {ROWS}
    assert min(lose(fail_once, seed) for seed in range(5)) < ROWS


def test_files_elsewhere_are_those_of_the_system(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    with SimulatedDisk(inside) as disk:
        disk.fail(Operation.OPEN, times=float("inf"))
        with closing(create_items(outside / "items.db")) as connection:
            add_rows(connection)
        assert not disk.counts
    assert read_rows(outside / "items.db") == list(range(ROWS))


def test_two_processes_have_a_disk_each(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with SimulatedDisk(folders[0]) as first, SimulatedDisk(folders[1]):
        connections = [create_items(folder / "items.db") for folder in folders]
        first.kill()
        with pytest.raises(sqlite3.Error):
            add_rows(connections[0])
        add_rows(connections[1])
        for connection in connections:
            connection.close()
        first.restart()
        assert read_rows(folders[0] / "items.db") == []
    assert read_rows(folders[1] / "items.db") == list(range(ROWS))
