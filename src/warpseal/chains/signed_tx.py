"""A signed transaction of any chain, alone or within a block.

Source of truth: avalanchego `vms/platformvm/txs/tx.go`, `vms/avm/txs/tx.go`. Only the outermost value carries the codec
version: a transaction within a block or a genesis lacks it, but its id is the hash of its bytes with the version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, TypeVar

from warpseal.chains.codec import ChainReader, Codec, Interface, ListOf
from warpseal.chains.ids import TxID
from warpseal.warp.codec import VERSION

U = TypeVar("U")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class SignedTx(Generic[U, C]):
    """A transaction and its credentials. raw: its bytes with the codec version. Equal when `raw` is."""

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
    """The codec of a chain's signed transactions within a block; there they have no codec version."""

    def __init__(self, unsigned: Interface[U], credential: Interface[C]) -> None:
        self.unsigned = unsigned
        self.least_bytes = unsigned.least_bytes + 4
        self.credential = credential
        self._credentials: ListOf[Any] = ListOf(credential, "credentials")

    def build(self, unsigned: U, credentials: tuple[C, ...] = ()) -> SignedTx[U, C]:
        """Return the transaction made of these parts. Raises ValueError if one does not fit its format."""
        return SignedTx(unsigned, credentials, self.encode(unsigned, credentials), self)

    def encode(self, unsigned: U, credentials: tuple[C, ...]) -> bytes:
        """Return the bytes, codec version first. Raises ValueError if a part does not fit its format."""
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
