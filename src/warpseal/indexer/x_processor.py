"""Applies the X-Chain's blocks, and its transactions from before it had blocks, and writes their effects.

Between `prepare` and `write` the caller fetches the transactions of unknown outputs from a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.ids import TxID, UtxoID
from warpseal.chains.x_blocks import XBlock, XGenesis, parse_x_block
from warpseal.chains.x_txs import OperationTx, XTx, parse_x_tx
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.records import XPreLinearizationRecord, XRecord
from warpseal.index.writer import IndexWriter
from warpseal.indexer.blocks import (
    IndexingStopped,
    RawBlock,
    StopReason,
    UnwrappedBlock,
    apply_blocks,
    check_parent,
    undecodable,
    unwrap_blocks,
)
from warpseal.ledger.outputs import LedgerFault
from warpseal.ledger.utxo_flow import UtxoFlow, spent_ids
from warpseal.ledger.x_chain import apply_x_block, build_x_genesis_effects, build_x_tx_effects, list_x_outputs
from warpseal.node.blocks import Container
from warpseal.resources.blocks import Proposer
from warpseal.resources.chains import PrimaryChain
from warpseal.warp.ids import ChainID

GENESIS_NUMBER = -1


@dataclass(frozen=True, slots=True)
class XChainOrigin:
    """The genesis of the X-Chain. raw: its bytes; linearized_s: Unix time of block 0, 0 if it began linear."""

    genesis: XGenesis
    raw: bytes
    time_s: int
    linearized_s: int


class XChainProcessor:
    """Writes the X-Chain's blocks. is_complete: every output of the chain is known, so that none has to be fetched."""

    chain = PrimaryChain.X

    def __init__(
        self, index: IndexWriter, chain_id: ChainID, origin: XChainOrigin | None, *, is_complete: bool
    ) -> None:
        self._index = index
        self._chain_id = chain_id
        self._origin = origin
        self._is_complete = is_complete
        self._parent_id: bytes | None = None
        self._proposer: Proposer | None = None
        self._prepared: tuple[tuple[UnwrappedBlock[XBlock], ...], IndexingStopped | None] = ((), None)
        self._prepared_txs: tuple[XTx, ...] = ()

    def resume(self) -> Checkpoint | None:
        """Return to the last written block; None: nothing is written."""
        self._index.outputs.forget()
        checkpoint = self._index.checkpoint(self.chain)
        if checkpoint is not None:
            self._is_complete = checkpoint.is_complete
        self._parent_id = None if checkpoint is None else checkpoint.block_id
        self._proposer = None if checkpoint is None else checkpoint.proposer
        return checkpoint

    def begin_late(self) -> None:
        """Begin without the history before the first block that a node has."""
        self._is_complete = False

    def begin(self) -> None:
        """Write the genesis if it is known and not written yet."""
        origin = self._origin
        if origin is None or self._index.pre_linearization_count() >= 0:
            return
        effects = build_x_genesis_effects(origin.genesis, self._chain_id)
        record = XPreLinearizationRecord(GENESIS_NUMBER, origin.time_s, effects, origin.raw)
        self._index.write([record], is_complete=self._is_complete)

    def pre_linearization_count(self) -> int:
        """Return the number of written containers from before the first block; -1: not even the genesis."""
        return self._index.pre_linearization_count()

    def prepare(self, first_height: int, blocks: Sequence[RawBlock]) -> tuple[TxID, ...]:
        """Decode the next blocks; return the transactions of the unknown outputs that they spend."""
        unwrapped, stop = unwrap_blocks(parse_x_block, blocks, first_height, self._proposer)
        self._prepared = (tuple(unwrapped), stop)
        return self._find_unknown([tx for block in unwrapped for tx in block.block.txs])

    def write(self, fetched: Iterable[bytes]) -> None:
        """Write the prepared blocks. fetched: the transactions of unknown outputs.

        Raises IndexingStopped after writing the blocks before the one that is the reason.
        """
        blocks, stop = self._prepared
        # Other chains were written since `prepare`, and the cache of outputs is bounded.
        self._prefetch([tx for block in blocks for tx in block.block.txs])
        self._add_external(fetched)
        records, stop = apply_blocks(blocks, self._apply, stop)
        if records:
            self._index.write(records, is_complete=self._is_complete)
        if stop is not None:
            raise stop

    def prepare_pre_linearization(self, containers: Sequence[Container]) -> tuple[TxID, ...]:
        """Decode transactions from before the first block; return what `prepare` returns. Raises IndexingStopped."""
        self._prepared_txs = tuple(_parse_tx(container) for container in containers)
        return self._find_unknown(self._prepared_txs)

    def write_pre_linearization(self, containers: Sequence[Container], fetched: Iterable[bytes]) -> None:
        """Write the prepared transactions. Raises IndexingStopped.

        Their time is when the node accepted them, at most the time of the first block: a node may have been late.
        """
        txs = self._prepared_txs
        self._prefetch(txs)
        self._add_external(fetched)
        linearized_s = self._origin.linearized_s if self._origin is not None else 0
        records: list[XPreLinearizationRecord] = []
        for container, tx in zip(containers, txs, strict=True):
            moving = UtxoFlow(self._chain_id, 0, self._index.outputs, False)
            try:
                effects = build_x_tx_effects(moving, tx, 0)
            except LedgerFault as error:
                raise IndexingStopped(StopReason.CONTRADICTION, 0, str(error), container.raw) from None
            self._index.outputs.follow((effects,))
            time_s = min(container.accepted_at_s, linearized_s) if linearized_s else container.accepted_at_s
            records.append(XPreLinearizationRecord(container.index, time_s, (effects,), container.raw))
        self._index.write(records, is_complete=self._is_complete)

    def _apply(self, unwrapped: UnwrappedBlock[XBlock]) -> XRecord:
        block = unwrapped.block
        check_parent(block.parent_id, self._parent_id, block.height, unwrapped.raw)
        try:
            effects = apply_x_block(self._chain_id, block, self._index.outputs, is_complete=self._is_complete)
        except LedgerFault as error:
            raise IndexingStopped(StopReason.CONTRADICTION, block.height, str(error), unwrapped.raw) from None
        self._index.outputs.follow(effects.txs)
        self._parent_id, self._proposer = block.id, unwrapped.proposer
        return XRecord(effects, unwrapped.raw, unwrapped.proposer)

    def _prefetch(self, txs: Iterable[XTx]) -> None:
        self._index.outputs.prefetch([utxo_id for tx in txs for utxo_id in spent_ids(tx.unsigned)])

    def _add_external(self, fetched: Iterable[bytes]) -> None:
        for raw in fetched:
            # An undecodable transaction is treated like one that no node has.
            with suppress(MalformedChainBytes):
                self._index.outputs.add_external(list_x_outputs(parse_x_tx(raw), self._chain_id))

    def _find_unknown(self, txs: Sequence[XTx]) -> tuple[TxID, ...]:
        outputs = self._index.outputs
        self._prefetch(txs)
        if self._is_complete:
            return ()
        own = {tx.id for tx in txs}
        spent = [pair for tx in txs for pair in _own_spent(tx) if pair[1] not in own]
        unknown = (tx_id for utxo_id, tx_id in spent if outputs.find(utxo_id, self._chain_id) is None)
        return tuple(dict.fromkeys(unknown))


def _own_spent(tx: XTx) -> Iterator[tuple[UtxoID, TxID]]:
    """Yield the ids of the outputs of this chain that a transaction spends, and of their transactions."""
    unsigned = tx.unsigned
    yield from ((spent.utxo_id, spent.tx_id) for spent in unsigned.base.inputs)
    for operation in unsigned.operations if isinstance(unsigned, OperationTx) else ():
        yield from ((reference.utxo_id, reference.tx_id) for reference in operation.consumed)


def _parse_tx(container: Container) -> XTx:
    try:
        return parse_x_tx(container.raw)
    except MalformedChainBytes as error:
        raise undecodable(error, 0, container.raw, f"container {container.index}: ") from None
