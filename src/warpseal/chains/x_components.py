"""What only X-Chain transactions hold: outputs that mint, NFTs, properties, and the operations on them.

Source of truth: avalanchego `vms/secp256k1fx`, `vms/nftfx`, `vms/propertyfx`; the type ids follow from the order of
registration in `vms/avm/txs/parser.go` and `vms/avm/block/parser.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import SIZED, U32, FixedBytes, ListOf, ListOfFixed
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
    Credential,
    Input,
    Output,
    OutputOwners,
    Spend,
    TransferOutput,
    base_fields,
    transferable_input,
    transferable_output,
    unspent_output,
)
from warpseal.chains.layout import Layout, OneOf

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
    """An NFT: any payload, up to 1 KiB where valid."""

    group_id: int
    payload: bytes
    owners: OutputOwners


@dataclass(frozen=True, slots=True)
class PropertyMintOutput:
    """The right to mint a property."""

    owners: OutputOwners


@dataclass(frozen=True, slots=True)
class PropertyOwnedOutput:
    """A property that is owned."""

    owners: OutputOwners


# `Output` is the shared type of what moves by itself; of its members only TransferOutput occurs on the X-Chain.
XOutput = Output | MintOutput | NftMintOutput | NftTransferOutput | PropertyMintOutput | PropertyOwnedOutput


@dataclass(frozen=True, slots=True)
class MintOperation:
    """Mints an amount of a fungible asset, and gives the right to mint on."""

    mint_input: Input
    mint_output: MintOutput
    transfer_output: TransferOutput

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """What it produces, in the order of the output indices."""
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
        """What it produces, in the order of the output indices."""
        return tuple(NftTransferOutput(self.group_id, self.payload, owners) for owners in self.owners)


@dataclass(frozen=True, slots=True)
class NftTransferOperation:
    """Gives an NFT to others."""

    input: Input
    output: NftTransferOutput

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """What it produces, in the order of the output indices."""
        return (self.output,)


@dataclass(frozen=True, slots=True)
class PropertyMintOperation:
    """Mints a property, and gives the right to mint on."""

    mint_input: Input
    mint_output: PropertyMintOutput
    owned_output: PropertyOwnedOutput

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """What it produces, in the order of the output indices."""
        return (self.mint_output, self.owned_output)


@dataclass(frozen=True, slots=True)
class PropertyBurnOperation:
    """Ends a property; one signature index for each address that signs."""

    signature_indices: tuple[int, ...]

    @property
    def outputs(self) -> tuple[XOutput, ...]:
        """Nothing."""
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
_MINT_OUTPUT: Final = Layout(MintOutput, owners=OUTPUT_OWNERS)
_NFT_MINT_OUTPUT: Final = Layout(NftMintOutput, group_id=U32, owners=OUTPUT_OWNERS)
_NFT_TRANSFER_OUTPUT: Final = Layout(NftTransferOutput, group_id=U32, payload=SIZED, owners=OUTPUT_OWNERS)
_PROPERTY_MINT_OUTPUT: Final = Layout(PropertyMintOutput, owners=OUTPUT_OWNERS)
_PROPERTY_OWNED_OUTPUT: Final = Layout(PropertyOwnedOutput, owners=OUTPUT_OWNERS)
_MINT_OPERATION: Final = Layout(
    MintOperation, mint_input=INPUT, mint_output=_MINT_OUTPUT, transfer_output=TRANSFER_OUTPUT
)
_NFT_MINT_OPERATION: Final = Layout(
    NftMintOperation, mint_input=INPUT, group_id=U32, payload=SIZED, owners=ListOf(OUTPUT_OWNERS, "owners")
)
_NFT_TRANSFER_OPERATION: Final = Layout(NftTransferOperation, input=INPUT, output=_NFT_TRANSFER_OUTPUT)
_PROPERTY_MINT_OPERATION: Final = Layout(
    PropertyMintOperation, mint_input=INPUT, mint_output=_PROPERTY_MINT_OUTPUT, owned_output=_PROPERTY_OWNED_OUTPUT
)

X_OUTPUT: Final[OneOf[XOutput]] = OneOf(
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
X_OPERATION: Final[OneOf[XOperation]] = OneOf(
    "operation",
    {
        8: _MINT_OPERATION,
        12: _NFT_MINT_OPERATION,
        13: _NFT_TRANSFER_OPERATION,
        17: _PROPERTY_MINT_OPERATION,
        18: Layout(PropertyBurnOperation, signature_indices=INDICES),
    },
    X_TYPE_NAMES,
)
X_CREDENTIAL: Final[OneOf[XCredential]] = OneOf(
    "credential",
    {
        CREDENTIAL_TYPE: CREDENTIAL,
        14: Layout(NftCredential, signatures=_SIGNATURES),
        19: Layout(PropertyCredential, signatures=_SIGNATURES),
    },
    X_TYPE_NAMES,
)
# Only fungible outputs and inputs move between transactions by themselves; all others need an operation.
_OUTPUT: Final[OneOf[Output]] = OneOf("transferable output", {TRANSFER_OUTPUT_TYPE: TRANSFER_OUTPUT}, X_TYPE_NAMES)
_SPEND: Final[OneOf[Spend]] = OneOf("transferable input", {TRANSFER_INPUT_TYPE: TRANSFER_INPUT}, X_TYPE_NAMES)
X_TRANSFERABLE_OUTPUT: Final = transferable_output(_OUTPUT)
X_TRANSFERABLE_INPUT: Final = transferable_input(_SPEND)
X_BASE_FIELDS: Final = base_fields(X_TRANSFERABLE_OUTPUT, X_TRANSFERABLE_INPUT)
X_UTXO: Final = unspent_output(X_OUTPUT)
