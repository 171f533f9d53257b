"""Contracts: their creations, and the calls for kind, name and symbol with the results.

Receipts show some creations, and only traces show those inside of transactions. All heights are
traced up to a height, except for gaps that no node could trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from warpseal.chains.evm.facts import EvmBlockFacts, TokenStandard
from warpseal.index import bulk
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.evm.keys import ERC_TYPES, RequestKind, block_key, encode_text
from warpseal.index.evm.records import ContractFacts, ContractToCall, TracedBlock
from warpseal.index.evm.rows import CreationRow, EvmChainRow, Recreation
from warpseal.index.evm.schema import (
    ADDRESS_CREATIONS,
    CONTRACTS,
    CREATIONS,
    REQUESTS,
    TRACE_GAPS,
    TXS,
)
from warpseal.index.evm.write_session import EvmWriteSession
from warpseal.store.connection import Connection

EndDestroyed = Callable[[Connection, EvmChainRow, Sequence[Recreation]], None]
_TRACED_HEIGHT: Final = "SELECT first - 1 FROM trace_gaps ORDER BY first LIMIT 1"
_STANDARDS: Final = (
    frozenset[TokenStandard](),
    frozenset({TokenStandard.ERC721}),
    frozenset({TokenStandard.ERC1155}),
    frozenset(TokenStandard),
)
_MAX_DECIMALS: Final = 255
_MAX_KEY: Final = 2**63 - 1
_DUE: Final = """
    SELECT contract
    FROM contracts
    WHERE due_from IS NOT NULL AND contract > ? AND contract <= ?
    ORDER BY contract
    LIMIT ?
"""
_REQUESTED: Final = """
    SELECT r.subject
    FROM requests r
    JOIN contracts c ON c.contract = r.subject
    WHERE r.kind = ?
    ORDER BY r.requested_at, r.subject
    LIMIT ?
"""
_TO_CALL: Final = """
    SELECT
        i.key,
        i.id,
        coalesce((SELECT c.standards FROM collections c WHERE c.contract = i.key), 0)
    FROM ids i
    WHERE i.key IN {keys}
"""
_STORED: Final = """
    SELECT i.id, i.key, c.due_from
    FROM ids i
    JOIN contracts c ON c.contract = i.key
    WHERE i.prefix IN {keys}
"""
_SET_DUE: Final = "UPDATE contracts SET due_from = ? WHERE contract = ?"
_CREATIONS_OF: Final = "SELECT contract, tx FROM creations WHERE contract IN {keys}"
_BLOCKS_BEHIND: Final = """
    SELECT number, needs_trace
    FROM blocks
    WHERE number > ?
    ORDER BY number
    LIMIT ?
"""
_GAPS: Final = """
    SELECT first, "last"
    FROM trace_gaps
    ORDER BY first
    LIMIT ?
"""
_TOUCHED_GAPS: Final = """
    SELECT first, "last"
    FROM trace_gaps
    WHERE first <= ? AND "last" >= ?
    ORDER BY first
"""


class ContractWriter:
    """Returns contracts in turn, and writes the results of their calls.

    A contract that cannot be called does not hold up the others.
    """

    def __init__(self, session: EvmWriteSession) -> None:
        self._session = session
        self._last = 0

    def forget(self) -> None:
        """Begin with the first contract again: the tables are empty."""
        self._last = 0

    def to_call(self, limit: int, *, only_requested: bool = False) -> Sequence[ContractToCall]:
        """Return contracts without results or with old ones.

        The contracts that pages wait for come first, then the others in turn. A contract is
        returned again by later calls until `write` has its results.
        """
        with self._session.reading() as connection:
            rows = connection.fetch(_REQUESTED, int(RequestKind.CONTRACT), limit)
            requested = [contract for (contract,) in rows]
            keys = dict.fromkeys(requested)
            free = limit - len(requested)
            if free > 0 and not only_requested:
                keys |= dict.fromkeys(self._next_due(connection, free))
            contracts = {
                key: ContractToCall(bytes(raw), _STANDARDS[standards], key in requested)
                for key, raw, standards in bulk.run(connection, _TO_CALL, keys)
            }
        return [contracts[key] for key in keys if key in contracts]

    def _next_due(self, connection: Connection, limit: int) -> list[int]:
        """Return the contracts behind the last returned one, and then from the first one on."""
        due = list(connection.fetch(_DUE, self._last, _MAX_KEY, limit))
        if len(due) < limit:
            due += connection.fetch(_DUE, 0, self._last, limit - len(due))
        contracts = [contract for (contract,) in due]
        if contracts:
            self._last = contracts[-1]
        return contracts

    def write(self, results: Sequence[ContractFacts]) -> None:
        """Write the results of calls, which end the requests for these contracts.

        Contracts without a row are skipped.
        """
        by_address = {result.address: result for result in results}
        rows, done = [], []
        with self._session.adding() as connection:
            for raw, key, due_from in list(bulk.fetch_by_id(connection, _STORED, by_address)):
                result = by_address[raw]
                # A call that began below the height of an upgrade or a first event did not see it:
                # it stays due.
                is_current = due_from is None or result.height >= due_from
                rows.append((key, None if is_current else due_from, *_result_columns(result)))
                done.append((int(RequestKind.CONTRACT), key))
            bulk.upsert(connection, CONTRACTS, sorted(rows))
            bulk.delete_pairs(connection, REQUESTS, done)


class TraceWriter:
    """Writes the creations of traces, behind the blocks.

    end_destroyed: ends the holdings of contracts that the traces show to be created again.
    """

    def __init__(self, session: EvmWriteSession, end_destroyed: EndDestroyed) -> None:
        self._session = session
        self._end_destroyed = end_destroyed

    def height(self) -> int:
        """Return the height up to which all blocks are traced or need no trace.

        Without such a block it is the first height - 1.
        """
        traced = self._session.started_row().traced
        with self._session.reading() as connection:
            rows = connection.fetch(_TRACED_HEIGHT)
            return rows[0][0] if rows else traced

    def next_blocks(self, limit: int) -> Sequence[tuple[int, bool]]:
        """Return the next heights in order, and whether each needs a trace.

        A block needs one if a transaction used 26,500 gas. The heights begin behind the last height
        of `write`, gaps included.
        """
        traced = self._session.started_row().traced
        with self._session.reading() as connection:
            return [
                (number, bool(needs_trace))
                for number, needs_trace in connection.fetch(_BLOCKS_BEHIND, traced, limit)
            ]

    def gaps(self, limit: int) -> Sequence[tuple[int, int]]:
        """Return ranges of heights, both included, that no node could trace, lowest first."""
        with self._session.reading() as connection:
            return [(first, last) for first, last in connection.fetch(_GAPS, limit)]

    def write(
        self, first: int, last: int, blocks: Sequence[TracedBlock], gaps: Iterable[int] = ()
    ) -> None:
        """Write the creations of traces, and mark the heights from `first` to `last` as traced.

        The range either follows the last one, or lies in a gap. Raises OutOfOrder.

        blocks: the blocks with creations. Creations that receipts showed may be among them.
        gaps: the heights of the range that no node could trace.
        """
        chain = self._session.started_row()
        if first > chain.traced + 1 or last > chain.height:
            raise OutOfOrder(chain.name, first, f"block {chain.traced + 1} is the next to trace")
        with self._session.advance() as (connection, chain):
            _mark_traced(connection, first, last, sorted(gaps))
            rows, recreations = write_creations(connection, self._session, blocks)
            hashes = {
                block_key(block.number, index): raw
                for block in blocks
                for index, raw in block.tx_hashes.items()
            }
            txs = sorted({row.tx for row in rows})
            bulk.insert_new(connection, TXS, [(tx, hashes[tx]) for tx in txs])
            add_address_creations(connection, rows)
            self._end_destroyed(connection, chain, recreations)
            chain.traced = max(chain.traced, last)


def add_new(connection: Connection, contracts: Iterable[int]) -> None:
    """Add contracts that are to be called; existing rows stay."""
    rows = [(contract, 0, None, None, None, None, None) for contract in sorted(set(contracts))]
    bulk.insert_new(connection, CONTRACTS, rows)


def add_due(connection: Connection, contracts: Sequence[int], height: int) -> None:
    """Have contracts called that have emitted the first event of a standard.

    height: height of the event or above. A call at a lower height did not see the event.
    """
    if contracts:
        add_new(connection, contracts)
        # The height is part of the text, since values come behind the keys.
        set_due = f"""
            UPDATE contracts
            SET due_from = {height:d}
            WHERE contract IN {{keys}} AND coalesce(due_from, -1) < ?
        """
        bulk.run(connection, set_due, contracts, height)


def mark_upgraded(connection: Connection, upgraded: dict[bytes, int]) -> None:
    """Have contracts called again at the height of their upgrade or above."""
    for raw, key, due_from in list(bulk.fetch_by_id(connection, _STORED, upgraded)):
        if due_from is None or upgraded[raw] > due_from:
            connection.run(_SET_DUE, upgraded[raw], key)


def write_creations(
    connection: Connection, session: EvmWriteSession, blocks: Sequence[EvmBlockFacts | TracedBlock]
) -> tuple[list[CreationRow], list[Recreation]]:
    """Write the creations of blocks, and return their rows and the new recreations.

    Existing rows stay.
    """
    creations = [
        (block_key(block.number, creation.tx_index), creation)
        for block in blocks
        for creation in block.creations
    ]
    if not creations:
        return [], []
    ids = {
        raw
        for _, creation in creations
        for raw in (creation.address, creation.sender, creation.factory)
    }
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
    # A recreation is new if it was none before these rows: traces repeat creations of receipts.
    before = _recreations(_creations_of(connection, rows))
    ordered = sorted(rows, key=lambda row: (row.tx, row.position))
    bulk.insert_new(connection, CREATIONS, ordered)
    add_new(connection, [row.contract for row in rows])
    after = _recreations(_creations_of(connection, rows))
    earlier = {(recreation.contract, recreation.tx) for recreation in before}
    new = [item for item in after if (item.contract, item.tx) not in earlier]
    return rows, new


def find_recreations(connection: Connection, creations: Sequence[CreationRow]) -> list[Recreation]:
    """Return the recreations among stored creations."""
    txs = {row.tx for row in creations}
    return [item for item in _recreations(_creations_of(connection, creations)) if item.tx in txs]


def _creations_of(connection: Connection, creations: Sequence[CreationRow]) -> dict[int, set[int]]:
    """Return the stored transactions that created the contracts of these creations."""
    contracts = {row.contract for row in creations}
    txs: dict[int, set[int]] = {}
    for contract, tx in bulk.fetch_by_keys(connection, _CREATIONS_OF, contracts):
        txs.setdefault(contract, set()).add(tx)
    return txs


def _recreations(txs: Mapping[int, set[int]]) -> list[Recreation]:
    """Return the recreations among the creations of each contract, the last ones first."""
    recreations: list[Recreation] = []
    for contract, created in txs.items():
        until = None
        for tx in sorted(created, reverse=True)[:-1]:
            recreations.append(Recreation(contract, tx, until))
            until = tx
    return recreations


def add_address_creations(connection: Connection, creations: Sequence[CreationRow]) -> None:
    """Add the creations to the pages of their senders and factories; existing rows stay."""
    rows = {(row.sender, row.tx, row.position) for row in creations}
    rows |= {(row.factory, row.tx, row.position) for row in creations if row.factory is not None}
    bulk.insert_new(connection, ADDRESS_CREATIONS, sorted(rows))


def _result_columns(
    result: ContractFacts,
) -> tuple[int, bytes | None, bytes | None, int | None, int]:
    name = None if result.name is None else encode_text(result.name)
    symbol = None if result.symbol is None else encode_text(result.symbol)
    decimals = result.decimals
    if decimals is not None and not 0 <= decimals <= _MAX_DECIMALS:
        decimals = None
    return ERC_TYPES.index(result.erc_type), name, symbol, decimals, result.height


def _mark_traced(connection: Connection, first: int, last: int, gaps: Sequence[int]) -> None:
    """Mark the heights from `first` to `last` as traced, except for gaps, which are sorted."""
    # Ranges that touch the marked one are read as well, so that neighbouring gaps become one row.
    # They are cut, not dropped, since a late trace may lie in the middle of a gap.
    touched = [(low, high) for low, high in connection.fetch(_TOUCHED_GAPS, last + 1, first - 1)]
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
