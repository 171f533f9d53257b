"""The effects of atomic transactions of a C-Chain block on accounts and outputs.

Source of truth: avalanchego `graft/coreth/plugin/evm/atomic`. Amounts are in the X-Chain's unit of
the asset (nAVAX).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.c_atomic import AtomicEvmInput, AtomicEvmOutput, AtomicTx, ImportTx
from warpseal.ledger.effects import AssetSums
from warpseal.ledger.outputs import Consumed, LedgerOutput, UtxoSource
from warpseal.ledger.utxo_flow import UtxoFlow, build_transfer_output
from warpseal.warp.ids import ChainID


class CHeader(Struct, frozen=True):
    """The indexed header of a C-Chain block.

    hash, parent_hash: 32 bytes.
    evm_tx_count: number of transactions without atomic ones.
    """

    number: int
    hash: bytes
    parent_hash: bytes
    time_s: int
    size_bytes: int
    evm_tx_count: int


class CTxEffects(Struct, frozen=True):
    """The effects of an atomic transaction.

    evm_inputs: amounts that an export takes from accounts; evm_outputs: amounts that an import pays
        to accounts.
    burned: inputs less outputs.
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
    burned: AssetSums

    @property
    def released(self) -> tuple[LedgerOutput, ...]:
        """No outputs: the C-Chain has no staking."""
        return ()


class CBlockEffects(Struct, frozen=True):
    """The effects of a block on outputs; tx_count: its atomic transactions.

    is_repeat: an earlier block accepted these transactions. Accounts changed again, outputs did
        not: nothing is consumed or emitted, and no transaction is new.
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
    """Return the effects of a block's atomic transactions, in their order. Raises LedgerError.

    is_repeat: the block's height is one of `Parameters.repeated_c_blocks`.
    """
    flow = UtxoFlow(chain_id, header.number, None if is_repeat else source, True)
    effects = tuple(_effects(flow, tx, position) for position, tx in enumerate(txs))
    if is_repeat:
        effects = tuple(replace(tx_effects, consumed=(), emitted=()) for tx_effects in effects)
    return CBlockEffects(chain_id, header, len(effects), effects, is_repeat)


def _effects(flow: UtxoFlow, tx: AtomicTx, position: int) -> CTxEffects:
    unsigned = tx.unsigned
    consumed: tuple[Consumed, ...] = ()
    emitted: tuple[LedgerOutput, ...] = ()
    evm_inputs: tuple[AtomicEvmInput, ...] = ()
    evm_outputs: tuple[AtomicEvmOutput, ...] = ()
    if isinstance(unsigned, ImportTx):
        source, destination = unsigned.source_chain_id, flow.chain_id
        consumed = flow.consume(tx, unsigned.imported_inputs, source, 0)
        evm_outputs = unsigned.outputs
        burned = flow.burned(tx, consumed, evm_outputs)
    else:
        source, destination = flow.chain_id, unsigned.destination_chain_id
        evm_inputs = unsigned.inputs
        emitted = tuple(
            build_transfer_output(tx.id, index, output, source, destination)
            for index, output in enumerate(unsigned.exported_outputs)
        )
        burned = flow.burned(tx, evm_inputs, emitted)
    return CTxEffects(
        tx,
        flow.height,
        position,
        consumed,
        emitted,
        source,
        destination,
        evm_inputs,
        evm_outputs,
        burned,
    )
