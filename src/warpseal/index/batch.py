"""The rows of a batch of blocks before they are written, and the outputs that the blocks spend, make and release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Table

from warpseal.chains.ids import TxID, UtxoID
from warpseal.index import bulk, type_codes
from warpseal.index.address_txs import AddressTxWriter
from warpseal.index.bulk import Row
from warpseal.index.details import OutputDetail, Owners, encode
from warpseal.index.errors import IndexDamaged
from warpseal.index.ids import IdTable
from warpseal.index.keys import prefix_of, to_column
from warpseal.index.schema import EARLY_SPENDS, OUTPUTS, TX_IDS
from warpseal.index.spends import LateOutput, Spend, SpendWriter, SpentBeforeMade, replace_placeholders
from warpseal.index.unspent import ChainIds, UnspentOutput, UnspentOutputs
from warpseal.ledger.outputs import Consumed, LedgerOutput
from warpseal.warp.ids import ChainID


@dataclass(slots=True)
class NextKeys:
    """The next free keys."""

    output: int
    reward: int
    raw: int


@dataclass(slots=True)
class TxInProgress:
    """A transaction that is being written: its key, type and id, and the addresses that it touches so far."""

    key: int
    kind: int
    tx_id: TxID
    touched: set[int] = field(default_factory=set)


@dataclass(slots=True)
class IndexBatch:
    """The batch. avax: key of the asset. known: outputs in the database that this batch spends.

    early: outputs that were spent before they were made; see `SpentBeforeMade`.
    """

    connection: Connection
    ids: IdTable
    outputs: UnspentOutputs
    chains: ChainIds
    next_keys: NextKeys
    address_txs: AddressTxWriter
    spends: SpendWriter
    avax: int
    known: Mapping[UtxoID, UnspentOutput]
    early: dict[UtxoID, SpentBeforeMade]
    new: dict[str, tuple[Table, list[Row]]] = field(default_factory=dict)
    changed: dict[str, tuple[Table, list[Row]]] = field(default_factory=dict)
    made: dict[UtxoID, UnspentOutput] = field(default_factory=dict)
    unspent_rows: dict[UtxoID, Row] = field(default_factory=dict)
    spent: list[UtxoID] = field(default_factory=list)
    late: list[LateOutput] = field(default_factory=list)
    external_outputs: list[LedgerOutput] = field(default_factory=list)
    _chain_numbers: dict[ChainID, int] = field(default_factory=dict)
    _spends: list[Spend] = field(default_factory=list)
    # The list that most rows go into.
    _output_rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        self._output_rows = self.rows(OUTPUTS)

    def rows(self, table: Table) -> list[Row]:
        """Return the list of new rows of a table."""
        held = self.new.get(table.name)
        if held is None:
            held = self.new[table.name] = (table, [])
        return held[1]

    def add(self, table: Table, row: Row) -> None:
        """Add a row."""
        self.rows(table).append(row)

    def change(self, table: Table, row: Row) -> None:
        """Write a row in place of the one with the same key."""
        self.changed.setdefault(table.name, (table, []))[1].append(row)

    def touch(self, tx: TxInProgress) -> None:
        """Write the addresses that a transaction touches."""
        self.address_txs.add(tx.key, tx.kind, tx.touched)

    # Outputs

    def emit(self, tx: TxInProgress, outputs: Sequence[LedgerOutput], origin: int | None = None) -> int:
        """Write the outputs that a transaction makes, and return the key of the first one.

        origin: the key of the transaction whose id outputs have that do not have this transaction's id.
        """
        first = self.next_keys.output
        for key, output in enumerate(outputs, first):
            self._emit(key, tx, output, origin)
        self.next_keys.output += len(outputs)
        return first

    def release(self, tx: TxInProgress, outputs: Sequence[LedgerOutput], first_out: int) -> tuple[int, ...]:
        """Make staked outputs spendable. first_out: key of the first output of the staking."""
        keys = []
        for output in outputs:
            key = first_out + output.output_index
            asset, owners = self._columns(output)
            self._add_unspent(key, output, asset, owners)
            tx.touched.update(owners[1])
            keys.append(key)
        return tuple(keys)

    def consume(self, tx: TxInProgress, consumed: Sequence[Consumed]) -> tuple[int, ...]:
        """Write the outputs that a transaction spends; return their keys, in order."""
        keys = []
        for spent in consumed:
            made = self.made.pop(spent.id, None)
            if made is not None:
                self.unspent_rows.pop(spent.id)
            else:
                made = self.known.get(spent.id)
                if made is None:
                    made = self._add_unknown(tx, spent)
                else:
                    self.spent.append(spent.id)
            self._spends.append((made.output, tx.key))
            tx.touched.update(made.owners)
            keys.append(made.output)
        return tuple(keys)

    def flush(self) -> None:
        """Write all rows."""
        if TX_IDS.name in self.new:
            # Neighbours are written together.
            self.new[TX_IDS.name][1].sort()
        self.outputs.write(self.connection, self.unspent_rows, self.spent)
        for table, rows in self.new.values():
            bulk.insert(self.connection, table, rows)
        for table, rows in self.changed.values():
            # The first column is the key; the last row with a key counts.
            bulk.replace(self.connection, table, list({row[0]: row for row in rows}.values()))
        self.spends.write(self.connection, self._spends)
        self.address_txs.flush(self.connection)
        if self.late:
            replace_placeholders(self.connection, self.address_txs, self.spends, self.late)

    def _emit(self, key: int, tx: TxInProgress, output: LedgerOutput, origin: int | None) -> None:
        asset, owners = self._columns(output)
        unindexed = None
        if output.tx_id == tx.tx_id:
            origin = None
        elif origin is None:
            unindexed = output.tx_id
        self._output_rows.append(self._row((key, tx.key, origin), output, (asset, owners), unindexed))
        tx.touched.update(owners[1])
        early = self.early.get(output.id) if output.created_on != output.held_on else None
        if early is not None:
            self.late.append(LateOutput(output.id, early, key, owners[1]))
        elif not output.staked:
            self._add_unspent(key, output, asset, owners)

    def _add_unspent(self, key: int, output: LedgerOutput, asset: int, owners: Owners) -> None:
        held_on = self._number_of(output.held_on)
        if held_on is None:
            return
        self.made[output.id] = UnspentOutput(key, asset, output.asset_id, output.amount, held_on, owners[1])
        self.unspent_rows[output.id] = (key, asset, to_column(output.amount), held_on, *_owner_columns(owners))

    def _add_unknown(self, tx: TxInProgress, consumed: Consumed) -> UnspentOutput:
        """Write an output that no indexed block has made yet."""
        external = self.outputs.external(consumed.id)
        if external is not None:
            self.external_outputs.append(external)
        output = external or consumed.reconstructed
        if output is None:
            raise IndexDamaged(f"output {consumed.id.hex()} is spent but was never written")
        asset, owners = self._columns(output)
        key = self.next_keys.output
        self.next_keys.output += 1
        self._output_rows.append(self._row((key, None, None), output, (asset, owners), output.tx_id))
        if output.created_on != output.held_on:
            self.add(EARLY_SPENDS, (prefix_of(output.id), output.id[8:], key, tx.key))
            self.early[output.id] = SpentBeforeMade(key, tx.key, tx.kind)
        return UnspentOutput(key, asset, output.asset_id, output.amount, 0, owners[1])

    def _row(
        self,
        keys: tuple[int, int | None, int | None],
        output: LedgerOutput,
        columns: tuple[int, Owners],
        unindexed: bytes | None,
    ) -> Row:
        """Return a row. keys: of output, transaction and origin; unindexed: the id of a transaction without a row."""
        created_on = self._number_of(output.created_on) or 0
        flags = type_codes.flags_of(output, created_on, self._number_of(output.held_on) or 0)
        asset, owners = columns
        columns_of_output = (output.output_index, asset, to_column(output.amount), flags)
        return (*keys, *columns_of_output, *_owner_columns(owners), _detail(output, unindexed))

    def _columns(self, output: LedgerOutput) -> tuple[int, Owners]:
        keys, addresses = self.ids.keys, output.addresses
        if len(addresses) == 1:
            return keys[output.asset_id], (output.threshold, (keys[addresses[0]],))
        return keys[output.asset_id], (output.threshold, tuple([keys[address] for address in addresses]))

    def _number_of(self, chain_id: ChainID) -> int | None:
        number = self._chain_numbers.get(chain_id)
        if number is None:
            try:
                number = self._chain_numbers[chain_id] = self.chains.number_of(chain_id)
            except KeyError:
                return None
        return number


def _owner_columns(owners: Owners) -> tuple[int | None, bytes | None]:
    threshold, addresses = owners
    if threshold == 1 and len(addresses) == 1:
        return addresses[0], None
    return None, encode(owners)


def _detail(output: LedgerOutput, unindexed: bytes | None) -> bytes | None:
    if not output.locktime and not output.stakeable_locktime and output.group_id is None and unindexed is None:
        return None
    detail = OutputDetail(output.locktime, output.stakeable_locktime, output.group_id, output.payload, unindexed)
    return encode(detail)
