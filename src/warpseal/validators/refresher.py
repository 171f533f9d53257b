"""Keeps known who validates our subnets while nobody asks, so that for how long they are seen can be counted.

One round of a subnet asks the P-Chain once, and only a few rounds are under way together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from warpseal.errors import HeightTooNew, NodeUnavailable
from warpseal.node.errors import RpcRefusal
from warpseal.node.limits import CallOrigin
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.validators.chain_validator_list import ChainValidatorList
from warpseal.validators.chains import ChainLookup
from warpseal.validators.current_validations import CurrentValidations
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import ValidatorSettings
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.warp.ids import ChainID, SubnetID

log = logging.getLogger(__name__)

S = TypeVar("S")

_FOLLOW_AGAIN_S: Final = 60.0
_AT_ONCE: Final = 4


class TemporaryTracking:
    """Keeps subnets followed that are not tracked, so that their validators are connected."""

    def __init__(self, followed: SubnetTracker, heights: ProposedHeight, sets: ValidatorSets) -> None:
        self._followed = followed
        self._heights = heights
        self._sets = sets
        self._again_at: dict[SubnetID, float] = {}

    async def keep(self, subnet_id: SubnetID) -> None:
        """Have a subnet followed for a few more minutes. Raises NodeUnavailable, HeightTooNew."""
        now = asyncio.get_running_loop().time()
        if now < self._again_at.get(subnet_id, 0.0):
            return
        height = await self._heights.first()
        validators = await self._sets.at(subnet_id, height, named=False, origin=CallOrigin.DAEMON)
        with self._followed.use(subnet_id, validators):
            self._again_at[subnet_id] = now + _FOLLOW_AGAIN_S


class ValidatorRefresher:
    """Looks at the tracked subnets, and at configured chains that no node lists.

    appeared: told each blockchain of a tracked subnet, again in each round.
    """

    def __init__(
        self,
        chains: ChainLookup,
        current: CurrentValidations,
        following: TemporaryTracking,
        settings: ValidatorSettings,
        appeared: Callable[[ChainID], None],
    ) -> None:
        self._chains = chains
        self._current = current
        self._following = following
        self._tracked = tuple(dict.fromkeys(settings.tracked_subnet_ids))
        self._round_s = settings.current_refresh_s
        self._appeared = appeared

    async def run(self, configured: Iterable[ChainValidatorList]) -> None:
        """Look until cancelled."""
        gate = AsyncSemaphore(_AT_ONCE)
        # The nodes of configured chains are others: the P-Chain's never wait for one that hangs.
        gate_of_configured = AsyncSemaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for subnet_id in self._tracked:
                tasks.create_task(self._again(gate, self.look, subnet_id))
            for chain in configured:
                tasks.create_task(self._again(gate_of_configured, self.look_at, chain))

    async def look(self, subnet_id: SubnetID) -> None:
        """Look at a tracked subnet. Raises NodeUnavailable."""
        await self._current.refresh(subnet_id)
        for chain_id in await self._chains.blockchains_of(subnet_id):
            self._appeared(chain_id)

    async def look_at(self, chain: ChainValidatorList) -> None:
        """Look at a configured chain. Raises NodeUnavailable, HeightTooNew."""
        subnet_id = await chain.own_subnet()
        if subnet_id is not None and subnet_id not in self._tracked:
            await self._following.keep(subnet_id)
            await self._current.refresh(subnet_id)

    async def _again(self, gate: asyncio.Semaphore, look: Callable[[S], Awaitable[None]], subject: S) -> None:
        while True:
            try:
                async with gate:
                    await look(subject)
            except (NodeUnavailable, HeightTooNew, RpcRefusal) as error:
                log.debug("who validates a subnet could not be learnt", extra={"reason": str(error)})
            await asyncio.sleep(self._round_s)
