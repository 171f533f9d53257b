"""The rows of some blocks on their way into the database, and the outputs that they spend, make and release."""

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
    """The keys that come next."""

    output: int
    reward: int
    raw: int


@dataclass(slots=True)
class TxInProgress:
    """A transaction that is being written: its key, type and id, and whose addresses it touches so far."""

    key: int
    kind: int
    tx_id: TxID
    touched: set[int] = field(default_factory=set)


@dataclass(slots=True)
class IndexBatch:
    """All of it. avax: key of the asset. known: outputs that are written and spent here. early: see `EarlySpend`."""

    connection: Connection
    names: IdTable
    outputs: UnspentOutputs
    chains: ChainIds
    numbers: NextKeys
    touches: AddressTxWriter
    spends: SpendWriter
    avax: int
    known: Mapping[UtxoID, UnspentOutput]
    early: dict[UtxoID, SpentBeforeMade]
    new: dict[str, tuple[Table, list[Row]]] = field(default_factory=dict)
    changed: dict[str, tuple[Table, list[Row]]] = field(default_factory=dict)
    made: dict[UtxoID, UnspentOutput] = field(default_factory=dict)
    unspent_rows: dict[UtxoID, Row] = field(default_factory=dict)
    spent: list[UtxoID] = field(default_factory=list)
    completed: list[LateOutput] = field(default_factory=list)
    external: list[LedgerOutput] = field(default_factory=list)
    _numbers: dict[ChainID, int] = field(default_factory=dict)
    _spends: list[Spend] = field(default_factory=list)
    # The list that most rows go into.
    _output_rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        self._output_rows = self.rows(OUTPUTS)

    def rows(self, table: Table) -> list[Row]:
        """Return the new rows of a table, to be added to."""
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
        """Write down whose addresses a transaction touches."""
        self.touches.add(tx.key, tx.kind, tx.touched)

    # Outputs

    def emit(self, tx: TxInProgress, outputs: Sequence[LedgerOutput], origin: int | None = None) -> int:
        """Write what a transaction makes, and return the key of the first of it.

        origin: the key of the transaction whose id those outputs have that do not have this one's.
        """
        first = self.numbers.output
        for key, output in enumerate(outputs, first):
            self._emit(key, tx, output, origin)
        self.numbers.output += len(outputs)
        return first

    def release(self, tx: TxInProgress, outputs: Sequence[LedgerOutput], first_out: int) -> tuple[int, ...]:
        """Let outputs be spent that were staked. first_out: key of the first output of the staking."""
        keys = []
        for output in outputs:
            key = first_out + output.output_index
            asset, owners = self._columns(output)
            self._offer(key, output, asset, owners)
            tx.touched.update(owners[1])
            keys.append(key)
        return tuple(keys)

    def consume(self, tx: TxInProgress, consumed: Sequence[Consumed]) -> tuple[int, ...]:
        """Write what a transaction spends; return the keys of it, in order."""
        keys = []
        for one in consumed:
            made = self.made.pop(one.id, None)
            if made is not None:
                self.unspent_rows.pop(one.id)
            else:
                made = self.known.get(one.id)
                if made is None:
                    made = self._outside(tx, one)
                else:
                    self.spent.append(one.id)
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
            # The first column is the key; what was written last stands.
            bulk.replace(self.connection, table, list({row[0]: row for row in rows}.values()))
        self.spends.write(self.connection, self._spends)
        self.touches.flush(self.connection)
        if self.completed:
            replace_placeholders(self.connection, self.touches, self.spends, self.completed)

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
            self.completed.append(LateOutput(output.id, early, key, owners[1]))
        elif not output.staked:
            self._offer(key, output, asset, owners)

    def _offer(self, key: int, output: LedgerOutput, asset: int, owners: Owners) -> None:
        held_on = self._number_of(output.held_on)
        if held_on is None:
            return
        one = output.id
        self.made[one] = UnspentOutput(key, asset, output.asset_id, output.amount, held_on, owners[1])
        self.unspent_rows[one] = (key, asset, to_column(output.amount), held_on, *_owner_columns(owners))

    def _outside(self, tx: TxInProgress, consumed: Consumed) -> UnspentOutput:
        """Write an output that no block made that was read so far."""
        external = self.outputs.external(consumed.id)
        if external is not None:
            self.external.append(external)
        output = external or consumed.reconstructed
        if output is None:
            raise IndexDamaged(f"output {consumed.id.hex()} is spent and was never written")
        asset, owners = self._columns(output)
        key = self.numbers.output
        self.numbers.output += 1
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
        """Return a row. keys: its own, of who made it, and of whose id it has; unindexed: that id itself."""
        created_on = self._number_of(output.created_on) or 0
        flags = type_codes.flags_of(output, created_on, self._number_of(output.held_on) or 0)
        asset, owners = columns
        what = (output.output_index, asset, to_column(output.amount), flags)
        return (*keys, *what, *_owner_columns(owners), _detail(output, unindexed))

    def _columns(self, output: LedgerOutput) -> tuple[int, Owners]:
        keys, addresses = self.names.keys, output.addresses
        if len(addresses) == 1:
            return keys[output.asset_id], (output.threshold, (keys[addresses[0]],))
        return keys[output.asset_id], (output.threshold, tuple([keys[one] for one in addresses]))

    def _number_of(self, chain_id: ChainID) -> int | None:
        number = self._numbers.get(chain_id)
        if number is None:
            try:
                number = self._numbers[chain_id] = self.chains.number_of(chain_id)
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
