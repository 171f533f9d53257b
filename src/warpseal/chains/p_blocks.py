"""P-Chain blocks of every type, and the P-Chain's genesis.

Blocks are without the proposervm's outer block. Source of truth: avalanchego
`vms/platformvm/block/*.go`, `vms/platformvm/genesis/genesis.go`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from msgspec import Struct

from warpseal.chains.codec import ID, TEXT, U64, ChainReader, Codec, ListOf, write_count
from warpseal.chains.components import Output, Utxo
from warpseal.chains.ids import BlockID
from warpseal.chains.p_txs import P_TX, P_TYPES, PSignedTx
from warpseal.warp.codec import VERSION

_TIME: Final = struct.Struct(">Q")
_PARENT_AND_HEIGHT: Final = struct.Struct(">32sQ")
_TXS: Final = ListOf(P_TX, "transactions")


class _Form(Struct, frozen=True):
    """The layout of one type of block.

    has_time: the block begins with a time, as all do since Banff.
    has_decisions: decisions follow the time, as in Banff's proposals.
    trailing: the number of transactions behind the height; None for any number, which follows their
        count.
    """

    type_id: int
    has_time: bool
    has_decisions: bool
    trailing: int | None


_FORMS: Final[Mapping[str, _Form]] = {
    "ApricotProposalBlock": _Form(0, False, False, 1),
    "ApricotAbortBlock": _Form(1, False, False, 0),
    "ApricotCommitBlock": _Form(2, False, False, 0),
    "ApricotStandardBlock": _Form(3, False, False, None),
    "ApricotAtomicBlock": _Form(4, False, False, 1),
    "BanffProposalBlock": _Form(29, True, True, 1),
    "BanffAbortBlock": _Form(30, True, False, 0),
    "BanffCommitBlock": _Form(31, True, False, 0),
    "BanffStandardBlock": _Form(32, True, False, None),
}
_KINDS: Final = {form.type_id: (kind, form) for kind, form in _FORMS.items()}


@dataclass(frozen=True, slots=True)
class PBlock:
    """A block of the P-Chain. Blocks are equal if `raw` is.

    kind: avalanchego's name of its type.
    time: unix seconds, None before Banff.
    txs: the transactions in the order of execution; the proposed transaction is the last.
    raw: bytes of the block with the codec version.
    """

    kind: str = field(compare=False)
    parent_id: BlockID = field(compare=False)
    height: int = field(compare=False)
    time: int | None = field(compare=False)
    txs: tuple[PSignedTx, ...] = field(compare=False)
    raw: bytes = field(repr=False)
    id: BlockID = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", BlockID(sha256(self.raw).digest()))

    @classmethod
    def build(
        cls,
        kind: str,
        parent_id: BlockID,
        height: int,
        time: int | None = None,
        txs: tuple[PSignedTx, ...] = (),
    ) -> PBlock:
        """Return the block made of these parts.

        Raises ValueError if they make no block of that kind.
        """
        return cls(kind, parent_id, height, time, txs, _encode(kind, parent_id, height, time, txs))

    def encode(self) -> bytes:
        """Return the bytes, encoded from the parts; equal to `raw`."""
        return _encode(self.kind, self.parent_id, self.height, self.time, self.txs)


def parse_p_block(raw: bytes) -> PBlock:
    """Return the inner block whose bytes, codec version first, are exactly `raw`.

    Raises MalformedChainBytes, or its subclass UnknownType for an unknown type id.
    """
    reader = ChainReader(raw)
    kind, form, time, txs, parent_id, height = _read_head(reader)
    if form.trailing is None:
        txs = _TXS.read(reader)
    elif form.trailing == 1:
        txs = (*txs, P_TX.read(reader))
    reader.finish()
    return PBlock(kind, parent_id, height, time, txs, raw)


def read_parent_id(raw: bytes) -> BlockID:
    """Return the parent that a block names, whatever is behind it. Raises MalformedChainBytes."""
    return _read_head(ChainReader(raw))[4]


def _read_head(
    reader: ChainReader,
) -> tuple[str, _Form, int | None, tuple[PSignedTx, ...], BlockID, int]:
    """Return kind, form, time, decisions, parent and height."""
    reader.version()
    start = reader.offset
    type_id = reader.u32("type id of a block")
    kind_and_form = _KINDS.get(type_id)
    if kind_and_form is None:
        raise P_TYPES.wrong_type(start, type_id, "a block")
    kind, form = kind_and_form
    time: int | None = reader.unpack(_TIME, kind)[0] if form.has_time else None
    txs = _TXS.read(reader) if form.has_decisions else ()
    return kind, form, time, txs, *reader.unpack(_PARENT_AND_HEIGHT, kind)


def _encode(
    kind: str, parent_id: BlockID, height: int, time: int | None, txs: tuple[PSignedTx, ...]
) -> bytes:
    form = _FORMS.get(kind)
    if form is None or form.has_time == (time is None) or not _fits(form, len(txs)):
        raise ValueError(f"no {kind} with {len(txs)} transactions and time {time}")
    trailing = len(txs) if form.trailing is None else form.trailing
    decisions, rest = txs[: len(txs) - trailing], txs[len(txs) - trailing :]
    out = bytearray(VERSION) + form.type_id.to_bytes(4, "big")
    if time is not None:
        U64.write(time, out)
    if form.has_decisions:
        _TXS.write(decisions, out)
    ID.write(parent_id, out)
    U64.write(height, out)
    if form.trailing is None:
        write_count(len(rest), out)
    for tx in rest:
        P_TX.write(tx, out)
    return bytes(out)


def _fits(form: _Form, count: int) -> bool:
    if form.trailing is None:
        return True
    return count >= form.trailing if form.has_decisions else count == form.trailing


class GenesisUtxo(Struct, frozen=True):
    """An output of the genesis.

    utxo: the output; its transaction id is zero, its index is the position in the genesis.
    """

    utxo: Utxo[Output]
    message: bytes


@dataclass(frozen=True, slots=True)
class PGenesis:
    """The state before block 1. States are equal if `raw` is.

    validators: AddValidatorTx (or its successors), in the order of a heap.
    chains: CreateChainTx of the X-Chain and the C-Chain.
    timestamp: unix seconds.
    initial_supply: nAVAX.
    raw: bytes of the genesis with the codec version.
    id: SHA-256 of `raw`, the parent of block 0.
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
    def block(self) -> PBlock:
        """Block 0."""
        return PBlock.build("ApricotCommitBlock", self.id, 0)

    def encode(self) -> bytes:
        """Return the bytes, encoded from the parts; equal to `raw`."""
        out = bytearray(VERSION)
        for name, codec in _FIELDS.items():
            codec.write(getattr(self, name), out)
        return bytes(out)


_FIELDS: Final[dict[str, Codec[Any]]] = {
    "utxos": ListOf(P_TYPES.struct(GenesisUtxo), "unspent outputs"),
    "validators": ListOf(P_TX, "validators"),
    "chains": ListOf(P_TX, "blockchains"),
    "timestamp": U64,
    "initial_supply": U64,
    "message": TEXT,
}


def parse_p_genesis(raw: bytes) -> PGenesis:
    """Return the genesis whose bytes, codec version first, are exactly `raw`.

    Raises MalformedChainBytes.
    """
    reader = ChainReader(raw)
    reader.version()
    parts = {name: codec.read(reader) for name, codec in _FIELDS.items()}
    reader.finish()
    return PGenesis(**parts, raw=raw)
