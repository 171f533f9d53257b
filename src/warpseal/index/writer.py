"""Writes blocks with effects, checkpoints and the ledger's state in one transaction.

All methods block; one thread of the index process calls them. After a failure no part of the batch
is in the database or in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec.structs import astuple, replace

from warpseal.chains.ids import UtxoID
from warpseal.index import bulk
from warpseal.index.batch import (
    AddressTxWriter,
    IndexBatch,
    NextKeys,
    SpendWriter,
    load_early_spends,
)
from warpseal.index.block_writer import (
    BlockWriter,
    ChainRow,
    lock_chains,
    read_chain_rows,
    read_checkpoint,
)
from warpseal.index.bulk import IdTable
from warpseal.index.checkpoint import Checkpoint, ProgressRow
from warpseal.index.database import translate_bad_rows, translate_errors
from warpseal.index.keys import NUMBERS, C, P, X
from warpseal.index.raw_blocks import (
    Entry,
    PreLinearizationTx,
    RecordKind,
    encode,
    pack_segments,
    read_blocks,
)
from warpseal.index.records import CRecord, PRecord, Record, XPreLinearizationRecord, XRecord
from warpseal.index.schema import (
    ASSETS,
    CHAIN_ORIGIN,
    CHAIN_STATUS,
    CHAINS,
    EARLY_SPENDS,
    LEDGERS,
    RAW_BLOCKS,
)
from warpseal.index.settings import IndexSettings
from warpseal.index.stakings import Stakings
from warpseal.index.tx_rows import asset_row, ids_in, ids_of_output
from warpseal.index.unspent import UnspentOutputs
from warpseal.index.validator_sets import ValidatorSetWriter
from warpseal.ledger.c_chain import CTxEffects
from warpseal.ledger.effects import TxEffects
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import Parameters
from warpseal.ledger.x_chain import AssetCreation, Cap, XTxEffects
from warpseal.resources.chains import PrimaryChain
from warpseal.store.connection import Connection, Engine
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK

AnyTx = TxEffects | XTxEffects | CTxEffects

_PRIMARY_FACTOR: Final = 5
_LAST_KEYS: Final = (
    "SELECT (SELECT max(key) FROM outputs) AS output,"
    " (SELECT max(key) FROM rewards) AS reward,"
    " (SELECT max(number) FROM raw_blocks) AS raw"
)


class IndexWriter:
    """The only writer of an index.

    Every method raises StoreDown and its subclasses: IndexMoved if another process has written, and
    IndexDamaged. After an error the next call loads its state from the database again.

    engine: the engine that `writing_index` returns.
    outputs: the ledger's source of the outputs of earlier blocks.
    """

    def __init__(self, engine: Engine, params: Parameters, settings: IndexSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._params = params
        self._chain_numbers = {P_CHAIN: P, params.x_chain_id: X, params.c_chain_id: C}
        self.outputs = UnspentOutputs(engine, self._chain_numbers, settings.recent_outputs)
        # Read from the database by `_open`.
        self._id_table: IdTable
        self._address_txs: AddressTxWriter
        self._spends: SpendWriter
        self._stakings: Stakings
        self._sets: ValidatorSetWriter
        self._blocks: BlockWriter
        self._chains: dict[int, ChainRow]
        self._next_keys: NextKeys
        self._has_early: bool
        self._is_open = False

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()

    def checkpoint(self, chain: PrimaryChain) -> Checkpoint | None:
        """Return the checkpoint of a chain; None if it has no block."""
        self._open()
        row = self._chains.get(NUMBERS[chain])
        if row is None or not row.block_id:
            return None
        with translate_errors(self._engine), self._engine.begin() as connection:
            return read_checkpoint(connection, row)

    def pre_linearization_count(self) -> int:
        """Return the number of written pre-linearization containers; -1 without the genesis."""
        self._open()
        row = self._chains.get(X)
        return -1 if row is None else row.containers

    def ledger(self) -> tuple[int, bytes] | None:
        """Return the last written state of the P-Chain, behind its height."""
        with translate_errors(self._engine), self._engine.begin() as connection:
            rows = connection.fetch("SELECT height, body FROM ledgers")
        return (rows[0][0], bytes(rows[0][1])) if rows else None

    def raw_blocks(self, chain: PrimaryChain, first: int, last: int) -> Iterator[bytes]:
        """Yield the bytes of written blocks as a node sent them, from `first` to `last`."""
        with translate_errors(self._engine), self._engine.connect() as connection:
            yield from read_blocks(connection, NUMBERS[chain], first, last)

    def write(
        self,
        records: Sequence[Record],
        ledger: bytes | None = None,
        *,
        is_complete: bool = True,
        store_raw: bool = True,
    ) -> None:
        """Write blocks of any chains, each chain's in order, in one transaction.

        ledger: the P-Chain's state after the last of its blocks here.
        is_complete: whether the index has everything before the first block, for chains whose first
            block is here.
        store_raw: whether to store the blocks, or only their rows.
        Raises OutOfOrder.
        """
        self._open()
        chains = {number: replace(row) for number, row in self._chains.items()}
        with self._transaction() as connection:
            batch = self._batch(connection, records)
            for record in records:
                self._blocks.write(batch, chains, record)
            for number, chain in chains.items():
                if number not in self._chains:
                    chain.is_complete = int(is_complete)
                    batch.change(CHAIN_ORIGIN, (number, chain.is_complete))
            self._stakings.flush(batch)
            self._id_table.flush(connection)
            for chain in chains.values():
                batch.change(CHAINS, astuple(chain))
            if ledger is not None:
                batch.change(LEDGERS, (P, chains[P].height, ledger))
            if store_raw:
                self._store_blocks(batch, records)
            batch.flush()
        self._chains = chains
        self.outputs.on_written(batch.unspent, batch.spent)
        self._has_early = self._has_early or EARLY_SPENDS.name in batch.new

    def begin_sets(self, state: PChainState) -> None:
        """Write the validator sets after the last written block, if the index has none yet.

        An index of before it had sets gets them from then on. Without the genesis they are unknown.
        """
        self._open()
        if self._sets.has_sets or not state.is_complete:
            return
        assert state.height == self._chains[P].height
        members = state.sets.members()
        with self._transaction() as connection:
            batch = self._batch(connection, ())
            self._id_table.load(
                connection, {PRIMARY_NETWORK, *(member.subnet_id for member in members)}
            )
            self._sets.write(batch, state.height, members)
            self._id_table.flush(connection)
            batch.flush()

    def write_status(self, status: ProgressRow) -> None:
        """Write the status of a chain."""
        row = (
            NUMBERS[PrimaryChain(status.chain)],
            status.node_height,
            int(status.is_node_behind),
            encode(status),
        )
        with translate_errors(self._engine), self._engine.begin() as connection:
            bulk.replace(connection, CHAIN_STATUS, [row])

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Hold a transaction in which no other process has written; forget all after an error."""
        try:
            with translate_errors(self._engine), self._engine.begin() as connection:
                lock_chains(connection, self._chains)
                yield connection
        except BaseException:
            self._is_open = False
            self.outputs.forget()
            raise

    def _open(self) -> None:
        if self._is_open:
            return
        with (
            translate_errors(self._engine),
            self._engine.begin() as connection,
            translate_bad_rows(),
        ):
            self._id_table = IdTable(connection, self._settings.cached_addresses)
            self._address_txs = AddressTxWriter()
            self._spends = SpendWriter(self._settings.recent_outputs)
            self._stakings = Stakings(connection)
            self._sets = ValidatorSetWriter(connection, self._settings.changes_per_snapshot)
            self._blocks = BlockWriter(
                connection, self._stakings, self._sets, self._params.x_chain_id
            )
            self._chains = read_chain_rows(connection)
            ((output, reward, raw),) = connection.fetch(_LAST_KEYS)
            self._next_keys = NextKeys(
                (output or 0) + 1, (reward or 0) + 1, 0 if raw is None else raw + 1
            )
            self._has_early = bool(connection.fetch("SELECT 1 FROM early_spends LIMIT 1"))
            self.outputs.forget()
        self._is_open = True

    def _store_blocks(self, batch: IndexBatch, records: Sequence[Record]) -> None:
        # Before the blocks that spend them.
        external = [
            (X, RecordKind.OUTPUT, number, encode(output))
            for number, output in enumerate(batch.external_outputs)
        ]
        for row in pack_segments((*external, *map(_entry, records)), self._settings.raw_bytes):
            batch.add(RAW_BLOCKS, (self._next_keys.raw, *row))
            self._next_keys.raw += 1

    def _batch(self, connection: Connection, records: Sequence[Record]) -> IndexBatch:
        """Look up all ids and outputs that the records name, in a few statements."""
        ids: set[bytes] = {PRIMARY_NETWORK, self._params.staking_asset_id}
        spent: list[UtxoID] = []
        new_outputs: set[UtxoID] = set()
        crossing: list[UtxoID] = []
        for record in records:
            for tx in _txs(record):
                ids.update(ids_in(tx))
                spent += [consumed.id for consumed in tx.consumed]
                new_outputs.update([output.id for output in tx.emitted])
                crossing += [
                    output.id for output in tx.emitted if output.created_on != output.held_on
                ]
            if isinstance(record, PRecord):
                ids.update(stop.validation_id for stop in record.effects.l1_deactivated)
                ids.update([change.subnet_id for change in record.effects.set_changes or ()])
                for output in record.effects.emitted:
                    ids.update(ids_of_output(output))
        for output in filter(None, map(self.outputs.external, spent)):
            ids.update(ids_of_output(output))
        self._id_table.load(connection, ids)
        stored = self.outputs.rows(
            connection, [utxo_id for utxo_id in spent if utxo_id not in new_outputs]
        )
        early = load_early_spends(connection, crossing) if self._has_early and crossing else {}
        avax = self._id_table.keys[self._params.staking_asset_id]
        shared = (
            self._id_table,
            self.outputs,
            self._chain_numbers,
            self._next_keys,
            self._address_txs,
            self._spends,
        )
        batch = IndexBatch(connection, *shared, avax, stored, early)
        # A new index has AVAX, and the bounds of the Primary Network's validators.
        if not self._chains:
            avax_asset = AssetCreation(
                self._params.staking_asset_id, "Avalanche", "AVAX", 9, Cap.FIXED, False
            )
            batch.change(ASSETS, asset_row(self._id_table, avax_asset, 0))
        primary = self._id_table.keys[PRIMARY_NETWORK]
        self._stakings.set_limits(primary, self._params.max_validator_stake, _PRIMARY_FACTOR)
        return batch


def _txs(record: Record) -> Sequence[AnyTx]:
    if isinstance(record, PRecord):
        return record.effects.executed
    return record.txs if isinstance(record, XPreLinearizationRecord) else record.effects.txs


def _entry(record: Record) -> Entry:
    """Return chain, kind, number and bytes of a stored entry."""
    match record:
        case PRecord(effects=effects, raw=raw):
            height = effects.block.height
            return P, RecordKind.BLOCK if height else RecordKind.GENESIS, height, raw
        case XRecord(effects=x_effects, raw=raw):
            return X, RecordKind.BLOCK, x_effects.block.height, raw
        case XPreLinearizationRecord(number=number, raw=raw):
            kind = RecordKind.PRE_LINEARIZATION if number >= 0 else RecordKind.GENESIS
            return X, kind, number, encode(PreLinearizationTx(raw, record.time_s))
        case CRecord(effects=c_effects, raw=raw):
            return C, RecordKind.BLOCK, c_effects.header.number, raw
