"""Derives all rows again from the stored blocks, without a node, after a change of the schema or of a rule.

Source of truth: the blocks, and the ledger's rules. A rebuild that was stopped continues where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final

import msgspec
from sqlalchemy import Connection, Engine

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_blocks import parse_p_block, parse_p_genesis
from warpseal.chains.proposervm import recognize_proposervm_block
from warpseal.chains.x_blocks import parse_x_block, parse_x_genesis
from warpseal.chains.x_txs import parse_x_tx
from warpseal.history.blocks import Proposer, Vertex
from warpseal.history.chains import PrimaryChain
from warpseal.index import bulk
from warpseal.index.errors import RebuildFailed, translate_errors
from warpseal.index.keys import CHAINS, NUMBERS, P, X
from warpseal.index.raw_blocks import (
    PreLinearizationTx,
    RecordKind,
    Segment,
    parse_c_block,
    parse_output,
    read_segments,
)
from warpseal.index.records import CRecord, PRecord, Record, XPreLinearizationRecord, XRecord, proposer_of
from warpseal.index.writer import IndexWriter
from warpseal.ledger.c_chain import apply_c_block
from warpseal.ledger.checkpoint import decode_checkpoint, encode_checkpoint
from warpseal.ledger.genesis import state_from_genesis, state_without_genesis
from warpseal.ledger.outputs import LedgerFault
from warpseal.ledger.p_chain import apply_p_block
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import Parameters
from warpseal.ledger.utxo_flow import UtxoFlow, spent_ids
from warpseal.ledger.x_chain import apply_x_block, build_x_genesis_effects, build_x_tx_effects

RebuildProgress = tuple[PrimaryChain, int]
"""A chain and its last rebuilt height, or number of a container."""

_LEDGER_EVERY: Final = 5_000


class RowRebuilder:
    """Rebuilds rows in steps, in one thread. engine: reads the same index; the last step closes it."""

    def __init__(self, writer: IndexWriter, engine: Engine, params: Parameters) -> None:
        self._writer = writer
        self._engine = engine
        self._params = params
        self._progress: Iterator[RebuildProgress] | None = None

    def step(self, seconds: float) -> RebuildProgress | None:
        """Derive rows for about so many seconds; return the progress, None once all rows exist.

        Raises StoreDown, RebuildFailed; the next step continues behind the last row.
        """
        until, last = monotonic() + seconds, None
        try:
            if self._progress is None and self._is_needed():
                self._progress = _rebuild(self._writer, self._engine, self._params)
            for last in self._progress or ():
                if monotonic() >= until:
                    return last
        except BaseException:
            self._progress = None
            raise
        self._progress = None
        self._engine.dispose()
        return None

    def _is_needed(self) -> bool:
        """Return whether stored blocks have no rows."""
        with translate_errors(self._engine), self._engine.connect() as connection:
            for chain, number in NUMBERS.items():
                checkpoint = self._writer.checkpoint(chain)
                height = -1 if checkpoint is None else checkpoint.height
                done = dict.fromkeys((RecordKind.BLOCK, RecordKind.GENESIS), height)
                if number == X:
                    containers = self._writer.pre_linearization_count() - 1
                    done |= {RecordKind.PRE_LINEARIZATION: containers, RecordKind.GENESIS: containers}
                if any(_last_stored(connection, number, kind) > last for kind, last in done.items()):
                    return True
        return False


def _last_stored(connection: Connection, chain: int, kind: RecordKind) -> int:
    """Return the last height, or number, of stored entries; -3 if there are none."""
    text = "SELECT last FROM raw_blocks WHERE chain = ? AND kind = ? ORDER BY first DESC LIMIT 1"
    rows = bulk.fetch(connection, text, chain, int(kind))
    return rows[0][0] if rows else -3


def _rebuild(writer: IndexWriter, engine: Engine, params: Parameters) -> Iterator[RebuildProgress]:
    with translate_errors(engine), engine.connect() as connection:
        complete = dict(bulk.fetch(connection, "SELECT chain, is_complete FROM chain_origin"))
        replay = _RecordReplay(writer, params, {CHAINS[number]: bool(is_) for number, is_ in complete.items()})
        for _, segment in read_segments(connection):
            try:
                replay.write(segment)
            except (LedgerFault, MalformedChainBytes, msgspec.MsgspecError) as fault:
                raise RebuildFailed(CHAINS[segment.chain], segment.first, str(fault)) from None
            yield CHAINS[segment.chain], segment.first + len(segment.entries) - 1
        replay.finish()


class _RecordReplay:
    def __init__(self, writer: IndexWriter, params: Parameters, is_complete: dict[PrimaryChain, bool]) -> None:
        self._writer = writer
        self._params = params
        self._is_complete = is_complete
        self._checkpoints = {chain: writer.checkpoint(chain) for chain in CHAINS}
        self._containers = writer.pre_linearization_count()
        self._before: dict[int, Proposer | None] = {
            number: None if place is None else place.proposer for number, place in enumerate(self._checkpoints.values())
        }
        self._state = self._state_now()
        self._ledger_height = self._state.height if self._state is not None else -1

    def write(self, segment: Segment) -> None:
        """Write the entries of a segment that have no rows."""
        chain, first, entries = CHAINS[segment.chain], segment.first, segment.entries
        if segment.kind is RecordKind.OUTPUT:
            self._writer.outputs.add_external(map(parse_output, entries))
            return
        done = (
            self._containers if segment.chain == X and segment.kind is not RecordKind.BLOCK else self._height(chain) + 1
        )
        if segment.kind is RecordKind.GENESIS and segment.chain == X:
            done = 0 if self._containers >= 0 else -1
        new = entries[max(0, done - first) :]
        if not new:
            return
        records = list(self._records(segment, first + len(entries) - len(new), new))
        self._writer.rewrite(records, self._due(), is_complete=self._is_complete.get(chain, True))

    def finish(self) -> None:
        """Write the last state of the P-Chain."""
        if self._state is not None and self._ledger_height != self._state.height:
            self._writer.rewrite([], encode_checkpoint(self._state))

    def _height(self, chain: PrimaryChain) -> int:
        place = self._checkpoints[chain]
        return -1 if place is None else place.height

    def _due(self) -> bytes | None:
        state = self._state
        if state is None or (self._ledger_height >= 0 and state.height - self._ledger_height < _LEDGER_EVERY):
            return None
        self._ledger_height = state.height
        return encode_checkpoint(state)

    def _records(self, segment: Segment, first: int, entries: Sequence[bytes]) -> Iterator[Record]:
        if segment.chain == P:
            return self._p_genesis(entries[0]) if segment.kind is RecordKind.GENESIS else self._p(entries)
        if segment.chain == X:
            return (
                self._x(entries)
                if segment.kind is RecordKind.BLOCK
                else self._x_pre_linearization(segment.kind, first, entries)
            )
        return self._c(entries)

    def _p_genesis(self, raw: bytes) -> Iterator[Record]:
        self._state, effects = state_from_genesis(parse_p_genesis(raw), self._params)
        self._writer.outputs.follow(effects.txs)
        yield PRecord(effects, raw)

    def _p(self, entries: Sequence[bytes]) -> Iterator[Record]:
        read = [self._unwrapped(P, raw) for raw in entries]
        blocks = [(parse_p_block(inner), proposer) for inner, proposer in read]
        outputs = self._writer.outputs
        outputs.prefetch(spent for block, _ in blocks for tx in block.txs for spent in spent_ids(tx.unsigned))
        for (block, proposer), raw in zip(blocks, entries, strict=True):
            if self._state is None:
                self._state = state_without_genesis(self._params, block)
            effects = apply_p_block(self._state, block, outputs)
            outputs.follow(effects.executed)
            yield PRecord(effects, raw, proposer)

    def _x(self, entries: Sequence[bytes]) -> Iterator[Record]:
        read = [self._unwrapped(X, raw) for raw in entries]
        blocks = [(parse_x_block(inner), proposer) for inner, proposer in read]
        outputs = self._writer.outputs
        outputs.prefetch(spent for block, _ in blocks for tx in block.txs for spent in spent_ids(tx.unsigned))
        is_complete = self._is_complete.get(PrimaryChain.X, False)
        for (block, proposer), raw in zip(blocks, entries, strict=True):
            effects = apply_x_block(self._params.x_chain_id, block, outputs, is_complete=is_complete)
            outputs.follow(effects.txs)
            yield XRecord(effects, raw, proposer)

    def _x_pre_linearization(self, kind: RecordKind, first: int, entries: Sequence[bytes]) -> Iterator[Record]:
        outputs, chain_id = self._writer.outputs, self._params.x_chain_id
        containers = [PreLinearizationTx.parse(entry) for entry in entries]
        if kind is RecordKind.GENESIS:
            effects = build_x_genesis_effects(parse_x_genesis(containers[0].raw), chain_id)
            outputs.follow(effects)
            yield XPreLinearizationRecord(first, containers[0].time_s, effects, containers[0].raw)
            return
        txs = [parse_x_tx(stored.raw) for stored in containers]
        outputs.prefetch(spent for tx in txs for spent in spent_ids(tx.unsigned))
        for number, (stored, tx) in enumerate(zip(containers, txs, strict=True), first):
            done = build_x_tx_effects(UtxoFlow(chain_id, 0, outputs, False), tx, 0)
            outputs.follow((done,))
            yield XPreLinearizationRecord(
                number, stored.time_s, (done,), stored.raw, stored.vertex and Vertex(*stored.vertex)
            )

    def _c(self, entries: Sequence[bytes]) -> Iterator[Record]:
        blocks = [parse_c_block(entry) for entry in entries]
        outputs = self._writer.outputs
        outputs.prefetch(spent for _, txs in blocks for tx in txs for spent in spent_ids(tx.unsigned))
        for (header, txs), raw in zip(blocks, entries, strict=True):
            is_repeat = header.number in self._params.repeated_c_blocks
            effects = apply_c_block(self._params.c_chain_id, header, txs, outputs, is_repeat=is_repeat)
            outputs.follow(effects.txs)
            yield CRecord(effects, raw)

    def _unwrapped(self, chain: int, raw: bytes) -> tuple[bytes, Proposer | None]:
        outer = recognize_proposervm_block(raw)
        if outer is None:
            self._before[chain] = None
            return raw, None
        self._before[chain] = proposer = proposer_of(outer, self._before[chain])
        return outer.inner, proposer

    def _state_now(self) -> PChainState | None:
        """Return the P-Chain's state after the last block that has rows."""
        checkpoint, ledger = self._checkpoints[PrimaryChain.P], self._writer.ledger()
        if checkpoint is None or ledger is None:
            return None
        state = decode_checkpoint(ledger[1], self._params)
        for raw in self._writer.raw_blocks(PrimaryChain.P, state.height + 1, checkpoint.height):
            outer = recognize_proposervm_block(raw)
            apply_p_block(state, parse_p_block(raw if outer is None else outer.inner), None)
        return state
