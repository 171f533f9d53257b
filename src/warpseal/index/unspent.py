"""Outputs that can be spent: those of the database, those made lately, and those of blocks that are not written yet.

This is the ledger's OutputSource. All inputs of many blocks are looked up in one statement; what was made a moment ago
is spent a moment later more often than not, and never looked up at all. Those made lately stand in a table of their
own, in the order of their making, and all of them in memory: only what outlives them goes to its random place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine

from warpseal.chains.ids import AssetID, UtxoID
from warpseal.index import bulk
from warpseal.index.bulk import Row
from warpseal.index.details import decode_owners
from warpseal.index.errors import translate_errors
from warpseal.index.keys import C, P, X, from_column, prefix_of
from warpseal.index.schema import RECENT_UNSPENT, UNSPENT
from warpseal.ledger.outputs import KnownUtxo, LedgerOutput, UtxoChanges
from warpseal.warp.ids import P_CHAIN, ChainID

_AT_ONCE: Final = 2_000
_COLUMNS: Final = "u.rest, u.prefix, u.output, u.asset, u.amount, u.held_on, u.owner, u.owners, i.id"
_FIND: Final = f"SELECT {_COLUMNS} FROM unspent u JOIN ids i ON i.key = u.asset WHERE u.prefix IN {{keys}}"
_LATELY: Final = f"SELECT {_COLUMNS} FROM recent_unspent u JOIN ids i ON i.key = u.asset ORDER BY u.output"
_SETTLED: Final = "prefix, rest, output, asset, amount, held_on, owner, owners"
_SETTLE: Final = (
    f"INSERT INTO unspent ({_SETTLED}) SELECT {_SETTLED} FROM recent_unspent WHERE output <= ? ORDER BY prefix, rest"
)
# Of what was made lately, how much stays when there is too much of it; and how many others are remembered.
_STAYS: Final = 0.75
_OTHERS: Final = 0.25


@dataclass(slots=True)
class UnspentOutput:
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
    """What can be spent. engine: the writer's; capacity: how many of those made lately stand apart.

    Used by one thread at a time: `prefetch`, then for each block `find` (by the ledger) and `follow`; what was
    followed stands until the writer tells that it is written, or that nothing of it is.
    """

    def __init__(self, engine: Engine, chains: ChainIds, capacity: int) -> None:
        self._engine = engine
        self._chains = chains
        self._capacity = capacity
        # All of them, once they are read; None: they are not.
        self._lately: dict[UtxoID, UnspentOutput] | None = None
        self._settled_through: int | None = None
        self._recent: dict[UtxoID, UnspentOutput] = {}
        self._absent: set[UtxoID] = set()
        self._made: dict[UtxoID, LedgerOutput] = {}
        self._spent: set[UtxoID] = set()
        self._adopted: dict[UtxoID, LedgerOutput] = {}

    def prefetch(self, ids: Iterable[UtxoID]) -> None:
        """Look up what is not known yet, in a few statements. Raises StoreDown."""
        self._absent.clear()
        known = (self._made_lately(), self._recent, self._made)
        wanted = [one for one in ids if not any(one in part for part in known)]
        if wanted:
            self._look_up(wanted)

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> KnownUtxo | None:
        """Return the output that can be spent now on a chain. What was not prefetched is looked up: StoreDown."""
        if utxo_id in self._spent:
            return None
        made = self._made.get(utxo_id) or self._adopted.get(utxo_id)
        if made is not None:
            return made if made.held_on == held_on else None
        recent = self._made_lately().get(utxo_id) or self._recent.get(utxo_id)
        if recent is None and utxo_id not in self._absent:
            # A proposal's inputs are spent when the next block decides, which may be the first of a batch.
            self._look_up([utxo_id])
            recent = self._recent.get(utxo_id)
        if recent is None or recent.held_on != self._chains.number_of(held_on):
            return None
        return recent

    def follow(self, moves: Iterable[UtxoChanges]) -> None:
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

    def add_external(self, outputs: Iterable[LedgerOutput]) -> None:
        """Take in outputs of transactions that are not indexed, so that what spends them can tell of them."""
        for output in outputs:
            self._adopted[output.id] = output

    # What the writer asks.

    def rows(self, connection: Connection, ids: Iterable[UtxoID]) -> dict[UtxoID, UnspentOutput]:
        """Return those that are written."""
        lately, recent = self._read_lately(connection), self._recent
        wanted = list(ids)
        known = (lately, recent, self._absent)
        self._load(connection, [one for one in wanted if not any(one in part for part in known)])
        found = {one: lately.get(one) or recent.get(one) for one in wanted}
        return {one: row for one, row in found.items() if row is not None}

    def write(self, connection: Connection, made: Mapping[UtxoID, Row], spent: Sequence[UtxoID]) -> None:
        """Write what can be spent now, and remove what was. made: all columns but the id, the output's key first."""
        lately = self._read_lately(connection)
        bulk.delete(connection, RECENT_UNSPENT, sorted(lately[one].output for one in spent if one in lately))
        settled = sorted((prefix_of(one), one[8:]) for one in spent if one not in lately)
        bulk.delete_ids(connection, UNSPENT, settled)
        bulk.insert(
            connection, RECENT_UNSPENT, sorted((row[0], prefix_of(one), one[8:], *row[1:]) for one, row in made.items())
        )
        if len(lately) + len(made) - (len(spent) - len(settled)) > self._capacity:
            gone = frozenset(spent)
            keys = [row.output for one, row in lately.items() if one not in gone]
            self._settle(connection, sorted(keys + [row[0] for row in made.values()]))

    def external(self, utxo_id: UtxoID) -> LedgerOutput | None:
        """Return an output of a transaction that is not indexed."""
        return self._adopted.get(utxo_id)

    def written(self, made: dict[UtxoID, UnspentOutput], spent: Iterable[UtxoID]) -> None:
        """Note what was committed: everything that was followed, and no more."""
        self._absent.clear()
        self._made.clear()
        self._spent.clear()
        lately = self._made_lately()
        lately.update(made)
        for one in spent:
            lately.pop(one, None)
            self._recent.pop(one, None)
            self._adopted.pop(one, None)
        if self._settled_through is not None:
            through, self._settled_through = self._settled_through, None
            self._lately = {one: row for one, row in lately.items() if row.output > through}
        excess = len(self._recent) - int(self._capacity * _OTHERS)
        for one in list(self._recent)[: max(0, excess)]:
            del self._recent[one]

    def forget(self) -> None:
        """Begin anew with what the database has."""
        for part in (self._recent, self._absent, self._made, self._spent):
            part.clear()
        self._lately = self._settled_through = None

    def _made_lately(self) -> dict[UtxoID, UnspentOutput]:
        if self._lately is not None:
            return self._lately
        with translate_errors(self._engine), self._engine.begin() as connection:
            return self._read_lately(connection)

    def _read_lately(self, connection: Connection) -> dict[UtxoID, UnspentOutput]:
        if self._lately is None:
            self._lately = {_id_of(row): _unspent(row[2:]) for row in bulk.fetch(connection, _LATELY)}
        return self._lately

    def _settle(self, connection: Connection, keys: Sequence[int]) -> None:
        """Move the oldest of those made lately to where they are found by id, many at once and in order."""
        self._settled_through = through = keys[len(keys) - int(self._capacity * _STAYS) - 1]
        bulk.execute(connection, _SETTLE, through)
        bulk.execute(connection, "DELETE FROM recent_unspent WHERE output <= ?", through)

    def _look_up(self, wanted: list[UtxoID]) -> None:
        with translate_errors(self._engine), self._engine.begin() as connection:
            self._absent.update(self._load(connection, wanted))

    def _load(self, connection: Connection, wanted: list[UtxoID]) -> set[UtxoID]:
        """Look up outputs; return those that are not there."""
        missing = set(wanted)
        prefixes = sorted({prefix_of(one) for one in missing})
        for start in range(0, len(prefixes), _AT_ONCE):
            for rest, prefix, *row in bulk.run(connection, _FIND, prefixes[start : start + _AT_ONCE]):
                utxo_id = _id_of((rest, prefix))
                if utxo_id in missing:
                    missing.discard(utxo_id)
                    self._recent[utxo_id] = _unspent(row)
        return missing


def _id_of(row: Sequence[Any]) -> UtxoID:
    return UtxoID(row[1].to_bytes(8, "big", signed=True) + bytes(row[0]))


def _unspent(row: Sequence[Any]) -> UnspentOutput:
    output, asset, amount, held_on, owner, owners, asset_id = row
    keys = decode_owners(owners)[1] if owners is not None else () if owner is None else (owner,)
    return UnspentOutput(output, asset, AssetID(bytes(asset_id)), from_column(amount), held_on, keys)
