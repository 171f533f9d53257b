"""The rows of one block of any chain, in the order in which it takes effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

from sqlalchemy import Connection

from warpseal.chains.ids import BlockID, TxID
from warpseal.history.blocks import Proposer
from warpseal.history.chains import PrimaryChain
from warpseal.index import bulk, type_codes
from warpseal.index.batch import IndexBatch, TxInProgress
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.details import TxDetail, decode_proposer, encode, encode_proposer
from warpseal.index.errors import IndexDamaged, IndexMoved, OutOfOrder
from warpseal.index.keys import CHAINS, C, P, X, block_key, first_key
from warpseal.index.p_rows import PROPOSED, TxTime, write_proposed, write_tx
from warpseal.index.records import CRecord, PRecord, Record, XPreLinearizationRecord, XRecord
from warpseal.index.schema import BLOCKS, TXS, VALIDATION_STOPS
from warpseal.index.schema import CHAINS as CHAINS_TABLE
from warpseal.index.stakings import Stakings
from warpseal.index.xc_rows import write_c, write_x
from warpseal.ledger.effects import TxEffects, TxOutcome
from warpseal.warp.ids import P_CHAIN

_NO_STATE = (None, None, None)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A transaction whose outcome the next block decides. is_written: an earlier batch wrote its row."""

    key: int
    tx_id: TxID
    api_type: str
    height: int
    time_s: int
    is_written: bool


class BlockWriter:
    """Writes blocks of all chains; holds the proposal that the P-Chain's next block decides."""

    def __init__(self, stakings: Stakings) -> None:
        self._stakings = stakings
        self._proposal: _Proposal | None = None

    def open(self, connection: Connection) -> None:
        """Load the open proposal of the last batch."""
        text = (
            "SELECT key, tx_id, kind, height, time FROM txs"
            " WHERE key = (SELECT next_tx - 1 FROM chains WHERE chain = 0) AND outcome = ?"
        )
        rows = bulk.fetch(connection, text, PROPOSED)
        self._proposal = None
        for key, tx_id, kind, height, time_s in rows:
            self._proposal = _Proposal(key, TxID(bytes(tx_id)), type_codes.tx_name(kind), height, time_s, True)

    def write(self, batch: IndexBatch, chains: dict[int, ChainRow], record: Record) -> None:
        """Write a block, or a pre-linearization transaction. Raises OutOfOrder, IndexDamaged."""
        match record:
            case PRecord():
                self._p(batch, chains, record)
            case XRecord():
                _x(batch, chains, record)
            case XPreLinearizationRecord():
                _x_pre_linearization(batch, chains, record)
            case CRecord():
                _c(batch, chains, record)

    def finish(self, batch: IndexBatch) -> None:
        """Write the row of an open proposal."""
        proposal = self._proposal
        if proposal is not None and not proposal.is_written:
            when = TxTime(proposal.key, proposal.time_s, proposal.time_s)
            write_proposed(batch, proposal.tx_id, proposal.api_type, proposal.height, when)
            self._proposal = _Proposal(
                proposal.key, proposal.tx_id, proposal.api_type, proposal.height, proposal.time_s, True
            )

    def _p(self, batch: IndexBatch, chains: dict[int, ChainRow], record: PRecord) -> None:
        effects, block = record.effects, record.effects.block
        is_genesis = block.height == 0
        chain = _chain(chains, P, lambda: ChainRow.new(P, P_CHAIN, block.height, block.parent_id))
        check_follows(chain, block.height, block.parent_id)
        time_s = effects.time_s
        if is_genesis:
            _write_genesis(batch, record, time_s)
        for started in effects.started:
            self._stakings.start(started)
        for ended in effects.ended:
            self._stakings.expire(ended)
        if effects.settled is not None:
            self._settle(batch, effects.settled, time_s)
        first_tx = chain.next_tx
        for tx in effects.txs:
            self._p_tx(batch, chain, tx, time_s)
        for deactivated in effects.l1_deactivated:
            row = (
                batch.ids.key(deactivated.validation_id),
                block_key(P, block.height),
                int(deactivated.after_transactions),
            )
            batch.add(VALIDATION_STOPS, row)
        block_row = BlockRow(
            block.height, block.id, block.parent_id, time_s, type_codes.block_number(block.kind),
            len(block.raw), len(block.txs), record.proposer,
        )  # fmt: skip
        write_block(batch, chain, block_row, first_tx, (effects.supply, effects.l1_accrued_fees, effects.l1_active))

    def _p_tx(self, batch: IndexBatch, chain: ChainRow, tx: TxEffects, time_s: int) -> None:
        key = chain.next_tx_key()
        if tx.outcome is TxOutcome.PROPOSED:
            self._proposal = _Proposal(key, tx.tx.id, tx.api_type, tx.height, time_s, False)
        else:
            write_tx(batch, self._stakings, tx, TxTime(key, time_s, time_s))

    def _settle(self, batch: IndexBatch, tx: TxEffects, time_s: int) -> None:
        proposal = self._proposal
        if proposal is None or proposal.tx_id != tx.tx.id:
            raise IndexDamaged(f"transaction {tx.tx.id.hex()} is decided but was never proposed")
        when = TxTime(proposal.key, proposal.time_s, time_s)
        write_tx(batch, self._stakings, tx, when, is_written=proposal.is_written)
        self._proposal = None


def _write_genesis(batch: IndexBatch, record: PRecord, time_s: int) -> None:
    """Write the genesis' outputs as those of a transaction that no page shows; its id is 32 zero bytes."""
    emitted = record.effects.emitted
    place = TxInProgress(first_key(P), type_codes.UNKNOWN, TxID(bytes(32)))
    first_out = batch.emit(place, emitted)
    detail = encode(TxDetail())
    batch.add(TXS, (place.key, place.tx_id, 0, time_s, place.kind, 0, first_out, len(emitted), len(emitted), detail))
    batch.touch(place)


def _x(batch: IndexBatch, chains: dict[int, ChainRow], record: XRecord) -> None:
    effects, block = record.effects, record.effects.block
    chain = _chain(chains, X, lambda: ChainRow.new(X, effects.chain_id, block.height, block.parent_id))
    if not chain.block_id:
        _start_blocks(chain, block.height, block.parent_id)
    check_follows(chain, block.height, block.parent_id)
    time_s = block.time
    first_tx = chain.next_tx
    for tx in effects.txs:
        write_x(batch, tx, TxTime(chain.next_tx_key(), time_s, time_s), False)
    kind = type_codes.block_number("StandardBlock")
    block_row = BlockRow(
        block.height, block.id, block.parent_id, time_s, kind, len(block.raw), len(block.txs), record.proposer
    )
    write_block(batch, chain, block_row, first_tx, _NO_STATE)


def _x_pre_linearization(batch: IndexBatch, chains: dict[int, ChainRow], record: XPreLinearizationRecord) -> None:
    chain = _chain(chains, X, lambda: ChainRow.new(X, batch.chains.x, 0, b""))
    if chain.block_id:
        raise OutOfOrder(PrimaryChain.X, record.number, "its container is from before blocks that are written")
    if record.number != chain.containers and (chain.containers, record.number) != (-1, 0):
        raise OutOfOrder(PrimaryChain.X, record.number, f"container {chain.containers} is the next")
    chain.containers = record.number + 1
    chain.time = max(chain.time, record.time_s)
    for tx in record.txs:
        when = TxTime(chain.next_tx_key(), chain.time, chain.time)
        write_x(batch, tx, when, record.vertex or True)


def _start_blocks(chain: ChainRow, height: int, parent_id: BlockID) -> None:
    """Start a chain's blocks behind its pre-linearization transactions."""
    chain.first_height, chain.first_parent = height, parent_id
    chain.height, chain.block_id = height - 1, parent_id


def _c(batch: IndexBatch, chains: dict[int, ChainRow], record: CRecord) -> None:
    effects, header = record.effects, record.effects.header
    first = (header.number, header.parent_hash)
    chain = _chain(chains, C, lambda: ChainRow.new(C, effects.chain_id, *first))
    check_follows(chain, header.number, header.parent_hash)
    time_s = header.time_s
    first_tx = chain.next_tx
    for tx in () if effects.is_repeat else effects.txs:
        write_c(batch, tx, TxTime(chain.next_tx_key(), time_s, time_s))
    repeated = b"".join(tx.tx.id for tx in effects.txs) if effects.is_repeat else None
    block_row = BlockRow(
        header.number, header.hash, header.parent_hash, time_s, type_codes.EVM_BLOCK, header.size_bytes,
        0 if effects.is_repeat else effects.tx_count, record.proposer, repeated,
    )  # fmt: skip
    write_block(batch, chain, block_row, first_tx, _NO_STATE)


def _chain(chains: dict[int, ChainRow], number: int, new: Callable[[], ChainRow]) -> ChainRow:
    chain = chains.get(number)
    if chain is None:
        chain = chains[number] = new()
    return chain


@dataclass(slots=True)
class ChainRow:
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

    def copy(self) -> ChainRow:
        """Return a copy."""
        return ChainRow(*astuple(self))

    def next_tx_key(self) -> int:
        """Return the key of the next transaction."""
        self.next_tx += 1
        return self.next_tx - 1


@dataclass(frozen=True, slots=True)
class BlockRow:
    """The columns of a block. time_s: chain time after it; kind: its type's number; tx_count: of its transactions."""

    height: int
    block_id: bytes
    parent_id: bytes
    time_s: int
    kind: int
    size_bytes: int
    tx_count: int
    proposer: Proposer | None = None
    repeated: bytes | None = None


def check_follows(chain: ChainRow, height: int, parent_id: bytes) -> None:
    """Raise OutOfOrder if a block does not follow the last one."""
    name = CHAINS[chain.chain]
    if height != chain.height + 1:
        raise OutOfOrder(name, height, f"block {chain.height + 1} is the next")
    if parent_id != chain.block_id:
        raise OutOfOrder(name, height, f"its parent is {parent_id.hex()}, not {chain.block_id.hex()}")


def write_block(
    batch: IndexBatch, chain: ChainRow, block: BlockRow, first_tx: int, state: tuple[int | None, int | None, int | None]
) -> None:
    """Write a block's row and advance the chain. state: supply, accrued fees and active L1 validators after it."""
    chain.height, chain.block_id, chain.time = block.height, block.block_id, block.time_s
    key = block_key(chain.chain, block.height)
    place = (key, block.block_id, block.time_s, block.kind, block.size_bytes, first_tx, block.tx_count)
    batch.add(BLOCKS, (*place, *state, encode_proposer(block.proposer), block.repeated, chain.chain))


def read_chain_rows(connection: Connection) -> dict[int, ChainRow]:
    """Return the chains of the database by their numbers."""
    rows = [ChainRow(*row) for row in bulk.fetch(connection, "SELECT * FROM chains")]
    for row in rows:
        row.chain_id, row.first_parent, row.block_id = bytes(row.chain_id), bytes(row.first_parent), bytes(row.block_id)
    return {row.chain: row for row in rows}


def write_chains(batch: IndexBatch, chains: dict[int, ChainRow]) -> None:
    """Write the rows of chains."""
    for chain in chains.values():
        batch.change(CHAINS_TABLE, astuple(chain))


def read_checkpoint(connection: Connection, chain: ChainRow) -> Checkpoint:
    """Return the checkpoint of a chain."""
    text = "SELECT proposer FROM blocks WHERE key = ?"
    rows = bulk.fetch(connection, text, block_key(chain.chain, chain.height)) if chain.height >= 0 else ()
    proposer = decode_proposer(rows[0][0]) if rows else None
    known = (chain.first_height, bool(chain.is_complete))
    return Checkpoint(chain.height, chain.block_id, *known, proposer)


def lock_chains(connection: Connection, chains: dict[int, ChainRow]) -> None:
    """Lock the rows of the chains. Raises IndexMoved if another process wrote one of them."""
    lock = " FOR UPDATE" if connection.dialect.name == bulk.POSTGRESQL else ""
    written = {
        row[0]: tuple(row[1:]) for row in bulk.fetch(connection, "SELECT chain, height, next_tx FROM chains" + lock)
    }
    known = {number: (row.height, row.next_tx) for number, row in chains.items()}
    if written != known:
        changed = next(number for number in (*written, *known) if written.get(number) != known.get(number))
        raise IndexMoved(CHAINS[changed])
