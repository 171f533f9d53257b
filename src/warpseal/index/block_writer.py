"""The rows of one block of any chain, in the order in which it takes effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from warpseal.chains.ids import BlockID, TxID
from warpseal.history.chains import PrimaryChain
from warpseal.index import bulk, type_codes
from warpseal.index.batch import Batch, TxPlace
from warpseal.index.chain_rows import BlockPlace, ChainRow, check_next, write_block
from warpseal.index.details import TxDetail, encode
from warpseal.index.errors import IndexDamaged, OutOfOrder
from warpseal.index.keys import C, P, X, block_key, first_key
from warpseal.index.p_rows import PROPOSED, When, write_proposed, write_tx
from warpseal.index.records import CRecord, PRecord, Record, XPastRecord, XRecord
from warpseal.index.schema import TXS, VALIDATION_STOPS
from warpseal.index.stakings import Stakings
from warpseal.index.xc_rows import write_c, write_x
from warpseal.ledger.effects import Outcome, TxEffects
from warpseal.warp.ids import P_CHAIN

_NOTHING = (None, None, None)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A transaction whose outcome the next block decides. is_written: an earlier batch has written its row."""

    key: int
    tx_id: TxID
    api_type: str
    height: int
    time_s: int
    is_written: bool


class BlockWriter:
    """Writes blocks of all chains; remembers the proposal that the P-Chain's next block decides."""

    def __init__(self, stakings: Stakings) -> None:
        self._stakings = stakings
        self._proposal: _Proposal | None = None

    def open(self, connection: Connection) -> None:
        """Begin where the last batch ended."""
        text = (
            "SELECT key, tx_id, kind, height, time FROM txs"
            " WHERE key = (SELECT next_tx - 1 FROM chains WHERE chain = 0) AND outcome = ?"
        )
        rows = bulk.fetch(connection, text, PROPOSED)
        self._proposal = None
        for key, tx_id, kind, height, time_s in rows:
            self._proposal = _Proposal(key, TxID(bytes(tx_id)), type_codes.tx_name(kind), height, time_s, True)

    def write(self, batch: Batch, chains: dict[int, ChainRow], record: Record) -> None:
        """Write one block, or one transaction from before there were blocks. Raises OutOfOrder, IndexDamaged."""
        match record:
            case PRecord():
                self._p(batch, chains, record)
            case XRecord():
                _x(batch, chains, record)
            case XPastRecord():
                _x_past(batch, chains, record)
            case CRecord():
                _c(batch, chains, record)

    def finish(self, batch: Batch) -> None:
        """Write what is only proposed so far."""
        proposal = self._proposal
        if proposal is not None and not proposal.is_written:
            when = When(proposal.key, proposal.time_s, proposal.time_s)
            write_proposed(batch, proposal.tx_id, proposal.api_type, proposal.height, when)
            self._proposal = _Proposal(
                proposal.key, proposal.tx_id, proposal.api_type, proposal.height, proposal.time_s, True
            )

    def _p(self, batch: Batch, chains: dict[int, ChainRow], record: PRecord) -> None:
        effects, block = record.effects, record.effects.block
        is_genesis = block.height == 0
        chain = _chain(chains, P, lambda: ChainRow.new(P, P_CHAIN, block.height, block.parent_id))
        check_next(chain, block.height, block.parent_id)
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
        for out in effects.l1_deactivated:
            row = (batch.names.key(out.validation_id), block_key(P, block.height), int(out.after_transactions))
            batch.add(VALIDATION_STOPS, row)
        place = BlockPlace(
            block.height, block.id, block.parent_id, time_s, type_codes.block_number(block.kind),
            effects.size_bytes, effects.tx_count, record.proposer,
        )  # fmt: skip
        write_block(batch, chain, place, first_tx, (effects.supply, effects.l1_accrued_fees, effects.l1_active))

    def _p_tx(self, batch: Batch, chain: ChainRow, tx: TxEffects, time_s: int) -> None:
        key = chain.take_tx()
        if tx.outcome is Outcome.PROPOSED:
            self._proposal = _Proposal(key, tx.tx.id, tx.api_type, tx.height, time_s, False)
        else:
            write_tx(batch, self._stakings, tx, When(key, time_s, time_s))

    def _settle(self, batch: Batch, tx: TxEffects, time_s: int) -> None:
        proposal = self._proposal
        if proposal is None or proposal.tx_id != tx.tx.id:
            raise IndexDamaged(f"transaction {tx.tx.id.hex()} is decided and was never proposed")
        when = When(proposal.key, proposal.time_s, time_s)
        write_tx(batch, self._stakings, tx, when, is_written=proposal.is_written)
        self._proposal = None


def _write_genesis(batch: Batch, record: PRecord, time_s: int) -> None:
    """Write the genesis' outputs as those of a transaction that nobody sees: its id is their transaction id, zeros."""
    emitted = record.effects.emitted
    place = TxPlace(first_key(P), type_codes.UNKNOWN, TxID(bytes(32)))
    first_out = batch.emit(place, emitted)
    detail = encode(TxDetail())
    batch.add(TXS, (place.key, place.tx_id, 0, time_s, place.kind, 0, first_out, len(emitted), len(emitted), detail))
    batch.touch(place)


def _x(batch: Batch, chains: dict[int, ChainRow], record: XRecord) -> None:
    effects, block = record.effects, record.effects.block
    chain = _chain(chains, X, lambda: ChainRow.new(X, effects.chain_id, block.height, block.parent_id))
    if not chain.block_id:
        _begin_blocks(chain, block.height, block.parent_id)
    check_next(chain, block.height, block.parent_id)
    time_s = effects.time_s
    first_tx = chain.next_tx
    for tx in effects.txs:
        write_x(batch, tx, When(chain.take_tx(), time_s, time_s), False)
    kind = type_codes.block_number("StandardBlock")
    place = BlockPlace(
        block.height, block.id, block.parent_id, time_s, kind, effects.size_bytes, effects.tx_count, record.proposer
    )
    write_block(batch, chain, place, first_tx, _NOTHING)


def _x_past(batch: Batch, chains: dict[int, ChainRow], record: XPastRecord) -> None:
    chain = _chain(chains, X, lambda: ChainRow.new(X, batch.chains.x, 0, b""))
    if chain.block_id:
        raise OutOfOrder(PrimaryChain.X, record.number, "its container is from before blocks that are written")
    if record.number != chain.past and (chain.past, record.number) != (-1, 0):
        raise OutOfOrder(PrimaryChain.X, record.number, f"container {chain.past} is the next")
    chain.past = record.number + 1
    chain.time = max(chain.time, record.time_s)
    for tx in record.txs:
        when = When(chain.take_tx(), chain.time, chain.time)
        write_x(batch, tx, when, record.vertex or True)


def _begin_blocks(chain: ChainRow, height: int, parent_id: BlockID) -> None:
    """Let a chain's blocks begin behind what is from before them."""
    chain.first_height, chain.first_parent = height, parent_id
    chain.height, chain.block_id = height - 1, parent_id


def _c(batch: Batch, chains: dict[int, ChainRow], record: CRecord) -> None:
    effects, header = record.effects, record.effects.header
    first = (header.number, header.parent_hash)
    chain = _chain(chains, C, lambda: ChainRow.new(C, effects.chain_id, *first))
    check_next(chain, header.number, header.parent_hash)
    time_s = header.time_s
    first_tx = chain.next_tx
    for tx in () if effects.is_repeat else effects.txs:
        write_c(batch, tx, When(chain.take_tx(), time_s, time_s))
    repeated = b"".join(tx.tx.id for tx in effects.txs) if effects.is_repeat else None
    place = BlockPlace(
        header.number, header.hash, header.parent_hash, time_s, type_codes.EVM_BLOCK, header.size_bytes,
        0 if effects.is_repeat else effects.tx_count, record.proposer, repeated,
    )  # fmt: skip
    write_block(batch, chain, place, first_tx, _NOTHING)


def _chain(chains: dict[int, ChainRow], number: int, new: Callable[[], ChainRow]) -> ChainRow:
    chain = chains.get(number)
    if chain is None:
        chain = chains[number] = new()
    return chain
