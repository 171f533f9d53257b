"""L1 transactions, origins of validations, block ranges of chains, and tasks of eager signing.

Methods raise StoreDown. Those that serve callers raise it within a second, because the callers have
other sources. A block range is committed in one transaction with the rows found in its blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import starmap
from typing import Any, Final
from zlib import crc32

from msgspec.structs import astuple

from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.errors import BlockRangesMismatch, StoreDown
from warpseal.store.schema import BLOCK_RANGES, EAGER_TASKS, L1_TRANSACTIONS, ORIGINS
from warpseal.store.values import (
    BlockRange,
    BootstrapOrigin,
    EagerTask,
    L1Transaction,
    Origin,
    RegistrationOrigin,
)
from warpseal.warp.ids import ChainID, SubnetID, ValidationID

FOLLOWER: Final = "follower"
# The first half of the two numbers of an advisory lock; the second is of the chain.
_RANGES_LOCK: Final = 0x57_53_42_52

ADD_TRANSACTIONS: Final = f"{L1_TRANSACTIONS.insert_text} ON CONFLICT (tx_id) DO NOTHING"
ADD_ORIGINS: Final = f"{ORIGINS.insert_text} ON CONFLICT (validation_id) DO NOTHING"
_TRANSACTION: Final = f"SELECT {L1_TRANSACTIONS.names} FROM l1_transactions WHERE tx_id = ?"
_CHANGES: Final = f"""
SELECT {L1_TRANSACTIONS.names}
FROM l1_transactions
WHERE validation_id = ?
ORDER BY height DESC, position DESC
"""
_NEWEST: Final = f"""
SELECT {L1_TRANSACTIONS.names}
FROM l1_transactions
ORDER BY height DESC, position DESC
LIMIT ?
"""
_LOCK_RANGES: Final = "SELECT pg_advisory_xact_lock(?, ?)"
_ORIGIN: Final = """
SELECT subnet_id, bootstrap_index, registration
FROM origins
WHERE validation_id = ?
"""
_RANGES: Final = """
SELECT low, high, low_parent_id, high_block_id
FROM block_ranges
WHERE chain_id = ?
ORDER BY low DESC
"""
_DELETE_RANGE: Final = "DELETE FROM block_ranges WHERE chain_id = ? AND low = ?"
_DUE: Final = """
SELECT tx_id, due_at, attempts
FROM eager_tasks
WHERE due_at <= ?
ORDER BY due_at
LIMIT ?
"""
_DELETE_TASK: Final = "DELETE FROM eager_tasks WHERE tx_id = ?"


class L1Records:
    """The rows that the follower writes, and that serve the signed messages of L1 transactions.

    tasks: transactions whose messages are signed without a request.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tasks: Final = L1Tasks(database)
        # The wait of callers that have other sources.
        self._short_s = database.settings.load_timeout_s

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        """Return an L1 transaction by its id; None if the follower has not read it."""
        rows = await self._database.records(_TRANSACTION, tx_id, wait_s=self._short_s)
        return L1Transaction(*rows[0]) if rows else None

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        """Return the stored transactions about a validation, newest first."""
        rows = await self._database.records(_CHANGES, validation_id, wait_s=self._short_s)
        return tuple(L1Transaction(*row) for row in rows)

    async def newest(self, limit: int) -> tuple[L1Transaction, ...]:
        """Return the L1 transactions of the highest blocks, newest first."""
        rows = await self._database.records(_NEWEST, limit)
        return tuple(L1Transaction(*row) for row in rows)

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return the origin of a validation; None if it is not known."""
        for row in await self._database.records(_ORIGIN, validation_id, wait_s=self._short_s):
            if row.registration is not None:
                return RegistrationOrigin(row.registration)
            return BootstrapOrigin(SubnetID(row.subnet_id), row.bootstrap_index)
        return None

    async def store_origin(self, origin: Origin, source: str) -> None:
        """Store the origin of a validation; return when it is committed.

        The first origin of a validation stays.

        source: name of the source, such as "bootstrap", "caller", "manager_chain".
        Raises MalformedMessage for a malformed registration, and StoreDown after a second at most,
        although the origin may be written later.
        """
        rows = [origin_row(origin, source, time.time())]
        if self._database.is_stuck:
            raise StoreDown("no answer to earlier reads or writes")
        timeout_s = self._database.settings.commit_timeout_s
        await self._database.write(
            lambda connection: connection.run_many(ADD_ORIGINS, rows), timeout_s
        )

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]:
        """Return the block ranges of a chain: disjoint, newest first."""
        return tuple(BlockRange(*row) for row in await self._database.records(_RANGES, chain_id))

    async def append(
        self,
        chain_id: ChainID,
        read: BlockRange,
        transactions: Iterable[L1Transaction],
        origins: Iterable[Origin],
    ) -> None:
        """Commit a range of blocks with the rows of its blocks in one transaction.

        Ranges that touch or overlap become one. Raises BlockRangesMismatch if their block ids do
        not match.
        """
        rows = list(map(transaction_row, transactions))
        began = [origin_row(origin, FOLLOWER, time.time()) for origin in origins]

        def write(connection: Connection) -> None:
            _merge_range(connection, chain_id, read)
            connection.run_many(ADD_TRANSACTIONS, rows)
            connection.run_many(ADD_ORIGINS, began)

        await self._database.write(write)


class L1Tasks:
    """The L1 transactions whose messages are signed without a request."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(self, now_unix_s: float, limit: int) -> tuple[EagerTask, ...]:
        """Return the tasks that are due, longest due first."""
        rows = await self._database.records(_DUE, now_unix_s, limit)
        return tuple(EagerTask(*row) for row in rows)

    async def schedule(self, tx_id: bytes, at_unix_s: float, attempts: int) -> None:
        """Schedule the aggregation of a transaction, in place of its current task."""
        await self._database.write(
            lambda connection: connection.run(EAGER_TASKS.upsert_text, tx_id, at_unix_s, attempts)
        )

    async def end(self, tx_id: bytes) -> None:
        """Delete the task of a transaction."""
        await self._database.write(lambda connection: connection.run(_DELETE_TASK, tx_id))


def transaction_row(transaction: L1Transaction) -> tuple[Any, ...]:
    """Return the row of a transaction."""
    return astuple(transaction)


def origin_row(origin: Origin, source: str, at_unix_s: float) -> tuple[Any, ...]:
    """Return the row of an origin. Raises MalformedMessage for a malformed registration."""
    if isinstance(origin, BootstrapOrigin):
        return origin.validation_id, origin.subnet_id, origin.index, None, source, at_unix_s
    return origin.validation_id, None, None, origin.payload, source, at_unix_s


def _merge_range(connection: Connection, chain_id: ChainID, read: BlockRange) -> None:
    """Add a range to the ranges of a chain, merged with all that it touches.

    Raises BlockRangesMismatch.
    """
    if read.low > read.high:
        raise BlockRangesMismatch(f"blocks {read.low} to {read.high} are no range")
    if connection.is_postgresql:
        connection.fetch(_LOCK_RANGES, _RANGES_LOCK, crc32(chain_id) & 0x7FFFFFFF)
    merged = read
    for stored_range in starmap(BlockRange, connection.fetch(_RANGES, chain_id)):
        if stored_range.low <= merged.high + 1 and merged.low <= stored_range.high + 1:
            merged = _join(stored_range, merged)
            connection.run(_DELETE_RANGE, chain_id, stored_range.low)
    connection.run(BLOCK_RANGES.insert_text, chain_id, *astuple(merged))


def _join(first: BlockRange, second: BlockRange) -> BlockRange:
    """Return two ranges that touch or overlap as one.

    Raises BlockRangesMismatch if their ids do not match.
    """
    lower, upper = sorted((first, second), key=lambda part: part.low)
    highest = max(first, second, key=lambda part: part.high)
    if lower.high + 1 == upper.low:
        is_one_chain = lower.high_block_id == upper.low_parent_id
    else:
        # Ranges that overlap have ids to compare only if they begin or end at the same height.
        begin_alike = lower.low != upper.low or lower.low_parent_id == upper.low_parent_id
        end_alike = lower.high != upper.high or lower.high_block_id == upper.high_block_id
        is_one_chain = begin_alike and end_alike
    if not is_one_chain:
        raise BlockRangesMismatch(
            f"blocks {first.low} to {first.high} and {second.low} to {second.high} are of two"
            " chains"
        )
    return BlockRange(lower.low, highest.high, lower.low_parent_id, highest.high_block_id)
