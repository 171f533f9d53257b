"""Unspent outputs: those of the database, the recent ones, and those of blocks that are not written yet.

This is the ledger's source of outputs. One statement looks up all inputs of many blocks. Most outputs are spent soon
after they are made: recent ones are in a table of their own, in the order in which they were made, and all of them in
memory. Only older outputs move to their random place in the large table.
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

_BATCH_ROWS: Final = 2_000
_COLUMNS: Final = "u.rest, u.prefix, u.output, u.asset, u.amount, u.held_on, u.owner, u.owners, i.id"
_FIND: Final = f"SELECT {_COLUMNS} FROM unspent u JOIN ids i ON i.key = u.asset WHERE u.prefix IN {{keys}}"
_RECENT: Final = f"SELECT {_COLUMNS} FROM recent_unspent u JOIN ids i ON i.key = u.asset ORDER BY u.output"
_MOVED: Final = "prefix, rest, output, asset, amount, held_on, owner, owners"
_MOVE: Final = (
    f"INSERT INTO unspent ({_MOVED}) SELECT {_MOVED} FROM recent_unspent WHERE output <= ? ORDER BY prefix, rest"
)
# The fraction of the recent outputs that stays when there are too many; and of other outputs that are cached.
_KEPT_FRACTION: Final = 0.75
_CACHED_FRACTION: Final = 0.25


@dataclass(slots=True)
class UnspentOutput:
    """A row. output, asset, owners: keys; held_on: number of the chain."""

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
        """Return the number of a primary chain. Raises KeyError for any other chain."""
        return {P_CHAIN: P, self.x: X, self.c: C}[chain_id]

    def ref_of(self, chain_id: ChainID | None) -> int | bytes | None:
        """Return the number of a primary chain, the id of any other chain, None for None."""
        return None if chain_id is None else {P_CHAIN: P, self.x: X, self.c: C}.get(chain_id, chain_id)


class UnspentOutputs:
    """The unspent outputs. engine: the writer's; capacity: the size of the table of recent outputs.

    One thread at a time calls `prefetch`, then for each block `find` (the ledger does) and `follow`. The changes that
    were followed are kept until the writer calls `on_written`, or `forget` after a failure.
    """

    def __init__(self, engine: Engine, chains: ChainIds, capacity: int) -> None:
        self._engine = engine
        self._chains = chains
        self._capacity = capacity
        # All recent outputs of the database; None until they are read.
        self._recent: dict[UtxoID, UnspentOutput] | None = None
        self._moved_through: int | None = None
        self._cached: dict[UtxoID, UnspentOutput] = {}
        self._absent: set[UtxoID] = set()
        self._made: dict[UtxoID, LedgerOutput] = {}
        self._spent: set[UtxoID] = set()
        self._external: dict[UtxoID, LedgerOutput] = {}

    def prefetch(self, ids: Iterable[UtxoID]) -> None:
        """Look up outputs that are not known yet, in a few statements. Raises StoreDown."""
        self._absent.clear()
        known = (self._recent_outputs(), self._cached, self._made)
        wanted = [utxo_id for utxo_id in ids if not any(utxo_id in outputs for outputs in known)]
        if wanted:
            self._fetch(wanted)

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> KnownUtxo | None:
        """Return the output if it is unspent on a chain. An output that was not prefetched is looked up: StoreDown."""
        if utxo_id in self._spent:
            return None
        made = self._made.get(utxo_id) or self._external.get(utxo_id)
        if made is not None:
            return made if made.held_on == held_on else None
        row = self._recent_outputs().get(utxo_id) or self._cached.get(utxo_id)
        if row is None and utxo_id not in self._absent:
            # A proposal's inputs are spent when the next block decides, which may be the first of a batch.
            self._fetch([utxo_id])
            row = self._cached.get(utxo_id)
        if row is None or row.held_on != self._chains.number_of(held_on):
            return None
        return row

    def follow(self, changes: Iterable[UtxoChanges]) -> None:
        """Apply the changes of transactions, in their order."""
        for tx in changes:
            self._spent.update(consumed.id for consumed in tx.consumed)
            self.make(tx.emitted)
            self.make(tx.released)

    def make(self, outputs: Iterable[LedgerOutput]) -> None:
        """Add outputs of blocks; a staked output is left out until it is released."""
        for output in outputs:
            if not output.staked:
                self._made[output.id] = output

    def add_external(self, outputs: Iterable[LedgerOutput]) -> None:
        """Add outputs of transactions that are not indexed, so that their spenders can show them."""
        for output in outputs:
            self._external[output.id] = output

    # The writer calls these.

    def rows(self, connection: Connection, ids: Iterable[UtxoID]) -> dict[UtxoID, UnspentOutput]:
        """Return the outputs that are in the database."""
        recent, cached = self._read_recent(connection), self._cached
        wanted = list(ids)
        known = (recent, cached, self._absent)
        self._load(connection, [utxo_id for utxo_id in wanted if not any(utxo_id in outputs for outputs in known)])
        found = {utxo_id: recent.get(utxo_id) or cached.get(utxo_id) for utxo_id in wanted}
        return {utxo_id: row for utxo_id, row in found.items() if row is not None}

    def write(self, connection: Connection, made: Mapping[UtxoID, Row], spent: Sequence[UtxoID]) -> None:
        """Insert new unspent outputs, and delete spent ones. made: all columns but the id, the output's key first."""
        recent = self._read_recent(connection)
        bulk.delete(
            connection, RECENT_UNSPENT, sorted(recent[utxo_id].output for utxo_id in spent if utxo_id in recent)
        )
        older = sorted((prefix_of(utxo_id), utxo_id[8:]) for utxo_id in spent if utxo_id not in recent)
        bulk.delete_ids(connection, UNSPENT, older)
        rows = sorted((row[0], prefix_of(utxo_id), utxo_id[8:], *row[1:]) for utxo_id, row in made.items())
        bulk.insert(connection, RECENT_UNSPENT, rows)
        if len(recent) + len(made) - (len(spent) - len(older)) > self._capacity:
            deleted = frozenset(spent)
            keys = [row.output for utxo_id, row in recent.items() if utxo_id not in deleted]
            self._move_oldest(connection, sorted(keys + [row[0] for row in made.values()]))

    def external(self, utxo_id: UtxoID) -> LedgerOutput | None:
        """Return an output of a transaction that is not indexed."""
        return self._external.get(utxo_id)

    def on_written(self, made: dict[UtxoID, UnspentOutput], spent: Iterable[UtxoID]) -> None:
        """Apply a commit, which has all changes that were followed and no others."""
        self._absent.clear()
        self._made.clear()
        self._spent.clear()
        recent = self._recent_outputs()
        recent.update(made)
        for utxo_id in spent:
            recent.pop(utxo_id, None)
            self._cached.pop(utxo_id, None)
            self._external.pop(utxo_id, None)
        if self._moved_through is not None:
            through, self._moved_through = self._moved_through, None
            self._recent = {utxo_id: row for utxo_id, row in recent.items() if row.output > through}
        excess = len(self._cached) - int(self._capacity * _CACHED_FRACTION)
        for utxo_id in list(self._cached)[: max(0, excess)]:
            del self._cached[utxo_id]

    def forget(self) -> None:
        """Drop everything in memory."""
        for outputs in (self._cached, self._absent, self._made, self._spent):
            outputs.clear()
        self._recent = self._moved_through = None

    def _recent_outputs(self) -> dict[UtxoID, UnspentOutput]:
        if self._recent is not None:
            return self._recent
        with translate_errors(self._engine), self._engine.begin() as connection:
            return self._read_recent(connection)

    def _read_recent(self, connection: Connection) -> dict[UtxoID, UnspentOutput]:
        if self._recent is None:
            self._recent = {_id_of(row): _unspent(row[2:]) for row in bulk.fetch(connection, _RECENT)}
        return self._recent

    def _move_oldest(self, connection: Connection, keys: Sequence[int]) -> None:
        """Move the oldest recent outputs to the table by id, many at a time and in order."""
        self._moved_through = through = keys[len(keys) - int(self._capacity * _KEPT_FRACTION) - 1]
        bulk.execute(connection, _MOVE, through)
        bulk.execute(connection, "DELETE FROM recent_unspent WHERE output <= ?", through)

    def _fetch(self, wanted: list[UtxoID]) -> None:
        with translate_errors(self._engine), self._engine.begin() as connection:
            self._absent.update(self._load(connection, wanted))

    def _load(self, connection: Connection, wanted: list[UtxoID]) -> set[UtxoID]:
        """Look up outputs; return those that do not exist."""
        missing = set(wanted)
        prefixes = sorted({prefix_of(utxo_id) for utxo_id in missing})
        for start in range(0, len(prefixes), _BATCH_ROWS):
            for rest, prefix, *row in bulk.run(connection, _FIND, prefixes[start : start + _BATCH_ROWS]):
                utxo_id = _id_of((rest, prefix))
                if utxo_id in missing:
                    missing.discard(utxo_id)
                    self._cached[utxo_id] = _unspent(row)
        return missing


def _id_of(row: Sequence[Any]) -> UtxoID:
    return UtxoID(row[1].to_bytes(8, "big", signed=True) + bytes(row[0]))


def _unspent(row: Sequence[Any]) -> UnspentOutput:
    output, asset, amount, held_on, owner, owners, asset_id = row
    keys = decode_owners(owners)[1] if owners is not None else () if owner is None else (owner,)
    return UnspentOutput(output, asset, AssetID(bytes(asset_id)), from_column(amount), held_on, keys)
