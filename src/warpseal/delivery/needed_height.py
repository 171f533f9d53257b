"""Finds the lowest P-Chain height from which on a subnet has its present validator set.

Bisection between two heights: a set that changed and changed back in between may hide a higher one.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from cachetools import LRUCache
from msgspec import Struct, field

from warpseal.errors import WarpsealError
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import SubnetID

log = logging.getLogger(__name__)

_MAX_FOUND: Final = 4_096
_MAX_SEARCHES: Final = 8
_MAX_CALLS: Final = 40
# A height beyond the tip of the P-Chain would be awaited for ever.
_CALL_TIMEOUT_S: Final = 10.0

_SearchKey = tuple[SubnetID, int, bytes]


class _Search(Struct, eq=False):
    """low: a height with another set; high: the lowest known one with the present set.

    task: None once it has ended.
    """

    subnet_id: SubnetID
    low: int
    high: int
    digest: bytes
    task: asyncio.Task[None] | None = None


class NeededHeights(Struct, eq=False):
    """Used from one event loop.

    A search goes on when its callers have left, and its result is kept.
    """

    _sets: ValidatorSets
    _searches: LRUCache[_SearchKey, _Search] = field(default_factory=lambda: LRUCache(_MAX_FOUND))
    _running: int = 0

    async def find(
        self, subnet_id: SubnetID, low: int, high: int, digest: bytes, timeout_s: float
    ) -> int:
        """Return the height, or a higher one that suffices if the search takes too long.

        low: a height with another set.
        high, digest: of the present set.
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
            await asyncio.wait((search.task,), timeout=timeout_s)
        return search.high

    def _finish(self, key: _SearchKey, search: _Search, task: asyncio.Task[None]) -> None:
        self._running -= 1
        search.task = None
        if search.high - search.low > 1:
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
