"""Reads of an index whose PostgreSQL server has replicas: requests go round those that are alive and recent enough.

Everything outside of requests reads the primary, which also answers if no replica does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from warpseal.index.read_session import IndexReader, ReadSession
from warpseal.index.settings import IndexSettings
from warpseal.resources.queries import CLIENT_HEIGHTS, ClientHeights, Heights
from warpseal.store.errors import StoreDown
from warpseal.store.migrate import Migrations
from warpseal.store.url import StoreUrl

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_S: Final = 60.0
"""Time after a failure during which a replica is not tried, seconds."""
# The client has time left for the primary.
_WAIT_S: Final = 3.0


class ReplicatedReader(IndexReader):
    """Reads of one index, whose URL may have replicas. read_heights: returns the heights of a snapshot.

    A replica answers only if its client and this process have read nothing newer, so that time never goes back.
    """

    def __init__(
        self,
        url: StoreUrl,
        settings: IndexSettings,
        migrations: Migrations,
        read_heights: Callable[[ReadSession], Heights],
    ) -> None:
        super().__init__(url, settings, migrations)
        self._read_heights = read_heights
        self._replicas = [_Replica(replica, settings, migrations) for replica in url.replicas]
        self._heights: Heights = {}

    def close(self) -> None:
        """Cancel the waiting reads, and close the idle connections."""
        super().close()
        for replica in self._replicas:
            replica.reader.close()

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Return the result of a query. Raises StoreDown."""
        if not self._replicas:
            return await super().read(query)
        is_request, client = CLIENT_HEIGHTS.get() is not None, CLIENT_HEIGHTS.get() or ClientHeights()
        for replica in self._in_turn() if is_request else ():
            result = await replica.read(partial(self._query_replica, replica, query, client))
            if result is not None:
                break
        else:
            result = await super().read(lambda session: (self._read_heights(session), query(session)))
        heights, content = result
        client.add(heights)
        # Outside of requests lower ones also count: the index was made again.
        own = self._heights if is_request else {}
        self._heights = {chain: max(height, own.get(chain, -1)) for chain, height in heights.items()}
        return content

    def _in_turn(self) -> Iterator[_Replica]:
        """Yield the replicas that may be read, each time from another one on."""
        self._replicas.append(self._replicas.pop(0))
        return (replica for replica in tuple(self._replicas) if replica.is_usable())

    def _query_replica(
        self, replica: _Replica, query: Callable[[ReadSession], T], client: ClientHeights, session: ReadSession
    ) -> tuple[Heights, T] | None:
        """Return heights and result; None if the replica is behind. It runs in a thread of the replica."""
        heights = self._read_heights(session)
        if _is_behind(heights, replica.heights):
            # The index was made again: keys have another meaning now.
            replica.reader.cache.clear()
        replica.heights = heights
        if not heights or _is_behind(heights, self._heights) or not client.allows(heights):
            return None
        return heights, query(session)


def _is_behind(heights: Heights, others: Heights) -> bool:
    return any(height < others.get(chain, -1) for chain, height in heights.items())


class _Replica:
    """One replica. After a failure it is tried by one read a minute. heights: of the last snapshot."""

    def __init__(self, url: StoreUrl, settings: IndexSettings, migrations: Migrations) -> None:
        self.reader = IndexReader(url, replace(settings, read_timeout_s=_WAIT_S), migrations)
        self.heights: Heights = {}
        self._url = url
        self._most = settings.max_queued_reads
        self._reads = 0
        self._is_alive: bool | None = None
        self._retry_at = float("-inf")

    def is_usable(self) -> bool:
        """Return whether to read it now: it is alive and not overloaded, or it is to be tried again, by this caller."""
        if self._is_alive:
            return self._reads < self._most
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + RETRY_S
        return True

    async def read(self, query: Callable[[ReadSession], T]) -> T | None:
        """Return the result of a query; None if it fails."""
        self._reads += 1
        try:
            result = await self.reader.read(query)
        except StoreDown as error:
            if self._is_alive is not False:
                log.warning("replica cannot be read", extra={"url": self._url.redacted, "reason": error.reason})
            self._is_alive, self._retry_at = False, time.monotonic() + RETRY_S
            return None
        finally:
            self._reads -= 1
        self._is_alive = True
        return result
