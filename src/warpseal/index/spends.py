"""The transactions that spent outputs: first in a small table, from there many at a time into the large one, in order.

Outputs of any age are spent at any time: one by one, their rows would go to random places of a large table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from warpseal.chains.ids import UtxoID
from warpseal.index import bulk
from warpseal.index.address_txs import AddressTxWriter
from warpseal.index.details import decode_tx, encode
from warpseal.index.keys import prefix_of
from warpseal.index.schema import EARLY_SPENDS, OUTPUTS, RECENT_SPENDS, SPENDS

Spend = tuple[int, int]
"""Keys of an output and of the transaction that spent it."""

_MOVE: Final = "INSERT INTO spends (output, tx) SELECT output, tx FROM recent_spends ORDER BY output"


class SpendWriter:
    """Writes spends. capacity: the size of the small table."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count: int | None = None

    def forget(self) -> None:
        """Drop everything in memory."""
        self._count = None

    def write(self, connection: Connection, spends: Sequence[Spend]) -> None:
        """Write new spends."""
        if self._count is None:
            self._count = int(bulk.fetch(connection, "SELECT count(*) FROM recent_spends")[0][0])
        bulk.insert(connection, RECENT_SPENDS, sorted(spends))
        self._count += len(spends)
        if self._count > self._capacity:
            bulk.execute(connection, _MOVE)
            bulk.execute(connection, "DELETE FROM recent_spends")
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
    wanted = set(ids)
    text = (
        "SELECT e.prefix, e.rest, e.output, e.tx, t.kind FROM early_spends e JOIN txs t ON t.key = e.tx"
        " WHERE e.prefix IN {keys}"
    )
    found: dict[UtxoID, SpentBeforeMade] = {}
    for prefix, rest, *row in bulk.run(connection, text, sorted(map(prefix_of, wanted))):
        utxo_id = UtxoID(prefix.to_bytes(8, "big", signed=True) + bytes(rest))
        if utxo_id in wanted:
            found[utxo_id] = SpentBeforeMade(*row)
    return found


def replace_placeholders(
    connection: Connection, address_txs: AddressTxWriter, spends: SpendWriter, late: Sequence[LateOutput]
) -> None:
    """Make the spenders name the outputs' own rows, and the addresses of those; delete the placeholder rows."""
    _replace_inputs(connection, late)
    placeholders = [output.early.output for output in late]
    bulk.delete(connection, OUTPUTS, placeholders)
    spends.replace(connection, placeholders, [(output.output, output.early.spender) for output in late])
    bulk.delete_ids(connection, EARLY_SPENDS, [(prefix_of(output.utxo_id), output.utxo_id[8:]) for output in late])
    for output in late:
        address_txs.add(output.early.spender, output.early.kind, output.owners)
    address_txs.flush(connection, is_new=False)


def _replace_inputs(connection: Connection, late: Sequence[LateOutput]) -> None:
    replaced = {output.early.output: output.output for output in late}
    spenders = sorted({output.early.spender for output in late})
    for key, raw in bulk.run(connection, "SELECT key, detail FROM txs WHERE key IN {keys}", spenders):
        detail = decode_tx(bytes(raw))
        detail.inputs = tuple([replaced.get(output, output) for output in detail.inputs])
        bulk.execute(connection, "UPDATE txs SET detail = ? WHERE key = ?", encode(detail), key)
