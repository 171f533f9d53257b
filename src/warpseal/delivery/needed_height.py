"""Finds the lowest P-Chain height from which on a subnet has its present validator set.

It bisects between two heights. If a set changed and changed back between them, the result may be
too low.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from cachetools import LRUCache
from msgspec import Struct

from warpseal.errors import WarpsealError
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import SubnetID

log = logging.getLogger(__name__)

_MAX_RESULTS: Final = 4_096
_MAX_SEARCHES: Final = 8
_MAX_CALLS: Final = 40
# A height beyond the tip of the P-Chain would be awaited for ever.
_CALL_TIMEOUT_S: Final = 10.0

_SearchKey = tuple[SubnetID, int, bytes]


class _Search(Struct, eq=False):
    """A bisection of one subnet.

    low: height with another set than the present one.
    high: lowest height at which the search has seen the present set.
    digest: SHA-256 of the present set.
    task: None once the search has ended.
    """

    subnet_id: SubnetID
    low: int
    high: int
    digest: bytes
    task: asyncio.Task[None] | None = None


class NeededHeights:
    """Searches the heights, and keeps the results. Used from one event loop."""

    def __init__(self, sets: ValidatorSets) -> None:
        self._sets = sets
        self._searches: LRUCache[_SearchKey, _Search] = LRUCache(_MAX_RESULTS)
        self._running = 0

    async def find(
        self, subnet_id: SubnetID, low: int, high: int, digest: bytes, timeout_s: float
    ) -> int:
        """Return the height, or a higher one that suffices if the search takes too long.

        low: height with another set than the present one.
        high: height with the present set.
        digest: SHA-256 of the present set.
        """
        key = (subnet_id, low, digest)
        search = self._searches.get(key)
        if search is None:
            if high - low <= 1 or self._running >= _MAX_SEARCHES:
                return high
            search = self._searches[key] = _Search(subnet_id, low, high, digest)
            search.task = asyncio.create_task(self._run(search))
            search.task.add_done_callback(partial(self._finish, key, search))
            self._running += 1
        if search.task is not None:
            # The search goes on when its callers have left: the next request needs its result.
            await asyncio.wait((search.task,), timeout=timeout_s)
        return search.high

    def _finish(self, key: _SearchKey, search: _Search, task: asyncio.Task[None]) -> None:
        self._running -= 1
        search.task = None
        if search.high - search.low > 1:
            # It ended early, so that the next caller begins another search.
            self._searches.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            log.debug("search for a needed height failed", extra={"reason": str(task.exception())})

    async def _run(self, search: _Search) -> None:
        for _ in range(_MAX_CALLS):
            if search.high - search.low <= 1:
                return
            middle = (search.low + search.high) // 2
            try:
                async with asyncio.timeout(_CALL_TIMEOUT_S):
                    members = await self._sets.past(search.subnet_id, middle)
            except (WarpsealError, TimeoutError) as error:
                log.debug(
                    "validator set of the past unavailable",
                    extra={"height": middle, "reason": str(error)},
                )
                return
            if members.digest == search.digest:
                search.high = middle
            else:
                search.low = middle
