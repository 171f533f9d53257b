"""Outputs as their chain's codec writes them, version first: what a node gives as an unspent output's bytes.

Source of truth: chains/p_components.py and chains/x_components.py, which read it; a test holds this to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

from warpseal.chains.ids import Address, AssetID, TxID
from warpseal.index.details import OutputDetail
from warpseal.ledger.outputs import OutputKind

_HEAD: Final = Struct(">H32sI32s")
_TRANSFER: Final = Struct(">IQQII")
_LOCKED: Final = Struct(">IQ")
_OWNERS: Final = Struct(">QII")
_TYPE: Final = Struct(">I")
_TRANSFER_TYPE: Final = 7
_LOCK_TYPE: Final = 22
_TYPES: Final[Mapping[OutputKind, int]] = {
    OutputKind.MINT: 6,
    OutputKind.NFT_MINT: 10,
    OutputKind.NFT: 11,
    OutputKind.PROPERTY_MINT: 15,
    OutputKind.PROPERTY: 16,
}
_NONE: Final = OutputDetail()


def utxo_bytes(
    place: tuple[TxID, int, AssetID],
    kind: OutputKind,
    amount: int,
    owners: tuple[int, tuple[Address, ...]],
    detail: OutputDetail = _NONE,
) -> bytes:
    """Return an output's bytes. place: transaction, index and asset; owners: threshold and addresses."""
    threshold, addresses = owners
    head = _HEAD.pack(0, *place)
    if kind is OutputKind.TRANSFER:
        if detail.stakeable_locktime:
            head += _LOCKED.pack(_LOCK_TYPE, detail.stakeable_locktime)
        head += _TRANSFER.pack(_TRANSFER_TYPE, amount, detail.locktime, threshold, len(addresses))
        return head + b"".join(addresses)
    tail = _OWNERS.pack(detail.locktime, threshold, len(addresses)) + b"".join(addresses)
    return head + _TYPE.pack(_TYPES[kind]) + _MARKS.get(kind, _nothing)(detail) + tail


def _nothing(detail: OutputDetail) -> bytes:
    return b""


def _group(detail: OutputDetail) -> bytes:
    return _TYPE.pack(detail.group_id or 0)


def _nft(detail: OutputDetail) -> bytes:
    payload = detail.payload or b""
    return _group(detail) + _TYPE.pack(len(payload)) + payload


_MARKS: Final[Mapping[OutputKind, Callable[[OutputDetail], bytes]]] = {
    OutputKind.NFT_MINT: _group,
    OutputKind.NFT: _nft,
}
