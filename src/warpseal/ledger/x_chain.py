"""The effects of X-Chain transactions and blocks: outputs, operations, assets.

The chain has no state but its outputs.

Source of truth: avalanchego `vms/avm/{txs,utxo}`, `vms/avm/txs/executor`, `vms/nftfx`,
`vms/propertyfx`. Each operation has one credential, behind the credentials of the inputs.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.components import (
    ExportTx,
    ImportTx,
    LockOut,
    TransferableOutput,
    TransferOutput,
    Utxo,
)
from warpseal.chains.ids import Address, AssetID
from warpseal.chains.x_blocks import XBlock, XGenesis
from warpseal.chains.x_txs import (
    AssetOperation,
    CreateAssetTx,
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
    XOutput,
    XTx,
    outputs_of,
)
from warpseal.ledger.effects import AssetSums
from warpseal.ledger.outputs import Consumed, LedgerOutput, OutputKind, UtxoSource
from warpseal.ledger.utxo_flow import (
    UtxoFlow,
    build_transfer_output,
    hash_unsigned_tx,
    recover_signers,
    signatures_of,
)
from warpseal.warp.ids import ChainID

_KINDS: Final[dict[type, OutputKind]] = {
    MintOutput: OutputKind.MINT,
    NftMintOutput: OutputKind.NFT_MINT,
    NftTransferOutput: OutputKind.NFT,
    PropertyMintOutput: OutputKind.PROPERTY_MINT,
    PropertyOwnedOutput: OutputKind.PROPERTY,
}
# The kind of the outputs that an operation consumes.
_CONSUMED_KINDS: Final[dict[type, OutputKind]] = {
    MintOperation: OutputKind.MINT,
    NftMintOperation: OutputKind.NFT_MINT,
    NftTransferOperation: OutputKind.NFT,
    PropertyMintOperation: OutputKind.PROPERTY_MINT,
    PropertyBurnOperation: OutputKind.PROPERTY,
}


def list_x_outputs(tx: XTx, chain_id: ChainID) -> tuple[LedgerOutput, ...]:
    """Return the outputs of a transaction, by index."""
    exported_to = (
        tx.unsigned.destination_chain_id if isinstance(tx.unsigned, ExportTx) else chain_id
    )
    first_exported = len(tx.unsigned.base.outputs)
    return tuple(
        _output(utxo, chain_id, chain_id if utxo.output_index < first_exported else exported_to)
        for utxo in outputs_of(tx)
    )


def _output(utxo: Utxo[XOutput], created_on: ChainID, held_on: ChainID) -> LedgerOutput:
    output = utxo.output
    if isinstance(output, TransferOutput | LockOut):
        transferable = TransferableOutput(utxo.asset_id, output)
        return build_transfer_output(
            utxo.tx_id, utxo.output_index, transferable, created_on, held_on
        )
    return LedgerOutput(
        id=utxo.id,
        tx_id=utxo.tx_id,
        output_index=utxo.output_index,
        asset_id=utxo.asset_id,
        amount=1 if isinstance(output, NftTransferOutput) else 0,
        addresses=output.owners.addresses,
        threshold=output.owners.threshold,
        locktime=output.owners.locktime,
        stakeable_locktime=0,
        created_on=created_on,
        held_on=held_on,
        kind=_KINDS[type(output)],
        group_id=output.group_id if isinstance(output, NftMintOutput | NftTransferOutput) else None,
        payload=output.payload if isinstance(output, NftTransferOutput) else None,
    )


def _consume(
    flow: UtxoFlow, tx: XTx, operation: AssetOperation, reference: UtxoReference, credential: int
) -> Consumed:
    """Spend an output that an operation consumes. Raises LedgerError."""
    key, kind = reference.utxo_id, _CONSUMED_KINDS[type(operation.operation)]
    nft = None
    group_id = None
    if isinstance(operation.operation, NftTransferOperation):
        nft = operation.operation.output
        group_id = nft.group_id
    elif isinstance(operation.operation, NftMintOperation):
        group_id = operation.operation.group_id
    amount = 0 if nft is None else 1
    reconstructed = None
    if flow.spend(tx, key, operation.asset_id, amount, flow.chain_id):
        signatures = signatures_of(tx, credential)
        addresses: tuple[Address, ...] = ()
        if signatures:
            addresses = recover_signers(hash_unsigned_tx(tx.encode_unsigned()), signatures)
        reconstructed = LedgerOutput(
            id=key,
            tx_id=reference.tx_id,
            output_index=reference.output_index,
            asset_id=operation.asset_id,
            amount=amount,
            addresses=addresses,
            threshold=len(addresses),
            locktime=0,
            stakeable_locktime=0,
            created_on=flow.chain_id,
            held_on=flow.chain_id,
            kind=kind,
            group_id=group_id,
            payload=None if nft is None else nft.payload,
            is_complete=False,
        )
    return Consumed(key, flow.chain_id, operation.asset_id, amount, credential, reconstructed)


_FUNGIBLE_FX: Final = 0
_NFT_FX: Final = 1


class Cap(Enum):
    """Whether more of an asset can be minted."""

    FIXED = "fixed"
    VARIABLE = "variable"


class AssetCreation(Struct, frozen=True):
    """An asset was created; it has the ID of the transaction.

    is_nft: the asset has NFTs.
    alias: alias of an asset of the genesis.
    """

    asset_id: AssetID
    name: str
    symbol: str
    denomination: int
    cap: Cap
    is_nft: bool
    alias: str = ""


class XTxEffects(Struct, frozen=True):
    """The effects of a transaction.

    height: None for one from before Cortina, when the X-Chain was a DAG.

    consumed: base and imported inputs, then inputs of operations, in the order of the credentials.
    emitted: emitted outputs by index, exports included.
    burned: fungible inputs less transferable outputs.
    """

    tx: XTx
    height: int | None
    position: int
    consumed: tuple[Consumed, ...]
    emitted: tuple[LedgerOutput, ...]
    source_chain_id: ChainID | None
    destination_chain_id: ChainID | None
    burned: AssetSums
    asset: AssetCreation | None

    @property
    def released(self) -> tuple[LedgerOutput, ...]:
        """No outputs: the X-Chain has no staking."""
        return ()


class XBlockEffects(Struct, frozen=True):
    """The effects of a block."""

    chain_id: ChainID
    block: XBlock
    txs: tuple[XTxEffects, ...]


def apply_x_block(
    chain_id: ChainID, block: XBlock, source: UtxoSource | None, *, is_complete: bool
) -> XBlockEffects:
    """Return the effects of the next block.

    is_complete: all outputs since the genesis are known, so that an unknown output is an error;
        otherwise it is reconstructed from the input.
    Raises LedgerError.
    """
    flow = UtxoFlow(chain_id, block.height, source, is_complete)
    txs = tuple(
        build_x_tx_effects(flow, tx, position, block.height)
        for position, tx in enumerate(block.txs)
    )
    return XBlockEffects(chain_id, block, txs)


def build_x_tx_effects(
    flow: UtxoFlow, tx: XTx, position: int, height: int | None = None
) -> XTxEffects:
    """Return the effects of a transaction after those that `flow` has seen. Raises LedgerError."""
    unsigned, source, destination = tx.unsigned, None, None
    consumed = flow.consume(tx, unsigned.base.inputs, flow.chain_id, 0)
    operated: tuple[Consumed, ...] = ()
    exported = 0
    if isinstance(unsigned, ImportTx):
        source = unsigned.source_chain_id
        consumed += flow.consume(tx, unsigned.imported_inputs, source, len(consumed))
    elif isinstance(unsigned, ExportTx):
        destination, exported = unsigned.destination_chain_id, len(unsigned.exported_outputs)
    elif isinstance(unsigned, OperationTx):
        operated = tuple(
            _consume(flow, tx, operation, reference, credential)
            for credential, operation in enumerate(unsigned.operations, len(consumed))
            for reference in operation.consumed
        )
    emitted = list_x_outputs(tx, flow.chain_id)
    flow.emit(emitted)
    burned = flow.burned(tx, consumed, emitted[: len(unsigned.base.outputs) + exported])
    asset = _asset(tx, unsigned) if isinstance(unsigned, CreateAssetTx) else None
    return XTxEffects(
        tx, height, position, consumed + operated, emitted, source, destination, burned, asset
    )


def build_x_genesis_effects(genesis: XGenesis, chain_id: ChainID) -> tuple[XTxEffects, ...]:
    """Return the effects of creating the assets of the genesis."""
    flow = UtxoFlow(chain_id, 0, None, True)
    effects: list[XTxEffects] = []
    for position, asset in enumerate(genesis.assets):
        tx_effects = build_x_tx_effects(flow, asset.tx, position)
        effects.append(replace(tx_effects, asset=_asset(asset.tx, asset.creation, asset.alias)))
    return tuple(effects)


def _asset(tx: XTx, creation: CreateAssetTx, alias: str = "") -> AssetCreation:
    fungible = [
        output
        for state in creation.states
        if state.fx_index == _FUNGIBLE_FX
        for output in state.outputs
    ]
    return AssetCreation(
        AssetID(tx.id),
        creation.name,
        creation.symbol,
        creation.denomination,
        Cap.VARIABLE if any(isinstance(output, MintOutput) for output in fungible) else Cap.FIXED,
        any(state.fx_index == _NFT_FX for state in creation.states),
        alias,
    )
