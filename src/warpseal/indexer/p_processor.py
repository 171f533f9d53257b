"""Applies the P-Chain's blocks to its state, one after another, and writes their effects."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_blocks import PBlock, PGenesis, parse_p_block
from warpseal.chains.proposervm import inner_block
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.records import PRecord
from warpseal.index.writer import IndexWriter
from warpseal.indexer.blocks import (
    IndexingStopped,
    RawBlock,
    StopReason,
    UnwrappedBlock,
    apply_blocks,
    check_parent,
    unwrap_block,
    unwrap_blocks,
)
from warpseal.indexer.settings import IndexerSettings
from warpseal.ledger.checkpoint import UnusableCheckpoint, decode_checkpoint, encode_checkpoint
from warpseal.ledger.genesis import state_from_genesis, state_without_genesis
from warpseal.ledger.outputs import LedgerFault
from warpseal.ledger.p_chain import DECISIONS, apply_p_block
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import Parameters
from warpseal.ledger.utxo_flow import spent_ids
from warpseal.resources.chains import PrimaryChain


class PChainProcessor:
    """Holds the P-Chain's state as of the last written block, and writes the next blocks."""

    chain = PrimaryChain.P

    def __init__(
        self, index: IndexWriter, params: Parameters, genesis: PGenesis | None, settings: IndexerSettings
    ) -> None:
        self._index = index
        self._params = params
        self._genesis = genesis
        self._settings = settings
        self._state: PChainState | None = None
        self._last: UnwrappedBlock[PBlock] | None = None
        self._checkpoint: Checkpoint | None = None
        self._blocks_since_dump = 0
        self._dumped_at = monotonic()

    def resume(self) -> Checkpoint | None:
        """Restore the state after the last written block; None: nothing is written. Raises IndexingStopped."""
        self._index.outputs.forget()
        self._last = None
        self._checkpoint = checkpoint = self._index.checkpoint(self.chain)
        if checkpoint is not None:
            self._state = self._restore_state(checkpoint)
            self._dumped_at = monotonic()
        return checkpoint

    def min_height(self) -> int:
        """Return the lowest height to begin at: block 0 holds nothing without the genesis."""
        return 0 if self._genesis is not None else 1

    def begin(self, first: RawBlock, height: int) -> bool:
        """Write the first block; return False if its parent has to be the first one. Raises IndexingStopped."""
        block = unwrap_block(parse_p_block, first, height, None).block
        if height == 0:
            self._write_genesis(block)
            return True
        if block.kind in DECISIONS:
            return False
        self._state = state_without_genesis(self._params, block)
        self.write(height, (first,))
        return True

    def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        """Write the next blocks. Raises IndexingStopped after writing those before the block that is the reason."""
        parent = self._last or self._checkpoint
        proposer = None if parent is None else parent.proposer
        unwrapped, stop = unwrap_blocks(parse_p_block, blocks, first_height, proposer)
        txs = (tx for block in unwrapped for tx in block.block.txs)
        self._index.outputs.prefetch(utxo_id for tx in txs for utxo_id in spent_ids(tx.unsigned))
        records, stop = apply_blocks(unwrapped, self._apply, stop)
        if records:
            self._last = unwrapped[len(records) - 1]
            self._append(records, is_sound=stop is None)
        if stop is not None:
            raise stop

    def _write_genesis(self, block: PBlock) -> None:
        genesis = self._genesis
        assert genesis is not None
        if block.parent_id != genesis.id:
            detail = f"block 0 is of a genesis with SHA-256 {block.parent_id.hex()}, not {genesis.id.hex()}"
            raise IndexingStopped(StopReason.WRONG_GENESIS, 0, detail, block.raw)
        self._state, effects = state_from_genesis(genesis, self._params)
        self._index.write([PRecord(effects, genesis.raw)], encode_checkpoint(self._state))

    def _apply(self, unwrapped: UnwrappedBlock[PBlock]) -> PRecord:
        block, state, outputs = unwrapped.block, self._current_state(), self._index.outputs
        check_parent(block.parent_id, state.block_id, block.height, block.raw)
        try:
            effects = apply_p_block(state, block, outputs)
        except LedgerFault as error:
            raise IndexingStopped(StopReason.CONTRADICTION, block.height, str(error), block.raw) from None
        outputs.follow(effects.executed)
        return PRecord(effects, unwrapped.raw, unwrapped.proposer)

    def _append(self, records: Sequence[PRecord], *, is_sound: bool) -> None:
        state = self._current_state()
        self._blocks_since_dump += len(records)
        rule, age_s = self._settings, monotonic() - self._dumped_at
        is_due = self._blocks_since_dump >= rule.checkpoint_blocks or age_s >= rule.checkpoint_s
        dumped = encode_checkpoint(state) if is_sound and is_due else None
        self._index.write(records, dumped, is_complete=state.is_complete)
        if dumped is not None:
            self._blocks_since_dump, self._dumped_at = 0, monotonic()

    def _current_state(self) -> PChainState:
        assert self._state is not None
        return self._state

    def _restore_state(self, checkpoint: Checkpoint) -> PChainState:
        """Return the state after the last written block: apply the blocks behind the last dump, or all blocks."""
        state = self._load_state() or self._initial_state(checkpoint)
        for raw in self._index.raw_blocks(self.chain, state.height + 1, checkpoint.height):
            try:
                apply_p_block(state, parse_p_block(inner_block(raw)), None)
            except (LedgerFault, MalformedChainBytes) as error:
                detail = f"a stored block cannot be applied again: {error}"
                raise IndexingStopped(StopReason.CONTRADICTION, state.height + 1, detail) from None
        if (state.height, state.block_id) != (checkpoint.height, checkpoint.block_id):
            detail = f"the stored blocks end at {state.height}"
            raise IndexingStopped(StopReason.CONTRADICTION, checkpoint.height, detail)
        return state

    def _load_state(self) -> PChainState | None:
        stored = self._index.ledger()
        if stored is None:
            return None
        try:
            return decode_checkpoint(stored[1], self._params)
        except UnusableCheckpoint:
            # Another version of this program wrote it. The blocks give the same state.
            return None

    def _initial_state(self, checkpoint: Checkpoint) -> PChainState:
        if checkpoint.first_height == 0 and self._genesis is not None:
            return state_from_genesis(self._genesis, self._params)[0]
        raw = next(self._index.raw_blocks(self.chain, checkpoint.first_height, checkpoint.first_height))
        return state_without_genesis(self._params, parse_p_block(inner_block(raw)))
