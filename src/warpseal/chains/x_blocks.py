"""X-Chain blocks (since Cortina) and the X-Chain's genesis.

Blocks are without the proposervm's outer block. Source of truth: avalanchego
`vms/avm/block/standard_block.go`, `vms/avm/genesis.go`. The bytes of the genesis are the genesis
data of the X-Chain's CreateChainTx in the P-Chain's genesis.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from msgspec import Struct

from warpseal.chains.codec import ID, U32, U64, ChainReader, ListOf
from warpseal.chains.ids import AssetID, BlockID
from warpseal.chains.x_txs import X_TX, X_TYPES, CreateAssetTx, XTx
from warpseal.warp.codec import VERSION

_STANDARD_BLOCK: Final = 20
_HEADER: Final = struct.Struct(">32sQQ32s")
_TXS: Final = ListOf(X_TX, "transactions")


@dataclass(frozen=True, slots=True)
class XBlock:
    """A block of the X-Chain. Blocks are equal if `raw` is.

    parent_id: the inner id of the parent.
    time: unix seconds.
    merkle_root: 32 bytes without a use so far.
    raw: bytes of the block with the codec version.
    """

    parent_id: BlockID = field(compare=False)
    height: int = field(compare=False)
    time: int = field(compare=False)
    merkle_root: bytes = field(compare=False)
    txs: tuple[XTx, ...] = field(compare=False)
    raw: bytes = field(repr=False)
    id: BlockID = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", BlockID(sha256(self.raw).digest()))

    @classmethod
    def build(cls, parent_id: BlockID, height: int, time: int, txs: tuple[XTx, ...]) -> XBlock:
        """Return the block made of these parts and an empty root.

        Raises ValueError if one does not fit.
        """
        root = bytes(ID.least_bytes)
        return cls(parent_id, height, time, root, txs, _encode(parent_id, height, time, root, txs))

    def encode(self) -> bytes:
        """Return the bytes, encoded from the parts; equal to `raw`."""
        return _encode(self.parent_id, self.height, self.time, self.merkle_root, self.txs)


def parse_x_block(raw: bytes) -> XBlock:
    """Return the inner block whose bytes, codec version first, are exactly `raw`.

    Raises MalformedChainBytes, or its subclass UnknownType for an unknown type id.
    """
    reader = ChainReader(raw)
    reader.version()
    start, type_id = reader.offset, reader.u32("type id of a block")
    if type_id != _STANDARD_BLOCK:
        raise X_TYPES.wrong_type(start, type_id, "a block")
    parent_id, height, time, merkle_root = reader.unpack(_HEADER, "block header")
    txs = _TXS.read(reader)
    reader.finish()
    return XBlock(parent_id, height, time, merkle_root, txs, raw)


def _encode(
    parent_id: BlockID, height: int, time: int, merkle_root: bytes, txs: tuple[XTx, ...]
) -> bytes:
    out = bytearray(VERSION)
    U32.write(_STANDARD_BLOCK, out)
    ID.write(parent_id, out)
    U64.write(height, out)
    U64.write(time, out)
    ID.write(merkle_root, out)
    _TXS.write(txs, out)
    return bytes(out)


class GenesisAsset(Struct, frozen=True):
    """An asset of the genesis.

    alias: short name, such as AVAX.
    creation: the unsigned transaction that creates the asset.
    """

    alias: str
    creation: CreateAssetTx

    @property
    def tx(self) -> XTx:
        """The transaction that creates it, without credentials."""
        return X_TX.build(self.creation)

    @property
    def asset_id(self) -> AssetID:
        """ID of the asset: the ID of `tx`."""
        return AssetID(self.tx.id)


class XGenesis(Struct, frozen=True):
    """The assets, sorted by alias if valid."""

    assets: tuple[GenesisAsset, ...]

    def encode(self) -> bytes:
        """Return the bytes that `parse_x_genesis` reads."""
        out = bytearray(VERSION)
        _GENESIS.write(self, out)
        return bytes(out)


_GENESIS: Final = X_TYPES.struct(XGenesis)
parse_x_genesis = _GENESIS.parse
