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
# On top of the second for which `Epochs` keeps what it was told.
_KEPT_S: Final = 0.25


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
        self._look_up_s = settings.lookup_timeout_s
        self._known: RecentCache[ChainID, int | None] = RecentCache(_MAX_CHAINS, now)
        self._asking: dict[ChainID, asyncio.Task[int | None]] = {}

    async def choose(self, requested: int | None, manager_chain_id: ChainID) -> HeightChoice:
        """Return the height for a request; 0 asks for the proposed one. A look-up that fails gives that too."""
        if requested is not None:
            return HeightChoice(requested, "request") if requested else PROPOSED
        known = self._known.get(manager_chain_id)
        height = known.value if known is not None else await self._looked_up(manager_chain_id)
        return PROPOSED if height is None else HeightChoice(height, "epoch")

    async def _looked_up(self, chain_id: ChainID) -> int | None:
        """Return the epoch's height, or None where that takes too long.

        The question goes on then: only at its end is it known which node hangs, so that the next asks another one.
        """
        asking = self._asking.get(chain_id)
        if asking is None:
            asking = self._asking[chain_id] = asyncio.create_task(self._ask(chain_id))
        await asyncio.wait((asking,), timeout=self._look_up_s)
        if asking.done() and not asking.cancelled():
            return asking.result()
        self._known.put(chain_id, None, keep_s=_FAILURE_KEPT_S)
        return None

    async def _ask(self, chain_id: ChainID) -> int | None:
        try:
            height = await self._epochs.height(chain_id)
            self._known.put(chain_id, height, keep_s=_KEPT_S)
            return height
        except NodeUnavailable:
            self._known.put(chain_id, None, keep_s=_FAILURE_KEPT_S)
            return None
        finally:
            del self._asking[chain_id]
