"""The transactions that spent outputs: first in a small table, from there many at a time into the large one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from warpseal.chains.ids import UtxoID
from warpseal.index import bulk
from warpseal.index.schema import RECENT_SPENDS, SPENDS

Spend = tuple[int, int]
"""Keys of an output and of the transaction that spent it."""

_MOVE: Final = "INSERT INTO spends (output, tx) SELECT output, tx FROM recent_spends ORDER BY output"


class SpendWriter:
    """Writes spends. capacity: the size of the small table."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count: int | None = None

    def write(self, connection: Connection, spends: Sequence[Spend]) -> None:
        """Write new spends."""
        if self._count is None:
            self._count = int(bulk.fetch(connection, "SELECT count(*) FROM recent_spends")[0][0])
        bulk.insert(connection, RECENT_SPENDS, sorted(spends))
        self._count += len(spends)
        if self._count > self._capacity:
            bulk.fetch(connection, _MOVE)
            bulk.fetch(connection, "DELETE FROM recent_spends")
            self._count = 0

    def replace(self, connection: Connection, outputs: Sequence[int], spends: Sequence[Spend]) -> None:
        """Delete the spends of outputs, and write others in their place."""
        bulk.delete(connection, SPENDS, outputs)
        bulk.delete(connection, RECENT_SPENDS, outputs)
        self.write(connection, spends)


@dataclass(frozen=True, slots=True)
class SpentBeforeMade:
    """An output that was spent before the index had read the chain that made it that far.

    output: key of its placeholder row, which shows what the input shows; spender, kind: of the transaction.
    """

    output: int
    spender: int
    kind: int


@dataclass(frozen=True, slots=True)
class LateOutput:
    """Such an output, now that it is made. output: its own key; owners: keys of its addresses."""

    utxo_id: UtxoID
    early: SpentBeforeMade
    output: int
    owners: tuple[int, ...]


def load_early_spends(connection: Connection, ids: Iterable[UtxoID]) -> dict[UtxoID, SpentBeforeMade]:
    """Return the outputs that were spent early, of these."""
    wanted = frozenset(ids)
    text = (
        "SELECT e.prefix, e.rest, e.output, e.tx, t.kind FROM early_spends e JOIN txs t ON t.key = e.tx"
        " WHERE e.prefix IN {keys}"
    )
    found: dict[UtxoID, SpentBeforeMade] = {}
    for prefix, rest, *row in bulk.fetch_by_prefix(connection, text, wanted):
        utxo_id = UtxoID(prefix.to_bytes(8, "big", signed=True) + bytes(rest))
        if utxo_id in wanted:
            found[utxo_id] = SpentBeforeMade(*row)
    return found
