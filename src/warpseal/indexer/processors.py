"""Applies the blocks of the primary chains and writes their effects; runs in the worker.

The P-Chain has a state, the X-Chain has transactions from before its blocks, the C-Chain has atomic
transactions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic

from msgspec import Struct

from warpseal.chains.c_atomic import AtomicTx, parse_atomic_txs
from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.ids import TxID, UtxoID
from warpseal.chains.p_blocks import PBlock, PGenesis, parse_p_block
from warpseal.chains.proposervm import inner_block
from warpseal.chains.x_blocks import XBlock, XGenesis, parse_x_block
from warpseal.chains.x_txs import OperationTx, XTx, parse_x_tx
from warpseal.follow.blocks import (
    ChainStopped,
    RawBlock,
    StopReason,
    apply_blocks,
    check_parent,
    undecodable,
)
from warpseal.index.checkpoint import Checkpoint
from warpseal.index.raw_blocks import encode_c_block
from warpseal.index.records import CRecord, PRecord, XPreLinearizationRecord, XRecord
from warpseal.index.writer import IndexWriter
from warpseal.indexer.blocks import UnwrappedBlock, unwrap_block, unwrap_blocks
from warpseal.indexer.settings import IndexerSettings
from warpseal.ledger.c_chain import CHeader, apply_c_block
from warpseal.ledger.checkpoint import UnusableCheckpoint, decode_checkpoint, encode_checkpoint
from warpseal.ledger.outputs import LedgerError
from warpseal.ledger.p_chain import (
    DECISIONS,
    apply_p_block,
    state_from_genesis,
    state_without_genesis,
)
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import Parameters
from warpseal.ledger.utxo_flow import UtxoFlow, spent_ids
from warpseal.ledger.x_chain import (
    apply_x_block,
    build_x_genesis_effects,
    build_x_tx_effects,
    list_x_outputs,
)
from warpseal.node.containers import CChainBlock, Container
from warpseal.resources.blocks import Proposer
from warpseal.resources.chains import PrimaryChain
from warpseal.warp.ids import ChainID


class PChainProcessor:
    """Holds the P-Chain's state as of the last written block, and writes the next blocks."""

    chain = PrimaryChain.P

    def __init__(
        self,
        index: IndexWriter,
        params: Parameters,
        genesis: PGenesis | None,
        settings: IndexerSettings,
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
        """Restore the state after the last written block; None: nothing is written.

        Raises ChainStopped.
        """
        self._index.outputs.forget()
        self._last = None
        self._checkpoint = checkpoint = self._index.checkpoint(self.chain)
        if checkpoint is not None:
            self._state = self._restore_state(checkpoint)
            self._index.begin_sets(self._state)
            self._dumped_at = monotonic()
        return checkpoint

    def min_height(self) -> int:
        """Return the lowest height to begin at: block 0 holds nothing without the genesis."""
        return 0 if self._genesis is not None else 1

    def begin(self, first: RawBlock, height: int) -> bool:
        """Write the first block; return False if its parent has to be the first one.

        Raises ChainStopped.
        """
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
        """Write the next blocks.

        Raises ChainStopped after writing those before the block that is the reason.
        """
        parent = self._last or self._checkpoint
        proposer = None if parent is None else parent.proposer
        unwrapped, stop = unwrap_blocks(parse_p_block, blocks, first_height, proposer)
        txs = (tx for block in unwrapped for tx in block.block.txs)
        self._index.outputs.prefetch(utxo_id for tx in txs for utxo_id in spent_ids(tx.unsigned))
        records, stop = apply_blocks(unwrapped, self._apply, stop)
        # The blocks before a bad one are written before the stop is raised: they are right, and are
        # not read again.
        if records:
            self._last = unwrapped[len(records) - 1]
            self._append(records, is_sound=stop is None)
        if stop is not None:
            raise stop

    def _write_genesis(self, block: PBlock) -> None:
        genesis = self._genesis
        assert genesis is not None
        if block.parent_id != genesis.id:
            detail = (
                f"block 0 is of a genesis with SHA-256 {block.parent_id.hex()}, not"
                f" {genesis.id.hex()}"
            )
            raise ChainStopped(StopReason.WRONG_GENESIS, 0, detail, block.raw)
        self._state, effects = state_from_genesis(genesis, self._params)
        self._index.write([PRecord(effects, genesis.raw)], encode_checkpoint(self._state))

    def _apply(self, unwrapped: UnwrappedBlock[PBlock]) -> PRecord:
        block, state, outputs = unwrapped.block, self._current_state(), self._index.outputs
        check_parent(block.parent_id, state.block_id, block.height, block.raw)
        try:
            effects = apply_p_block(state, block, outputs)
        except LedgerError as error:
            raise ChainStopped(
                StopReason.CONTRADICTION, block.height, str(error), block.raw
            ) from None
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
        """Return the state after the last written block, from the last dump or from scratch."""
        state: PChainState | None = None
        if (stored := self._index.ledger()) is not None:
            # If another version of this program wrote it, the blocks give the same state.
            with suppress(UnusableCheckpoint):
                state = decode_checkpoint(stored[1], self._params)
        if state is None and checkpoint.first_height == 0 and self._genesis is not None:
            state = state_from_genesis(self._genesis, self._params)[0]
        elif state is None:
            raw = next(
                self._index.raw_blocks(self.chain, checkpoint.first_height, checkpoint.first_height)
            )
            state = state_without_genesis(self._params, parse_p_block(inner_block(raw)))
        for raw in self._index.raw_blocks(self.chain, state.height + 1, checkpoint.height):
            try:
                apply_p_block(state, parse_p_block(inner_block(raw)), None)
            except (LedgerError, MalformedChainBytes) as error:
                detail = f"a stored block cannot be applied again: {error}"
                raise ChainStopped(StopReason.CONTRADICTION, state.height + 1, detail) from None
        if (state.height, state.block_id) != (checkpoint.height, checkpoint.block_id):
            detail = f"the stored blocks end at {state.height}"
            raise ChainStopped(StopReason.CONTRADICTION, checkpoint.height, detail)
        return state


GENESIS_NUMBER = -1


class XChainOrigin(Struct, frozen=True):
    """The genesis of the X-Chain.

    raw: bytes of the genesis.
    linearized_s: Unix time of block 0, 0 if the chain began linear.
    """

    genesis: XGenesis
    raw: bytes
    time_s: int
    linearized_s: int


class XChainProcessor:
    """Writes the X-Chain's blocks.

    is_complete: the index has every output of the chain.
    """

    chain = PrimaryChain.X

    def __init__(
        self,
        index: IndexWriter,
        chain_id: ChainID,
        origin: XChainOrigin | None,
        *,
        is_complete: bool,
    ) -> None:
        self._index = index
        self._chain_id = chain_id
        self._origin = origin
        self._is_complete = is_complete
        self._parent_id: bytes | None = None
        self._proposer: Proposer | None = None
        self._prepared: tuple[tuple[UnwrappedBlock[XBlock], ...], ChainStopped | None] = ((), None)
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
        """Return the number of written containers from before block 0; -1 without the genesis."""
        return self._index.pre_linearization_count()

    def prepare(self, first_height: int, blocks: Sequence[RawBlock]) -> tuple[TxID, ...]:
        """Decode the next blocks; return the transactions that made the unknown outputs."""
        unwrapped, stop = unwrap_blocks(parse_x_block, blocks, first_height, self._proposer)
        self._prepared = (tuple(unwrapped), stop)
        return self._find_unknown([tx for block in unwrapped for tx in block.block.txs])

    def write(self, fetched: Iterable[bytes]) -> None:
        """Write the prepared blocks.

        fetched: transactions that made unknown outputs.

        Raises ChainStopped after writing the blocks before the one that is the reason.
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
        """Decode transactions from before the first block; return what `prepare` returns.

        Raises ChainStopped.
        """
        txs: list[XTx] = []
        for container in containers:
            try:
                txs.append(parse_x_tx(container.raw))
            except MalformedChainBytes as error:
                raise undecodable(
                    error, 0, container.raw, f"container {container.index}: "
                ) from None
        self._prepared_txs = tuple(txs)
        return self._find_unknown(txs)

    def write_pre_linearization(
        self, containers: Sequence[Container], fetched: Iterable[bytes]
    ) -> None:
        """Write the prepared transactions. Raises ChainStopped.

        Their time is when the node accepted them, at most the time of the first block: a node may
        have been late.
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
            except LedgerError as error:
                raise ChainStopped(StopReason.CONTRADICTION, 0, str(error), container.raw) from None
            self._index.outputs.follow((effects,))
            time_s = container.accepted_at_s
            if linearized_s:
                time_s = min(time_s, linearized_s)
            record = XPreLinearizationRecord(container.index, time_s, (effects,), container.raw)
            records.append(record)
        self._index.write(records, is_complete=self._is_complete)

    def _apply(self, unwrapped: UnwrappedBlock[XBlock]) -> XRecord:
        block = unwrapped.block
        check_parent(block.parent_id, self._parent_id, block.height, unwrapped.raw)
        try:
            effects = apply_x_block(
                self._chain_id, block, self._index.outputs, is_complete=self._is_complete
            )
        except LedgerError as error:
            raise ChainStopped(
                StopReason.CONTRADICTION, block.height, str(error), unwrapped.raw
            ) from None
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
        new_txs = {tx.id for tx in txs}
        spent = [pair for tx in txs for pair in _own_spent(tx) if pair[1] not in new_txs]
        unknown = (
            tx_id for utxo_id, tx_id in spent if outputs.find(utxo_id, self._chain_id) is None
        )
        return tuple(dict.fromkeys(unknown))


def _own_spent(tx: XTx) -> Iterator[tuple[UtxoID, TxID]]:
    """Yield the ids of this chain's outputs that a transaction spends, with their transactions."""
    unsigned = tx.unsigned
    yield from ((spent.utxo_id, spent.tx_id) for spent in unsigned.base.inputs)
    for operation in unsigned.operations if isinstance(unsigned, OperationTx) else ():
        yield from ((reference.utxo_id, reference.tx_id) for reference in operation.consumed)


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
        """Write the next blocks.

        Raises ChainStopped after writing those before the block that is the reason.
        """
        decoded, stop = self._decode(blocks)
        spent = (utxo_id for _, txs in decoded for tx in txs for utxo_id in spent_ids(tx.unsigned))
        self._index.outputs.prefetch(spent)
        records, stop = apply_blocks(decoded, self._apply, stop)
        if records:
            self._index.write(records, is_complete=records[0].effects.header.number <= 1)
        if stop is not None:
            raise stop

    def _decode(
        self, blocks: Sequence[CChainBlock]
    ) -> tuple[list[_DecodedBlock], ChainStopped | None]:
        decoded: list[_DecodedBlock] = []
        # From then on a block may hold several atomic transactions.
        batch_from_s = self._params.upgrades.apricot_5_s
        for block in blocks:
            try:
                decoded.append(
                    (block, parse_atomic_txs(block.extra_data, batch=block.time_s >= batch_from_s))
                )
            except MalformedChainBytes as error:
                return decoded, undecodable(error, block.number, block.extra_data)
        return decoded, None

    def _apply(self, decoded: _DecodedBlock) -> CRecord:
        block, txs = decoded
        check_parent(block.parent_hash, self._parent_hash, block.number, block.extra_data)
        header = CHeader(
            block.number,
            block.hash,
            block.parent_hash,
            block.time_s,
            block.size_bytes,
            block.tx_count,
        )
        is_repeat = block.number in self._params.repeated_c_blocks
        try:
            effects = apply_c_block(
                self._params.c_chain_id, header, txs, self._index.outputs, is_repeat=is_repeat
            )
        except LedgerError as error:
            raise ChainStopped(
                StopReason.CONTRADICTION, block.number, str(error), block.extra_data
            ) from None
        self._index.outputs.follow(effects.txs)
        self._parent_hash = block.hash
        return CRecord(effects, encode_c_block(header, txs))
