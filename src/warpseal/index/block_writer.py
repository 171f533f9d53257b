"""The rows of one block of any chain, in the order in which it takes effect."""

from __future__ import annotations

from msgspec import Struct

from warpseal.chains.ids import TxID
from warpseal.index import columns
from warpseal.index.batch import IndexBatch, TxInProgress
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.columns import TxDetail, decode_proposer, encode_proposer
from warpseal.index.errors import IndexDamaged, IndexMoved
from warpseal.index.keys import CHAINS, C, P, X, block_key, first_key
from warpseal.index.records import CRecord, PRecord, Record, XPreLinearizationRecord, XRecord
from warpseal.index.schema import BLOCKS, VALIDATION_STOPS
from warpseal.index.stakings import COMPLETED, Stakings
from warpseal.index.tx_rows import write_c, write_p, write_x
from warpseal.index.validator_sets import ValidatorSetWriter
from warpseal.ledger.effects import TxOutcome
from warpseal.resources.chains import PrimaryChain
from warpseal.store.connection import Connection
from warpseal.warp.ids import P_CHAIN, ChainID

_NO_STATE = (None, None, None)


class OutOfOrder(ValueError):
    """A block does not follow the last one. Nothing was written."""

    def __init__(self, chain: str, height: int, reason: str) -> None:
        super().__init__(f"block {height} of the {chain}: {reason}")
        self.chain = chain
        self.height = height


class BlockWriter:
    """Writes blocks of all chains; holds the proposal that the P-Chain's next block decides."""

    def __init__(
        self,
        connection: Connection,
        stakings: Stakings,
        sets: ValidatorSetWriter,
        x_chain_id: ChainID,
    ) -> None:
        self._stakings = stakings
        self._sets = sets
        self._x_chain_id = x_chain_id
        self._proposal: TxInProgress | None = None
        text = (
            "SELECT key, tx_id, kind, time"
            " FROM txs"
            " WHERE key = (SELECT next_tx - 1 FROM chains WHERE chain = 0) AND outcome = ?"
        )
        for key, tx_id, kind, time_s in connection.fetch(text, columns.PROPOSED):
            self._proposal = TxInProgress(key, TxID(bytes(tx_id)), kind, time_s, time_s)

    def write(self, batch: IndexBatch, chains: dict[int, ChainRow], record: Record) -> None:
        """Write a block, or a pre-linearization transaction. Raises OutOfOrder, IndexDamaged."""
        match record:
            case PRecord():
                self._p(batch, chains, record)
            case XRecord():
                _x(batch, chains, record)
            case XPreLinearizationRecord():
                self._x_pre_linearization(batch, chains, record)
            case CRecord():
                _c(batch, chains, record)

    def _p(self, batch: IndexBatch, chains: dict[int, ChainRow], record: PRecord) -> None:
        effects, block = record.effects, record.effects.block
        chain = chains.setdefault(P, ChainRow.new(P, P_CHAIN, block.height, block.parent_id))
        place = chain.append(block.height, block.id, block.parent_id, effects.time_s)
        if block.height == 0:
            # The outputs of the genesis belong to a transaction that no page shows.
            genesis = TxInProgress(
                first_key(P), TxID(bytes(32)), columns.UNKNOWN, effects.time_s, effects.time_s
            )
            batch.put_tx(
                genesis, 0, columns.ACCEPTED, batch.emit(genesis, effects.emitted), TxDetail()
            )
        for started in effects.started:
            self._stakings.start(started)
        for ended in effects.ended:
            self._stakings.end(ended, COMPLETED)
        if (settled := effects.settled) is not None:
            proposal, self._proposal = self._proposal, None
            if proposal is None or proposal.tx_id != settled.tx.id:
                raise IndexDamaged(
                    f"transaction {settled.tx.id.hex()} is decided but was never proposed"
                )
            proposal.settled_s = effects.time_s
            write_p(batch, self._stakings, settled, proposal)
        first_tx = chain.next_tx
        for tx in effects.txs:
            row = chain.next_tx_row(tx.tx.id, tx.api_type)
            if tx.outcome is TxOutcome.PROPOSED:
                self._proposal = row
                batch.put_tx(row, tx.height, columns.PROPOSED, range(0), TxDetail())
            else:
                write_p(batch, self._stakings, tx, row)
        for stop in effects.l1_deactivated:
            batch.add(
                VALIDATION_STOPS,
                (batch.ids.keys[stop.validation_id], place[0], int(stop.after_transactions)),
            )
        if effects.set_changes is not None and (self._sets.has_sets or not block.height):
            self._sets.write(batch, block.height, effects.set_changes)
        numbers = (columns.BLOCK_NUMBERS[block.kind], len(block.raw), first_tx, len(block.txs))
        state = (effects.supply, effects.l1_accrued_fees, effects.l1_active)
        batch.add(BLOCKS, (*place, *numbers, *state, encode_proposer(record.proposer), None, P))

    def _x_pre_linearization(
        self, batch: IndexBatch, chains: dict[int, ChainRow], record: XPreLinearizationRecord
    ) -> None:
        chain = chains.setdefault(X, ChainRow.new(X, self._x_chain_id, 0, b""))
        if chain.block_id:
            raise OutOfOrder(
                PrimaryChain.X,
                record.number,
                "its container is from before blocks that are written",
            )
        if record.number != chain.containers and (chain.containers, record.number) != (-1, 0):
            raise OutOfOrder(
                PrimaryChain.X, record.number, f"container {chain.containers} is the next"
            )
        chain.containers = record.number + 1
        chain.time = max(chain.time, record.time_s)
        for tx in record.txs:
            write_x(batch, tx, chain.next_tx_row(tx.tx.id, tx.tx.kind), is_approximate=True)


def _x(batch: IndexBatch, chains: dict[int, ChainRow], record: XRecord) -> None:
    effects, block = record.effects, record.effects.block
    chain = chains.setdefault(X, ChainRow.new(X, effects.chain_id, block.height, block.parent_id))
    if not chain.block_id:
        # The blocks begin behind pre-linearization transactions.
        chain.first_height, chain.first_parent = block.height, block.parent_id
        chain.height, chain.block_id = block.height - 1, block.parent_id
    place = chain.append(block.height, block.id, block.parent_id, block.time)
    first_tx = chain.next_tx
    for tx in effects.txs:
        write_x(batch, tx, chain.next_tx_row(tx.tx.id, tx.tx.kind), is_approximate=False)
    numbers = (columns.BLOCK_NUMBERS["StandardBlock"], len(block.raw), first_tx, len(block.txs))
    batch.add(BLOCKS, (*place, *numbers, *_NO_STATE, encode_proposer(record.proposer), None, X))


def _c(batch: IndexBatch, chains: dict[int, ChainRow], record: CRecord) -> None:
    effects, header = record.effects, record.effects.header
    chain = chains.setdefault(
        C, ChainRow.new(C, effects.chain_id, header.number, header.parent_hash)
    )
    place = chain.append(header.number, header.hash, header.parent_hash, header.time_s)
    first_tx = chain.next_tx
    for tx in () if effects.is_repeat else effects.txs:
        write_c(batch, tx, chain.next_tx_row(tx.tx.id, tx.tx.kind))
    repeated = b"".join(tx.tx.id for tx in effects.txs) if effects.is_repeat else None
    tx_count = 0 if effects.is_repeat else effects.tx_count
    numbers = (columns.BLOCK_NUMBERS["EvmBlock"], header.size_bytes, first_tx, tx_count)
    batch.add(BLOCKS, (*place, *numbers, *_NO_STATE, encode_proposer(record.proposer), repeated, C))


class ChainRow(Struct):
    """A row of `chains`."""

    chain: int
    chain_id: bytes
    first_height: int
    first_parent: bytes
    height: int
    block_id: bytes
    time: int
    next_tx: int
    containers: int
    is_complete: int

    @classmethod
    def new(cls, chain: int, chain_id: bytes, first_height: int, first_parent: bytes) -> ChainRow:
        """Return a chain without blocks, before block `first_height`."""
        place = (first_height, first_parent, first_height - 1, first_parent)
        return cls(chain, chain_id, *place, 0, first_key(chain) + 1, -1, 1)

    def append(
        self, height: int, block_id: bytes, parent_id: bytes, time_s: int
    ) -> tuple[int, bytes, int]:
        """Advance to the next block; return the first columns of its row. Raises OutOfOrder."""
        name = CHAINS[self.chain]
        if height != self.height + 1:
            raise OutOfOrder(name, height, f"block {self.height + 1} is the next")
        if parent_id != self.block_id:
            raise OutOfOrder(
                name, height, f"its parent is {parent_id.hex()}, not {self.block_id.hex()}"
            )
        self.height, self.block_id, self.time = height, block_id, time_s
        return block_key(self.chain, height), block_id, time_s

    def next_tx_row(self, tx_id: TxID, kind: str) -> TxInProgress:
        """Return the next transaction, which is of the last block."""
        self.next_tx += 1
        return TxInProgress(self.next_tx - 1, tx_id, columns.tx_number(kind), self.time, self.time)


def read_chain_rows(connection: Connection) -> dict[int, ChainRow]:
    """Return the chains of the database by their numbers."""
    rows = [ChainRow(*row) for row in connection.fetch("SELECT * FROM chains")]
    for row in rows:
        row.chain_id, row.first_parent, row.block_id = (
            bytes(row.chain_id),
            bytes(row.first_parent),
            bytes(row.block_id),
        )
    return {row.chain: row for row in rows}


def read_checkpoint(connection: Connection, chain: ChainRow) -> Checkpoint:
    """Return the checkpoint of a chain."""
    text = "SELECT proposer FROM blocks WHERE key = ?"
    rows = connection.fetch(text, block_key(chain.chain, chain.height)) if chain.height >= 0 else ()
    proposer = decode_proposer(rows[0][0]) if rows else None
    return Checkpoint(
        chain.height, chain.block_id, chain.first_height, bool(chain.is_complete), proposer
    )


def lock_chains(connection: Connection, chains: dict[int, ChainRow]) -> None:
    """Lock the rows of the chains. Raises IndexMoved if another process wrote one of them."""
    lock = " FOR UPDATE" if connection.is_postgresql else ""
    heights = {
        row[0]: tuple(row[1:])
        for row in connection.fetch("SELECT chain, height, next_tx FROM chains" + lock)
    }
    expected = {number: (row.height, row.next_tx) for number, row in chains.items()}
    if heights != expected:
        changed = next(
            number
            for number in (*heights, *expected)
            if heights.get(number) != expected.get(number)
        )
        raise IndexMoved(CHAINS[changed])
