"""L1 transactions, origins of validations, the block ranges read of each chain, and the tasks of eager signing.

Every method raises StoreDown; those that serve callers, which have other sources, within a second. A block range is
committed in one transaction with the rows found in its blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

from sqlalchemy import Connection, Row, Select, delete, func, select

from warpseal.store.errors import BlockRangesMismatch, StoreDown
from warpseal.store.ports import ReadSide, WriteSide
from warpseal.store.schema import BLOCK_RANGES, EAGER_TASKS, L1_TRANSACTIONS, ORIGINS
from warpseal.store.settings import StoreSettings
from warpseal.store.statements import Prepared, insert_for
from warpseal.store.values import (
    BlockRange,
    BootstrapOrigin,
    EagerTask,
    L1Transaction,
    Origin,
    RegistrationOrigin,
)
from warpseal.warp.ids import ChainID, SubnetID, ValidationID

T = TypeVar("T")


class L1Records:
    """The rows that the follower writes, and that serve the signed messages of L1 transactions."""

    def __init__(self, reads: ReadSide, writes: WriteSide, settings: StoreSettings) -> None:
        self._reads = reads
        self._writes = writes
        self._settings = settings

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        """Return an L1 transaction by its id; None if it was not found (yet)."""
        return await self._read_for_caller(lambda connection: find_transaction(connection, tx_id))

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        """Return the known transactions about a validation, newest first."""
        return await self._read_for_caller(lambda connection: list_changes(connection, validation_id))

    async def newest(self, limit: int) -> tuple[L1Transaction, ...]:
        """Return the L1 transactions of the highest blocks, newest first."""
        return await self._read(lambda connection: list_newest(connection, limit))

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return the origin of a validation; None if it is not known."""
        return await self._read_for_caller(lambda connection: find_origin(connection, validation_id))

    async def store_origin(self, origin: Origin, source: str) -> None:
        """Store the origin of a validation; source: such as "bootstrap", "caller", "manager_chain".

        Returns when it is committed; the first origin of a validation stays. Raises MalformedMessage for a malformed
        registration, and StoreDown after a second at most, although it may be written later.
        """
        row = origin_row(origin, source, time.time())
        if self._writes.is_stuck or self._reads.is_stuck:
            raise StoreDown("no answer to earlier reads or writes")
        await self._write(lambda connection: add_origins(connection, [row]), self._settings.commit_timeout_s)

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]:
        """Return the block ranges read of a chain: disjoint, newest first."""
        return await self._read(lambda connection: list_ranges(connection, chain_id))

    async def append(
        self,
        chain_id: ChainID,
        read: BlockRange,
        transactions: Iterable[L1Transaction],
        origins: Iterable[Origin],
    ) -> None:
        """Commit a range of blocks that were read, with the rows found in them, in one transaction.

        Ranges that touch or overlap become one. Raises BlockRangesMismatch if their block ids do not match.
        """
        rows = [transaction_row(transaction) for transaction in transactions]
        began = [origin_row(origin, FOLLOWER, time.time()) for origin in origins]

        def write(connection: Connection) -> None:
            merge_range(connection, chain_id, read)
            add_transactions(connection, rows)
            add_origins(connection, began)

        await self._write(write)

    async def eager_due(self, now_unix_s: float, limit: int) -> tuple[EagerTask, ...]:
        """Return the tasks that are due, longest due first."""
        return await self._read(lambda connection: list_due_tasks(connection, now_unix_s, limit))

    async def eager_schedule(self, tx_id: bytes, at_unix_s: float, attempts: int) -> None:
        """Schedule the aggregation of a transaction at `at_unix_s`, in place of its current task."""
        await self._write(lambda connection: replace_task(connection, EagerTask(tx_id, at_unix_s, attempts)))

    async def eager_done(self, tx_id: bytes) -> None:
        """Delete the task of a transaction."""
        await self._write(
            lambda connection: connection.execute(delete(EAGER_TASKS).where(EAGER_TASKS.c.tx_id == tx_id))
        )

    async def _read_for_caller(self, query: Callable[[Connection], T]) -> T:
        """Read for a caller that has other sources."""
        return await self._reads.read(query, self._settings.load_timeout_s)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        return await self._reads.read(query, self._settings.call_timeout_s)

    async def _write(self, write: Callable[[Connection], T], wait_s: float | None = None) -> T:
        wait_s = self._settings.call_timeout_s if wait_s is None else wait_s
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.wrap_future(self._writes.call(write))
        except TimeoutError:
            raise StoreDown(f"no answer within {wait_s:g} s") from None


FOLLOWER: Final = "follower"
# The first half of the two numbers of an advisory lock; the second is of the chain.
_RANGES_LOCK: Final = 0x57_53_42_52

_ADD_TRANSACTION: Final = Prepared(
    lambda into: into(L1_TRANSACTIONS).on_conflict_do_nothing(index_elements=["tx_id"]),
    *L1_TRANSACTIONS.c.keys(),
)
_ADD_ORIGIN: Final = Prepared(
    lambda into: into(ORIGINS).on_conflict_do_nothing(index_elements=["validation_id"]), *ORIGINS.c.keys()
)


def transaction_row(transaction: L1Transaction) -> tuple[Any, ...]:
    """Return the row of a transaction."""
    return tuple(getattr(transaction, name) for name in L1Transaction.__dataclass_fields__)


def origin_row(origin: Origin, source: str, found_at_unix_s: float) -> tuple[Any, ...]:
    """Return the row of an origin. Raises MalformedMessage for a malformed registration."""
    if isinstance(origin, BootstrapOrigin):
        return origin.validation_id, origin.subnet_id, origin.index, None, source, found_at_unix_s
    return origin.validation_id, None, None, origin.payload, source, found_at_unix_s


def add_transactions(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add the transactions that are not known yet."""
    _ADD_TRANSACTION.run(connection, rows)


def add_origins(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add the origins of validations whose origin is not known yet."""
    _ADD_ORIGIN.run(connection, rows)


def find_transaction(connection: Connection, tx_id: bytes) -> L1Transaction | None:
    """Return a transaction by its id."""
    row = connection.execute(select(L1_TRANSACTIONS).where(L1_TRANSACTIONS.c.tx_id == tx_id)).first()
    return _transaction(row) if row is not None else None


def list_changes(connection: Connection, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
    """Return the transactions about a validation, newest first."""
    newest_first = (L1_TRANSACTIONS.c.height.desc(), L1_TRANSACTIONS.c.position.desc())
    query = select(L1_TRANSACTIONS).where(L1_TRANSACTIONS.c.validation_id == validation_id).order_by(*newest_first)
    return tuple(map(_transaction, connection.execute(query)))


def list_newest(connection: Connection, limit: int) -> tuple[L1Transaction, ...]:
    """Return the transactions of the highest blocks, newest first."""
    newest_first = (L1_TRANSACTIONS.c.height.desc(), L1_TRANSACTIONS.c.position.desc())
    query = select(L1_TRANSACTIONS).order_by(*newest_first).limit(limit)
    return tuple(map(_transaction, connection.execute(query)))


def find_origin(connection: Connection, validation_id: ValidationID) -> Origin | None:
    """Return the origin of a validation."""
    row = connection.execute(select(ORIGINS).where(ORIGINS.c.validation_id == validation_id)).first()
    if row is None:
        return None
    if row.registration is not None:
        return RegistrationOrigin(row.registration)
    return BootstrapOrigin(SubnetID(row.subnet_id), row.bootstrap_index)


def list_ranges(connection: Connection, chain_id: ChainID) -> tuple[BlockRange, ...]:
    """Return the block ranges read of a chain, newest first."""
    return tuple(map(_range, connection.execute(_ranges_of(chain_id))))


def merge_range(connection: Connection, chain_id: ChainID, read: BlockRange) -> None:
    """Add a range to those of a chain, merged with all that it touches. Raises BlockRangesMismatch."""
    if read.low > read.high:
        raise BlockRangesMismatch(f"blocks {read.low} to {read.high} are no range")
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_RANGES_LOCK, crc32(chain_id) & 0x7FFFFFFF)))
    merged = read
    for known in map(_range, connection.execute(_ranges_of(chain_id)).all()):
        if known.low <= merged.high + 1 and merged.low <= known.high + 1:
            merged = _join(known, merged)
            gone = (BLOCK_RANGES.c.chain_id == chain_id, BLOCK_RANGES.c.low == known.low)
            connection.execute(delete(BLOCK_RANGES).where(*gone))
    row = {"low": merged.low, "high": merged.high, "low_parent_id": merged.low_parent_id}
    connection.execute(BLOCK_RANGES.insert().values(chain_id=chain_id, high_block_id=merged.high_block_id, **row))


def list_due_tasks(connection: Connection, now_unix_s: float, limit: int) -> tuple[EagerTask, ...]:
    """Return the tasks that are due, longest due first."""
    due = select(EAGER_TASKS).where(EAGER_TASKS.c.due_at <= now_unix_s).order_by(EAGER_TASKS.c.due_at).limit(limit)
    return tuple(EagerTask(row.tx_id, row.due_at, row.attempts) for row in connection.execute(due))


def replace_task(connection: Connection, task: EagerTask) -> None:
    """Replace the task of a transaction."""
    new = {"due_at": task.due_at_unix_s, "attempts": task.attempts}
    statement = insert_for(connection)(EAGER_TASKS).values(tx_id=task.tx_id, **new)
    connection.execute(statement.on_conflict_do_update(index_elements=["tx_id"], set_=new))


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
