"""What operations of the X-Chain spend: rights to mint, NFTs, properties.

Source of truth: avalanchego `vms/avm/txs/operation.go`. Each operation has one credential, behind those of the inputs.
"""

from __future__ import annotations

from typing import Final

from warpseal.chains.ids import Address
from warpseal.chains.x_components import (
    MintOperation,
    NftMintOperation,
    NftTransferOperation,
    PropertyBurnOperation,
    PropertyMintOperation,
    XOperation,
)
from warpseal.chains.x_txs import Operation, OperationTx, UtxoReference, XTx
from warpseal.ledger.outputs import Consumed, LedgerOutput, OutputKind
from warpseal.ledger.signer_recovery import signed_digest, signers
from warpseal.ledger.utxo_flow import Moving

_SPENDS: Final[dict[type, OutputKind]] = {
    MintOperation: OutputKind.MINT,
    NftMintOperation: OutputKind.NFT_MINT,
    NftTransferOperation: OutputKind.NFT,
    PropertyMintOperation: OutputKind.PROPERTY_MINT,
    PropertyBurnOperation: OutputKind.PROPERTY,
}


def consume_operations(moving: Moving, tx: XTx, first_credential: int) -> list[Consumed]:
    """Spend what the operations of `tx` name, in their order. Raises LedgerFault."""
    unsigned = tx.unsigned
    operations = unsigned.operations if isinstance(unsigned, OperationTx) else ()
    return [
        _consume(moving, tx, operation, reference, credential)
        for credential, operation in enumerate(operations, first_credential)
        for reference in operation.consumed
    ]


def _consume(moving: Moving, tx: XTx, operation: Operation, reference: UtxoReference, credential: int) -> Consumed:
    key = reference.utxo_id
    amount = _amount(operation.operation)
    known = moving.take(tx, key)
    rebuilt = None
    if known is not None:
        if known.asset_id != operation.asset_id or known.amount != amount:
            raise moving.fault(tx, f"input {key.hex()} is not what was made")
    elif moving.source is not None:
        if moving.is_complete:
            raise moving.fault(tx, f"input {key.hex()} is not there")
        rebuilt = _rebuilt(moving, tx, operation, reference, credential)
    return Consumed(key, moving.chain_id, operation.asset_id, amount, credential, rebuilt)


def _amount(operation: XOperation) -> int:
    return 1 if isinstance(operation, NftTransferOperation) else 0


def _rebuilt(moving: Moving, tx: XTx, operation: Operation, reference: UtxoReference, credential: int) -> LedgerOutput:
    done = operation.operation
    addresses: tuple[Address, ...] = ()
    if credential < len(tx.credentials):
        addresses = signers(signed_digest(tx.encode_unsigned()), tx.credentials[credential].signatures)
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
        created_on=moving.chain_id,
        held_on=moving.chain_id,
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
