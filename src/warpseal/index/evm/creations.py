"""Created contracts: receipts show some, and only traces show creations inside of transactions.

All heights are traced up to a height, except for gaps that no node could trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from warpseal.chains.evm.facts import Creation
from warpseal.index import bulk
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.evm.contracts import add_new
from warpseal.index.evm.keys import block_key
from warpseal.index.evm.records import TracedBlock
from warpseal.index.evm.rows import CreationRow
from warpseal.index.evm.schema import ADDRESS_CREATIONS, CREATIONS, TRACE_GAPS, TXS
from warpseal.index.evm.write_session import EvmWriteSession
from warpseal.store.connection import Connection

_TRACED_HEIGHT: Final = "SELECT first - 1 FROM trace_gaps ORDER BY first LIMIT 1"


class TraceWriter:
    """Writes the creations of traces, behind the blocks."""

    def __init__(self, session: EvmWriteSession) -> None:
        self._session = session

    def height(self) -> int:
        """Return the height up to which all blocks are traced or need no trace; first height - 1 for none."""
        traced = self._session.started_row().traced
        with self._session.reading() as connection:
            rows = connection.fetch(_TRACED_HEIGHT)
            return rows[0][0] if rows else traced

    def next_blocks(self, limit: int) -> Sequence[tuple[int, bool]]:
        """Return the next heights in order, and whether each needs a trace: a transaction used 26,500 gas.

        They begin behind the last height of `write`, gaps included.
        """
        traced = self._session.started_row().traced
        text = "SELECT number, needs_trace FROM blocks WHERE number > ? ORDER BY number LIMIT ?"
        with self._session.reading() as connection:
            return [(number, bool(needs_trace)) for number, needs_trace in connection.fetch(text, traced, limit)]

    def gaps(self, limit: int) -> Sequence[tuple[int, int]]:
        """Return ranges of heights, both included, that no node could trace, lowest first."""
        text = 'SELECT first, "last" FROM trace_gaps ORDER BY first LIMIT ?'
        with self._session.reading() as connection:
            return [(first, last) for first, last in connection.fetch(text, limit)]

    def write(self, first: int, last: int, blocks: Sequence[TracedBlock], gaps: Iterable[int] = ()) -> None:
        """Write the creations of traces, and mark the heights from `first` to `last` as traced, except for the gaps.

        blocks: only blocks with creations. Creations that receipts showed may be among them. The range either follows
        the last one, or lies in a gap. Raises OutOfOrder.
        """
        chain = self._session.started_row()
        if first > chain.traced + 1 or last > chain.height:
            raise OutOfOrder(chain.name, first, f"block {chain.traced + 1} is the next to trace")
        creations = [
            (block_key(block.number, creation.tx_index), creation) for block in blocks for creation in block.creations
        ]
        with self._session.advance() as (connection, chain):
            _mark_traced(connection, first, last, sorted(gaps))
            rows = write_creations(connection, self._session, creations)
            hashes = {block_key(block.number, index): raw for block in blocks for index, raw in block.tx_hashes.items()}
            bulk.insert_new(connection, TXS, sorted((key, hashes[key]) for key in {row.tx for row in rows}))
            add_address_creations(connection, rows)
            chain.traced = max(chain.traced, last)


def write_creations(
    connection: Connection, session: EvmWriteSession, creations: Sequence[tuple[int, Creation]]
) -> list[CreationRow]:
    """Write creations with the keys of their transactions, and return their rows; existing rows stay."""
    if not creations:
        return []
    ids = {raw for _, creation in creations for raw in (creation.address, creation.sender, creation.factory)}
    session.load_ids(connection, {raw for raw in ids if raw is not None})
    keys = session.keys
    rows = [
        CreationRow(
            tx,
            creation.position,
            keys[creation.address],
            keys[creation.sender],
            None if creation.factory is None else keys[creation.factory],
        )
        for tx, creation in creations
    ]
    bulk.insert_new(connection, CREATIONS, sorted(rows, key=lambda row: row[:2]))
    add_new(connection, [row.contract for row in rows])
    return rows


def add_address_creations(connection: Connection, creations: Sequence[CreationRow]) -> None:
    """Add the creations to the pages of their senders and factories; existing rows stay."""
    rows = {(row.sender, row.tx, row.position) for row in creations}
    rows |= {(row.factory, row.tx, row.position) for row in creations if row.factory is not None}
    bulk.insert_new(connection, ADDRESS_CREATIONS, sorted(rows))


def _mark_traced(connection: Connection, first: int, last: int, gaps: Sequence[int]) -> None:
    """Mark the heights from `first` to `last` as traced, except for gaps, which are sorted."""
    text = 'SELECT first, "last" FROM trace_gaps WHERE first <= ? AND "last" >= ? ORDER BY first'
    # Ranges that touch the marked one are read as well, so that neighbouring gaps become one row. They are cut, not
    # dropped, since a late trace may lie in the middle of a gap.
    touched = [(low, high) for low, high in connection.fetch(text, last + 1, first - 1)]
    ranges = [(low, min(high, first - 1)) for low, high in touched if low < first]
    ranges += [(height, height) for height in gaps if first <= height <= last]
    ranges += [(max(low, last + 1), high) for low, high in touched if high > last]
    merged: list[tuple[int, int]] = []
    for low, high in ranges:
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    if merged != touched:
        bulk.delete(connection, TRACE_GAPS, [low for low, _ in touched])
        bulk.insert(connection, TRACE_GAPS, merged)
