"""Keeps the peer network told whom to connect to: the validators of the followed subnets, and where they are.

Source of truth for who they are: the P-Chain at the proposed height. Where they are: hints of the info nodes
(gossip and configured addresses are the peer network's own).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from warpseal.errors import HeightTooNew, NodeUnavailable
from warpseal.node.errors import RpcRefusal
from warpseal.node.info import InfoClient, PeerHint
from warpseal.node.limits import CallOrigin
from warpseal.node.platform import PlatformClient
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import ValidatorSettings
from warpseal.validators.tracking_state import TrackedSubnet, TrackedSubnets
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID, id_text
from warpseal.warp.validator_set import CanonicalValidatorSet, Validator

log = logging.getLogger(__name__)

_RETRY_S: Final = 2.0
_DISCOVERY_GAP_S: Final = 5.0
_SET_TIMEOUT_S: Final = 30.0
_SETS_AT_ONCE: Final = 4
_MAX_HINTED_NODES: Final = 20_000
_EXPIRY_CHECK_S: Final = 5.0


class TrackedPeers(Protocol):
    """What the peer network is told, and the one thing that it is asked."""

    def track(self, subnet_id: SubnetID, node_ids: Iterable[NodeID]) -> None:
        """These nodes, and no others, are wanted for the subnet."""

    def untrack(self, subnet_id: SubnetID) -> None:
        """Nobody is wanted for the subnet any more."""

    def set_known_validators(self, node_ids: Iterable[NodeID]) -> None:
        """These are the validators of all subnets: addresses of others need not be kept."""

    def add_hint(self, node_id: NodeID, host: str, port: int) -> None:
        """The node may be reached there."""

    def is_connected(self, node_id: NodeID) -> bool:
        """Whether the node's handshake is finished and its connection up."""
        ...


@dataclass(frozen=True, slots=True)
class SubnetReadiness:
    """How much of a subnet is connected. missing: keys none of whose nodes is, heaviest first.

    is_known: its validator set was fetched; until then the weights are 0.
    """

    subnet_id: SubnetID
    is_known: bool
    connected: int
    total: int
    missing: tuple[Validator, ...]

    @property
    def keyless(self) -> int:
        """Weight of members without a key, which can never sign."""
        return self.total - self.connected - sum(validator.weight for validator in self.missing)


class SubnetTracker:
    """Follows the Primary Network, the tracked subnets, and for a while those that requests name."""

    def __init__(
        self,
        sources: TrackerSources,
        peers: TrackedPeers,
        settings: ValidatorSettings,
        *,
        on_forgotten: Callable[[SubnetID], None] = lambda subnet_id: None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._sources = sources
        self._peers = peers
        self._settings = settings
        self._on_forgotten = on_forgotten
        self._now = now or (lambda: asyncio.get_running_loop().time())
        pinned = dict.fromkeys((PRIMARY_NETWORK, *settings.tracked_subnet_ids))
        self._list = TrackedSubnets(
            pinned,
            max_named=settings.max_tracked_by_request,
            keep_unused_s=settings.untrack_unused_after_s,
        )
        self._hints: dict[NodeID, tuple[PeerHint, ...]] = {}
        self._strangers = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []

    def watch(self, refreshed: Callable[[], None]) -> None:
        """Call this whenever the sets of the followed subnets were taken anew."""
        self._watchers.append(refreshed)

    @contextmanager
    def use(self, subnet_id: SubnetID, validators: CanonicalValidatorSet) -> Iterator[None]:
        """Follow a subnet inside the block and for a while longer, the nodes of this set among its wanted ones."""
        followed, gone = self._list.follow(subnet_id, self._now())
        self._forget(gone)
        if followed.enter(validators, self._now()):
            self._tell(followed)
        try:
            yield
        finally:
            followed.leave(validators, self._now())

    def connected_weight(self, subnet_id: SubnetID) -> tuple[int, int]:
        """Return (connected, total) weight of a followed subnet, each key counted once; (0, 0) while unknown."""
        followed = self._list.get(subnet_id)
        validators = followed.validators if followed else None
        if validators is None:
            return 0, 0
        connected = sum(one.weight for one in validators.validators if self._is_connected(one))
        return connected, validators.total_weight

    def followed(self) -> tuple[SubnetID, ...]:
        """Return the subnets followed now, the Primary Network first."""
        return tuple(followed.subnet_id for followed in self._list)

    def readiness(self) -> tuple[SubnetReadiness, ...]:
        """Return how the Primary Network and each tracked subnet stand."""
        return tuple(self._readiness(followed) for followed in self._list.pinned)

    async def run(self) -> None:
        """Keep sets, hints and expiry going until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_refreshing())
            tasks.create_task(self._keep_discovering())
            tasks.create_task(self._keep_expiring())

    async def refresh(self) -> bool:
        """Take every followed set at the proposed height anew. Returns whether all could be had."""
        try:
            height = await self._sources.heights.first()
        except NodeUnavailable:
            return False
        gate = AsyncSemaphore(_SETS_AT_ONCE)
        outcomes = await asyncio.gather(*(self._refresh_one(one, height, gate) for one in tuple(self._list)))
        self._peers.set_known_validators(await self._all_validators(height))
        self._hint(self._wanted())
        for refreshed in self._watchers:
            refreshed()
        return all(outcomes)

    async def discover(self) -> bool:
        """Ask the info nodes for peers and pass on where wanted ones are. Returns whether every node answered."""
        try:
            told = await self._sources.info.all_peers()
        except NodeUnavailable:
            return False
        hints: dict[NodeID, tuple[PeerHint, ...]] = {}
        for hint in told.hints:
            if hint.node_id in hints or len(hints) < _MAX_HINTED_NODES:
                hints[hint.node_id] = (*hints.get(hint.node_id, ()), hint)
        self._hints = hints
        self._hint(self._wanted())
        return told.complete

    def expire(self) -> None:
        """Stop following what has been out of use for long enough."""
        now = self._now()
        self._forget(self._list.expire(now))
        for followed in self._list:
            if followed.forget_sets_unused_since(now - self._settings.untrack_unused_after_s):
                self._tell(followed)

    async def _keep_refreshing(self) -> None:
        while True:
            is_complete = await self.refresh()
            period_s = self._settings.validator_refresh_period_s
            await asyncio.sleep(period_s if is_complete else min(_RETRY_S, period_s))

    async def _keep_discovering(self) -> None:
        """Ask at once and until it works; then at each refresh while a wanted node is not connected.

        A newly named subnet with nodes of which no hint is known does not wait for the next refresh.
        """
        period_s = self._settings.validator_refresh_period_s
        is_complete = False
        while True:
            if not is_complete or any(not self._peers.is_connected(node_id) for node_id in self._wanted()):
                self._strangers.clear()
                is_complete = await self.discover()
            if not self._hints:
                await asyncio.sleep(_RETRY_S)
                continue
            await asyncio.sleep(min(_DISCOVERY_GAP_S, period_s))
            await self._strangers_or(max(0.0, period_s - _DISCOVERY_GAP_S))

    async def _strangers_or(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._strangers.wait()
        except TimeoutError:
            return

    async def _keep_expiring(self) -> None:
        while True:
            await asyncio.sleep(min(_EXPIRY_CHECK_S, self._settings.untrack_unused_after_s))
            self.expire()

    async def _refresh_one(self, followed: TrackedSubnet, height: int, gate: asyncio.Semaphore) -> bool:
        subnet_id = followed.subnet_id
        try:
            async with gate, asyncio.timeout(_SET_TIMEOUT_S):
                validators = await self._sources.sets.at(subnet_id, height, named=False, origin=CallOrigin.DAEMON)
        except (NodeUnavailable, HeightTooNew, TimeoutError) as error:
            extra = {"subnet_id": id_text(subnet_id), "reason": str(error) or type(error).__name__}
            log.warning("a followed validator set could not be refreshed", extra=extra)
            return False
        if self._list.get(subnet_id) is followed and followed.refresh(validators):
            self._tell(followed)
        return True

    async def _all_validators(self, height: int) -> set[NodeID]:
        """Return the validators of all subnets where a node can tell, and in any case all wanted nodes."""
        known = set(self._wanted())
        try:
            sets = await self._sources.platform.all_validators_at(height, origin=CallOrigin.DAEMON)
        except (NodeUnavailable, RpcRefusal):
            return known
        known.update(entry.node_id for entries in sets.values() for entry in entries)
        known.discard(EMPTY_NODE_ID)
        return known

    def _wanted(self) -> Iterator[NodeID]:
        return (node_id for followed in self._list for node_id in followed.wanted)

    def _tell(self, followed: TrackedSubnet) -> None:
        self._peers.track(followed.subnet_id, followed.wanted)
        self._hint(followed.wanted)
        if any(node_id not in self._hints for node_id in followed.wanted):
            self._strangers.set()

    def _hint(self, node_ids: Iterable[NodeID]) -> None:
        for node_id in node_ids:
            for hint in self._hints.get(node_id, ()):
                if not self._peers.is_connected(node_id):
                    self._peers.add_hint(hint.node_id, hint.host, hint.port)

    def _forget(self, subnet_ids: Iterable[SubnetID]) -> None:
        for subnet_id in subnet_ids:
            self._peers.untrack(subnet_id)
            self._on_forgotten(subnet_id)

    def _is_connected(self, validator: Validator) -> bool:
        return any(self._peers.is_connected(node_id) for node_id in validator.node_ids)

    def _readiness(self, followed: TrackedSubnet) -> SubnetReadiness:
        validators = followed.validators
        if validators is None:
            return SubnetReadiness(followed.subnet_id, False, 0, 0, ())
        missing = [one for one in validators.validators if not self._is_connected(one)]
        connected = sum(one.weight for one in validators.validators) - sum(one.weight for one in missing)
        missing.sort(key=lambda one: one.weight, reverse=True)
        return SubnetReadiness(followed.subnet_id, True, connected, validators.total_weight, tuple(missing))


@dataclass(frozen=True, slots=True)
class TrackerSources:
    """Where FollowedSubnets learns who validates, and where they are."""

    heights: ProposedHeight
    sets: ValidatorSets
    platform: PlatformClient
    info: InfoClient
