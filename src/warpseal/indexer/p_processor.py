"""Applies the P-Chain's blocks to its state, block by block, and writes what they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.ids import UtxoID
from warpseal.chains.p_blocks import PBlock, PGenesis, parse_p_block
from warpseal.chains.proposervm import inner_block
from warpseal.history.chains import PrimaryChain
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.records import PRecord
from warpseal.index.writer import IndexWriter
from warpseal.indexer.errors import IndexingStopped, StopReason
from warpseal.indexer.proposervm_blocks import RawBlock, UnwrappedBlock, unwrap_block
from warpseal.ledger.checkpoint import UnusableCheckpoint, decode_checkpoint, encode_checkpoint
from warpseal.ledger.effects import BlockEffects, TxEffects
from warpseal.ledger.genesis import state_from_genesis, state_without_genesis
from warpseal.ledger.outputs import LedgerFault
from warpseal.ledger.p_chain import apply_p_block
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import Parameters

_DECISIONS = frozenset({"ApricotCommitBlock", "ApricotAbortBlock", "BanffCommitBlock", "BanffAbortBlock"})


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """When the state is written too: after so many blocks, or so long after the last time."""

    blocks: int
    seconds: float


class PChainProcessor:
    """The P-Chain's state as of the last written block, and how the next ones are written."""

    chain = PrimaryChain.P

    def __init__(self, index: IndexWriter, params: Parameters, genesis: PGenesis | None, rule: CheckpointRule) -> None:
        self._index = index
        self._params = params
        self._genesis = genesis
        self._rule = rule
        self._state: PChainState | None = None
        self._last: UnwrappedBlock[PBlock] | None = None
        self._before: Checkpoint | None = None
        self._since_checkpoint = 0
        self._checkpoint_at = monotonic()

    def resume(self) -> Checkpoint | None:
        """Bring the state to the last written block; None: nothing is written. Raises Stopped."""
        self._index.outputs.forget()
        self._last = None
        self._before = place = self._index.checkpoint(self.chain)
        if place is not None:
            self._state = self._state_at(place)
            self._checkpoint_at = monotonic()
        return place

    def least_height(self) -> int:
        """Return below which height nothing can be begun: without the genesis, block 0 says nothing."""
        return 0 if self._genesis is not None else 1

    def begin(self, first: RawBlock, height: int) -> bool:
        """Write the first block there is; False where the one before it has to be first. Raises Stopped."""
        block = unwrap_block(parse_p_block, first, height, None).block
        if height == 0:
            self._begin_with_genesis(block)
            return True
        if block.kind in _DECISIONS:
            return False
        self._state = state_without_genesis(self._params, block.time or 0, height)
        self._state.block_id = block.parent_id
        self.write(height, (first,))
        return True

    def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        """Write the next blocks. Raises Stopped; the blocks before the one that is the reason are written then."""
        read, stopped = _read_all(blocks, first_height, self._last, self._before)
        self._index.outputs.prefetch(_spent_by(each.block for each in read))
        records: list[PRecord] = []
        try:
            for each in read:
                records.append(PRecord(self._applied(each.block), each.raw, each.proposer))
        except IndexingStopped as fault:
            stopped = fault
        if records:
            self._last = read[len(records) - 1]
            self._append(records, is_sound=stopped is None)
        if stopped is not None:
            raise stopped

    def _begin_with_genesis(self, block: PBlock) -> None:
        genesis = self._genesis
        assert genesis is not None
        if block.parent_id != genesis.id:
            told = f"block 0 is of a genesis with SHA-256 {block.parent_id.hex()}, not {genesis.id.hex()}"
            raise IndexingStopped(StopReason.WRONG_GENESIS, 0, told, block.raw)
        self._state, effects = state_from_genesis(genesis, self._params)
        self._index.write([PRecord(effects, genesis.raw)], encode_checkpoint(self._state))

    def _applied(self, block: PBlock) -> BlockEffects:
        state, outputs = self._known_state(), self._index.outputs
        if block.parent_id != state.block_id:
            told = f"it names {block.parent_id.hex()} as its parent, not {state.block_id.hex()}"
            raise IndexingStopped(StopReason.WRONG_PARENT, block.height, told, block.raw)
        try:
            effects = apply_p_block(state, block, outputs)
        except LedgerFault as fault:
            raise IndexingStopped(StopReason.CONTRADICTION, block.height, str(fault), block.raw) from None
        outputs.follow(utxo_effects(effects))
        return effects

    def _append(self, records: Sequence[PRecord], *, is_sound: bool) -> None:
        state = self._known_state()
        self._since_checkpoint += len(records)
        checkpoint = encode_checkpoint(state) if is_sound and self._is_due() else None
        self._index.write(records, checkpoint, is_complete=state.is_complete)
        if checkpoint is not None:
            self._since_checkpoint, self._checkpoint_at = 0, monotonic()

    def _is_due(self) -> bool:
        return self._since_checkpoint >= self._rule.blocks or monotonic() - self._checkpoint_at >= self._rule.seconds

    def _known_state(self) -> PChainState:
        assert self._state is not None
        return self._state

    def _state_at(self, place: Checkpoint) -> PChainState:
        """Return the state after the last written block: from the last checkpoint, or from the beginning."""
        state = self._checkpoint() or self._beginning(place)
        for raw in self._index.raw_blocks(self.chain, state.height + 1, place.height):
            try:
                apply_p_block(state, parse_p_block(inner_block(raw)), None)
            except (LedgerFault, MalformedChainBytes) as fault:
                told = f"blocks that are written cannot be applied again: {fault}"
                raise IndexingStopped(StopReason.CONTRADICTION, state.height + 1, told) from None
        if (state.height, state.block_id) != (place.height, place.block_id):
            raise IndexingStopped(StopReason.CONTRADICTION, place.height, f"the written blocks end at {state.height}")
        return state

    def _checkpoint(self) -> PChainState | None:
        kept = self._index.ledger()
        if kept is None:
            return None
        try:
            return decode_checkpoint(kept[1], self._params)
        except UnusableCheckpoint:
            # Of another version of this program: the blocks make it anew.
            return None

    def _beginning(self, place: Checkpoint) -> PChainState:
        if place.first_height == 0 and self._genesis is not None:
            return state_from_genesis(self._genesis, self._params)[0]
        raw = next(self._index.raw_blocks(self.chain, place.first_height, place.first_height))
        first = parse_p_block(inner_block(raw))
        state = state_without_genesis(self._params, first.time or 0, place.first_height)
        state.block_id = first.parent_id
        return state


def utxo_effects(effects: BlockEffects) -> tuple[TxEffects, ...]:
    """Return what moves outputs in a block: the proposal that it settles, then its transactions."""
    return effects.txs if effects.settled is None else (effects.settled, *effects.txs)


def _read_all(
    blocks: Sequence[RawBlock], first_height: int, last: UnwrappedBlock[PBlock] | None, place: Checkpoint | None
) -> tuple[list[UnwrappedBlock[PBlock]], IndexingStopped | None]:
    before = last.proposer if last is not None else place.proposer if place is not None else None
    read: list[UnwrappedBlock[PBlock]] = []
    for height, raw in enumerate(blocks, first_height):
        try:
            read.append(unwrap_block(parse_p_block, raw, height, before))
        except IndexingStopped as fault:
            return read, fault
        before = read[-1].proposer
    return read, None


def _spent_by(blocks: Iterable[PBlock]) -> Iterator[UtxoID]:
    """Yield the ids of all outputs that blocks spend."""
    for block in blocks:
        for tx in block.txs:
            unsigned: Any = tx.unsigned
            base = getattr(unsigned, "base", None)
            for spent in (*(base.inputs if base is not None else ()), *getattr(unsigned, "imported_inputs", ())):
                yield spent.utxo_id
