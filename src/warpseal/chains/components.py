"""Signed transactions and the parts that all chains share, such as outputs, inputs and owners.

Source of truth: avalanchego `vms/secp256k1fx`, `vms/components/avax`,
`vms/platformvm/{stakeable,txs/tx.go}`, `vms/avm/txs/tx.go`. Amounts are in the smallest unit of the
asset (nAVAX), times in unix seconds. No order of inputs or outputs is required. Only the outermost
value carries the codec version: a transaction within a block or a genesis lacks it, but its id is
the hash of its bytes with the version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from warpseal.chains.codec import (
    AsInterface,
    ChainReader,
    Codec,
    FixedBytes,
    Interface,
    ListOf,
    Uint32,
    Uint64,
)
from warpseal.chains.ids import Address, AssetID, TxID, UtxoID, utxo_id
from warpseal.warp.codec import VERSION
from warpseal.warp.ids import ChainID

StateOutput = TypeVar("StateOutput")
Signature: TypeAlias = Annotated[bytes, FixedBytes(65)]


class OutputOwners(Struct, frozen=True):
    """The owners of an output or an authority: `threshold` of the addresses, from `locktime` on."""

    locktime: Uint64
    threshold: Uint32
    addresses: tuple[Address, ...]


class TransferOutput(Struct, frozen=True):
    """An amount that `threshold` of the addresses may spend from `locktime` on."""

    amount: Uint64
    locktime: Uint64
    threshold: Uint32
    addresses: tuple[Address, ...]

    @property
    def owners(self) -> OutputOwners:
        """The owners, who may spend it."""
        return OutputOwners(self.locktime, self.threshold, self.addresses)


class LockOut(Struct, frozen=True):
    """An output that can only be staked until `locktime`. It never wraps another lock."""

    locktime: Uint64
    output: Annotated[TransferOutput, AsInterface("a locked output")]

    @property
    def amount(self) -> int:
        """The amount of the wrapped output."""
        return self.output.amount

    @property
    def owners(self) -> OutputOwners:
        """The owners of the wrapped output."""
        return self.output.owners


class TransferInput(Struct, frozen=True):
    """An amount spent.

    signature_indices: the positions of the signing addresses in the output, ascending if valid.
    """

    amount: Uint64
    signature_indices: tuple[Uint32, ...]


class LockIn(Struct, frozen=True):
    """An input that spends a LockOut of the same `locktime`. It never wraps another lock."""

    locktime: Uint64
    input: Annotated[TransferInput, AsInterface("a locked input")]

    @property
    def amount(self) -> int:
        """The amount of the wrapped input."""
        return self.input.amount

    @property
    def signature_indices(self) -> tuple[int, ...]:
        """The signature indices of the wrapped input."""
        return self.input.signature_indices


class Input(Struct, frozen=True):
    """Proof of an authority, without an amount.

    signature_indices: the positions of the signing addresses in the owner.
    """

    signature_indices: tuple[Uint32, ...]


class Credential(Struct, frozen=True):
    """Signatures, each 65 bytes: r, s, then the recovery id."""

    signatures: tuple[Signature, ...]


Output = TransferOutput | LockOut
Spend = TransferInput | LockIn
# An owner and an authority that begin with a type id.
Owner: TypeAlias = Annotated[OutputOwners, AsInterface("an owner")]
Authority: TypeAlias = Annotated[Input, AsInterface("an authorisation")]


class TransferableOutput(Struct, frozen=True):
    """An output of an asset."""

    asset_id: AssetID
    output: Annotated[Output, AsInterface("an output")]


class TransferableInput(Struct, frozen=True):
    """The spending of output `output_index` of transaction `tx_id`."""

    tx_id: TxID
    output_index: Uint32
    asset_id: AssetID
    input: Annotated[Spend, AsInterface("an input")]

    @property
    def utxo_id(self) -> UtxoID:
        """Id of the unspent output that it consumes."""
        return utxo_id(self.tx_id, self.output_index)


class Utxo(Struct, Generic[StateOutput], frozen=True):
    """An unspent output: its transaction and index, and the output itself."""

    tx_id: TxID
    output_index: Uint32
    asset_id: AssetID
    output: Annotated[StateOutput, AsInterface("an output")]

    @property
    def id(self) -> UtxoID:
        """Id of the unspent output."""
        return utxo_id(self.tx_id, self.output_index)


class BaseFields(Struct, frozen=True):
    """The fields that every user's transaction on P and X begins with.

    blockchain_id: the chain that issued it.
    """

    network_id: Uint32
    blockchain_id: ChainID
    outputs: tuple[TransferableOutput, ...]
    inputs: tuple[TransferableInput, ...]
    memo: bytes


class UserTx(Struct, frozen=True):
    """A transaction that a user issues. Its own fields follow the base fields."""

    base: BaseFields


class BaseTx(UserTx, frozen=True):
    """Moves funds within the chain."""


class ImportTx(UserTx, frozen=True):
    """Spends outputs that another chain exported.

    Credentials of base inputs come before those of imported ones.
    """

    source_chain_id: ChainID
    imported_inputs: tuple[TransferableInput, ...]


class ExportTx(UserTx, frozen=True):
    """Exports outputs to another chain; their indices follow the base outputs."""

    destination_chain_id: ChainID
    exported_outputs: tuple[TransferableOutput, ...]


U = TypeVar("U")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class SignedTx(Generic[U, C]):
    """A transaction and its credentials. Transactions are equal if `raw` is.

    raw: bytes of the transaction with the codec version.
    """

    unsigned: U = field(compare=False)
    credentials: tuple[C, ...] = field(compare=False)
    raw: bytes = field(repr=False)
    codec: TxCodec[U, C] = field(compare=False, repr=False)
    id: TxID = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", TxID(sha256(self.raw).digest()))

    @property
    def kind(self) -> str:
        """The node's name of the transaction's type, such as `RegisterL1ValidatorTx`."""
        return type(self.unsigned).__name__

    @property
    def type_id(self) -> int:
        """The type id of the transaction on its chain."""
        return self.codec.unsigned.type_id_of(self.unsigned)

    def encode(self) -> bytes:
        """Return the bytes, encoded from the parts; equal to `raw`."""
        return self.codec.encode(self.unsigned, self.credentials)

    def encode_unsigned(self) -> bytes:
        """Return the bytes before the credentials; signatures are over their SHA-256."""
        out = bytearray(VERSION)
        self.codec.unsigned.write(self.unsigned, out)
        return bytes(out)


class TxCodec(Codec[SignedTx[U, C]], Generic[U, C]):
    """The codec of a chain's signed transactions.

    `read` and `write` leave the codec version out, as blocks do.
    """

    def __init__(self, unsigned: Interface[U], credential: Interface[C]) -> None:
        self.unsigned = unsigned
        self.least_bytes = unsigned.least_bytes + 4
        self.credential = credential
        self._credentials: ListOf[Any] = ListOf(credential, "credentials")

    def build(self, unsigned: U, credentials: tuple[C, ...] = ()) -> SignedTx[U, C]:
        """Return the transaction made of these parts.

        Raises ValueError if one does not fit its format.
        """
        return SignedTx(unsigned, credentials, self.encode(unsigned, credentials), self)

    def encode(self, unsigned: U, credentials: tuple[C, ...]) -> bytes:
        """Return the bytes, codec version first.

        Raises ValueError if a part does not fit its format.
        """
        out = bytearray(VERSION)
        self.unsigned.write(unsigned, out)
        self._credentials.write(credentials, out)
        return bytes(out)

    def read(self, reader: ChainReader) -> SignedTx[U, C]:
        start = reader.offset
        unsigned = self.unsigned.read(reader)
        credentials = self._credentials.read(reader)
        return SignedTx(unsigned, credentials, VERSION + reader.raw[start : reader.offset], self)

    def write(self, value: SignedTx[U, C], out: bytearray) -> None:
        self.unsigned.write(value.unsigned, out)
        self._credentials.write(value.credentials, out)
