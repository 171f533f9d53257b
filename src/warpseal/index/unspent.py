"""Unspent outputs: of the database, and of blocks that are not written yet.

This is the ledger's source of outputs. Why recent outputs have a table of their own: docs/index.md,
section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from warpseal.chains.ids import AssetID, UtxoID
from warpseal.index import bulk
from warpseal.index.columns import decode_owners
from warpseal.index.database import translate_errors
from warpseal.index.keys import from_column, prefix_of, to_column
from warpseal.index.schema import RECENT_UNSPENT, UNSPENT
from warpseal.ledger.outputs import KnownUtxo, LedgerOutput, UtxoChanges
from warpseal.store.connection import Connection, Engine
from warpseal.warp.ids import ChainID

_COLUMNS: Final = (
    "u.rest, u.prefix, u.output, u.asset, i.id, u.amount, u.held_on, u.owner, u.owners"
)
_FIND: Final = (
    f"SELECT {_COLUMNS} FROM unspent u JOIN ids i ON i.key = u.asset WHERE u.prefix IN {{keys}}"
)
_RECENT: Final = (
    f"SELECT {_COLUMNS} FROM recent_unspent u JOIN ids i ON i.key = u.asset ORDER BY u.output"
)
_MOVED: Final = "prefix, rest, output, asset, amount, held_on, owner, owners"
_MOVE: Final = (
    f"INSERT INTO unspent ({_MOVED})"
    f" SELECT {_MOVED}"
    " FROM recent_unspent"
    " WHERE output <= ?"
    " ORDER BY prefix, rest"
)
# The fraction of the recent outputs that stays when there are too many; and of other outputs that
# are cached.
_KEPT_FRACTION: Final = 0.75
_CACHED_FRACTION: Final = 0.25


class UnspentOutput(Struct):
    """A row.

    output, asset, owner: keys.
    held_on: number of the chain that holds the output.
    owners: threshold and addresses, None with a single owner.
    """

    output: int
    asset: int
    asset_id: AssetID
    amount: int
    held_on: int
    owner: int | None
    owners: bytes | None

    @property
    def addresses(self) -> tuple[int, ...]:
        """The keys of the addresses."""
        if self.owner is not None:
            return (self.owner,)
        return () if self.owners is None else decode_owners(self.owners)[1]


class UnspentOutputs:
    """The unspent outputs.

    engine: engine of the writer.
    capacity: number of rows in the table of recent outputs.

    One thread at a time calls `prefetch`, then for each block `find` (the ledger does) and
    `follow`. The changes that were followed are kept until the writer calls `on_written`, or
    `forget` after a failure.
    """

    def __init__(self, engine: Engine, chain_numbers: Mapping[ChainID, int], capacity: int) -> None:
        self._engine = engine
        self._chain_numbers = chain_numbers
        self._capacity = capacity
        # All recent outputs of the database; None until they are read.
        self._recent: dict[UtxoID, UnspentOutput] | None = None
        self._moved_through: int | None = None
        self._cached: dict[UtxoID, UnspentOutput] = {}
        self._absent: set[UtxoID] = set()
        self._new: dict[UtxoID, LedgerOutput] = {}
        self._spent: set[UtxoID] = set()
        self._external: dict[UtxoID, LedgerOutput] = {}

    def prefetch(self, ids: Iterable[UtxoID]) -> None:
        """Look up outputs that are not known yet, in a few statements. Raises StoreDown."""
        self._absent.clear()
        self._fetch(utxo_id for utxo_id in ids if utxo_id not in self._new)

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> KnownUtxo | None:
        """Return the output if it is unspent on a chain.

        An output that was not prefetched is looked up: StoreDown.
        """
        if utxo_id in self._spent:
            return None
        output = self._new.get(utxo_id) or self._external.get(utxo_id)
        if output is not None:
            return output if output.held_on == held_on else None
        row = self._recent_outputs().get(utxo_id) or self._cached.get(utxo_id)
        if row is None and utxo_id not in self._absent:
            # A proposal's inputs are spent when the next block decides, which may be the first of a
            # batch.
            self._fetch([utxo_id])
            row = self._cached.get(utxo_id)
        return row if row is not None and row.held_on == self._chain_numbers.get(held_on) else None

    def follow(self, changes: Iterable[UtxoChanges]) -> None:
        """Apply the changes of transactions in their order, without staked outputs."""
        for tx in changes:
            self._spent.update(consumed.id for consumed in tx.consumed)
            for outputs in (tx.emitted, tx.released):
                self._new.update((output.id, output) for output in outputs if not output.staked)

    def add_external(self, outputs: Iterable[LedgerOutput]) -> None:
        """Add outputs of transactions that are not indexed, for pages of their spenders."""
        self._external.update((output.id, output) for output in outputs)

    # The writer calls these.

    def rows(self, connection: Connection, ids: Sequence[UtxoID]) -> dict[UtxoID, UnspentOutput]:
        """Return the outputs that are in the database."""
        recent = self._read_recent(connection)
        self._load(connection, self._unknown(recent, ids))
        rows = ((utxo_id, recent.get(utxo_id) or self._cached.get(utxo_id)) for utxo_id in ids)
        return {utxo_id: row for utxo_id, row in rows if row is not None}

    def write(
        self,
        connection: Connection,
        unspent: Mapping[UtxoID, UnspentOutput],
        spent: Sequence[UtxoID],
    ) -> None:
        """Insert new unspent outputs, and delete spent ones."""
        recent = self._read_recent(connection)
        newer = sorted(recent[utxo_id].output for utxo_id in spent if utxo_id in recent)
        bulk.delete(connection, RECENT_UNSPENT, newer)
        older = sorted(
            (prefix_of(utxo_id), utxo_id[8:]) for utxo_id in spent if utxo_id not in recent
        )
        bulk.delete_pairs(connection, UNSPENT, older)
        rows = [
            (
                row.output,
                prefix_of(key),
                key[8:],
                row.asset,
                to_column(row.amount),
                row.held_on,
                row.owner,
                row.owners,
            )
            for key, row in unspent.items()
        ]
        bulk.insert(connection, RECENT_UNSPENT, sorted(rows))
        if len(recent) + len(unspent) - len(newer) > self._capacity:
            deleted = frozenset(spent)
            keys = [row.output for utxo_id, row in recent.items() if utxo_id not in deleted]
            keys = sorted(keys + [row.output for row in unspent.values()])
            # The oldest move many at a time and in order.
            self._moved_through = through = keys[
                len(keys) - int(self._capacity * _KEPT_FRACTION) - 1
            ]
            connection.run(_MOVE, through)
            connection.run("DELETE FROM recent_unspent WHERE output <= ?", through)

    def external(self, utxo_id: UtxoID) -> LedgerOutput | None:
        """Return an output of a transaction that is not indexed."""
        return self._external.get(utxo_id)

    def on_written(self, unspent: dict[UtxoID, UnspentOutput], spent: Iterable[UtxoID]) -> None:
        """Apply a commit, which has all changes that were followed and no others."""
        self._absent.clear()
        self._new.clear()
        self._spent.clear()
        recent = self._recent_outputs()
        recent.update(unspent)
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
        for outputs in (self._cached, self._absent, self._new, self._spent):
            outputs.clear()
        self._recent = self._moved_through = None

    def _recent_outputs(self) -> dict[UtxoID, UnspentOutput]:
        if self._recent is not None:
            return self._recent
        with translate_errors(self._engine), self._engine.begin() as connection:
            return self._read_recent(connection)

    def _read_recent(self, connection: Connection) -> dict[UtxoID, UnspentOutput]:
        if self._recent is None:
            self._recent = dict(map(_output, connection.fetch(_RECENT)))
        return self._recent

    def _fetch(self, ids: Iterable[UtxoID]) -> None:
        unknown = self._unknown(self._recent_outputs(), ids)
        if unknown:
            with translate_errors(self._engine), self._engine.begin() as connection:
                self._load(connection, unknown)

    def _unknown(
        self, recent: Mapping[UtxoID, UnspentOutput], ids: Iterable[UtxoID]
    ) -> set[UtxoID]:
        looked_up = (recent, self._cached, self._absent)
        return {utxo_id for utxo_id in ids if not any(utxo_id in outputs for outputs in looked_up)}

    def _load(self, connection: Connection, unknown: set[UtxoID]) -> None:
        """Look up outputs by id; remember those that do not exist."""
        for utxo_id, row in map(_output, bulk.fetch_by_prefix(connection, _FIND, unknown)):
            if utxo_id in unknown:
                self._cached[utxo_id] = row
        self._absent.update(unknown.difference(self._cached))


def _output(columns: Sequence[Any]) -> tuple[UtxoID, UnspentOutput]:
    rest, prefix, output, asset, asset_id, amount, held_on, owner, owners = columns
    utxo_id = UtxoID(prefix.to_bytes(8, "big", signed=True) + bytes(rest))
    row = UnspentOutput(
        output, asset, AssetID(bytes(asset_id)), from_column(amount), held_on, owner, owners
    )
    return utxo_id, row
