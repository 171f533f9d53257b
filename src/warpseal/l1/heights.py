"""At which P-Chain height the set is taken that signs: the one that the manager's chain will verify at.

Source of truth: ACP-181; that of an epoch is older than the proposed one just after a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warpseal.errors import NodeUnavailable
from warpseal.l1.ports import Epochs
from warpseal.l1.request import HeightSource
from warpseal.l1.settings import L1Settings
from warpseal.validators.recent import RecentCache
from warpseal.warp.ids import ChainID

_MAX_CHAINS: Final = 4_096
_FAILURE_KEPT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class HeightChoice:
    """A height, None for the proposed one, and who chose it."""

    height: int | None
    source: HeightSource

    @property
    def is_epoch(self) -> bool:
        """Whether it is the height of the epoch of the manager's chain."""
        return self.source == "epoch"


PROPOSED: Final = HeightChoice(None, "proposed")


class HeightChooser:
    """Used from one event loop. `epochs` asks at most once a second per chain; so do failures here."""

    def __init__(self, epochs: Epochs, settings: L1Settings, *, now: Callable[[], float] | None = None) -> None:
        self._epochs = epochs
        self._look_up_s = settings.look_up_s
        self._failed: RecentCache[ChainID, None] = RecentCache(_MAX_CHAINS, now)

    async def choose(self, requested: int | None, manager_chain_id: ChainID) -> HeightChoice:
        """Return the height for a request; 0 asks for the proposed one. A look-up that fails gives that too."""
        if requested is not None:
            return HeightChoice(requested, "request") if requested else PROPOSED
        height = await self._epoch_height(manager_chain_id)
        return PROPOSED if height is None else HeightChoice(height, "epoch")

    async def _epoch_height(self, chain_id: ChainID) -> int | None:
        if self._failed.get(chain_id) is not None:
            return None
        try:
            async with asyncio.timeout(self._look_up_s):
                return await self._epochs.height(chain_id)
        except (NodeUnavailable, TimeoutError):
            self._failed.put(chain_id, None, keep_s=_FAILURE_KEPT_S)
            return None
