"""Applies the C-Chain's atomic transactions, and writes them with every block's header."""

from __future__ import annotations

from collections.abc import Sequence

from warpseal.chains.c_atomic import AtomicTx, ImportTx, parse_atomic_txs
from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.history.chains import PrimaryChain
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.raw_blocks import encode_c_block
from warpseal.index.records import CRecord
from warpseal.index.writer import IndexWriter
from warpseal.indexer.errors import IndexingStopped, StopReason
from warpseal.ledger.c_chain import CHeader, apply_c_block
from warpseal.ledger.outputs import LedgerFault
from warpseal.ledger.params import Parameters
from warpseal.node.evm import EvmBlock


class CChainProcessor:
    """How the C-Chain's blocks are written."""

    chain = PrimaryChain.C

    def __init__(self, index: IndexWriter, params: Parameters) -> None:
        self._index = index
        self._params = params
        self._parent_hash: bytes | None = None

    def resume(self) -> Checkpoint | None:
        """Begin where was written to; None: nothing is."""
        self._index.outputs.forget()
        place = self._index.checkpoint(self.chain)
        self._parent_hash = None if place is None else place.block_id
        return place

    def write(self, blocks: Sequence[EvmBlock]) -> None:
        """Write the next blocks. Raises Stopped; the blocks before the one that is the reason are written then."""
        read, stopped = self._read_all(blocks)
        imports = (tx.unsigned for _, txs in read for tx in txs if isinstance(tx.unsigned, ImportTx))
        self._index.outputs.prefetch([spent.utxo_id for each in imports for spent in each.imported_inputs])
        records: list[CRecord] = []
        try:
            for block, txs in read:
                records.append(self._applied(block, txs))
        except IndexingStopped as fault:
            stopped = fault
        if records:
            self._index.write(records, is_complete=records[0].effects.header.number <= 1)
        if stopped is not None:
            raise stopped

    def _read_all(
        self, blocks: Sequence[EvmBlock]
    ) -> tuple[list[tuple[EvmBlock, tuple[AtomicTx, ...]]], IndexingStopped | None]:
        read: list[tuple[EvmBlock, tuple[AtomicTx, ...]]] = []
        # Since then a block may hold several.
        batch_from_s = self._params.upgrades.apricot_5_s
        for block in blocks:
            try:
                read.append((block, parse_atomic_txs(block.extra_data, batch=block.time_s >= batch_from_s)))
            except UnknownType as fault:
                return read, IndexingStopped(StopReason.UNKNOWN_TYPE, block.number, str(fault), block.extra_data)
            except MalformedChainBytes as fault:
                return read, IndexingStopped(StopReason.UNDECODABLE_BLOCK, block.number, str(fault), block.extra_data)
        return read, None

    def _applied(self, block: EvmBlock, txs: tuple[AtomicTx, ...]) -> CRecord:
        if self._parent_hash is not None and block.parent_hash != self._parent_hash:
            told = f"it names {block.parent_hash.hex()} as its parent, not {self._parent_hash.hex()}"
            raise IndexingStopped(StopReason.WRONG_PARENT, block.number, told, block.extra_data)
        header = CHeader(block.number, block.hash, block.parent_hash, block.time_s, block.size_bytes, block.tx_count)
        is_repeat = block.number in self._params.repeated_c_blocks
        try:
            effects = apply_c_block(self._params.c_chain_id, header, txs, self._index.outputs, is_repeat=is_repeat)
        except LedgerFault as fault:
            raise IndexingStopped(StopReason.CONTRADICTION, block.number, str(fault), block.extra_data) from None
        self._index.outputs.follow(effects.txs)
        self._parent_hash = block.hash
        return CRecord(effects, encode_c_block(header, txs))
