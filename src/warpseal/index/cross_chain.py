"""Outputs that are spent before the chain that made them is read that far: the three chains are read at their own pace.

What the input tells of such an output is written at once; when the output itself comes, it takes that row's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from warpseal.chains.ids import UtxoID
from warpseal.index import bulk
from warpseal.index.address_txs import Touches
from warpseal.index.details import decode_tx, encode
from warpseal.index.keys import prefix_of
from warpseal.index.recent_spends import Spends
from warpseal.index.schema import EARLY, OUTPUTS


@dataclass(frozen=True, slots=True)
class EarlySpend:
    """An output that was spent before the chain that made it was read that far: the row it has, who spent it."""

    output: int
    spender: int
    kind: int


@dataclass(frozen=True, slots=True)
class Completion:
    """Such an output, now that it is made: the key that it has from now on, and whom it belonged to."""

    utxo_id: UtxoID
    early: EarlySpend
    output: int
    owners: tuple[int, ...]


def early_spends(connection: Connection, ids: Iterable[UtxoID]) -> dict[UtxoID, EarlySpend]:
    """Return, of these outputs, those that were spent early."""
    wanted = set(ids)
    text = (
        "SELECT e.prefix, e.rest, e.output, e.tx, t.kind FROM early e JOIN txs t ON t.key = e.tx"
        " WHERE e.prefix IN {keys}"
    )
    found: dict[UtxoID, EarlySpend] = {}
    for prefix, rest, *row in bulk.run(connection, text, sorted(map(prefix_of, wanted))):
        utxo_id = UtxoID(prefix.to_bytes(8, "big", signed=True) + bytes(rest))
        if utxo_id in wanted:
            found[utxo_id] = EarlySpend(*row)
    return found


def complete(connection: Connection, touches: Touches, spends: Spends, completed: Sequence[Completion]) -> None:
    """Let who spent them name the outputs' own rows, and the addresses of those; drop the rows made from inputs."""
    _rename_inputs(connection, completed)
    bulk.delete(connection, OUTPUTS, [one.early.output for one in completed])
    renamed = [(one.output, one.early.spender) for one in completed]
    spends.rename(connection, [one.early.output for one in completed], renamed)
    bulk.delete_ids(connection, EARLY, [(prefix_of(one.utxo_id), one.utxo_id[8:]) for one in completed])
    for one in completed:
        touches.add(one.early.spender, one.early.kind, one.owners)
    touches.flush(connection, is_new=False)


def _rename_inputs(connection: Connection, completed: Sequence[Completion]) -> None:
    names = {one.early.output: one.output for one in completed}
    spenders = sorted({one.early.spender for one in completed})
    for key, raw in bulk.run(connection, "SELECT key, detail FROM txs WHERE key IN {keys}", spenders):
        detail = decode_tx(bytes(raw))
        detail.inputs = tuple([names.get(one, one) for one in detail.inputs])
        bulk.execute(connection, "UPDATE txs SET detail = ? WHERE key = ?", encode(detail), key)
