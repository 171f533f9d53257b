"""Which transaction spent which output: in a small table first, and from there many at once, in order.

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

_SETTLE: Final = "INSERT INTO spends (output, tx) SELECT output, tx FROM recent_spends ORDER BY output"


class SpendWriter:
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
            self._count = int(bulk.fetch(connection, "SELECT count(*) FROM recent_spends")[0][0])
        bulk.insert(connection, RECENT_SPENDS, sorted(spends))
        self._count += len(spends)
        if self._count > self._capacity:
            bulk.execute(connection, _SETTLE)
            bulk.execute(connection, "DELETE FROM recent_spends")
            self._count = 0

    def rename(self, connection: Connection, gone: Sequence[int], spends: Sequence[Spend]) -> None:
        """Remove those of some outputs, and write others in their place."""
        bulk.delete(connection, SPENDS, gone)
        bulk.delete(connection, RECENT_SPENDS, gone)
        self.write(connection, spends)


@dataclass(frozen=True, slots=True)
class SpentBeforeMade:
    """An output that was spent before the chain that made it was read that far: the row it has, who spent it."""

    output: int
    spender: int
    kind: int


@dataclass(frozen=True, slots=True)
class LateOutput:
    """Such an output, now that it is made: the key that it has from now on, and whom it belonged to."""

    utxo_id: UtxoID
    early: SpentBeforeMade
    output: int
    owners: tuple[int, ...]


def load_early_spends(connection: Connection, ids: Iterable[UtxoID]) -> dict[UtxoID, SpentBeforeMade]:
    """Return, of these outputs, those that were spent early."""
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
    connection: Connection, touches: AddressTxWriter, spends: SpendWriter, completed: Sequence[LateOutput]
) -> None:
    """Let who spent them name the outputs' own rows, and the addresses of those; drop the rows made from inputs."""
    _rename_inputs(connection, completed)
    bulk.delete(connection, OUTPUTS, [one.early.output for one in completed])
    renamed = [(one.output, one.early.spender) for one in completed]
    spends.rename(connection, [one.early.output for one in completed], renamed)
    bulk.delete_ids(connection, EARLY_SPENDS, [(prefix_of(one.utxo_id), one.utxo_id[8:]) for one in completed])
    for one in completed:
        touches.add(one.early.spender, one.early.kind, one.owners)
    touches.flush(connection, is_new=False)


def _rename_inputs(connection: Connection, completed: Sequence[LateOutput]) -> None:
    names = {one.early.output: one.output for one in completed}
    spenders = sorted({one.early.spender for one in completed})
    for key, raw in bulk.run(connection, "SELECT key, detail FROM txs WHERE key IN {keys}", spenders):
        detail = decode_tx(bytes(raw))
        detail.inputs = tuple([names.get(one, one) for one in detail.inputs])
        bulk.execute(connection, "UPDATE txs SET detail = ? WHERE key = ?", encode(detail), key)
