"""L1 transactions that were found, where validations began, what was read of each chain, and eager work to do.

Every method raises StoreDown; those that serve callers, who have other sources, within a second. What a chain's
ranges say was read is committed together with its rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from sqlalchemy import Connection, delete

from warpseal.store import l1_rows
from warpseal.store.errors import StoreDown
from warpseal.store.ports import Reads, Writes
from warpseal.store.schema import EAGER_TASKS
from warpseal.store.settings import StoreSettings
from warpseal.store.values import BlockRange, EagerTask, L1Transaction, Origin
from warpseal.warp.ids import ChainID, ValidationID

T = TypeVar("T")


class L1Index:
    """What the follower found and what serves the signed messages of L1 transactions."""

    def __init__(self, reads: Reads, writes: Writes, settings: StoreSettings) -> None:
        self._reads = reads
        self._writes = writes
        self._settings = settings

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        """Return an L1 transaction by its id; None where it was not found (yet)."""
        return await self._look_up(lambda connection: l1_rows.transaction(connection, tx_id))

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        """Return the known transactions about a validation, newest first."""
        return await self._look_up(lambda connection: l1_rows.changes(connection, validation_id))

    async def newest(self, limit: int) -> tuple[L1Transaction, ...]:
        """Return the L1 transactions of the highest blocks, newest first."""
        return await self._read(lambda connection: l1_rows.newest(connection, limit))

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return where a validation began, as far as it is known."""
        return await self._look_up(lambda connection: l1_rows.origin(connection, validation_id))

    async def keep_origin(self, origin: Origin, source: str) -> None:
        """Keep where a validation began; source: who says so, such as "bootstrap", "caller", "manager_chain".

        Returns when it is committed. The first one stands. Raises MalformedMessage for a registration that is none,
        StoreDown after a second at most, though it may be written all the same.
        """
        row = l1_rows.origin_row(origin, source, time.time())
        if self._writes.is_stuck or self._reads.is_stuck:
            raise StoreDown("no answer to earlier reads or writes")
        await self._write(lambda connection: l1_rows.add_origins(connection, [row]), self._settings.commit_timeout_s)

    async def ranges(self, chain_id: ChainID) -> tuple[BlockRange, ...]:
        """Return what was read of a chain: disjoint, newest first."""
        return await self._read(lambda connection: l1_rows.ranges(connection, chain_id))

    async def append(
        self,
        chain_id: ChainID,
        read: BlockRange,
        transactions: Iterable[L1Transaction],
        origins: Iterable[Origin],
    ) -> None:
        """Commit blocks that were read, with all that was found in them, in one transaction.

        Ranges that touch or overlap become one. Raises RangesDisagree where they touch and do not join.
        """
        rows = [l1_rows.transaction_row(transaction) for transaction in transactions]
        began = [l1_rows.origin_row(origin, l1_rows.FOLLOWER, time.time()) for origin in origins]

        def write(connection: Connection) -> None:
            l1_rows.merge_range(connection, chain_id, read)
            l1_rows.add_transactions(connection, rows)
            l1_rows.add_origins(connection, began)

        await self._write(write)

    async def eager_due(self, now_unix_s: float, limit: int) -> tuple[EagerTask, ...]:
        """Return the tasks that are due, longest due first."""
        return await self._read(lambda connection: l1_rows.eager_due(connection, now_unix_s, limit))

    async def eager_schedule(self, tx_id: bytes, at_unix_s: float, attempts: int) -> None:
        """Have a transaction aggregated at `at_unix_s`, in place of what was scheduled for it."""
        await self._write(lambda connection: l1_rows.schedule(connection, EagerTask(tx_id, at_unix_s, attempts)))

    async def eager_done(self, tx_id: bytes) -> None:
        """Forget the task of a transaction."""
        await self._write(
            lambda connection: connection.execute(delete(EAGER_TASKS).where(EAGER_TASKS.c.tx_id == tx_id))
        )

    async def _look_up(self, query: Callable[[Connection], T]) -> T:
        """Read for a caller who has other sources."""
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
