"""Chooses the P-Chain height of the signing set: the height at which the manager's chain will
verify.

Source of truth: ACP-181. The height of an epoch is older than the proposed height just after a
change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from warpseal.l1.request import HeightSource
from warpseal.l1.settings import L1Settings
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID

_MAX_CHAINS: Final = 4_096
_FAILURE_TTL_S: Final = 1.0
# In addition to the second for which `EpochHeights` caches a response.
_TTL_S: Final = 0.25


class HeightChoice(Struct, frozen=True):
    """A height, None for the proposed one, and its source."""

    height: int | None
    source: HeightSource

    @property
    def is_epoch(self) -> bool:
        """Whether it is the epoch height of the manager's chain."""
        return self.source == "epoch"


PROPOSED: Final = HeightChoice(None, "proposed")


class HeightChooser:
    """Used from one event loop. After a failure the next lookup of that chain is a second later."""

    def __init__(
        self,
        find_height: Callable[[ChainID], Awaitable[int | None]],
        settings: L1Settings,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_height = find_height
        self._lookup_timeout_s = settings.lookup_timeout_s
        # None: the last lookup failed, or the chain has no epoch.
        self._heights: TtlCache[ChainID, int | None] = TtlCache(_MAX_CHAINS, now)
        self._lookups: SingleFlight[ChainID, int | None] = SingleFlight(outlives_callers=True)

    async def choose(self, requested: int | None, manager_chain_id: ChainID) -> HeightChoice:
        """Return the height for a request.

        requested: height that the request names, 0 for the proposed height. The proposed height is
            also the answer if the lookup of the epoch fails.
        """
        if requested is not None:
            return HeightChoice(requested, "request") if requested else PROPOSED
        cached = self._heights.get(manager_chain_id)
        height = await self._look_up(manager_chain_id) if cached is None else cached.value
        return PROPOSED if height is None else HeightChoice(height, "epoch")

    async def _look_up(self, chain_id: ChainID) -> int | None:
        """Return the epoch height, or None if the lookup takes too long.

        The lookup continues then. Its end shows which node hangs, so that the next lookup asks
        another one.
        """
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                return await self._lookups.run(chain_id, lambda: self._ask(chain_id))
        except TimeoutError:
            self._heights.put(chain_id, None, _FAILURE_TTL_S)
            return None

    async def _ask(self, chain_id: ChainID) -> int | None:
        try:
            height = await self._find_height(chain_id)
            self._heights.put(chain_id, height, _TTL_S)
            return height
        except NodeUnavailable:
            self._heights.put(chain_id, None, _FAILURE_TTL_S)
            return None
