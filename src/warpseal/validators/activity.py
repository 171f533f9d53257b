"""The inactive and nearly drained validators of L1s, refreshed while a round watches them.

Such a validator may still sign, but verifiers may no longer know its key when the message arrives.
Source of truth: avalanchego `vms/platformvm/validators/fee`, ACP-77.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, field

from warpseal.node.p_chain import CurrentValidation
from warpseal.node.platform import PlatformClient
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.validators.balances import inactive_nodes, underfunded_validations
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import UnknownSubnet
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text

log = logging.getLogger(__name__)

_MAX_SUBNETS: Final = 1_024
_EVICTED_TOGETHER: Final = 64
_NO_NODES: Final[frozenset[NodeID]] = frozenset()


class _Watch(Struct):
    """One subnet that rounds watch, or watched recently.

    Its task lives while the subnet is watched; a call in flight is completed, so that short rounds
    learn from it.
    """

    watchers: int = 0
    inactive: frozenset[NodeID] = _NO_NODES
    underfunded: tuple[CurrentValidation, ...] | None = None
    current: tuple[CurrentValidation, ...] = ()
    fetched_at: float = float("-inf")
    task: asyncio.Task[None] | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)


class L1Activity:
    """The activity of watched subnets, refreshed once per subnet however many rounds watch it."""

    def __init__(
        self,
        platform: PlatformClient,
        chains: ChainLookup,
        *,
        refresh_s: float = 3.0,
        min_balance_navax: int = 2_048,
    ) -> None:
        self._platform = platform
        self._chains = chains
        self._refresh_s = refresh_s
        self._min_balance_navax = min_balance_navax
        self._watches: OrderedDict[SubnetID, _Watch] = OrderedDict()

    @contextmanager
    def watch(self, subnet_id: SubnetID) -> Iterator[None]:
        """Keep the subnet's activity fresh inside the block. The Primary Network has none."""
        if subnet_id == PRIMARY_NETWORK:
            yield
            return
        watch = self._watches.setdefault(subnet_id, _Watch())
        self._watches.move_to_end(subnet_id)
        watch.watchers += 1
        if watch.task is None:
            # The task belongs to all watchers together, and therefore to no task group of one of
            # them.
            due_at = watch.fetched_at + self._refresh_s
            if due_at <= asyncio.get_running_loop().time():
                watch.is_ready.clear()
            watch.task = asyncio.create_task(self._refresh(subnet_id, watch, due_at))
        try:
            yield
        finally:
            watch.watchers -= 1
            if len(self._watches) > _MAX_SUBNETS:
                # A bounded number of last replies is kept.
                idle = [other_id for other_id, other in self._watches.items() if other.task is None]
                for other_id in idle[:_EVICTED_TOGETHER]:
                    del self._watches[other_id]

    def close(self) -> None:
        """End all refreshes, which would wait for another round; call it after the last round."""
        for watch in self._watches.values():
            if watch.task is not None:
                watch.task.cancel()

    def inactive(self, subnet_id: SubnetID) -> frozenset[NodeID]:
        """Return the nodes known to be inactive or nearly drained; empty before the first reply."""
        watch = self._watches.get(subnet_id)
        return watch.inactive if watch else _NO_NODES

    def underfunded(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...] | None:
        """Return the inactive and nearly drained validations; None before the first reply."""
        if subnet_id == PRIMARY_NETWORK:
            return ()
        watch = self._watches.get(subnet_id)
        return watch.underfunded if watch else None

    def current(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...]:
        """Return all validations of an L1; none before the first reply."""
        watch = self._watches.get(subnet_id)
        return watch.current if watch else ()

    def is_ready(self, subnet_id: SubnetID) -> bool:
        """Return whether `ready` has nothing to wait for."""
        watch = self._watches.get(subnet_id)
        return watch is None or watch.task is None or watch.is_ready.is_set()

    async def ready(self, subnet_id: SubnetID) -> None:
        """Wait for the first reply about a watched subnet, or the first failure."""
        if not self.is_ready(subnet_id):
            await self._watches[subnet_id].is_ready.wait()

    async def _refresh(self, subnet_id: SubnetID, watch: _Watch, due_at: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            # It ends at the first due time at which no round watches, so that rounds in quick
            # succession share it.
            while True:
                await asyncio.sleep(max(0.0, due_at - loop.time()))
                if not watch.watchers:
                    return
                try:
                    current = await self._fetch(subnet_id)
                    if current is not None:
                        least_navax = self._min_balance_navax
                        watch.inactive = inactive_nodes(current, least_navax)
                        watch.underfunded = underfunded_validations(current, least_navax)
                        watch.current = current
                finally:
                    watch.fetched_at = loop.time()
                    watch.is_ready.set()
                due_at = watch.fetched_at + self._refresh_s
        finally:
            if watch.task is asyncio.current_task():
                watch.task = None

    async def _fetch(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...] | None:
        """Return the validations of an L1; None if no node replied: the last reply then stays."""
        try:
            if not (await self._chains.subnet(subnet_id)).is_l1:
                return ()
            return await self._platform.current_validations(subnet_id, origin=CallOrigin.CALLER)
        except (NodeUnavailable, UnknownSubnet, RpcRefusal) as error:
            extra = {"subnet_id": id_text(subnet_id), "reason": str(error)}
            log.warning("L1 activity refresh failed", extra=extra)
            return None
