"""Usage in the metrics database, as its readers query it."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Struct

from warpseal.runtime.throttle import Throttle
from warpseal.store.connection import Connection
from warpseal.usage.bucket_reader import BucketReader
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.queries import UsageBucket, UsageQuery
from warpseal.usage.settings import UsageSettings

_PAUSES: Final = (0.002, 0.0001)


class UsageSource(Struct, frozen=True):
    """Usage in the metrics database."""

    database: MetricsDatabase
    settings: UsageSettings

    async def read(self, query: UsageQuery) -> list[UsageBucket]:
        """Return the buckets of a query that have calls, newest first. Raises UsageQueryTooLong, StoreDown."""
        throttle = Throttle(*_PAUSES)
        read = partial(read_usage, query=query, limit_s=self.settings.query_timeout_s, throttle=throttle)
        try:
            return await self.database.read(read)
        finally:
            # A caller that has left must not hold a reading thread.
            throttle.cancel()


def read_usage(
    connection: Connection, query: UsageQuery, limit_s: float, throttle: Throttle | None = None
) -> list[UsageBucket]:
    """Return the buckets that have calls, newest first. Raises UsageQueryTooLong after `limit_s`; see Throttle.step."""
    with connection.snapshot():
        return BucketReader(connection, query, limit_s, throttle or Throttle(*_PAUSES)).read()
