"""X-Chain transactions of every type, their outputs and operations.

Source of truth: avalanchego `vms/secp256k1fx`, `vms/nftfx`, `vms/propertyfx`; the type ids follow
from the order of registration in `vms/avm/txs/parser.go` and `vms/avm/block/parser.go`.
Transactions: `vms/avm/txs`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct

from warpseal.chains.codec import AsInterface, TypeRegistry, Uint8, Uint32
from warpseal.chains.components import (
    BaseTx,
    Credential,
    ExportTx,
    ImportTx,
    Input,
    Output,
    OutputOwners,
    Signature,
    SignedTx,
    TransferInput,
    TransferOutput,
    TxCodec,
    UserTx,
    Utxo,
)
from warpseal.chains.ids import AssetID, TxID, UtxoID, utxo_id


class MintOutput(Struct, frozen=True):
    """The right to mint more of a fungible asset."""

    owners: OutputOwners


class NftMintOutput(Struct, frozen=True):
    """The right to mint NFTs of one group of an asset."""

    group_id: Uint32
    owners: OutputOwners


class NftTransferOutput(Struct, frozen=True):
    """An NFT with a payload of up to 1 KiB if valid."""

    group_id: Uint32
    payload: bytes
    owners: OutputOwners


class PropertyMintOutput(Struct, frozen=True):
    """The right to mint a property."""

    owners: OutputOwners


class PropertyOwnedOutput(Struct, frozen=True):
    """The ownership of a property."""

    owners: OutputOwners


# Only TransferOutput of the members of `Output` occurs on the X-Chain.
XOutput = (
    Output
    | MintOutput
    | NftMintOutput
    | NftTransferOutput
    | PropertyMintOutput
    | PropertyOwnedOutput
)


class MintOperation(Struct, frozen=True):
    """Mints an amount of a fungible asset, and passes on the right to mint."""

    mint_input: Input
    mint_output: MintOutput
    transfer_output: TransferOutput


class NftMintOperation(Struct, frozen=True):
    """Mints one NFT for each owner."""

    mint_input: Input
    group_id: Uint32
    payload: bytes
    owners: tuple[OutputOwners, ...]


class NftTransferOperation(Struct, frozen=True):
    """Transfers an NFT to new owners."""

    input: Input
    output: NftTransferOutput


class PropertyMintOperation(Struct, frozen=True):
    """Mints a property, and passes on the right to mint."""

    mint_input: Input
    mint_output: PropertyMintOutput
    owned_output: PropertyOwnedOutput


class PropertyBurnOperation(Struct, frozen=True):
    """Burns a property; one signature index for each address that signs."""

    signature_indices: tuple[Uint32, ...]


XOperation = (
    MintOperation
    | NftMintOperation
    | NftTransferOperation
    | PropertyMintOperation
    | PropertyBurnOperation
)


class NftCredential(Struct, frozen=True):
    """Signatures of an NFT operation, each 65 bytes: r, s, then the recovery id."""

    signatures: tuple[Signature, ...]


class PropertyCredential(Struct, frozen=True):
    """Signatures of a property operation, each 65 bytes: r, s, then the recovery id."""

    signatures: tuple[Signature, ...]


XCredential = Credential | NftCredential | PropertyCredential


class InitialState(Struct, frozen=True):
    """Initial outputs of a new asset.

    fx_index: 0 fungible, 1 NFT, 2 property.
    """

    fx_index: Uint32
    outputs: tuple[Annotated[XOutput, AsInterface("an output")], ...]


class CreateAssetTx(UserTx, frozen=True):
    """Creates the asset whose id is the transaction's.

    denomination: number of decimal places, 0 to 32 if valid.
    """

    name: str
    symbol: str
    denomination: Uint8
    states: tuple[InitialState, ...]


class UtxoReference(Struct, frozen=True):
    """Output `output_index` of transaction `tx_id`."""

    tx_id: TxID
    output_index: Uint32

    @property
    def utxo_id(self) -> UtxoID:
        """Id of the referenced output."""
        return utxo_id(self.tx_id, self.output_index)


class AssetOperation(Struct, frozen=True):
    """An operation on an asset, and the outputs that it consumes."""

    asset_id: AssetID
    consumed: tuple[UtxoReference, ...]
    operation: Annotated[XOperation, AsInterface("an operation")]


class OperationTx(UserTx, frozen=True):
    """Transfers fungible assets and executes operations on assets."""

    operations: tuple[AssetOperation, ...]


XUnsignedTx = BaseTx | CreateAssetTx | OperationTx | ImportTx | ExportTx
XTx = SignedTx[XUnsignedTx, XCredential]
XUtxo = Utxo[XOutput]

X_TYPES: Final = TypeRegistry(
    {
        0: BaseTx,
        1: CreateAssetTx,
        2: OperationTx,
        3: ImportTx,
        4: ExportTx,
        5: TransferInput,
        6: MintOutput,
        7: TransferOutput,
        8: MintOperation,
        9: Credential,
        10: NftMintOutput,
        11: NftTransferOutput,
        12: NftMintOperation,
        13: NftTransferOperation,
        14: NftCredential,
        15: PropertyMintOutput,
        16: PropertyOwnedOutput,
        17: PropertyMintOperation,
        18: PropertyBurnOperation,
        19: PropertyCredential,
        20: "StandardBlock",
    }
)
X_TX: Final[TxCodec[XUnsignedTx, XCredential]] = TxCodec(
    X_TYPES.interface("a transaction", XUnsignedTx), X_TYPES.interface("a credential", XCredential)
)
parse_x_tx = X_TX.parse


def outputs_of(tx: XTx) -> tuple[XUtxo, ...]:
    """Return the outputs of `tx` by index.

    Base outputs come first; those of initial states, of operations or for another chain follow.
    """
    unsigned = tx.unsigned
    outputs: list[tuple[AssetID, XOutput]] = [
        (out.asset_id, out.output) for out in unsigned.base.outputs
    ]
    match unsigned:
        case CreateAssetTx(states=states):
            # The new asset has the ID of its transaction.
            outputs += [(AssetID(tx.id), output) for state in states for output in state.outputs]
        case OperationTx(operations=operations):
            for item in operations:
                produced = operation_outputs(item.operation)
                outputs += [(item.asset_id, output) for output in produced]
        case ExportTx(exported_outputs=exported):
            outputs += [(out.asset_id, out.output) for out in exported]
    utxos: list[XUtxo] = []
    for index, (asset_id, output) in enumerate(outputs):
        utxos.append(Utxo(tx.id, index, asset_id, output))
    return tuple(utxos)


def operation_outputs(operation: XOperation) -> tuple[XOutput, ...]:
    """Return the outputs that an operation produces, in the order of their indices.

    Burning produces none.
    """
    match operation:
        case MintOperation():
            return (operation.mint_output, operation.transfer_output)
        case NftMintOperation(group_id=group_id, payload=payload):
            groups = operation.owners
            return tuple(NftTransferOutput(group_id, payload, owners) for owners in groups)
        case NftTransferOperation():
            return (operation.output,)
        case PropertyMintOperation():
            return (operation.mint_output, operation.owned_output)
        case PropertyBurnOperation():
            return ()
