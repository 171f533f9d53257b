"""The effects of X-Chain transactions and blocks: outputs, operations, assets. The chain has no state but its outputs.

Source of truth: avalanchego `vms/avm/{txs,utxo}`, `vms/avm/txs/executor`, `vms/nftfx`, `vms/propertyfx`. Each operation
has one credential, behind those of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from warpseal.chains.components import (
    ExportTx,
    ImportTx,
    LockOut,
    OutputOwners,
    TransferableOutput,
    TransferOutput,
    Utxo,
)
from warpseal.chains.ids import Address, AssetID
from warpseal.chains.x_blocks import XBlock, XGenesis
from warpseal.chains.x_txs import (
    AssetOperation,
    CreateAssetTx,
    InitialState,
    MintOperation,
    MintOutput,
    NftMintOperation,
    NftMintOutput,
    NftTransferOperation,
    NftTransferOutput,
    OperationTx,
    PropertyBurnOperation,
    PropertyMintOperation,
    PropertyMintOutput,
    PropertyOwnedOutput,
    UtxoReference,
    XOperation,
    XOutput,
    XTx,
    exported_outputs,
    produced_outputs,
)
from warpseal.ledger.effects import AssetSums
from warpseal.ledger.outputs import Consumed, LedgerOutput, OutputKind, UtxoSource
from warpseal.ledger.utxo_flow import (
    UtxoFlow,
    add_amounts,
    build_transfer_output,
    hash_unsigned_tx,
    nonzero_sums,
    recover_signers,
)
from warpseal.warp.ids import ChainID


def list_x_outputs(tx: XTx, chain_id: ChainID) -> tuple[LedgerOutput, ...]:
    """Return the outputs of a transaction, by index."""
    unsigned = tx.unsigned
    made = [_output(utxo, chain_id, chain_id) for utxo in produced_outputs(tx)]
    if isinstance(unsigned, ExportTx):
        made += [_output(utxo, chain_id, unsigned.destination_chain_id) for utxo in exported_outputs(tx)]
    return tuple(made)


def _output(utxo: Utxo[XOutput], created_on: ChainID, held_on: ChainID) -> LedgerOutput:
    match utxo.output:
        case TransferOutput() | LockOut() as output:
            made = TransferableOutput(utxo.asset_id, output)
            return build_transfer_output(utxo.tx_id, utxo.output_index, made, created_on, held_on)
        case MintOutput(owners=owners):
            return _build_non_transfer_output(utxo, owners, OutputKind.MINT, created_on)
        case NftMintOutput(group_id=group_id, owners=owners):
            return _build_non_transfer_output(utxo, owners, OutputKind.NFT_MINT, created_on, group_id)
        case NftTransferOutput(group_id=group_id, payload=payload, owners=owners):
            made_nft = _build_non_transfer_output(utxo, owners, OutputKind.NFT, created_on, group_id)
            return replace(made_nft, amount=1, payload=payload)
        case PropertyMintOutput(owners=owners):
            return _build_non_transfer_output(utxo, owners, OutputKind.PROPERTY_MINT, created_on)
        case PropertyOwnedOutput(owners=owners):
            return _build_non_transfer_output(utxo, owners, OutputKind.PROPERTY, created_on)


def _build_non_transfer_output(
    utxo: Utxo[XOutput], owners: OutputOwners, kind: OutputKind, chain_id: ChainID, group_id: int | None = None
) -> LedgerOutput:
    return LedgerOutput(
        id=utxo.id,
        tx_id=utxo.tx_id,
        output_index=utxo.output_index,
        asset_id=utxo.asset_id,
        amount=0,
        addresses=owners.addresses,
        threshold=owners.threshold,
        locktime=owners.locktime,
        stakeable_locktime=0,
        created_on=chain_id,
        held_on=chain_id,
        kind=kind,
        group_id=group_id,
    )


_SPENDS: Final[dict[type, OutputKind]] = {
    MintOperation: OutputKind.MINT,
    NftMintOperation: OutputKind.NFT_MINT,
    NftTransferOperation: OutputKind.NFT,
    PropertyMintOperation: OutputKind.PROPERTY_MINT,
    PropertyBurnOperation: OutputKind.PROPERTY,
}


def consume_operations(flow: UtxoFlow, tx: XTx, first_credential: int) -> list[Consumed]:
    """Spend the outputs that the operations of `tx` consume, in their order. Raises LedgerFault."""
    unsigned = tx.unsigned
    operations = unsigned.operations if isinstance(unsigned, OperationTx) else ()
    return [
        _consume(flow, tx, operation, reference, credential)
        for credential, operation in enumerate(operations, first_credential)
        for reference in operation.consumed
    ]


def _consume(flow: UtxoFlow, tx: XTx, operation: AssetOperation, reference: UtxoReference, credential: int) -> Consumed:
    key = reference.utxo_id
    amount = _amount(operation.operation)
    known = flow.take(tx, key)
    reconstructed = None
    if known is not None:
        if known.asset_id != operation.asset_id or known.amount != amount:
            raise flow.fault(tx, f"input {key.hex()} differs from the output")
    elif flow.source is not None:
        if flow.is_complete:
            raise flow.fault(tx, f"input {key.hex()} is not there")
        reconstructed = _reconstruct(flow, tx, operation, reference, credential)
    return Consumed(key, flow.chain_id, operation.asset_id, amount, credential, reconstructed)


def _amount(operation: XOperation) -> int:
    return 1 if isinstance(operation, NftTransferOperation) else 0


def _reconstruct(
    flow: UtxoFlow, tx: XTx, operation: AssetOperation, reference: UtxoReference, credential: int
) -> LedgerOutput:
    done = operation.operation
    addresses: tuple[Address, ...] = ()
    if credential < len(tx.credentials):
        addresses = recover_signers(hash_unsigned_tx(tx.encode_unsigned()), tx.credentials[credential].signatures)
    group_id, payload = _marks(done)
    return LedgerOutput(
        id=reference.utxo_id,
        tx_id=reference.tx_id,
        output_index=reference.output_index,
        asset_id=operation.asset_id,
        amount=_amount(done),
        addresses=addresses,
        threshold=len(addresses),
        locktime=0,
        stakeable_locktime=0,
        created_on=flow.chain_id,
        held_on=flow.chain_id,
        kind=_SPENDS[type(done)],
        group_id=group_id,
        payload=payload,
        is_complete=False,
    )


def _marks(operation: XOperation) -> tuple[int | None, bytes | None]:
    match operation:
        case NftTransferOperation(output=output):
            return output.group_id, output.payload
        case NftMintOperation(group_id=group_id):
            return group_id, None
        case _:
            return None, None


_FUNGIBLE_FX: Final = 0
_NFT_FX: Final = 1


class Cap(Enum):
    """Whether more of an asset can be minted."""

    FIXED = "fixed"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class AssetCreation:
    """An asset was created; its id is that of the transaction. is_nft: it has NFTs. alias: only in the genesis."""

    asset_id: AssetID
    name: str
    symbol: str
    denomination: int
    cap: Cap
    is_nft: bool
    alias: str = ""


@dataclass(frozen=True, slots=True)
class XTxEffects:
    """The effects of a transaction. height: None for one from before Cortina, when the X-Chain was a DAG.

    consumed: base and imported inputs, then those of operations, in the order of the credentials. emitted: by output
    index, exports included. unlocked, created: sums of the amounts of consumed and emitted outputs. burned: fungible
    inputs less transferable outputs.
    """

    tx: XTx
    height: int | None
    position: int
    consumed: tuple[Consumed, ...]
    emitted: tuple[LedgerOutput, ...]
    source_chain_id: ChainID | None
    destination_chain_id: ChainID | None
    unlocked: AssetSums
    created: AssetSums
    burned: AssetSums
    asset: AssetCreation | None

    @property
    def released(self) -> tuple[LedgerOutput, ...]:
        """No outputs: the X-Chain has no staking."""
        return ()


@dataclass(frozen=True, slots=True)
class XBlockEffects:
    """The effects of a block."""

    chain_id: ChainID
    block: XBlock
    size_bytes: int
    tx_count: int
    time_s: int
    txs: tuple[XTxEffects, ...]


def apply_x_block(chain_id: ChainID, block: XBlock, source: UtxoSource | None, *, is_complete: bool) -> XBlockEffects:
    """Return the effects of the next block.

    is_complete: whether all outputs since the genesis are known, so that an unknown one is a fault; otherwise it is
    reconstructed from the input. Raises LedgerFault.
    """
    flow = UtxoFlow(chain_id, block.height, source, is_complete)
    txs = tuple(build_x_tx_effects(flow, tx, position, block.height) for position, tx in enumerate(block.txs))
    return XBlockEffects(chain_id, block, len(block.raw), len(block.txs), block.time, txs)


def build_x_tx_effects(flow: UtxoFlow, tx: XTx, position: int, height: int | None = None) -> XTxEffects:
    """Return the effects of a transaction after those that `flow` has seen. Raises LedgerFault."""
    consumed = _transferred_in(flow, tx)
    operated = consume_operations(flow, tx, len(consumed)) if isinstance(tx.unsigned, OperationTx) else []
    emitted = list_x_outputs(tx, flow.chain_id)
    flow.emit(emitted)
    unlocked: dict[AssetID, int] = {}
    created: dict[AssetID, int] = {}
    add_amounts(unlocked, (*consumed, *operated))
    add_amounts(created, emitted)
    unsigned = tx.unsigned
    return XTxEffects(
        tx,
        height,
        position,
        (*consumed, *operated),
        emitted,
        unsigned.source_chain_id if isinstance(unsigned, ImportTx) else None,
        unsigned.destination_chain_id if isinstance(unsigned, ExportTx) else None,
        nonzero_sums(unlocked),
        nonzero_sums(created),
        _burned(flow, tx, consumed),
        _asset(tx, unsigned) if isinstance(unsigned, CreateAssetTx) else None,
    )


def build_x_genesis_effects(genesis: XGenesis, chain_id: ChainID) -> tuple[XTxEffects, ...]:
    """Return the effects of creating the assets of the genesis."""
    flow = UtxoFlow(chain_id, 0, None, True)
    effects: list[XTxEffects] = []
    for position, asset in enumerate(genesis.assets):
        made = build_x_tx_effects(flow, asset.tx, position)
        effects.append(replace(made, asset=_asset(asset.tx, asset.creation, asset.alias)))
    return tuple(effects)


def _transferred_in(flow: UtxoFlow, tx: XTx) -> list[Consumed]:
    unsigned = tx.unsigned
    consumed = flow.consume(tx, unsigned.base.inputs, flow.chain_id, 0)
    if isinstance(unsigned, ImportTx):
        consumed += flow.consume(tx, unsigned.imported_inputs, unsigned.source_chain_id, len(consumed))
    return consumed


def _burned(flow: UtxoFlow, tx: XTx, consumed: Sequence[Consumed]) -> AssetSums:
    burned: dict[AssetID, int] = {}
    add_amounts(burned, consumed)
    unsigned = tx.unsigned
    exported = unsigned.exported_outputs if isinstance(unsigned, ExportTx) else ()
    for made in (*unsigned.base.outputs, *exported):
        burned[made.asset_id] = burned.get(made.asset_id, 0) - made.output.amount
    if burned and min(burned.values()) < 0:
        raise flow.fault(tx, "the outputs are more than the inputs")
    return nonzero_sums(burned)


def _asset(tx: XTx, creation: CreateAssetTx, alias: str = "") -> AssetCreation:
    return AssetCreation(
        AssetID(tx.id),
        creation.name,
        creation.symbol,
        creation.denomination,
        Cap.VARIABLE if any(map(_mints_more, creation.states)) else Cap.FIXED,
        any(state.fx_index == _NFT_FX for state in creation.states),
        alias,
    )


def _mints_more(state: InitialState) -> bool:
    return state.fx_index == _FUNGIBLE_FX and any(isinstance(output, MintOutput) for output in state.outputs)
