"""The write-ahead log of a SQLite store: the daemon merges it, so it stays short."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tests.eventually import until
from tests.store.fixtures import message, signature, sqlite_url, store_at
from warpseal.store.engine import log_size
from warpseal.store.store import Store

LOG_BYTES: Final = 64 * 1024
# The most that one transaction of these tests writes.
BATCH_BYTES: Final = 64 * 1024
MESSAGE_BYTES: Final = 8_000
READ_S: Final = 0.01


def store_with_short_log(folder: Path, **changes: object) -> Store:
    """Return a store that flushes each commit, and merges its log early."""
    changes = {"flush_s": 0.0, "log_bytes": LOG_BYTES, "first_prune_s": 3_600.0, **changes}
    return store_at(sqlite_url(folder), **changes)


async def sign(store: Store, numbers: range) -> None:
    """Store signed messages, one after the other."""
    for number in numbers:
        await store.archive.store_signature(message(number, MESSAGE_BYTES), signature(number))
        # The writer flushes, and may merge, before it runs this.
        await store.database.write(lambda _: None)


@contextmanager
def overlapping_readers(path: Path) -> Iterator[None]:
    """Let one of two connections always read an earlier moment, each for a short time."""
    ended = threading.Event()

    def read() -> None:
        with closing(sqlite3.connect(path)) as first, closing(sqlite3.connect(path)) as second:
            while not ended.is_set():
                for connection, other in ((first, second), (second, first)):
                    connection.execute("BEGIN")
                    connection.execute("SELECT count(*) FROM messages").fetchall()
                    other.rollback()
                    ended.wait(READ_S)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def test_a_long_log_is_merged(tmp_path: Path) -> None:
    async with store_with_short_log(tmp_path) as store:
        # The tables of a new store are one transaction.
        await sign(store, range(2))
        for number in range(2, 40):
            await sign(store, range(number, number + 1))
            assert log_size(tmp_path / "store.db") <= LOG_BYTES + 2 * BATCH_BYTES


async def test_a_log_stays_bounded_while_readers_overlap(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with store_with_short_log(tmp_path) as store:
        await sign(store, range(2))
        longest = 0
        with overlapping_readers(path):
            for number in range(2, 400):
                await sign(store, range(number, number + 1))
                longest = max(longest, log_size(path))
        # Without a wait for readers it has all that was written, 7 MB.
        assert 2 * LOG_BYTES < longest <= 16 * LOG_BYTES + 2 * BATCH_BYTES


async def test_a_log_is_merged_while_many_messages_are_evicted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with store_with_short_log(tmp_path) as store:
        await sign(store, range(300))
    changes: dict[str, object] = {"max_bytes": 1, "prune_batch": 5, "first_prune_s": 0.0}
    async with store_with_short_log(tmp_path, **changes) as store:
        longest = 0

        async def is_evicted() -> bool:
            nonlocal longest
            longest = max(longest, log_size(path))
            await asyncio.sleep(0)
            return store.status().evicted == 300

        await until(is_evicted)
        assert longest <= LOG_BYTES + 2 * BATCH_BYTES
