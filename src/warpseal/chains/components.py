"""The parts of transactions that all chains share: outputs, inputs, owners, credentials, UTXOs.

Source of truth: avalanchego `vms/secp256k1fx`, `vms/components/avax`, `vms/platformvm/stakeable`. Amounts are in the
smallest unit of the asset (nAVAX), times in unix seconds. No order of inputs or outputs is required.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from warpseal.chains.codec import ADDRESS, ID, SIZED, U32, U64, Codec, FixedBytes, ListOf, ListOfFixed, Struct
from warpseal.chains.ids import Address, AssetID, TxID, UtxoID, utxo_id
from warpseal.warp.ids import ChainID

# Type ids that the chains share.
TRANSFER_INPUT_TYPE: Final = 5
TRANSFER_OUTPUT_TYPE: Final = 7
CREDENTIAL_TYPE: Final = 9

SIGNATURE_BYTES: Final = 65

StateOutput = TypeVar("StateOutput")


@dataclass(frozen=True, slots=True)
class OutputOwners:
    """The owners of an output or an authority: `threshold` of the addresses (20 bytes each), from `locktime` on."""

    locktime: int
    threshold: int
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class TransferOutput:
    """An amount that `threshold` of the addresses may spend from `locktime` on."""

    amount: int
    locktime: int
    threshold: int
    addresses: tuple[Address, ...]

    @property
    def owners(self) -> OutputOwners:
        """The owners, who may spend it."""
        return OutputOwners(self.locktime, self.threshold, self.addresses)


@dataclass(frozen=True, slots=True)
class LockOut:
    """An output that can only be staked until `locktime`. It never wraps another lock."""

    locktime: int
    output: TransferOutput

    @property
    def amount(self) -> int:
        """The amount of the wrapped output."""
        return self.output.amount

    @property
    def owners(self) -> OutputOwners:
        """The owners of the wrapped output."""
        return self.output.owners


@dataclass(frozen=True, slots=True)
class TransferInput:
    """An amount spent; signature_indices: the positions of the signing addresses in the output, ascending if valid."""

    amount: int
    signature_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LockIn:
    """An input that spends a LockOut of the same `locktime`. It never wraps another lock."""

    locktime: int
    input: TransferInput

    @property
    def amount(self) -> int:
        """The amount of the wrapped input."""
        return self.input.amount

    @property
    def signature_indices(self) -> tuple[int, ...]:
        """The signature indices of the wrapped input."""
        return self.input.signature_indices


@dataclass(frozen=True, slots=True)
class Input:
    """Proof of an authority without an amount: the positions of the signing addresses in the owner."""

    signature_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Credential:
    """Signatures, each 65 bytes: r, s, then the recovery id."""

    signatures: tuple[bytes, ...]


Output = TransferOutput | LockOut
Spend = TransferInput | LockIn


@dataclass(frozen=True, slots=True)
class TransferableOutput:
    """An output of an asset."""

    asset_id: AssetID
    output: Output


@dataclass(frozen=True, slots=True)
class TransferableInput:
    """The spending of output `output_index` of transaction `tx_id`."""

    tx_id: TxID
    output_index: int
    asset_id: AssetID
    input: Spend

    @property
    def utxo_id(self) -> UtxoID:
        """Id of the unspent output that it consumes."""
        return utxo_id(self.tx_id, self.output_index)


@dataclass(frozen=True, slots=True)
class Utxo(Generic[StateOutput]):
    """An unspent output: its transaction and index, and the output itself."""

    tx_id: TxID
    output_index: int
    asset_id: AssetID
    output: StateOutput

    @property
    def id(self) -> UtxoID:
        """Id of the unspent output."""
        return utxo_id(self.tx_id, self.output_index)


@dataclass(frozen=True, slots=True)
class BaseFields:
    """The fields that every user's transaction on P and X begins with. blockchain_id: the chain that issued it."""

    network_id: int
    blockchain_id: ChainID
    outputs: tuple[TransferableOutput, ...]
    inputs: tuple[TransferableInput, ...]
    memo: bytes


ADDRESSES: Final = ListOfFixed(ADDRESS, "addresses")
INDICES: Final = ListOfFixed(U32, "signature indices")

OUTPUT_OWNERS: Final = Struct(OutputOwners, locktime=U64, threshold=U32, addresses=ADDRESSES)
TRANSFER_OUTPUT: Final = Struct(TransferOutput, amount=U64, locktime=U64, threshold=U32, addresses=ADDRESSES)
TRANSFER_INPUT: Final = Struct(TransferInput, amount=U64, signature_indices=INDICES)
INPUT: Final = Struct(Input, signature_indices=INDICES)
CREDENTIAL: Final = Struct(Credential, signatures=ListOfFixed(FixedBytes(SIGNATURE_BYTES), "signatures"))


def transferable_output_struct(output: Codec[Output]) -> Struct[TransferableOutput]:
    """Return the struct for a chain that allows the outputs of `output` (an interface value)."""
    return Struct(TransferableOutput, asset_id=ID, output=output)


def transferable_input_struct(spend: Codec[Spend]) -> Struct[TransferableInput]:
    """Return the struct for a chain that allows the inputs of `spend` (an interface value)."""
    return Struct(TransferableInput, tx_id=ID, output_index=U32, asset_id=ID, input=spend)


def utxo_struct(output: Codec[StateOutput]) -> Struct[Utxo[StateOutput]]:
    """Return the struct for a chain whose state holds the outputs of `output` (an interface value)."""
    return Struct(Utxo, tx_id=ID, output_index=U32, asset_id=ID, output=output)


def base_fields_struct(output: Struct[TransferableOutput], spend: Struct[TransferableInput]) -> Struct[BaseFields]:
    """Return the struct for a chain with these outputs and inputs."""
    outputs, inputs = ListOf(output, "outputs"), ListOf(spend, "inputs")
    return Struct(BaseFields, network_id=U32, blockchain_id=ID, outputs=outputs, inputs=inputs, memo=SIZED)
