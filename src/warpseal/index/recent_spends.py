"""Which transaction spent which output: in a small table first, and from there many at once, in order.

Outputs of any age are spent at any time: one by one, their rows would go to random places of a large table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.schema import SPENDS, SPENT_LATELY

Spend = tuple[int, int]
"""Keys of an output and of the transaction that spent it."""

_SETTLE: Final = "INSERT INTO spends (output, tx) SELECT output, tx FROM spent_lately ORDER BY output"


class Spends:
    """capacity: how many wait in the small table at most."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count: int | None = None

    def forget(self) -> None:
        """Begin anew with what the database has."""
        self._count = None

    def write(self, connection: Connection, spends: Sequence[Spend]) -> None:
        """Write new ones."""
        if self._count is None:
            self._count = int(bulk.fetch(connection, "SELECT count(*) FROM spent_lately")[0][0])
        bulk.insert(connection, SPENT_LATELY, sorted(spends))
        self._count += len(spends)
        if self._count > self._capacity:
            bulk.execute(connection, _SETTLE)
            bulk.execute(connection, "DELETE FROM spent_lately")
            self._count = 0

    def rename(self, connection: Connection, gone: Sequence[int], spends: Sequence[Spend]) -> None:
        """Remove those of some outputs, and write others in their place."""
        bulk.delete(connection, SPENDS, gone)
        bulk.delete(connection, SPENT_LATELY, gone)
        self.write(connection, spends)
