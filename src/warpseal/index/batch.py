"""The rows of a batch of blocks before they are written, and the outputs that the blocks change.

Spends go first into a small table, and from there many at a time into the large one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from warpseal.chains.ids import TxID, UtxoID
from warpseal.index import bulk, schema
from warpseal.index.bulk import IdTable, Row
from warpseal.index.columns import (
    PROPOSED,
    ChainRef,
    OutputDetail,
    TxDetail,
    decode_tx,
    encode,
    flags_of,
)
from warpseal.index.errors import IndexDamaged
from warpseal.index.keys import chain_of, partition_of, prefix_of, to_column
from warpseal.index.unspent import UnspentOutput, UnspentOutputs
from warpseal.ledger.outputs import Consumed, LedgerOutput
from warpseal.store.connection import Connection
from warpseal.store.tables import Table
from warpseal.warp.ids import ChainID

_OwnerColumns = tuple[int | None, bytes | None]
Spend = tuple[int, int]
"""Keys of an output and of the transaction that spent it."""

_MOVE: Final = (
    "INSERT INTO spends (output, tx) SELECT output, tx FROM recent_spends ORDER BY output"
)


class SpentBeforeMade(Struct, frozen=True):
    """An output that was spent before the index had read the chain that made it that far.

    output: key of its placeholder row, which shows what the input shows.
    spender, kind: key and type of the transaction that spent it.
    """

    output: int
    spender: int
    kind: int


class LateOutput(Struct, frozen=True):
    """Such an output, once it is made.

    output: key of the output itself, not of a placeholder.
    owners: keys of the addresses that own the output.
    """

    utxo_id: UtxoID
    early: SpentBeforeMade
    output: int
    owners: tuple[int, ...]


class NextKeys(Struct):
    """The next free keys."""

    output: int
    reward: int
    raw: int


class TxInProgress(Struct):
    """A transaction that is being written.

    kind: number of the transaction's type.
    touched: keys of the addresses that the transaction touches.

    time_s: time of the transaction's block.
    settled_s: time of the block that decided it, mostly the same block.
    """

    key: int
    tx_id: TxID
    kind: int
    time_s: int
    settled_s: int
    touched: set[int] = msgspec.field(default_factory=set)


@dataclass(slots=True)
class IndexBatch:
    """The batch.

    avax: key of the asset.
    stored: outputs in the database that this batch spends.

    early: outputs that were spent before they were made; see `SpentBeforeMade`.
    new, changed: rows by table.
    unspent: outputs that the batch makes, as long as it does not spend them.
    """

    connection: Connection
    ids: IdTable
    outputs: UnspentOutputs
    chain_numbers: Mapping[ChainID, int]
    next_keys: NextKeys
    address_txs: AddressTxWriter
    spends: SpendWriter
    avax: int
    stored: Mapping[UtxoID, UnspentOutput]
    early: dict[UtxoID, SpentBeforeMade]
    new: dict[str, tuple[Table, list[Row]]] = field(default_factory=dict)
    changed: dict[str, tuple[Table, list[Row]]] = field(default_factory=dict)
    unspent: dict[UtxoID, UnspentOutput] = field(default_factory=dict)
    spent: list[UtxoID] = field(default_factory=list)
    late: list[LateOutput] = field(default_factory=list)
    external_outputs: list[LedgerOutput] = field(default_factory=list)
    _txs: dict[int, Row] = field(default_factory=dict)
    _spends: list[Spend] = field(default_factory=list)
    # The list that most rows go into.
    _output_rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        self._output_rows = self.new.setdefault(schema.OUTPUTS.name, (schema.OUTPUTS, []))[1]

    def add(self, table: Table, row: Row) -> None:
        """Add a row."""
        self.new.setdefault(table.name, (table, []))[1].append(row)

    def change(self, table: Table, row: Row) -> None:
        """Write a row in place of the one with the same key."""
        self.changed.setdefault(table.name, (table, []))[1].append(row)

    def put_tx(
        self, tx: TxInProgress, height: int | None, outcome: int, outputs: range, detail: TxDetail
    ) -> None:
        """Write a transaction and the addresses that it touches.

        outputs: keys of the outputs that the transaction makes.

        The row of a decided proposal replaces the row of the proposal.
        """
        moved = len(detail.inputs) + len(outputs) + len(detail.released)
        columns = (
            tx.tx_id,
            height,
            tx.time_s,
            tx.kind,
            outcome,
            outputs.start,
            len(outputs),
            moved,
            encode(detail),
        )
        if outcome > PROPOSED and tx.key not in self._txs:
            self.change(schema.TXS, (tx.key, *columns))
        else:
            self._txs[tx.key] = (tx.key, *columns)
        self.address_txs.add(tx.key, tx.kind, tx.touched)

    def chain_ref(self, chain_id: ChainID | None) -> ChainRef | None:
        """Return the number of a primary chain, the id of any other chain, None for None."""
        return None if chain_id is None else self.chain_numbers.get(chain_id, chain_id)

    # Outputs

    def emit(
        self, tx: TxInProgress, outputs: Sequence[LedgerOutput], origin: int | None = None
    ) -> range:
        """Write the outputs that a transaction makes, and return their keys.

        origin: the key of the transaction whose id outputs have that do not have this transaction's
            id.
        """
        first = self.next_keys.output
        for key, output in enumerate(outputs, first):
            self._emit(key, tx, output, origin)
        self.next_keys.output += len(outputs)
        return range(first, first + len(outputs))

    def release(
        self, tx: TxInProgress, outputs: Sequence[LedgerOutput], first_out: int
    ) -> tuple[int, ...]:
        """Make staked outputs spendable; return their keys.

        first_out: key of the first output of the staking.
        """
        keys = [first_out + output.output_index for output in outputs]
        for key, output in zip(keys, outputs, strict=True):
            asset, addresses, owner = self._columns(output)
            tx.touched.update(addresses)
            self._add_unspent(key, output, asset, owner)
        return tuple(keys)

    def consume(self, tx: TxInProgress, consumed: Sequence[Consumed]) -> tuple[int, ...]:
        """Write the outputs that a transaction spends; return their keys, in order."""
        keys = []
        for spent in consumed:
            # An output that is made and spent in one batch never gets a row among the unspent ones.
            output = self.unspent.pop(spent.id, None)
            if output is None:
                output = self.stored.get(spent.id)
                if output is not None:
                    self.spent.append(spent.id)
            if output is None:
                key = self._add_unknown(tx, spent)
            else:
                key = output.output
                tx.touched.update(output.addresses)
            self._spends.append((key, tx.key))
            keys.append(key)
        return tuple(keys)

    def flush(self) -> None:
        """Write all rows."""
        self.outputs.write(self.connection, self.unspent, self.spent)
        bulk.insert(self.connection, schema.TXS, list(self._txs.values()))
        # Neighbours are written together.
        ids = sorted((partition_of(key), prefix_of(row[1]), key) for key, row in self._txs.items())
        bulk.insert(self.connection, schema.TX_IDS, ids)
        for table, rows in self.new.values():
            bulk.insert(self.connection, table, rows)
        for table, rows in self.changed.values():
            # The first column is the key; the last row with a key counts.
            bulk.replace(self.connection, table, list({row[0]: row for row in rows}.values()))
        self.spends.write(self.connection, self._spends)
        self.address_txs.flush(self.connection)
        if self.late:
            self._replace_placeholders()

    def _emit(self, key: int, tx: TxInProgress, output: LedgerOutput, origin: int | None) -> None:
        unindexed = None
        if output.tx_id == tx.tx_id:
            origin = None
        elif origin is None:
            unindexed = output.tx_id
        asset, addresses, owner = self._columns(output)
        tx.touched.update(addresses)
        self._add_row((key, tx.key, origin), output, asset, owner, unindexed)
        early = self.early.get(output.id) if output.created_on != output.held_on else None
        if early is not None:
            self.late.append(LateOutput(output.id, early, key, addresses))
        elif not output.staked:
            self._add_unspent(key, output, asset, owner)

    def _add_unspent(
        self, key: int, output: LedgerOutput, asset: int, owner: _OwnerColumns
    ) -> None:
        held_on = self.chain_numbers.get(output.held_on)
        if held_on is not None:
            self.unspent[output.id] = UnspentOutput(
                key, asset, output.asset_id, output.amount, held_on, *owner
            )

    def _add_unknown(self, tx: TxInProgress, consumed: Consumed) -> int:
        """Write an output that no indexed block has made yet; return its key."""
        external = self.outputs.external(consumed.id)
        if external is not None:
            self.external_outputs.append(external)
        output = external or consumed.reconstructed
        if output is None:
            raise IndexDamaged(f"output {consumed.id.hex()} is spent but was never written")
        key = self.next_keys.output
        self.next_keys.output += 1
        asset, addresses, owner = self._columns(output)
        tx.touched.update(addresses)
        self._add_row((key, None, None), output, asset, owner, output.tx_id)
        if output.created_on != output.held_on:
            self.add(schema.EARLY_SPENDS, (prefix_of(output.id), output.id[8:], key, tx.key))
            self.early[output.id] = SpentBeforeMade(key, tx.key, tx.kind)
        return key

    def _add_row(
        self,
        keys: tuple[int, int | None, int | None],
        output: LedgerOutput,
        asset: int,
        owner: _OwnerColumns,
        unindexed: bytes | None,
    ) -> None:
        """Add a row.

        keys: output, transaction and origin.
        unindexed: id of a transaction without a row.
        """
        numbers = self.chain_numbers
        flags = flags_of(output, numbers.get(output.created_on, 0), numbers.get(output.held_on, 0))
        place = (*keys, output.output_index, asset, to_column(output.amount), flags)
        detail = None
        if (
            output.locktime
            or output.stakeable_locktime
            or output.group_id is not None
            or unindexed is not None
        ):
            rare = (output.locktime, output.stakeable_locktime, output.group_id, output.payload)
            detail = encode(OutputDetail(*rare, unindexed))
        self._output_rows.append((*place, *owner, detail))

    def _columns(self, output: LedgerOutput) -> tuple[int, tuple[int, ...], _OwnerColumns]:
        """Return the keys of asset and addresses, and the columns `owner` and `owners`."""
        keys, threshold = self.ids.keys, output.threshold
        addresses = tuple([keys[address] for address in output.addresses])
        has_one = threshold == 1 and len(addresses) == 1
        owner = (addresses[0], None) if has_one else (None, encode((threshold, addresses)))
        return keys[output.asset_id], addresses, owner

    def _replace_placeholders(self) -> None:
        """Give the spenders of late outputs the rows of these outputs instead of placeholders."""
        connection, late = self.connection, self.late
        # Until now the placeholder was the only trace of the output: its spender names it, and only
        # the addresses that the input showed have the spender in their pages. All of that changes
        # before the placeholder is deleted.
        replaced = {output.early.output: output.output for output in late}
        spenders = sorted({output.early.spender for output in late})
        for key, raw in bulk.run(
            connection, "SELECT key, detail FROM txs WHERE key IN {keys}", spenders
        ):
            detail = decode_tx(bytes(raw))
            detail.inputs = tuple([replaced.get(output, output) for output in detail.inputs])
            connection.run("UPDATE txs SET detail = ? WHERE key = ?", encode(detail), key)
        placeholders = list(replaced)
        bulk.delete(connection, schema.OUTPUTS, placeholders)
        self.spends.replace(
            connection, placeholders, [(output.output, output.early.spender) for output in late]
        )
        ids = [(prefix_of(output.utxo_id), output.utxo_id[8:]) for output in late]
        bulk.delete_pairs(connection, schema.EARLY_SPENDS, ids)
        for output in late:
            self.address_txs.add(output.early.spender, output.early.kind, output.owners)
        self.address_txs.flush(connection, is_new=False)


class AddressTxWriter:
    """Collects rows; caches the addresses and types that the newest partition of each chain has."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, set[tuple[int, int]]]] = {}
        self._plain: list[tuple[int, int, int]] = []
        self._by_kind: list[tuple[int, int, int, int]] = []
        self._partitions: list[tuple[int, int, int]] = []

    def add(self, tx: int, kind: int, addresses: Iterable[int]) -> None:
        """Add a transaction that touches addresses."""
        chain, partition = chain_of(tx), partition_of(tx)
        newest, entries = self._newest.get(chain, (-1, set()))
        if partition != newest:
            # Older partitions are not cached.
            entries = set()
            if partition > newest:
                self._newest[chain] = (partition, entries)
        for address in addresses:
            self._plain.append((partition, address, tx))
            self._by_kind.append((partition, address, kind, tx))
            if (address, kind) not in entries:
                new = {(address, kind), (address, schema.ANY_KIND)} - entries
                entries |= new
                self._partitions += [(*place, partition) for place in new]

    def flush(self, connection: Connection, *, is_new: bool = True) -> None:
        """Write the rows.

        is_new: no row of the transactions exists yet; else existing rows stay.
        """
        write = bulk.insert if is_new else bulk.insert_new
        write(connection, schema.ADDRESS_TXS, sorted(self._plain))
        write(connection, schema.ADDRESS_KIND_TXS, sorted(self._by_kind))
        bulk.insert_new(connection, schema.ADDRESS_PARTITIONS, sorted(self._partitions))
        self._plain, self._by_kind, self._partitions = [], [], []


class SpendWriter:
    """Writes spends.

    capacity: number of rows in the small table.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count: int | None = None

    def write(self, connection: Connection, spends: Sequence[Spend]) -> None:
        """Write new spends."""
        if self._count is None:
            self._count = int(connection.fetch("SELECT count(*) FROM recent_spends")[0][0])
        bulk.insert(connection, schema.RECENT_SPENDS, sorted(spends))
        self._count += len(spends)
        if self._count > self._capacity:
            connection.run(_MOVE)
            connection.run("DELETE FROM recent_spends")
            self._count = 0

    def replace(
        self, connection: Connection, outputs: Sequence[int], spends: Sequence[Spend]
    ) -> None:
        """Delete the spends of outputs, and write others in their place."""
        bulk.delete(connection, schema.SPENDS, outputs)
        bulk.delete(connection, schema.RECENT_SPENDS, outputs)
        self.write(connection, spends)


def load_early_spends(
    connection: Connection, ids: Iterable[UtxoID]
) -> dict[UtxoID, SpentBeforeMade]:
    """Return the outputs among these that were spent before they were made."""
    searched = frozenset(ids)
    text = (
        "SELECT e.prefix, e.rest, e.output, e.tx, t.kind"
        " FROM early_spends e"
        " JOIN txs t ON t.key = e.tx"
        " WHERE e.prefix IN {keys}"
    )
    early: dict[UtxoID, SpentBeforeMade] = {}
    for prefix, rest, *row in bulk.fetch_by_prefix(connection, text, searched):
        utxo_id = UtxoID(prefix.to_bytes(8, "big", signed=True) + bytes(rest))
        if utxo_id in searched:
            early[utxo_id] = SpentBeforeMade(*row)
    return early
