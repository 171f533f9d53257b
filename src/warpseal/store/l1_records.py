"""L1 transactions, origins of validations, the block ranges read of each chain, and the tasks of eager signing.

Every method raises StoreDown; those that serve callers, which have other sources, within a second. A block range is
committed in one transaction with the rows found in its blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final
from zlib import crc32

from msgspec.structs import asdict
from sqlalchemy import Connection, Row, Select, delete, func, select

from warpseal.store.database import Database
from warpseal.store.errors import BlockRangesMismatch, StoreDown
from warpseal.store.schema import BLOCK_RANGES, EAGER_TASKS, L1_TRANSACTIONS, ORIGINS
from warpseal.store.statements import Prepared, inserter, replacing
from warpseal.store.values import BlockRange, BootstrapOrigin, EagerTask, L1Transaction, Origin, RegistrationOrigin
from warpseal.warp.ids import ChainID, SubnetID, ValidationID

FOLLOWER: Final = "follower"
# The first half of the two numbers of an advisory lock; the second is of the chain.
_RANGES_LOCK: Final = 0x57_53_42_52

ADD_TRANSACTIONS: Final = Prepared(
    lambda into: into(L1_TRANSACTIONS).on_conflict_do_nothing(index_elements=["tx_id"]),
    *L1_TRANSACTIONS.c.keys(),
)
ADD_ORIGINS: Final = Prepared(
    lambda into: into(ORIGINS).on_conflict_do_nothing(index_elements=["validation_id"]), *ORIGINS.c.keys()
)
_NEWEST_FIRST: Final = select(L1_TRANSACTIONS).order_by(
    L1_TRANSACTIONS.c.height.desc(), L1_TRANSACTIONS.c.position.desc()
)


class L1Records:
    """The rows that the follower writes, and that serve the signed messages of L1 transactions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The wait of callers that have other sources.
        self._short_s = database.settings.load_timeout_s

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        """Return an L1 transaction by its id; None if it was not found (yet)."""
        query = select(L1_TRANSACTIONS).where(L1_TRANSACTIONS.c.tx_id == tx_id)
        rows = await self._database.fetch(query, self._short_s)
        return _transaction(rows[0]) if rows else None

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        """Return the known transactions about a validation, newest first."""
        query = _NEWEST_FIRST.where(L1_TRANSACTIONS.c.validation_id == validation_id)
        return tuple(map(_transaction, await self._database.fetch(query, self._short_s)))

    async def newest(self, limit: int) -> tuple[L1Transaction, ...]:
        """Return the L1 transactions of the highest blocks, newest first."""
        return tuple(map(_transaction, await self._database.fetch(_NEWEST_FIRST.limit(limit))))

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return the origin of a validation; None if it is not known."""
        query = select(ORIGINS).where(ORIGINS.c.validation_id == validation_id)
        for row in await self._database.fetch(query, self._short_s):
            if row.registration is not None:
                return RegistrationOrigin(row.registration)
            return BootstrapOrigin(SubnetID(row.subnet_id), row.bootstrap_index)
        return None

    async def store_origin(self, origin: Origin, source: str) -> None:
        """Store the origin of a validation; source: such as "bootstrap", "caller", "manager_chain".

        Returns when it is committed; the first origin of a validation stays. Raises MalformedMessage for a malformed
        registration, and StoreDown after a second at most, although it may be written later.
        """
        rows = [origin_row(origin, source, time.time())]
        if self._database.is_stuck:
            raise StoreDown("no answer to earlier reads or writes")
        timeout_s = self._database.settings.commit_timeout_s
        await self._database.write(lambda connection: ADD_ORIGINS.run(connection, rows), timeout_s)

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]:
        """Return the block ranges read of a chain: disjoint, newest first."""
        return tuple(map(_range, await self._database.fetch(_ranges_of(chain_id))))

    async def append(
        self, chain_id: ChainID, read: BlockRange, transactions: Iterable[L1Transaction], origins: Iterable[Origin]
    ) -> None:
        """Commit a range of blocks that were read, with the rows found in them, in one transaction.

        Ranges that touch or overlap become one. Raises BlockRangesMismatch if their block ids do not match.
        """
        rows = list(map(transaction_row, transactions))
        began = [origin_row(origin, FOLLOWER, time.time()) for origin in origins]

        def write(connection: Connection) -> None:
            _merge_range(connection, chain_id, read)
            ADD_TRANSACTIONS.run(connection, rows)
            ADD_ORIGINS.run(connection, began)

        await self._database.write(write)

    async def eager_due(self, now_unix_s: float, limit: int) -> tuple[EagerTask, ...]:
        """Return the tasks that are due, longest due first."""
        due = select(EAGER_TASKS).where(EAGER_TASKS.c.due_at <= now_unix_s).order_by(EAGER_TASKS.c.due_at).limit(limit)
        return tuple(EagerTask(row.tx_id, row.due_at, row.attempts) for row in await self._database.fetch(due))

    async def eager_schedule(self, tx_id: bytes, at_unix_s: float, attempts: int) -> None:
        """Schedule the aggregation of a transaction at `at_unix_s`, in place of its current task."""

        def write(connection: Connection) -> None:
            task = inserter(connection.dialect.name)(EAGER_TASKS).values(
                tx_id=tx_id, due_at=at_unix_s, attempts=attempts
            )
            connection.execute(replacing(task))

        await self._database.write(write)

    async def eager_done(self, tx_id: bytes) -> None:
        """Delete the task of a transaction."""
        done = delete(EAGER_TASKS).where(EAGER_TASKS.c.tx_id == tx_id)
        await self._database.write(lambda connection: connection.execute(done))


def transaction_row(transaction: L1Transaction) -> tuple[Any, ...]:
    """Return the row of a transaction."""
    return tuple(getattr(transaction, name) for name in L1Transaction.__struct_fields__)


def origin_row(origin: Origin, source: str, found_at_unix_s: float) -> tuple[Any, ...]:
    """Return the row of an origin. Raises MalformedMessage for a malformed registration."""
    if isinstance(origin, BootstrapOrigin):
        return origin.validation_id, origin.subnet_id, origin.index, None, source, found_at_unix_s
    return origin.validation_id, None, None, origin.payload, source, found_at_unix_s


def _merge_range(connection: Connection, chain_id: ChainID, read: BlockRange) -> None:
    """Add a range to the ranges of a chain, merged with all that it touches. Raises BlockRangesMismatch."""
    if read.low > read.high:
        raise BlockRangesMismatch(f"blocks {read.low} to {read.high} are no range")
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_RANGES_LOCK, crc32(chain_id) & 0x7FFFFFFF)))
    merged = read
    for stored_range in map(_range, connection.execute(_ranges_of(chain_id)).all()):
        if stored_range.low <= merged.high + 1 and merged.low <= stored_range.high + 1:
            merged = _join(stored_range, merged)
            gone = (BLOCK_RANGES.c.chain_id == chain_id, BLOCK_RANGES.c.low == stored_range.low)
            connection.execute(delete(BLOCK_RANGES).where(*gone))
    connection.execute(BLOCK_RANGES.insert().values(chain_id=chain_id, **asdict(merged)))


def _ranges_of(chain_id: ChainID) -> Select[Any]:
    return select(BLOCK_RANGES).where(BLOCK_RANGES.c.chain_id == chain_id).order_by(BLOCK_RANGES.c.low.desc())


def _join(first: BlockRange, second: BlockRange) -> BlockRange:
    """Return two ranges that touch or overlap as one. Raises BlockRangesMismatch if their ids do not match."""
    lower, upper = sorted((first, second), key=lambda part: part.low)
    highest = max(first, second, key=lambda part: part.high)
    joins = (
        lower.high_block_id == upper.low_parent_id
        if lower.high + 1 == upper.low
        else (lower.low != upper.low or lower.low_parent_id == upper.low_parent_id)
        and (lower.high != upper.high or lower.high_block_id == upper.high_block_id)
    )
    if not joins:
        raise BlockRangesMismatch(
            f"blocks {first.low} to {first.high} and {second.low} to {second.high} are of two chains"
        )
    return BlockRange(lower.low, highest.high, lower.low_parent_id, highest.high_block_id)


def _transaction(row: Row[Any]) -> L1Transaction:
    return L1Transaction(**row._mapping)


def _range(row: Row[Any]) -> BlockRange:
    return BlockRange(row.low, row.high, row.low_parent_id, row.high_block_id)
