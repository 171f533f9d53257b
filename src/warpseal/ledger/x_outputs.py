"""Outputs of the X-Chain of every kind, as the ledger tells of them.

Source of truth: avalanchego `vms/avm/utxo`, `vms/nftfx`, `vms/propertyfx`.
"""

from __future__ import annotations

from dataclasses import replace

from warpseal.chains.components import LockOut, OutputOwners, TransferableOutput, TransferOutput, Utxo
from warpseal.chains.x_components import (
    MintOutput,
    NftMintOutput,
    NftTransferOutput,
    PropertyMintOutput,
    PropertyOwnedOutput,
    XOutput,
)
from warpseal.chains.x_txs import ExportTx, XTx, exported_outputs, produced_outputs
from warpseal.ledger.outputs import LedgerOutput, OutputKind
from warpseal.ledger.utxo_flow import transferred
from warpseal.warp.ids import ChainID


def x_outputs(tx: XTx, chain_id: ChainID) -> tuple[LedgerOutput, ...]:
    """Return what a transaction makes, by output index: also of one that was only fetched to know an output."""
    unsigned = tx.unsigned
    made = [_output(utxo, chain_id, chain_id) for utxo in produced_outputs(tx)]
    if isinstance(unsigned, ExportTx):
        made += [_output(utxo, chain_id, unsigned.destination_chain_id) for utxo in exported_outputs(tx)]
    return tuple(made)


def _output(utxo: Utxo[XOutput], created_on: ChainID, held_on: ChainID) -> LedgerOutput:
    match utxo.output:
        case TransferOutput() | LockOut() as output:
            made = TransferableOutput(utxo.asset_id, output)
            return transferred(utxo.tx_id, utxo.output_index, made, created_on, held_on)
        case MintOutput(owners=owners):
            return _thing(utxo, owners, OutputKind.MINT, created_on)
        case NftMintOutput(group_id=group_id, owners=owners):
            return _thing(utxo, owners, OutputKind.NFT_MINT, created_on, group_id)
        case NftTransferOutput(group_id=group_id, payload=payload, owners=owners):
            made_nft = _thing(utxo, owners, OutputKind.NFT, created_on, group_id)
            return replace(made_nft, amount=1, payload=payload)
        case PropertyMintOutput(owners=owners):
            return _thing(utxo, owners, OutputKind.PROPERTY_MINT, created_on)
        case PropertyOwnedOutput(owners=owners):
            return _thing(utxo, owners, OutputKind.PROPERTY, created_on)


def _thing(
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
