"""Applies the C-Chain's atomic transactions and writes them, with the header of every block."""

from __future__ import annotations

from collections.abc import Sequence

from warpseal.chains.c_atomic import AtomicTx, parse_atomic_txs
from warpseal.chains.codec import MalformedChainBytes
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.raw_blocks import encode_c_block
from warpseal.index.records import CRecord
from warpseal.index.writer import IndexWriter
from warpseal.indexer.blocks import IndexingStopped, StopReason, apply_blocks, check_parent, undecodable
from warpseal.ledger.c_chain import CHeader, apply_c_block
from warpseal.ledger.outputs import LedgerFault
from warpseal.ledger.params import Parameters
from warpseal.ledger.utxo_flow import spent_ids
from warpseal.node.blocks import CChainBlock
from warpseal.resources.chains import PrimaryChain

_DecodedBlock = tuple[CChainBlock, tuple[AtomicTx, ...]]


class CChainProcessor:
    """Writes the C-Chain's blocks."""

    chain = PrimaryChain.C

    def __init__(self, index: IndexWriter, params: Parameters) -> None:
        self._index = index
        self._params = params
        self._parent_hash: bytes | None = None

    def resume(self) -> Checkpoint | None:
        """Return to the last written block; None: nothing is written."""
        self._index.outputs.forget()
        checkpoint = self._index.checkpoint(self.chain)
        self._parent_hash = None if checkpoint is None else checkpoint.block_id
        return checkpoint

    def write(self, blocks: Sequence[CChainBlock]) -> None:
        """Write the next blocks. Raises IndexingStopped after writing those before the block that is the reason."""
        decoded, stop = self._decode(blocks)
        spent = (utxo_id for _, txs in decoded for tx in txs for utxo_id in spent_ids(tx.unsigned))
        self._index.outputs.prefetch(spent)
        records, stop = apply_blocks(decoded, self._apply, stop)
        if records:
            self._index.write(records, is_complete=records[0].effects.header.number <= 1)
        if stop is not None:
            raise stop

    def _decode(self, blocks: Sequence[CChainBlock]) -> tuple[list[_DecodedBlock], IndexingStopped | None]:
        decoded: list[_DecodedBlock] = []
        # From then on a block may hold several atomic transactions.
        batch_from_s = self._params.upgrades.apricot_5_s
        for block in blocks:
            try:
                decoded.append((block, parse_atomic_txs(block.extra_data, batch=block.time_s >= batch_from_s)))
            except MalformedChainBytes as error:
                return decoded, undecodable(error, block.number, block.extra_data)
        return decoded, None

    def _apply(self, decoded: _DecodedBlock) -> CRecord:
        block, txs = decoded
        check_parent(block.parent_hash, self._parent_hash, block.number, block.extra_data)
        header = CHeader(block.number, block.hash, block.parent_hash, block.time_s, block.size_bytes, block.tx_count)
        is_repeat = block.number in self._params.repeated_c_blocks
        try:
            effects = apply_c_block(self._params.c_chain_id, header, txs, self._index.outputs, is_repeat=is_repeat)
        except LedgerFault as error:
            raise IndexingStopped(StopReason.CONTRADICTION, block.number, str(error), block.extra_data) from None
        self._index.outputs.follow(effects.txs)
        self._parent_hash = block.hash
        return CRecord(effects, encode_c_block(header, txs))
