"""The blocks as a node sent them, many in a compressed row, so that every row can be derived again without a node.

Source of truth: this module. A row's body is zstd of MessagePack; docs/index.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec
import zstandard
from sqlalchemy import Connection

from warpseal.chains.c_atomic import AtomicTx, encode_atomic_txs, parse_atomic_txs
from warpseal.history.blocks import Vertex
from warpseal.index import bulk
from warpseal.index.bulk import Row
from warpseal.ledger.c_chain import CHeader
from warpseal.ledger.outputs import LedgerOutput

MAX_BODY_BYTES: Final = 256 * 1024 * 1024

_LEVEL: Final = 3


class RecordKind(IntEnum):
    """The kind of an entry.

    It is a block, the genesis of a chain, a pre-linearization transaction of the X-Chain, or an output of a transaction
    that is not indexed, as a node reported it.
    """

    BLOCK = 0
    GENESIS = 1
    PRE_LINEARIZATION = 2
    OUTPUT = 3


class _StoredCBlock(msgspec.Struct, frozen=True, array_like=True):
    number: int
    hash: bytes
    parent_hash: bytes
    time_s: int
    size_bytes: int
    evm_tx_count: int
    atomic: bytes


def encode_c_block(header: CHeader, txs: Sequence[AtomicTx]) -> bytes:
    """Return a block of the C-Chain as bytes: its header and its atomic transactions, in a format of this module."""
    fields = (header.number, header.hash, header.parent_hash, header.time_s, header.size_bytes, header.evm_tx_count)
    return msgspec.msgpack.encode(_StoredCBlock(*fields, encode_atomic_txs(tuple(txs))))


def parse_c_block(raw: bytes) -> tuple[CHeader, tuple[AtomicTx, ...]]:
    """Return the input of `encode_c_block`. Raises msgspec.MsgspecError and MalformedChainBytes."""
    stored = msgspec.msgpack.decode(raw, type=_StoredCBlock)
    fields = (stored.number, stored.hash, stored.parent_hash, stored.time_s, stored.size_bytes, stored.evm_tx_count)
    return CHeader(*fields), parse_atomic_txs(stored.atomic, batch=True)


def encode_output(output: LedgerOutput) -> bytes:
    """Return an output of a transaction that is not indexed as bytes."""
    return msgspec.msgpack.encode(output)


def parse_output(raw: bytes) -> LedgerOutput:
    """Return the input of `encode_output`. Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(raw, type=LedgerOutput)


class PreLinearizationTx(msgspec.Struct, frozen=True, array_like=True):
    """A stored pre-linearization transaction of the X-Chain. vertex: id, height, time."""

    raw: bytes
    time_s: int
    vertex: tuple[bytes, int, int] | None = None

    @classmethod
    def of(cls, raw: bytes, time_s: int, vertex: Vertex | None) -> PreLinearizationTx:
        """Return the stored form of a container."""
        return cls(raw, time_s, None if vertex is None else (vertex.vertex_id, vertex.height, vertex.time))

    def encode(self) -> bytes:
        """Return the bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def parse(cls, raw: bytes) -> PreLinearizationTx:
        """Return the transaction that `encode` wrote. Raises msgspec.MsgspecError."""
        return msgspec.msgpack.decode(raw, type=cls)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive entries of one chain. chain: its number; first: the height or number of the first."""

    chain: int
    kind: RecordKind
    first: int
    entries: tuple[bytes, ...]


class SegmentWriter:
    """Collects entries in the order of writing, and closes a segment when it is large."""

    def __init__(self, first_number: int, max_bytes: int) -> None:
        self.number = first_number
        self.rows: list[Row] = []
        self._max_bytes = max_bytes
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._open: dict[int, tuple[RecordKind, int, list[bytes]]] = {}
        self._size: dict[int, int] = {}

    def add(self, chain: int, kind: RecordKind, number: int, entry: bytes) -> None:
        """Add an entry."""
        segment = self._open.get(chain)
        if segment is not None and (segment[0] is not kind or segment[1] + len(segment[2]) != number):
            self._close(chain)
            segment = None
        if segment is None:
            segment = self._open[chain] = (kind, number, [])
            self._size[chain] = 0
        segment[2].append(entry)
        self._size[chain] += len(entry)
        if self._size[chain] >= self._max_bytes:
            self._close(chain)

    def finish(self) -> list[Row]:
        """Return the rows of all."""
        for chain in list(self._open):
            self._close(chain)
        return self.rows

    def _close(self, chain: int) -> None:
        kind, first, entries = self._open.pop(chain)
        body = self._compressor.compress(msgspec.msgpack.encode(entries))
        self.rows.append((self.number, chain, int(kind), first, first + len(entries) - 1, body))
        self.number += 1


def read_segments(connection: Connection, behind: int = -1) -> Iterator[tuple[int, Segment]]:
    """Yield all segments in the order of writing, with their numbers. behind: the number of the last segment seen."""
    while True:
        text = "SELECT number, chain, kind, first, body FROM raw_blocks WHERE number > ? ORDER BY number LIMIT 1"
        rows = bulk.fetch(connection, text, behind)
        if not rows:
            return
        behind, chain, kind, first, body = rows[0]
        yield behind, Segment(chain, RecordKind(kind), first, _entries(body))


def read_blocks(connection: Connection, chain: int, first: int, last: int) -> Iterator[bytes]:
    """Yield the blocks of a chain from one height to another, both included, as far as they are stored."""
    text = (
        "SELECT first, last, body FROM raw_blocks WHERE chain = ? AND kind = 0 AND first <= ?"
        " ORDER BY first DESC LIMIT 1"
    )
    while first <= last:
        rows = bulk.fetch(connection, text, chain, first)
        if not rows or rows[0][1] < first:
            return
        begin, end, body = rows[0]
        yield from _entries(body)[first - begin : min(end, last) - begin + 1]
        first = end + 1


def _entries(body: bytes) -> tuple[bytes, ...]:
    plain = zstandard.ZstdDecompressor().decompress(bytes(body), max_output_size=MAX_BODY_BYTES)
    return msgspec.msgpack.decode(plain, type=tuple[bytes, ...])
