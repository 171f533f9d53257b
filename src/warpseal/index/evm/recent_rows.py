"""Rows at random places: written into a small table, and from there in order into a large one.

The small table stays in memory. The rows that move at a time are one range of keys, so they change
few pages of the large table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

from warpseal.index import bulk
from warpseal.index.bulk import Row
from warpseal.index.evm.schema import LayeredTable
from warpseal.store.connection import Connection
from warpseal.store.tables import Table

K = TypeVar("K")
V = TypeVar("V")

_MIN_KEY: Final = -(2**63)
_MAX_KEY: Final = 2**63 - 1
# Behind every rank, which begins with the inverted length of a number.
_MAX_BYTES: Final = b"\xff" * 2


class RecentRows:
    """The writer of a small table in front of a large one.

    capacity: rows of the small table.
    """

    def __init__(self, table: LayeredTable, capacity: int) -> None:
        recent, older = table.recent, table.older
        self._recent = recent
        self._capacity = capacity
        key = ", ".join(column.name for column in older.key)
        marks = ", ".join("?" for _ in older.key)
        self._count_text = f"SELECT count(*) FROM {recent.name}"
        self._last_text = f"""
            SELECT {key}
            FROM {recent.name}
            WHERE ({key}) > ({marks})
            ORDER BY {key}
            LIMIT 1 OFFSET ?
        """
        self._move_texts = _move_texts(table, key, marks)
        # The places before all keys and behind them, and the last key that was moved.
        is_bytes = [column.kind == "bytes" for column in older.key]
        self._before: Row = tuple(b"" if raw else _MIN_KEY for raw in is_bytes)
        self._behind: Row = tuple(_MAX_BYTES if raw else _MAX_KEY for raw in is_bytes)
        self._last = self._before
        # An upper bound of the rows of the small table; None before they are counted.
        self._count: int | None = None

    def put(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add or replace rows of the small table, and move the rows beyond its capacity."""
        if not rows:
            return
        bulk.upsert(connection, self._recent, rows)
        if self._count is not None:
            self._count += len(rows)
        if self._count is None or self._count > self._capacity:
            ((self._count,),) = connection.fetch(self._count_text)
            excess = self._count - self._capacity
            if excess > 0:
                # In turns through all keys: old rows leave the small table, and a range of
                # neighbours moves at a time.
                moved = self._move_next(connection, excess)
                if moved < excess:
                    self._last = self._before
                    moved += self._move_next(connection, excess - moved)
                self._count -= moved

    def _move_next(self, connection: Connection, limit: int) -> int:
        """Move at most `limit` rows behind the last moved one; return their number."""
        rows = connection.fetch(self._last_text, *self._last, limit - 1)
        last = tuple(rows[0]) if rows else self._behind
        moved = 0
        for text in self._move_texts:
            moved = connection.run(text, *self._last, *last)
        self._last = last
        return moved


def _move_texts(table: LayeredTable, key: str, marks: str) -> list[str]:
    """Return the statements that move a range of keys, each with its two bounds as values.

    A row that is gone is deleted from the large table before the others are inserted there, and the
    small table is emptied last: the statements before it read its rows.
    """
    recent, older, gone = table.recent.name, table.older, table.gone
    between = f"({key}) > ({marks}) AND ({key}) <= ({marks})"
    is_there = f"AND {gone} <> 0" if gone else ""
    texts = [
        f"""
            INSERT INTO {older.name} ({older.names})
            SELECT {older.names}
            FROM {recent}
            WHERE {between} {is_there}
            ORDER BY {key}
            {older.on_conflict}
        """,
        f"""
            DELETE FROM {recent}
            WHERE {between}
        """,
    ]
    if gone:
        delete_gone = f"""
            DELETE FROM {older.name}
            WHERE ({key}) IN (
                SELECT {key}
                FROM {recent}
                WHERE {between} AND {gone} = 0
            )
        """
        texts.insert(0, delete_gone)
    return texts


def find_held(
    connection: Connection, table: LayeredTable, pairs: set[tuple[int, int]]
) -> Iterator[Sequence[Any]]:
    """Yield the rows with these keys of two numbers, as the large table has them.

    table: layers of a table of holdings: the last column of the small one is `is_held`.
    """
    # A row of the small table counts before the large table's, also if it says that nothing is
    # held.
    newer = set()
    for *row, is_held in bulk.fetch_by_pairs(connection, _text_by_pairs(table.recent), pairs):
        newer.add((row[0], row[1]))
        if is_held:
            yield row
    yield from bulk.fetch_by_pairs(connection, _text_by_pairs(table.older), pairs - newer)


@cache
def _text_by_pairs(table: Table) -> str:
    first, second, *_ = names = [column.name for column in table.columns]
    columns = ", ".join(f"h.{name}" for name in names)
    return f"""
        SELECT {columns}
        FROM {{pairs}} JOIN {table.name} h ON h.{first} = p.a AND h.{second} = p.b
    """


def forget_oldest(cached: dict[K, V], most: int) -> None:
    """Remove the entries that were added first until at most `most` are left."""
    for key in list(islice(cached, max(0, len(cached) - most))):
        del cached[key]
