"""X-Chain transactions of every type, their outputs, and the operations that mint assets, NFTs and properties.

Source of truth: avalanchego `vms/secp256k1fx`, `vms/nftfx`, `vms/propertyfx`; the type ids follow from the order of
registration in `vms/avm/txs/parser.go` and `vms/avm/block/parser.go`. Transactions: `vms/avm/txs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import (
    ID,
    SIZED,
    TEXT,
    U8,
    U32,
    FixedBytes,
    Interface,
    ListOf,
    ListOfFixed,
    Struct,
)
from warpseal.chains.components import (
    CREDENTIAL,
    CREDENTIAL_TYPE,
    INDICES,
    INPUT,
    OUTPUT_OWNERS,
    SIGNATURE_BYTES,
    TRANSFER_INPUT,
    TRANSFER_INPUT_TYPE,
    TRANSFER_OUTPUT,
    TRANSFER_OUTPUT_TYPE,
    BaseFields,
    Credential,
    Input,
    Output,
    OutputOwners,
    Spend,
    TransferableInput,
    TransferableOutput,
    TransferOutput,
    Utxo,
    base_fields_struct,
    transferable_input_struct,
    transferable_output_struct,
)
from warpseal.chains.ids import AssetID, TxID, UtxoID, utxo_id
from warpseal.chains.signed_tx import SignedTx, TxCodec
from warpseal.warp.ids import ChainID

X_TYPE_NAMES: Final = dict(
    enumerate(
        (
            *("BaseTx", "CreateAssetTx", "OperationTx", "ImportTx", "ExportTx"),
            *("TransferInput", "MintOutput", "TransferOutput", "MintOperation", "Credential"),
            *("NftMintOutput", "NftTransferOutput", "NftMintOperation", "NftTransferOperation", "NftCredential"),
            *("PropertyMintOutput", "PropertyOwnedOutput", "PropertyMintOperation", "PropertyBurnOperation"),
            *("PropertyCredential", "StandardBlock"),
        )
    )
)


@dataclass(frozen=True, slots=True)
class MintOutput:
    """The right to mint more of a fungible asset."""

    owners: OutputOwners


@dataclass(frozen=True, slots=True)
class NftMintOutput:
    """The right to mint NFTs of one group of an asset."""

    group_id: int
    owners: OutputOwners


@dataclass(frozen=True, slots=True)
class NftTransferOutput:
    """An NFT with a payload of up to 1 KiB if valid."""

    group_id: int
    payload: bytes
    owners: OutputOwners


@dataclass(frozen=True, slots=True)
class PropertyMintOutput:
    """The right to mint a property."""

    owners: OutputOwners


@dataclass(frozen=True, slots=True)
class PropertyOwnedOutput:
    """The ownership of a property."""

    owners: OutputOwners


# Of the members of `Output` only TransferOutput occurs on the X-Chain.
XOutput = Output | MintOutput | NftMintOutput | NftTransferOutput | PropertyMintOutput | PropertyOwnedOutput


@dataclass(frozen=True, slots=True)
class MintOperation:
    """Mints an amount of a fungible asset, and passes on the right to mint."""

    mint_input: Input
    mint_output: MintOutput
    transfer_output: TransferOutput

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """The outputs it produces, in the order of their indices."""
        return (self.mint_output, self.transfer_output)


@dataclass(frozen=True, slots=True)
class NftMintOperation:
    """Mints one NFT for each owner."""

    mint_input: Input
    group_id: int
    payload: bytes
    owners: tuple[OutputOwners, ...]

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """The outputs it produces, in the order of their indices."""
        return tuple(NftTransferOutput(self.group_id, self.payload, owners) for owners in self.owners)


@dataclass(frozen=True, slots=True)
class NftTransferOperation:
    """Transfers an NFT to new owners."""

    input: Input
    output: NftTransferOutput

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """The outputs it produces, in the order of their indices."""
        return (self.output,)


@dataclass(frozen=True, slots=True)
class PropertyMintOperation:
    """Mints a property, and passes on the right to mint."""

    mint_input: Input
    mint_output: PropertyMintOutput
    owned_output: PropertyOwnedOutput

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """The outputs it produces, in the order of their indices."""
        return (self.mint_output, self.owned_output)


@dataclass(frozen=True, slots=True)
class PropertyBurnOperation:
    """Burns a property; one signature index for each address that signs."""

    signature_indices: tuple[int, ...]

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """No outputs."""
        return ()


XOperation = MintOperation | NftMintOperation | NftTransferOperation | PropertyMintOperation | PropertyBurnOperation


@dataclass(frozen=True, slots=True)
class NftCredential:
    """Signatures of an NFT operation, each 65 bytes: r, s, then the recovery id."""

    signatures: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PropertyCredential:
    """Signatures of a property operation, each 65 bytes: r, s, then the recovery id."""

    signatures: tuple[bytes, ...]


XCredential = Credential | NftCredential | PropertyCredential

_SIGNATURES: Final = ListOfFixed(FixedBytes(SIGNATURE_BYTES), "signatures")
_MINT_OUTPUT: Final = Struct(MintOutput, owners=OUTPUT_OWNERS)
_NFT_MINT_OUTPUT: Final = Struct(NftMintOutput, group_id=U32, owners=OUTPUT_OWNERS)
_NFT_TRANSFER_OUTPUT: Final = Struct(NftTransferOutput, group_id=U32, payload=SIZED, owners=OUTPUT_OWNERS)
_PROPERTY_MINT_OUTPUT: Final = Struct(PropertyMintOutput, owners=OUTPUT_OWNERS)
_PROPERTY_OWNED_OUTPUT: Final = Struct(PropertyOwnedOutput, owners=OUTPUT_OWNERS)
_MINT_OPERATION: Final = Struct(
    MintOperation, mint_input=INPUT, mint_output=_MINT_OUTPUT, transfer_output=TRANSFER_OUTPUT
)
_NFT_MINT_OPERATION: Final = Struct(
    NftMintOperation, mint_input=INPUT, group_id=U32, payload=SIZED, owners=ListOf(OUTPUT_OWNERS, "owners")
)
_NFT_TRANSFER_OPERATION: Final = Struct(NftTransferOperation, input=INPUT, output=_NFT_TRANSFER_OUTPUT)
_PROPERTY_MINT_OPERATION: Final = Struct(
    PropertyMintOperation, mint_input=INPUT, mint_output=_PROPERTY_MINT_OUTPUT, owned_output=_PROPERTY_OWNED_OUTPUT
)

X_OUTPUT: Final[Interface[XOutput]] = Interface(
    "output",
    {
        6: _MINT_OUTPUT,
        TRANSFER_OUTPUT_TYPE: TRANSFER_OUTPUT,
        10: _NFT_MINT_OUTPUT,
        11: _NFT_TRANSFER_OUTPUT,
        15: _PROPERTY_MINT_OUTPUT,
        16: _PROPERTY_OWNED_OUTPUT,
    },
    X_TYPE_NAMES,
)
X_OPERATION: Final[Interface[XOperation]] = Interface(
    "operation",
    {
        8: _MINT_OPERATION,
        12: _NFT_MINT_OPERATION,
        13: _NFT_TRANSFER_OPERATION,
        17: _PROPERTY_MINT_OPERATION,
        18: Struct(PropertyBurnOperation, signature_indices=INDICES),
    },
    X_TYPE_NAMES,
)
X_CREDENTIAL: Final[Interface[XCredential]] = Interface(
    "credential",
    {
        CREDENTIAL_TYPE: CREDENTIAL,
        14: Struct(NftCredential, signatures=_SIGNATURES),
        19: Struct(PropertyCredential, signatures=_SIGNATURES),
    },
    X_TYPE_NAMES,
)
# Only fungible outputs and inputs are transferable; all others need an operation.
_OUTPUT: Final[Interface[Output]] = Interface(
    "transferable output", {TRANSFER_OUTPUT_TYPE: TRANSFER_OUTPUT}, X_TYPE_NAMES
)
_SPEND: Final[Interface[Spend]] = Interface("transferable input", {TRANSFER_INPUT_TYPE: TRANSFER_INPUT}, X_TYPE_NAMES)
X_TRANSFERABLE_OUTPUT: Final = transferable_output_struct(_OUTPUT)
X_TRANSFERABLE_INPUT: Final = transferable_input_struct(_SPEND)
X_BASE_FIELDS: Final = base_fields_struct(X_TRANSFERABLE_OUTPUT, X_TRANSFERABLE_INPUT)


@dataclass(frozen=True, slots=True)
class BaseTx:
    """Transfers fungible assets."""

    base: BaseFields


@dataclass(frozen=True, slots=True)
class InitialState:
    """Initial outputs of a new asset. fx_index: 0 fungible, 1 NFT, 2 property."""

    fx_index: int
    outputs: tuple[XOutput, ...]


@dataclass(frozen=True, slots=True)
class CreateAssetTx:
    """Creates the asset whose id is the transaction's. denomination: decimal places, 0 to 32 if valid."""

    base: BaseFields
    name: str
    symbol: str
    denomination: int
    states: tuple[InitialState, ...]


@dataclass(frozen=True, slots=True)
class UtxoReference:
    """Output `output_index` of transaction `tx_id`."""

    tx_id: TxID
    output_index: int

    @property
    def utxo_id(self) -> UtxoID:
        """Id of the referenced output."""
        return utxo_id(self.tx_id, self.output_index)


@dataclass(frozen=True, slots=True)
class AssetOperation:
    """An operation on an asset, and the outputs that it consumes."""

    asset_id: AssetID
    consumed: tuple[UtxoReference, ...]
    operation: XOperation


@dataclass(frozen=True, slots=True)
class OperationTx:
    """Transfers fungible assets and executes operations on assets."""

    base: BaseFields
    operations: tuple[AssetOperation, ...]


@dataclass(frozen=True, slots=True)
class ImportTx:
    """Imports assets that were exported on `source_chain_id`."""

    base: BaseFields
    source_chain_id: ChainID
    imported_inputs: tuple[TransferableInput, ...]


@dataclass(frozen=True, slots=True)
class ExportTx:
    """Exports assets to `destination_chain_id`, which imports them later."""

    base: BaseFields
    destination_chain_id: ChainID
    exported_outputs: tuple[TransferableOutput, ...]


XUnsignedTx = BaseTx | CreateAssetTx | OperationTx | ImportTx | ExportTx
XTx = SignedTx[XUnsignedTx, XCredential]
XUtxo = Utxo[XOutput]

_STATE: Final = Struct(InitialState, fx_index=U32, outputs=ListOf(X_OUTPUT, "initial outputs"))
_REFERENCE: Final = Struct(UtxoReference, tx_id=ID, output_index=U32)
_OPERATION: Final = Struct(
    AssetOperation, asset_id=ID, consumed=ListOf(_REFERENCE, "consumed outputs"), operation=X_OPERATION
)
CREATE_ASSET_TX: Final = Struct(
    CreateAssetTx,
    base=X_BASE_FIELDS,
    name=TEXT,
    symbol=TEXT,
    denomination=U8,
    states=ListOf(_STATE, "initial states"),
)
_UNSIGNED: Final[Interface[XUnsignedTx]] = Interface(
    "transaction",
    {
        0: Struct(BaseTx, base=X_BASE_FIELDS),
        1: CREATE_ASSET_TX,
        2: Struct(OperationTx, base=X_BASE_FIELDS, operations=ListOf(_OPERATION, "operations")),
        3: Struct(
            ImportTx,
            base=X_BASE_FIELDS,
            source_chain_id=ID,
            imported_inputs=ListOf(X_TRANSFERABLE_INPUT, "imported inputs"),
        ),
        4: Struct(
            ExportTx,
            base=X_BASE_FIELDS,
            destination_chain_id=ID,
            exported_outputs=ListOf(X_TRANSFERABLE_OUTPUT, "exported outputs"),
        ),
    },
    X_TYPE_NAMES,
)
X_TX: Final[TxCodec[XUnsignedTx, XCredential]] = TxCodec(_UNSIGNED, X_CREDENTIAL)


def parse_x_tx(raw: bytes) -> XTx:
    """Return the signed transaction whose bytes, codec version first, are exactly `raw`. Raises MalformedChainBytes."""
    return X_TX.parse(raw)


def produced_outputs(tx: XTx) -> tuple[XUtxo, ...]:
    """Return the outputs of `tx` on the X-Chain by index: base outputs, then those of initial states and operations."""
    outputs: list[tuple[AssetID, XOutput]] = [(out.asset_id, out.output) for out in tx.unsigned.base.outputs]
    outputs += _special_outputs(tx)
    return tuple(Utxo(tx.id, index, asset, output) for index, (asset, output) in enumerate(outputs))


def exported_outputs(tx: XTx) -> tuple[XUtxo, ...]:
    """Return the outputs that `tx` exports; their indices follow those of the base outputs."""
    if not isinstance(tx.unsigned, ExportTx):
        return ()
    first = len(tx.unsigned.base.outputs)
    exported = enumerate(tx.unsigned.exported_outputs, first)
    return tuple(Utxo(tx.id, index, out.asset_id, out.output) for index, out in exported)


def _special_outputs(tx: XTx) -> Iterator[tuple[AssetID, XOutput]]:
    match tx.unsigned:
        case CreateAssetTx(states=states):
            # The new asset's id is that of its transaction.
            yield from ((AssetID(tx.id), output) for state in states for output in state.outputs)
        case OperationTx(operations=operations):
            yield from (
                (operation.asset_id, output) for operation in operations for output in operation.operation.outputs
            )
