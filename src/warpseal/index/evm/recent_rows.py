"""Rows that are written at random places: new ones go into a small table, and from there into a large one in order.

The small table stays in memory. What moves at a time is one range of keys, so it changes few pages of the large table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table

from warpseal.index import bulk

_MIN_KEY: Final = -(2**63)


class RecentRows:
    """A small table in front of a large one with the same key.

    capacity: rows of the small table. gone: the condition of a row of the small table that says that the row of the
    large one is gone; rows that are never gone have none.
    """

    def __init__(self, recent: Table, older: Table, capacity: int, gone: str = "0") -> None:
        self._recent = recent
        self._older = older
        self._capacity = capacity
        keys = [column.name for column in older.primary_key]
        self._key, marks = ", ".join(keys), ", ".join("?" for _ in keys)
        columns = ", ".join(column.name for column in older.c)
        self._count_text = f"SELECT count(*) FROM {recent.name}"
        self._next_text = (
            f"SELECT {columns}, {gone} FROM {recent.name} WHERE ({self._key}) > ({marks}) ORDER BY {self._key} LIMIT ?"
        )
        self._delete_text = f"DELETE FROM {recent.name} WHERE ({self._key}) > ({marks}) AND ({self._key}) <= ({marks})"
        self._start = (_MIN_KEY,) * len(keys)
        # The last moved key, and at most how many rows the small table has.
        self._last: tuple[int, ...] = self._start
        self._count: int | None = None

    def open(self) -> None:
        """Forget what is known of the database."""
        self._count = None

    def put(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add or replace rows of the small table, and move as many as it has too many, those with the next keys."""
        if not rows:
            return
        bulk.upsert(connection, self._recent, rows)
        if self._count is not None:
            self._count += len(rows)
        if self._count is None or self._count > self._capacity:
            ((self._count,),) = bulk.fetch(connection, self._count_text)
            self._move(connection, self._count - self._capacity)

    def _move(self, connection: Connection, excess: int) -> None:
        """Move rows behind the last moved one, and then those from the first one on."""
        excess -= self._move_next(connection, excess) if excess > 0 else 0
        if excess > 0:
            self._last = self._start
            self._move_next(connection, excess)

    def _move_next(self, connection: Connection, limit: int) -> int:
        """Move the next rows; return how many there were."""
        rows = bulk.fetch(connection, self._next_text, *self._last, limit)
        if not rows:
            return 0
        width = len(self._start)
        last = tuple(rows[-1][:width])
        bulk.fetch(connection, self._delete_text, *self._last, *last)
        bulk.upsert(connection, self._older, [tuple(row[:-1]) for row in rows if not row[-1]])
        gone = [tuple(row[:width]) for row in rows if row[-1]]
        if width == 1:
            bulk.delete(connection, self._older, [key for (key,) in gone])
        else:
            bulk.delete_pairs(connection, self._older, gone)
        self._last = last
        assert self._count is not None
        self._count -= len(rows)
        return len(rows)
