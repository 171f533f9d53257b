"""Blocks of the X-Chain since it became a line of blocks (Cortina), of one type; without the proposervm's wrapping.

Source of truth: avalanchego `vms/avm/block/standard_block.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import Final

from warpseal.chains.codec import ID, U32, U64, ListOf
from warpseal.chains.cursor import Cursor, MalformedChainBytes, UnknownType
from warpseal.chains.ids import BlockID
from warpseal.chains.signed_tx import VERSION
from warpseal.chains.x_components import X_TYPE_NAMES
from warpseal.chains.x_txs import X_TX, XTx

_STANDARD_BLOCK: Final = 20
_HEADER: Final = Struct(">32sQQ32s")
_TXS: Final = ListOf(X_TX, "transactions")


@dataclass(frozen=True, slots=True)
class XBlock:
    """One block. Equal when `raw`, its bytes with the codec version, is.

    parent_id: the inner id of the block before. time: unix seconds. merkle_root: 32 bytes that nobody uses yet.
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
        """Return the block made of these parts and an empty root. Raises ValueError where one does not fit."""
        root = bytes(ID.least_bytes)
        return cls(parent_id, height, time, root, txs, _encode(parent_id, height, time, root, txs))

    def encode(self) -> bytes:
        """Return the bytes anew from the parts; equal to `raw`."""
        return _encode(self.parent_id, self.height, self.time, self.merkle_root, self.txs)


def parse_x_block(raw: bytes) -> XBlock:
    """Return the inner block whose bytes, codec version first, are exactly `raw`.

    Raises MalformedChainBytes; of it UnknownType where a type id is of no known type.
    """
    cursor = Cursor(raw)
    cursor.version()
    _read_type(cursor)
    parent_id, height, time, merkle_root = cursor.unpack(_HEADER, "block header")
    txs = _TXS.read(cursor)
    cursor.finish()
    return XBlock(parent_id, height, time, merkle_root, txs, raw)


def _read_type(cursor: Cursor) -> None:
    start = cursor.offset
    type_id = cursor.u32("type id of a block")
    if type_id == _STANDARD_BLOCK:
        return
    name = X_TYPE_NAMES.get(type_id)
    if name is None:
        raise UnknownType(start, type_id, "a block")
    raise MalformedChainBytes(start, f"a block cannot be of type {type_id} ({name})")


def _encode(parent_id: BlockID, height: int, time: int, merkle_root: bytes, txs: tuple[XTx, ...]) -> bytes:
    out = bytearray(VERSION)
    U32.write(_STANDARD_BLOCK, out)
    ID.write(parent_id, out)
    U64.write(height, out)
    U64.write(time, out)
    ID.write(merkle_root, out)
    _TXS.write(txs, out)
    return bytes(out)
