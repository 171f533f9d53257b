"""The P-Chain height of the epoch that a chain is in, at which verifiers on it take validator sets (ACP-181)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from warpseal.errors import NodeUnavailable
from warpseal.node.limits import Origin
from warpseal.node.proposervm import ProposerVMClient
from warpseal.runtime.single_flight import SingleFlight
from warpseal.validators.recent import RecentCache
from warpseal.warp.ids import ChainID

_KEPT_S = 1.0
_MAX_CHAINS = 4_096


class Epochs:
    """Asks at most once a second per chain, whoever wants to know. Used from one event loop."""

    def __init__(self, proposervm: ProposerVMClient, *, now: Callable[[], float] | None = None) -> None:
        self._proposervm = proposervm
        self._flights: SingleFlight[ChainID, int | None] = SingleFlight()
        self._known: RecentCache[ChainID, int | None] = RecentCache(_MAX_CHAINS, now)

    async def height(self, chain_id: ChainID, origin: Origin = Origin.CALLER) -> int | None:
        """Return the chain's epoch height; None: no node runs the chain, or it has no epochs.

        Raises NodeUnavailable when no node answered.
        """
        known = self._known.get(chain_id)
        if known is not None:
            return known.value
        return await self._flights.run(chain_id, lambda: self._ask(chain_id, origin))

    async def any_at(self, height: int, chain_ids: Iterable[ChainID]) -> bool:
        """Tell whether `height` is the current epoch height of one of these chains; unreachable ones are not."""
        heights = await asyncio.gather(*(self._height_or_none(chain_id) for chain_id in set(chain_ids)))
        return height in heights

    async def _height_or_none(self, chain_id: ChainID) -> int | None:
        try:
            return await self.height(chain_id)
        except NodeUnavailable:
            return None

    async def _ask(self, chain_id: ChainID, origin: Origin) -> int | None:
        height = await self._proposervm.current_epoch_height(chain_id, origin=origin)
        self._known.put(chain_id, height, keep_s=_KEPT_S)
        return height
