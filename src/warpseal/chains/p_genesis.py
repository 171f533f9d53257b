"""The P-Chain's genesis: the first unspent outputs, validators and blockchains.

Source of truth: avalanchego `vms/platformvm/genesis/genesis.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from warpseal.chains.codec import SIZED, TEXT, U64, Codec, ListOf
from warpseal.chains.components import Output, Utxo
from warpseal.chains.cursor import Cursor
from warpseal.chains.ids import BlockID
from warpseal.chains.layout import Layout
from warpseal.chains.p_blocks import Block, genesis_block
from warpseal.chains.p_components import UTXO
from warpseal.chains.p_txs import P_TX, PSignedTx
from warpseal.chains.signed_tx import VERSION


@dataclass(frozen=True, slots=True)
class GenesisUtxo:
    """An output that was there from the start: of the zero transaction, its index its position in the genesis."""

    utxo: Utxo[Output]
    message: bytes


@dataclass(frozen=True, slots=True)
class Genesis:
    """The state before block 1. Equal when `raw`, its bytes with the codec version, is.

    validators: AddValidatorTx (or its successors), in the order of a heap; chains: CreateChainTx, X and C.
    timestamp: unix seconds; initial_supply: nAVAX. id: SHA-256 of `raw`, the parent of block 0.
    """

    utxos: tuple[GenesisUtxo, ...] = field(compare=False, repr=False)
    validators: tuple[PSignedTx, ...] = field(compare=False, repr=False)
    chains: tuple[PSignedTx, ...] = field(compare=False, repr=False)
    timestamp: int = field(compare=False)
    initial_supply: int = field(compare=False)
    message: str = field(compare=False)
    raw: bytes = field(repr=False)
    id: BlockID = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", BlockID(sha256(self.raw).digest()))

    @property
    def block(self) -> Block:
        """Block 0."""
        return genesis_block(self.id)

    def encode(self) -> bytes:
        """Return the bytes anew from the parts; equal to `raw`."""
        out = bytearray(VERSION)
        for name, codec in _FIELDS.items():
            codec.write(getattr(self, name), out)
        return bytes(out)


_GENESIS_UTXO: Final = Layout(GenesisUtxo, utxo=UTXO, message=SIZED)
_FIELDS: Final[dict[str, Codec[Any]]] = {
    "utxos": ListOf(_GENESIS_UTXO, "unspent outputs"),
    "validators": ListOf(P_TX, "validators"),
    "chains": ListOf(P_TX, "blockchains"),
    "timestamp": U64,
    "initial_supply": U64,
    "message": TEXT,
}


def parse_p_genesis(raw: bytes) -> Genesis:
    """Return the genesis whose bytes, codec version first, are exactly `raw`. Raises MalformedChainBytes."""
    cursor = Cursor(raw)
    cursor.version()
    parts = {name: codec.read(cursor) for name, codec in _FIELDS.items()}
    cursor.finish()
    return Genesis(**parts, raw=raw)
