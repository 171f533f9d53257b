"""Which validators of an L1 are inactive or nearly drained right now, while somebody cares.

Such a validator may still sign, but verifiers may not know its key any more by the time the message arrives.
Source of truth: avalanchego `vms/platformvm/validators/fee`, ACP-77.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from warpseal.errors import NodeUnavailable, UnknownSubnet
from warpseal.node.errors import RpcRefusal
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import CurrentValidation
from warpseal.node.platform import PlatformClient
from warpseal.validators.chains import ChainLookup
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text

log = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 1_024
_FORGOTTEN_AT_ONCE: Final = 64
_NOBODY: Final[frozenset[NodeID]] = frozenset()


@dataclass(slots=True)
class _Watch:
    """One subnet that somebody watches or watched lately.

    Its task lives while somebody watches; a question under way is let finish, so that short rounds learn too.
    """

    watchers: int = 0
    reluctant: frozenset[NodeID] = _NOBODY
    asked_at: float = float("-inf")
    is_asking: bool = False
    task: asyncio.Task[None] | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)


class L1Activity:
    """Refreshes the activity of watched subnets, one refresh per subnet however many watch it."""

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
            self._start(subnet_id, watch)
        try:
            yield
        finally:
            watch.watchers -= 1
            self._rest(watch)

    def reluctant(self, subnet_id: SubnetID) -> frozenset[NodeID]:
        """Return the nodes known to be inactive or nearly drained; nobody before the first answer."""
        watch = self._watches.get(subnet_id)
        return watch.reluctant if watch else _NOBODY

    async def ready(self, subnet_id: SubnetID) -> None:
        """Wait until a watched subnet's activity is known, or could not be learnt."""
        watch = self._watches.get(subnet_id)
        if watch is not None and watch.task is not None:
            await watch.is_ready.wait()

    def _rest(self, watch: _Watch) -> None:
        """End the refreshing that nobody watches, keeping its last answers in bounded number."""
        if not watch.watchers and not watch.is_asking and watch.task is not None:
            watch.task.cancel()
            watch.task = None
        if len(self._watches) > _MAX_REMEMBERED:
            for subnet_id in [key for key, one in self._watches.items() if one.task is None][:_FORGOTTEN_AT_ONCE]:
                del self._watches[subnet_id]

    def _start(self, subnet_id: SubnetID, watch: _Watch) -> None:
        # Belongs to all watchers together, so it is born in no task group of one of them.
        due_at = watch.asked_at + self._refresh_s
        if due_at <= asyncio.get_running_loop().time():
            watch.is_ready.clear()
        watch.task = asyncio.create_task(self._refresh(subnet_id, watch, due_at))

    async def _refresh(self, subnet_id: SubnetID, watch: _Watch, due_at: float) -> None:
        try:
            while watch.watchers:
                await asyncio.sleep(max(0.0, due_at - asyncio.get_running_loop().time()))
                await self._ask_once(subnet_id, watch)
                due_at = watch.asked_at + self._refresh_s
        finally:
            if watch.task is asyncio.current_task():
                watch.task = None

    async def _ask_once(self, subnet_id: SubnetID, watch: _Watch) -> None:
        watch.is_asking = True
        try:
            reluctant = await self._ask(subnet_id)
            watch.reluctant = watch.reluctant if reluctant is None else reluctant
        finally:
            watch.is_asking = False
            watch.asked_at = asyncio.get_running_loop().time()
            watch.is_ready.set()

    async def _ask(self, subnet_id: SubnetID) -> frozenset[NodeID] | None:
        """Return the reluctant nodes, or None where nobody could tell: the last answer stands."""
        try:
            if not (await self._chains.subnet(subnet_id)).is_l1:
                return _NOBODY
            current = await self._platform.current_validations(subnet_id, origin=CallOrigin.CALLER)
        except (NodeUnavailable, UnknownSubnet, RpcRefusal) as error:
            extra = {"subnet_id": id_text(subnet_id), "reason": str(error)}
            log.warning("the activity of an L1's validators is unknown", extra=extra)
            return None
        return inactive_nodes(current, self._min_balance_navax)


def inactive_nodes(current: Iterable[CurrentValidation], min_balance_navax: int) -> frozenset[NodeID]:
    """Return the nodes none of whose validations has the balance; one that pays no fee always has."""
    low: set[NodeID] = set()
    sound: set[NodeID] = set()
    for validator in current:
        is_low = validator.balance is not None and validator.balance < min_balance_navax
        (low if is_low else sound).add(validator.node_id)
    return frozenset(low - sound)
