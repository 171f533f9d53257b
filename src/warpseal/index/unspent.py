"""Outputs that can be spent: those of the database, those made lately, and those of blocks that are not written yet.

This is the ledger's OutputSource. All inputs of many blocks are looked up in one statement; what was made a moment ago
is spent a moment later more often than not, and never looked up at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine

from warpseal.chains.ids import AssetID, UtxoID
from warpseal.index import bulk
from warpseal.index.details import decode_owners
from warpseal.index.errors import told
from warpseal.index.keys import C, P, X, from_column, prefix_of
from warpseal.ledger.outputs import KnownOutput, LedgerOutput, Moves
from warpseal.warp.ids import P_CHAIN, ChainID

_AT_ONCE: Final = 2_000
_FIND: Final = """
SELECT u.rest, u.prefix, u.output, u.asset, u.amount, u.held_on, u.owner, u.owners, i.id
FROM unspent u JOIN ids i ON i.key = u.asset WHERE u.prefix IN {keys}
"""


@dataclass(slots=True)
class Unspent:
    """One output as its row has it. output, asset, owners: keys; held_on: number of the chain."""

    output: int
    asset: int
    asset_id: AssetID
    amount: int
    held_on: int
    owners: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChainIds:
    """The blockchain ids of the network's X- and C-Chain."""

    x: ChainID
    c: ChainID

    def number_of(self, chain_id: ChainID) -> int:
        """Return the number of a primary chain. Raises KeyError for any other."""
        return {P_CHAIN: P, self.x: X, self.c: C}[chain_id]

    def ref_of(self, chain_id: ChainID | None) -> int | bytes | None:
        """Return the number of a primary chain, the id of any other, None of none."""
        return None if chain_id is None else {P_CHAIN: P, self.x: X, self.c: C}.get(chain_id, chain_id)


class UnspentOutputs:
    """What can be spent. engine: the writer's; capacity: how many recent ones are remembered.

    Used by one thread at a time: `prefetch`, then for each block `find` (by the ledger) and `follow`; what was
    followed stands until the writer tells that it is written, or that nothing of it is.
    """

    def __init__(self, engine: Engine, chains: ChainIds, capacity: int) -> None:
        self._engine = engine
        self._chains = chains
        self._capacity = capacity
        self._recent: dict[UtxoID, Unspent] = {}
        self._absent: set[UtxoID] = set()
        self._made: dict[UtxoID, LedgerOutput] = {}
        self._spent: set[UtxoID] = set()
        self._adopted: dict[UtxoID, LedgerOutput] = {}

    def prefetch(self, ids: Iterable[UtxoID]) -> None:
        """Look up what is not known yet, in a few statements. Raises StoreDown."""
        self._absent.clear()
        wanted = [one for one in ids if one not in self._recent and one not in self._made]
        if wanted:
            self._look_up(wanted)

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> KnownOutput | None:
        """Return the output that can be spent now on a chain. What was not prefetched is looked up: StoreDown."""
        if utxo_id in self._spent:
            return None
        made = self._made.get(utxo_id) or self._adopted.get(utxo_id)
        if made is not None:
            return made if made.held_on == held_on else None
        if utxo_id not in self._recent and utxo_id not in self._absent:
            # A proposal's inputs are spent when the next block decides, which may be the first of a batch.
            self._look_up([utxo_id])
        recent = self._recent.get(utxo_id)
        if recent is None or recent.held_on != self._chains.number_of(held_on):
            return None
        return recent

    def follow(self, moves: Iterable[Moves]) -> None:
        """Take in what transactions do, in their order."""
        for tx in moves:
            self._spent.update(consumed.id for consumed in tx.consumed)
            self.make(tx.emitted)
            self.make(tx.released)

    def make(self, outputs: Iterable[LedgerOutput]) -> None:
        """Take in outputs of blocks; one that is staked is left out until it is released."""
        for output in outputs:
            if not output.staked:
                self._made[output.id] = output

    def adopt(self, outputs: Iterable[LedgerOutput]) -> None:
        """Take in outputs of transactions that are not indexed, so that what spends them can tell of them."""
        for output in outputs:
            self._adopted[output.id] = output

    # What the writer asks.

    def rows(self, connection: Connection, ids: Iterable[UtxoID]) -> dict[UtxoID, Unspent]:
        """Return those that are written."""
        wanted = list(ids)
        self._load(connection, [one for one in wanted if one not in self._recent and one not in self._absent])
        recent = self._recent
        return {one: recent[one] for one in wanted if one in recent}

    def adopted(self, utxo_id: UtxoID) -> LedgerOutput | None:
        """Return an output of a transaction that is not indexed."""
        return self._adopted.get(utxo_id)

    def written(self, made: dict[UtxoID, Unspent], spent: Iterable[UtxoID]) -> None:
        """Note what was committed: everything that was followed, and no more."""
        self._absent.clear()
        self._made.clear()
        self._spent.clear()
        self._recent.update(made)
        for one in spent:
            self._recent.pop(one, None)
            self._adopted.pop(one, None)
        if len(self._recent) > self._capacity:
            for one in list(self._recent)[: len(self._recent) - self._capacity * 3 // 4]:
                del self._recent[one]

    def forget(self) -> None:
        """Begin anew with what the database has."""
        for part in (self._recent, self._absent, self._made, self._spent):
            part.clear()

    def _look_up(self, wanted: list[UtxoID]) -> None:
        with told(self._engine), self._engine.begin() as connection:
            self._absent.update(self._load(connection, wanted))

    def _load(self, connection: Connection, wanted: list[UtxoID]) -> set[UtxoID]:
        """Look up outputs; return those that are not there."""
        missing = set(wanted)
        prefixes = sorted({prefix_of(one) for one in missing})
        for start in range(0, len(prefixes), _AT_ONCE):
            for rest, prefix, *row in bulk.run(connection, _FIND, prefixes[start : start + _AT_ONCE]):
                utxo_id = UtxoID(prefix.to_bytes(8, "big", signed=True) + bytes(rest))
                if utxo_id in missing:
                    missing.discard(utxo_id)
                    self._recent[utxo_id] = _unspent(row)
        return missing


def _unspent(row: Sequence[Any]) -> Unspent:
    output, asset, amount, held_on, owner, owners, asset_id = row
    keys = decode_owners(owners)[1] if owners is not None else () if owner is None else (owner,)
    return Unspent(output, asset, AssetID(bytes(asset_id)), from_column(amount), held_on, keys)
