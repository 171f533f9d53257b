"""Applies the X-Chain's blocks, and what is known of the time before it had any, and writes what they do.

Outputs that nobody knows are fetched elsewhere, between `prepare` and `write`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.chains.ids import TxID, UtxoID
from warpseal.chains.x_blocks import XBlock, XGenesis, parse_x_block
from warpseal.chains.x_txs import ImportTx, OperationTx, XTx, parse_x_tx
from warpseal.history.blocks import Proposer
from warpseal.history.chains import PrimaryChain
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.records import XPreLinearizationRecord, XRecord
from warpseal.index.writer import IndexWriter
from warpseal.indexer.errors import IndexingStopped, StopReason
from warpseal.indexer.proposervm_blocks import RawBlock, UnwrappedBlock, unwrap_block
from warpseal.ledger.outputs import LedgerFault
from warpseal.ledger.utxo_flow import UtxoFlow
from warpseal.ledger.x_chain import apply_x_block, build_x_genesis_effects, build_x_tx_effects, list_x_outputs
from warpseal.node.containers import Container
from warpseal.warp.ids import ChainID

GENESIS_NUMBER = -1


@dataclass(frozen=True, slots=True)
class XChainOrigin:
    """What the X-Chain began with. raw: the genesis data; ended_s: when it became a line of blocks; 0: at once."""

    genesis: XGenesis
    raw: bytes
    time_s: int
    ended_s: int


class XChainProcessor:
    """How the X-Chain's blocks are written. is_complete: every output of the chain is known, so none is looked for."""

    chain = PrimaryChain.X

    def __init__(
        self, index: IndexWriter, chain_id: ChainID, beginning: XChainOrigin | None, *, is_complete: bool
    ) -> None:
        self._index = index
        self._chain_id = chain_id
        self._beginning = beginning
        self._is_complete = is_complete
        self._parent_id: bytes | None = None
        self._proposer: Proposer | None = None
        self._prepared: tuple[tuple[UnwrappedBlock[XBlock], ...], IndexingStopped | None] = ((), None)
        self._prepared_past: tuple[XTx, ...] = ()

    def resume(self) -> Checkpoint | None:
        """Begin where was written to; None: nothing is."""
        self._index.outputs.forget()
        place = self._index.checkpoint(self.chain)
        if place is not None:
            self._is_complete = place.is_complete
        self._parent_id = None if place is None else place.block_id
        self._proposer = None if place is None else place.proposer
        return place

    def begin_late(self) -> None:
        """Begin without what was before the first block that a node has."""
        self._is_complete = False

    def begin(self) -> None:
        """Write the genesis, where it is known and was not written yet."""
        known = self._beginning
        if known is None or self._index.pre_linearization_count() >= 0:
            return
        effects = build_x_genesis_effects(known.genesis, self._chain_id)
        self._index.write(
            [XPreLinearizationRecord(GENESIS_NUMBER, known.time_s, effects, known.raw)], is_complete=self._is_complete
        )

    def past_count(self) -> int:
        """Return how many containers are written from before the first block; -1: nor is the genesis."""
        return self._index.pre_linearization_count()

    def prepare(self, first_height: int, blocks: Sequence[RawBlock]) -> tuple[TxID, ...]:
        """Decode the next blocks; return the transactions whose outputs they spend and nobody knows."""
        read: list[UnwrappedBlock[XBlock]] = []
        stopped: IndexingStopped | None = None
        before = self._proposer
        for height, raw in enumerate(blocks, first_height):
            try:
                read.append(unwrap_block(parse_x_block, raw, height, before))
            except IndexingStopped as fault:
                stopped = fault
                break
            before = read[-1].proposer
        self._prepared = (tuple(read), stopped)
        return self._unknown([tx for each in read for tx in each.block.txs])

    def write(self, fetched: Iterable[bytes]) -> None:
        """Write the prepared blocks. fetched: transactions from elsewhere.

        Raises Stopped; the blocks before the one that is the reason are written then.
        """
        # Again: other chains were written meanwhile, and not everything is remembered.
        blocks, stopped = self._prepared
        self._prefetch([tx for each in blocks for tx in each.block.txs])
        self._adopt(fetched)
        records: list[XRecord] = []
        try:
            for each in blocks:
                records.append(self._applied(each))
        except IndexingStopped as fault:
            stopped = fault
        if records:
            self._index.write(records, is_complete=self._is_complete)
        if stopped is not None:
            raise stopped

    def prepare_past(self, containers: Sequence[Container]) -> tuple[TxID, ...]:
        """Decode transactions from before the X-Chain had blocks; return as `prepare` does. Raises Stopped."""
        self._prepared_past = tuple(_parsed(container) for container in containers)
        return self._unknown(self._prepared_past)

    def write_past(self, containers: Sequence[Container], fetched: Iterable[bytes]) -> None:
        """Write them. Their time is when the node took them in, which is later: it is capped. Raises Stopped."""
        txs = self._prepared_past
        self._prefetch(txs)
        self._adopt(fetched)
        ended_s = self._beginning.ended_s if self._beginning is not None else 0
        records: list[XPreLinearizationRecord] = []
        for container, tx in zip(containers, txs, strict=True):
            moving = UtxoFlow(self._chain_id, 0, self._index.outputs, False)
            try:
                effects = build_x_tx_effects(moving, tx, 0)
            except LedgerFault as fault:
                raise IndexingStopped(StopReason.CONTRADICTION, 0, str(fault), container.raw) from None
            self._index.outputs.follow((effects,))
            time_s = min(container.accepted_at_s, ended_s) if ended_s else container.accepted_at_s
            records.append(XPreLinearizationRecord(container.index, time_s, (effects,), container.raw))
        self._index.write(records, is_complete=self._is_complete)

    def _applied(self, each: UnwrappedBlock[XBlock]) -> XRecord:
        block = each.block
        if self._parent_id is not None and block.parent_id != self._parent_id:
            told = f"it names {block.parent_id.hex()} as its parent, not {self._parent_id.hex()}"
            raise IndexingStopped(StopReason.WRONG_PARENT, block.height, told, each.raw)
        try:
            effects = apply_x_block(self._chain_id, block, self._index.outputs, is_complete=self._is_complete)
        except LedgerFault as fault:
            raise IndexingStopped(StopReason.CONTRADICTION, block.height, str(fault), each.raw) from None
        self._index.outputs.follow(effects.txs)
        self._parent_id, self._proposer = block.id, each.proposer
        return XRecord(effects, each.raw, each.proposer)

    def _prefetch(self, txs: Iterable[XTx]) -> None:
        self._index.outputs.prefetch([spent for tx in txs for spent, _ in _spent(tx, own_only=False)])

    def _adopt(self, fetched: Iterable[bytes]) -> None:
        for raw in fetched:
            # What cannot be read is as good as what nobody has.
            with suppress(MalformedChainBytes):
                self._index.outputs.add_external(list_x_outputs(parse_x_tx(raw), self._chain_id))

    def _unknown(self, txs: Sequence[XTx]) -> tuple[TxID, ...]:
        outputs = self._index.outputs
        self._prefetch(txs)
        if self._is_complete:
            return ()
        made = {tx.id for tx in txs}
        spent = [pair for tx in txs for pair in _spent(tx, own_only=True) if pair[1] not in made]
        unknown = (tx_id for utxo_id, tx_id in spent if outputs.find(utxo_id, self._chain_id) is None)
        return tuple(dict.fromkeys(unknown))


def _spent(tx: XTx, *, own_only: bool) -> Iterator[tuple[UtxoID, TxID]]:
    """Yield the ids of the outputs that a transaction spends, and of the transactions that made them."""
    unsigned = tx.unsigned
    for spent in unsigned.base.inputs:
        yield spent.utxo_id, spent.tx_id
    if isinstance(unsigned, ImportTx) and not own_only:
        for spent in unsigned.imported_inputs:
            yield spent.utxo_id, spent.tx_id
    if isinstance(unsigned, OperationTx):
        for operation in unsigned.operations:
            for reference in operation.consumed:
                yield reference.utxo_id, reference.tx_id


def _parsed(container: Container) -> XTx:
    try:
        return parse_x_tx(container.raw)
    except UnknownType as fault:
        raise IndexingStopped(
            StopReason.UNKNOWN_TYPE, 0, f"container {container.index}: {fault}", container.raw
        ) from None
    except MalformedChainBytes as fault:
        raise IndexingStopped(
            StopReason.UNDECODABLE_BLOCK, 0, f"container {container.index}: {fault}", container.raw
        ) from None
