"""Keeps the validators of tracked subnets and of configured chains known, so that their uptimes can be counted.

One refresh of a subnet calls the P-Chain once, and only a few refreshes run at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from warpseal.runtime.locks import AsyncSemaphore
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.validators.chain_validator_list import ChainValidatorList, CurrentValidations
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import HeightTooNew
from warpseal.validators.settings import ValidatorSettings
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID

log = logging.getLogger(__name__)

S = TypeVar("S")

_MAX_CONCURRENCY: Final = 4


class ValidatorRefresher:
    """Refreshes the tracked subnets, the chains of the Primary Network, and the configured chains that no node lists.

    Afterwards the subnet of each of their chains is known while no node answers.
    on_blockchain: called with each blockchain of a tracked subnet at every refresh.
    """

    def __init__(
        self,
        chains: ChainLookup,
        current: CurrentValidations,
        tracker: SubnetTracker,
        settings: ValidatorSettings,
        on_blockchain: Callable[[ChainID], None],
    ) -> None:
        self._chains = chains
        self._current = current
        self._tracker = tracker
        self._tracked = tuple(dict.fromkeys(settings.tracked_subnet_ids))
        self._period_s = settings.current_refresh_s
        self._on_blockchain = on_blockchain

    async def run(self, configured: Iterable[ChainValidatorList]) -> None:
        """Refresh until cancelled."""
        limit = AsyncSemaphore(_MAX_CONCURRENCY)
        # Configured chains have nodes of their own: calls to the P-Chain's nodes never wait for one that hangs.
        configured_limit = AsyncSemaphore(_MAX_CONCURRENCY)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(limit, self._chains.blockchains_of, PRIMARY_NETWORK))
            for subnet_id in self._tracked:
                tasks.create_task(self._repeat(limit, self.refresh_subnet, subnet_id))
            for chain in configured:
                tasks.create_task(self._repeat(configured_limit, self.refresh_chain, chain))

    async def refresh_subnet(self, subnet_id: SubnetID) -> None:
        """Refresh a tracked subnet. Raises NodeUnavailable."""
        await self._current.refresh(subnet_id)
        for chain_id in await self._chains.blockchains_of(subnet_id):
            self._on_blockchain(chain_id)

    async def refresh_chain(self, chain: ChainValidatorList) -> None:
        """Refresh a configured chain. Raises NodeUnavailable, HeightTooNew."""
        subnet_id = await chain.locally_listed_subnet()
        if subnet_id is not None and subnet_id not in self._tracked:
            await self._tracker.extend(subnet_id)
            await self._current.refresh(subnet_id)

    async def _repeat(self, limit: asyncio.Semaphore, refresh: Callable[[S], Awaitable[object]], subject: S) -> None:
        while True:
            try:
                async with limit:
                    await refresh(subject)
            except (NodeUnavailable, HeightTooNew, RpcRefusal) as error:
                log.debug("validator refresh failed", extra={"reason": str(error)})
            await asyncio.sleep(self._period_s)
