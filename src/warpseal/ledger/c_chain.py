"""The effects of the atomic transactions of a C-Chain block on accounts and on outputs of the other chains.

Source of truth: avalanchego `graft/coreth/plugin/evm/atomic`. Amounts are in the X-Chain's unit of the asset (nAVAX).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warpseal.chains.c_atomic import AtomicEvmInput, AtomicEvmOutput, AtomicTx, ExportTx, ImportTx
from warpseal.chains.components import TransferableOutput
from warpseal.chains.ids import AssetID
from warpseal.ledger.effects import AssetSums
from warpseal.ledger.outputs import Consumed, LedgerOutput, UtxoSource
from warpseal.ledger.utxo_flow import UtxoFlow, add_amounts, build_transfer_output, nonzero_sums
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class CHeader:
    """The indexed header of a C-Chain block. hash, parent_hash: 32 bytes; evm_tx_count: without atomic ones."""

    number: int
    hash: bytes
    parent_hash: bytes
    time_s: int
    size_bytes: int
    evm_tx_count: int


@dataclass(frozen=True, slots=True)
class CTxEffects:
    """The effects of an atomic transaction.

    evm_inputs: amounts that an export takes from accounts; evm_outputs: amounts that an import pays to accounts.
    unlocked, created: sums of inputs and of outputs; burned: the difference.
    """

    tx: AtomicTx
    height: int
    position: int
    consumed: tuple[Consumed, ...]
    emitted: tuple[LedgerOutput, ...]
    source_chain_id: ChainID
    destination_chain_id: ChainID
    evm_inputs: tuple[AtomicEvmInput, ...]
    evm_outputs: tuple[AtomicEvmOutput, ...]
    unlocked: AssetSums
    created: AssetSums
    burned: AssetSums

    @property
    def released(self) -> tuple[LedgerOutput, ...]:
        """No outputs: the C-Chain has no staking."""
        return ()


@dataclass(frozen=True, slots=True)
class CBlockEffects:
    """The effects of a block on outputs; tx_count: its atomic transactions.

    is_repeat: an earlier block accepted these transactions. Accounts changed again, outputs did not: nothing is
    consumed or emitted, and no transaction is new.
    """

    chain_id: ChainID
    header: CHeader
    tx_count: int
    txs: tuple[CTxEffects, ...]
    is_repeat: bool


def apply_c_block(
    chain_id: ChainID,
    header: CHeader,
    txs: Sequence[AtomicTx],
    source: UtxoSource | None,
    *,
    is_repeat: bool = False,
) -> CBlockEffects:
    """Return the effects of a block's atomic transactions, in their order. Raises LedgerFault.

    is_repeat: whether the block's height is one of `Parameters.repeated_c_blocks`.
    """
    flow = UtxoFlow(chain_id, header.number, None if is_repeat else source, True)
    effects = tuple(_effects(flow, tx, position) for position, tx in enumerate(txs))
    if is_repeat:
        effects = tuple(replace(tx_effects, consumed=(), emitted=()) for tx_effects in effects)
    return CBlockEffects(chain_id, header, len(effects), effects, is_repeat)


def _effects(flow: UtxoFlow, tx: AtomicTx, position: int) -> CTxEffects:
    unsigned = tx.unsigned
    unlocked: dict[AssetID, int] = {}
    created: dict[AssetID, int] = {}
    if isinstance(unsigned, ImportTx):
        consumed = tuple(flow.consume(tx, unsigned.imported_inputs, unsigned.source_chain_id, 0))
        add_amounts(unlocked, consumed)
        _add_evm(created, unsigned.outputs)
        sums = _sums(flow, tx, unlocked, created)
        source_chain_id, destination_chain_id = unsigned.source_chain_id, flow.chain_id
        ends: tuple[tuple[AtomicEvmInput, ...], tuple[AtomicEvmOutput, ...]] = ((), unsigned.outputs)
        emitted: tuple[LedgerOutput, ...] = ()
    else:
        consumed = ()
        emitted = _exported(flow, tx, unsigned)
        _add_evm(unlocked, unsigned.inputs)
        add_amounts(created, emitted)
        sums = _sums(flow, tx, unlocked, created)
        source_chain_id, destination_chain_id = flow.chain_id, unsigned.destination_chain_id
        ends = (unsigned.inputs, ())
    height = flow.height
    return CTxEffects(tx, height, position, consumed, emitted, source_chain_id, destination_chain_id, *ends, *sums)


def _exported(flow: UtxoFlow, tx: AtomicTx, unsigned: ExportTx) -> tuple[LedgerOutput, ...]:
    outputs: tuple[TransferableOutput, ...] = unsigned.exported_outputs
    return tuple(
        build_transfer_output(tx.id, index, output, flow.chain_id, unsigned.destination_chain_id)
        for index, output in enumerate(outputs)
    )


def _add_evm(sums: dict[AssetID, int], moved: Sequence[AtomicEvmInput | AtomicEvmOutput]) -> None:
    for part in moved:
        sums[part.asset_id] = sums.get(part.asset_id, 0) + part.amount


def _sums(
    flow: UtxoFlow, tx: AtomicTx, unlocked: dict[AssetID, int], created: dict[AssetID, int]
) -> tuple[AssetSums, AssetSums, AssetSums]:
    burned = {key: unlocked.get(key, 0) - created.get(key, 0) for key in {*unlocked, *created}}
    if burned and min(burned.values()) < 0:
        raise flow.fault(tx, "the outputs are more than the inputs")
    return nonzero_sums(unlocked), nonzero_sums(created), nonzero_sums(burned)
