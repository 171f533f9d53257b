"""How much is kept, counted row by row: for people who ask, since it takes a look at everything."""

from __future__ import annotations

from sqlalchemy import Connection, FromClause, func, select

from warpseal.store.eviction import evictable_bytes, size_bytes
from warpseal.store.schema import ADDRESSES, EAGER_TASKS, L1_TRANSACTIONS, MESSAGES, ORIGINS, SHARES, SIGNATURES
from warpseal.store.values import StoreContents


def measure(connection: Connection) -> StoreContents:
    """Return how much is kept."""

    def count(table: FromClause, *which: object) -> int:
        query = select(func.count()).select_from(table).where(*which)  # type: ignore[arg-type]
        return connection.execute(query).scalar_one()

    return StoreContents(
        messages=count(MESSAGES),
        messages_for_ever=count(MESSAGES, MESSAGES.c.for_ever == 1),
        shares=count(SHARES),
        shares_verified=count(SHARES, SHARES.c.verified == 1),
        signatures=count(SIGNATURES),
        addresses=count(ADDRESSES),
        origins=count(ORIGINS),
        l1_transactions=count(L1_TRANSACTIONS),
        eager_tasks=count(EAGER_TASKS),
        size_bytes=size_bytes(connection),
        evictable_bytes=evictable_bytes(connection),
    )
