"""The blocks as nodes sent them, many in a compressed row: other rows are derived from them.

Source of truth: this module. A row's body is zstd of MessagePack; docs/index.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from warpseal.chains.c_atomic import AtomicTx, encode_atomic_txs, parse_atomic_txs
from warpseal.index.bulk import Row
from warpseal.index.errors import IndexDamaged
from warpseal.ledger.c_chain import CHeader
from warpseal.ledger.outputs import LedgerOutput
from warpseal.runtime.zstd import Compressor, Decompressor
from warpseal.store.connection import Connection

MAX_BODY_BYTES: Final = 256 * 1024 * 1024

_LEVEL: Final = 3

encode: Final = msgspec.msgpack.Encoder().encode
parse_output: Final = msgspec.msgpack.Decoder(LedgerOutput).decode
_decode_c_block: Final = msgspec.msgpack.Decoder(
    tuple[int, bytes, bytes, int, int, int, bytes]
).decode
_decode_entries: Final = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode


Entry = tuple[int, "RecordKind", int, bytes]
"""Number of the chain, kind, height or number in the chain, and bytes."""


class RecordKind(IntEnum):
    """The kind of an entry.

    It is a block, the genesis of a chain, a pre-linearization transaction of the X-Chain, or an
    output of a transaction that is not indexed, as a node reported it.
    """

    BLOCK = 0
    GENESIS = 1
    PRE_LINEARIZATION = 2
    OUTPUT = 3


_KINDS: Final = frozenset(RecordKind)


class PreLinearizationTx(msgspec.Struct, frozen=True, array_like=True):
    """A stored pre-linearization transaction of the X-Chain."""

    raw: bytes
    time_s: int


parse_container: Final = msgspec.msgpack.Decoder(PreLinearizationTx).decode


def encode_c_block(header: CHeader, txs: Sequence[AtomicTx]) -> bytes:
    """Return header and atomic transactions of a C-Chain block, in a format of this module."""
    return encode((*astuple(header), encode_atomic_txs(tuple(txs))))


def parse_c_block(raw: bytes) -> tuple[CHeader, tuple[AtomicTx, ...]]:
    """Return the input of `encode_c_block`. Raises msgspec.MsgspecError and MalformedChainBytes."""
    fields = _decode_c_block(raw)
    return CHeader(*fields[:-1]), parse_atomic_txs(fields[-1], batch=True)


class Segment(Struct, frozen=True):
    """Consecutive entries of one chain.

    chain: number of the chain.
    first: height or number of the first entry.
    """

    chain: int
    kind: RecordKind
    first: int
    entries: tuple[bytes, ...]


def pack_segments(entries: Iterable[Entry], max_bytes: int) -> Iterator[Row]:
    """Yield the rows of entries, without their numbers; a segment ends when it is large."""
    compressor = Compressor(_LEVEL, has_checksum=True)
    pending: dict[int, tuple[RecordKind, int, list[bytes]]] = {}

    def close(chain: int) -> Row:
        kind, first, raws = pending.pop(chain)
        return chain, int(kind), first, first + len(raws) - 1, compressor.compress(encode(raws))

    sizes: dict[int, int] = {}
    for chain, kind, number, raw in entries:
        if chain in pending:
            open_kind, first, raws = pending[chain]
            if open_kind is not kind or first + len(raws) != number:
                yield close(chain)
        if chain not in pending:
            pending[chain], sizes[chain] = (kind, number, []), 0
        pending[chain][2].append(raw)
        sizes[chain] += len(raw)
        if sizes[chain] >= max_bytes:
            yield close(chain)
    for chain in list(pending):
        yield close(chain)


def read_segments(connection: Connection) -> Iterator[Segment]:
    """Yield all segments in the order of writing."""
    behind = -1
    while True:
        text = (
            "SELECT number, chain, kind, first, body"
            " FROM raw_blocks"
            " WHERE number > ?"
            " ORDER BY number"
            " LIMIT 1"
        )
        rows = connection.fetch(text, behind)
        if not rows:
            return
        behind, chain, kind, first, body = rows[0]
        if kind not in _KINDS:
            raise IndexDamaged(f"stored block {behind} is of the unknown kind {str(kind)[:20]}")
        yield Segment(chain, RecordKind(kind), first, _entries(body))


def read_blocks(connection: Connection, chain: int, first: int, last: int) -> Iterator[bytes]:
    """Yield the stored blocks of a chain from one height to another, both included."""
    text = (
        "SELECT first, last, body"
        " FROM raw_blocks"
        " WHERE chain = ? AND kind = 0 AND first <= ?"
        " ORDER BY first DESC"
        " LIMIT 1"
    )
    while first <= last:
        rows = connection.fetch(text, chain, first)
        if not rows or rows[0][1] < first:
            return
        begin, end, body = rows[0]
        yield from _entries(body)[first - begin : min(end, last) - begin + 1]
        first = end + 1


def decompress(body: bytes) -> bytes:
    """Return the content of a stored zstd frame. Raises ZstdError, also above 256 MiB."""
    return Decompressor(MAX_BODY_BYTES).decompress(body)


def _entries(body: bytes) -> tuple[bytes, ...]:
    return _decode_entries(decompress(bytes(body)))
