"""Derives all rows again from the stored blocks, without a node.

Source of truth: the blocks, and the ledger's rules. A rebuild that was stopped continues where it
was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_blocks import PBlock, parse_p_block, parse_p_genesis
from warpseal.chains.proposervm import inner_block, recognize_proposervm_block
from warpseal.chains.x_blocks import XBlock, parse_x_block, parse_x_genesis
from warpseal.chains.x_txs import parse_x_tx
from warpseal.index.database import translate_errors
from warpseal.index.keys import CHAINS, P, X
from warpseal.index.raw_blocks import (
    RecordKind,
    Segment,
    parse_c_block,
    parse_container,
    parse_output,
    read_segments,
)
from warpseal.index.records import (
    CRecord,
    PRecord,
    Record,
    XPreLinearizationRecord,
    XRecord,
    proposer_of,
)
from warpseal.index.writer import IndexWriter
from warpseal.ledger.c_chain import apply_c_block
from warpseal.ledger.checkpoint import decode_checkpoint, encode_checkpoint
from warpseal.ledger.outputs import LedgerError
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis, state_without_genesis
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import Parameters
from warpseal.ledger.utxo_flow import UtxoFlow, spent_ids
from warpseal.ledger.x_chain import apply_x_block, build_x_genesis_effects, build_x_tx_effects
from warpseal.resources.blocks import Proposer
from warpseal.resources.chains import PrimaryChain
from warpseal.store.connection import Connection, Engine

B = TypeVar("B", PBlock, XBlock)
RebuildProgress = tuple[PrimaryChain, int]
"""A chain and its last rebuilt height, or number of a container."""

_LEDGER_EVERY: Final = 5_000


class RebuildFailed(Exception):
    """This version cannot derive the rows of a chain from a height on."""

    def __init__(self, chain: PrimaryChain, height: int, reason: str) -> None:
        super().__init__(f"the {chain} from block {height} on: {reason}")
        self.chain = chain
        self.height = height
        self.reason = reason

    def __reduce__(self) -> tuple[type[RebuildFailed], tuple[PrimaryChain, int, str]]:
        """Support pickling between processes."""
        return RebuildFailed, (self.chain, self.height, self.reason)


class RowRebuilder:
    """Rebuilds rows in steps, in one thread.

    engine: reader of the same index, which the last step closes.
    """

    def __init__(self, writer: IndexWriter, engine: Engine, params: Parameters) -> None:
        self._writer = writer
        self._engine = engine
        self._params = params
        self._progress: Iterator[RebuildProgress] | None = None

    def step(self, seconds: float) -> RebuildProgress | None:
        """Derive rows for about `seconds`; return the progress, None once all rows exist.

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

    def block_counts(self) -> tuple[int, int]:
        """Return the numbers of blocks with rows and of stored blocks, counted from height 0."""
        with translate_errors(self._engine), self._engine.connect() as connection:
            stored = [
                _last_stored(connection, chain, RecordKind.BLOCK) for chain in range(len(CHAINS))
            ]
        written = [
            _last_written(self._writer, chain, RecordKind.BLOCK) for chain in range(len(CHAINS))
        ]
        return sum(height + 1 for height in written), sum(max(0, height + 1) for height in stored)

    def _is_needed(self) -> bool:
        with translate_errors(self._engine), self._engine.connect() as connection:
            return any(
                _last_stored(connection, chain, kind) > _last_written(self._writer, chain, kind)
                for chain in range(len(CHAINS))
                for kind in (RecordKind.BLOCK, RecordKind.GENESIS, RecordKind.PRE_LINEARIZATION)
            )


def _last_stored(connection: Connection, chain: int, kind: RecordKind) -> int:
    """Return the last height, or number, of stored entries; -3 if there are none."""
    text = "SELECT last FROM raw_blocks WHERE chain = ? AND kind = ? ORDER BY first DESC LIMIT 1"
    rows = connection.fetch(text, chain, int(kind))
    return rows[0][0] if rows else -3


def _last_written(writer: IndexWriter, chain: int, kind: RecordKind) -> int:
    """Return the last height, or number, with rows; one below the genesis without any."""
    if chain == X and kind is not RecordKind.BLOCK:
        return writer.pre_linearization_count() - 1
    checkpoint = writer.checkpoint(CHAINS[chain])
    return -1 if checkpoint is None else checkpoint.height


def _rebuild(writer: IndexWriter, engine: Engine, params: Parameters) -> Iterator[RebuildProgress]:
    with translate_errors(engine), engine.connect() as connection:
        origins = connection.fetch("SELECT chain, is_complete FROM chain_origin")
        is_complete = {CHAINS[number]: bool(flag) for number, flag in origins}
        replay = _RecordReplay(writer, params, is_complete)
        for segment in read_segments(connection):
            try:
                replay.write(segment)
            except (LedgerError, MalformedChainBytes, msgspec.MsgspecError) as error:
                raise RebuildFailed(CHAINS[segment.chain], segment.first, str(error)) from None
            yield CHAINS[segment.chain], segment.first + len(segment.entries) - 1
        replay.finish()


class _RecordReplay:
    def __init__(
        self, writer: IndexWriter, params: Parameters, is_complete: dict[PrimaryChain, bool]
    ) -> None:
        self._writer = writer
        self._params = params
        self._is_complete = is_complete
        self._before: dict[int, Proposer | None] = {}
        for chain, checkpoint in enumerate(map(writer.checkpoint, CHAINS)):
            self._before[chain] = None if checkpoint is None else checkpoint.proposer
        self._state = self._state_now()
        if self._state is not None:
            writer.begin_sets(self._state)
        self._ledger_height = self._state.height if self._state is not None else -1

    def write(self, segment: Segment) -> None:
        """Write the entries of a segment that have no rows."""
        if segment.kind is RecordKind.OUTPUT:
            self._writer.outputs.add_external(map(parse_output, segment.entries))
            return
        first = max(segment.first, _last_written(self._writer, segment.chain, segment.kind) + 1)
        new = segment.entries[first - segment.first :]
        if new:
            records = list(self._records(segment, first, new))
            is_complete = self._is_complete.get(CHAINS[segment.chain], True)
            self._writer.write(records, self._due(), is_complete=is_complete, store_raw=False)

    def finish(self) -> None:
        """Write the last state of the P-Chain."""
        if self._state is not None and self._ledger_height != self._state.height:
            self._writer.write([], encode_checkpoint(self._state), store_raw=False)

    def _due(self) -> bytes | None:
        state = self._state
        if state is None:
            return None
        is_recent = state.height - self._ledger_height < _LEDGER_EVERY
        if self._ledger_height >= 0 and is_recent:
            return None
        self._ledger_height = state.height
        return encode_checkpoint(state)

    def _records(self, segment: Segment, first: int, entries: Sequence[bytes]) -> Iterator[Record]:
        is_block = segment.kind is RecordKind.BLOCK
        if segment.chain == P:
            return self._p(entries) if is_block else self._p_genesis(entries[0])
        if segment.chain == X:
            if is_block:
                return self._x(entries)
            return self._x_pre_linearization(segment.kind, first, entries)
        return self._c(entries)

    def _p_genesis(self, raw: bytes) -> Iterator[Record]:
        self._state, effects = state_from_genesis(parse_p_genesis(raw), self._params)
        self._writer.outputs.follow(effects.txs)
        yield PRecord(effects, raw)

    def _p(self, entries: Sequence[bytes]) -> Iterator[Record]:
        outputs = self._writer.outputs
        for block, proposer, raw in self._unwrapped(P, parse_p_block, entries):
            if self._state is None:
                self._state = state_without_genesis(self._params, block)
            effects = apply_p_block(self._state, block, outputs)
            outputs.follow(effects.executed)
            yield PRecord(effects, raw, proposer)

    def _x(self, entries: Sequence[bytes]) -> Iterator[Record]:
        outputs = self._writer.outputs
        is_complete = self._is_complete.get(PrimaryChain.X, False)
        for block, proposer, raw in self._unwrapped(X, parse_x_block, entries):
            effects = apply_x_block(
                self._params.x_chain_id, block, outputs, is_complete=is_complete
            )
            outputs.follow(effects.txs)
            yield XRecord(effects, raw, proposer)

    def _x_pre_linearization(
        self, kind: RecordKind, first: int, entries: Sequence[bytes]
    ) -> Iterator[Record]:
        outputs, chain_id = self._writer.outputs, self._params.x_chain_id
        containers = [parse_container(entry) for entry in entries]
        if kind is RecordKind.GENESIS:
            effects = build_x_genesis_effects(parse_x_genesis(containers[0].raw), chain_id)
            outputs.follow(effects)
            yield XPreLinearizationRecord(first, containers[0].time_s, effects, containers[0].raw)
            return
        txs = [parse_x_tx(stored.raw) for stored in containers]
        self._prefetch(txs)
        for number, (stored, tx) in enumerate(zip(containers, txs, strict=True), first):
            tx_effects = build_x_tx_effects(UtxoFlow(chain_id, 0, outputs, False), tx, 0)
            outputs.follow((tx_effects,))
            yield XPreLinearizationRecord(number, stored.time_s, (tx_effects,), stored.raw)

    def _c(self, entries: Sequence[bytes]) -> Iterator[Record]:
        blocks = [parse_c_block(entry) for entry in entries]
        outputs = self._writer.outputs
        self._prefetch(tx for _, txs in blocks for tx in txs)
        for (header, txs), raw in zip(blocks, entries, strict=True):
            is_repeat = header.number in self._params.repeated_c_blocks
            effects = apply_c_block(
                self._params.c_chain_id, header, txs, outputs, is_repeat=is_repeat
            )
            outputs.follow(effects.txs)
            yield CRecord(effects, raw)

    def _unwrapped(
        self, chain: int, parse: Callable[[bytes], B], entries: Sequence[bytes]
    ) -> list[tuple[B, Proposer | None, bytes]]:
        """Return decoded blocks with their proposers and bytes, their inputs prefetched."""
        blocks = []
        for raw in entries:
            outer = recognize_proposervm_block(raw)
            inner, proposer = raw, None
            if outer is not None:
                inner, proposer = outer.inner, proposer_of(outer, self._before[chain])
            self._before[chain] = proposer
            blocks.append((parse(inner), proposer, raw))
        self._prefetch(tx for block, *_ in blocks for tx in block.txs)
        return blocks

    def _prefetch(self, txs: Iterable[Any]) -> None:
        self._writer.outputs.prefetch(spent for tx in txs for spent in spent_ids(tx.unsigned))

    def _state_now(self) -> PChainState | None:
        """Return the P-Chain's state after the last block that has rows."""
        checkpoint, ledger = self._writer.checkpoint(PrimaryChain.P), self._writer.ledger()
        if checkpoint is None or ledger is None:
            return None
        state = decode_checkpoint(ledger[1], self._params)
        for raw in self._writer.raw_blocks(PrimaryChain.P, state.height + 1, checkpoint.height):
            apply_p_block(state, parse_p_block(inner_block(raw)), None)
        return state
