"""Gives the peer network the validators of the tracked subnets, and hints of their addresses.

Source of truth: for the validators, the P-Chain at the proposed height; for addresses, hints of the
info nodes (gossip and configured addresses belong to the peer network itself).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from warpseal.node.info import InfoClient, PeerHint
from warpseal.node.platform import PlatformClient
from warpseal.runtime.process import error_words
from warpseal.runtime.ttl_cache import loop_time
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.validators.errors import HeightTooNew
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import ValidatorSettings
from warpseal.validators.tracking_state import TrackedSubnet, TrackedSubnets
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID, id_text
from warpseal.warp.validator_set import (
    DEFAULT_QUORUM,
    CanonicalValidatorSet,
    Validator,
    required_weight,
    weight_text,
)

if TYPE_CHECKING:
    from warpseal.peers.network import PeerNetwork

log = logging.getLogger(__name__)

_RETRY_S: Final = 2.0
_DISCOVERY_GAP_S: Final = 5.0
_SET_TIMEOUT_S: Final = 30.0
_MAX_CONCURRENT_SETS: Final = 4
_MAX_HINTED_NODES: Final = 20_000
_EXPIRY_CHECK_S: Final = 5.0
_EXTEND_S: Final = 60.0


class SubnetReadiness(Struct, frozen=True):
    """The connected part of a subnet.

    is_known: the validator set was fetched; the weights are 0 until then.
    missing: validators without a connected node, heaviest first.
    failure: reason if no set could be read for as long as a height may be stale; the weights come
        from the last set.
    """

    subnet_id: SubnetID
    is_known: bool
    connected: int
    total: int
    missing: tuple[Validator, ...]
    failure: str | None = None

    @property
    def keyless(self) -> int:
        """Weight without a BLS key: that of inactive L1 validators and of legacy validators."""
        return self.total - self.connected - sum(validator.weight for validator in self.missing)

    @property
    def needed(self) -> int:
        """Connected weight that is enough to sign."""
        return required_weight(self.total, DEFAULT_QUORUM)

    @property
    def is_ready(self) -> bool:
        """Whether enough weight is connected for the validators to sign."""
        return self.failure is None and self.total > 0 and self.connected >= self.needed

    @property
    def shortfall(self) -> str | None:
        """The reason why the subnet is not ready; None if it is."""
        is_primary = self.subnet_id == PRIMARY_NETWORK
        subject = "Primary Network" if is_primary else f"subnet {id_text(self.subnet_id)}"
        if not self.is_known:
            return f"{subject}: its validators are not known yet"
        if self.failure is not None:
            return f"{subject}: its validator set cannot be read: {self.failure}"
        if self.is_ready:
            return None
        connected, needed, total, keyless = (
            weight_text(weight, is_stake=is_primary)
            for weight in (self.connected, self.needed, self.total, self.keyless)
        )
        part = f", {keyless} of it inactive or without a BLS key" if self.keyless else ""
        return f"{subject}: connected weight {connected} of {needed} needed (total {total}{part})"


class SubnetTracker:
    """Tracks the Primary Network, the configured subnets, and for a time those of requests."""

    def __init__(
        self,
        heights: ProposedHeight,
        sets: ValidatorSets,
        platform: PlatformClient,
        info: InfoClient,
        peers: PeerNetwork,
        settings: ValidatorSettings,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._heights = heights
        self._sets = sets
        self._platform = platform
        self._info = info
        self._peers = peers
        self._settings = settings
        self._now = now or loop_time
        pinned = dict.fromkeys((PRIMARY_NETWORK, *settings.tracked_subnet_ids))
        self._tracked = TrackedSubnets(
            pinned,
            max_on_request=settings.max_tracked_by_request,
            keep_unused_s=settings.untrack_unused_after_s,
        )
        self._hints: dict[NodeID, tuple[PeerHint, ...]] = {}
        self._unhinted = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []

    def watch(self, refreshed: Callable[[], None]) -> None:
        """Call `refreshed` after each refresh of the tracked sets."""
        self._watchers.append(refreshed)

    @contextmanager
    def track(self, subnet_id: SubnetID, validators: CanonicalValidatorSet) -> Iterator[None]:
        """Track a subnet, and the nodes of this set, inside the block and some time after it."""
        subnet, dropped = self._tracked.track(subnet_id, self._now())
        self._untrack(dropped)
        if subnet.enter(validators, self._now()):
            self._update_peers(subnet)
        try:
            yield
        finally:
            subnet.leave(validators, self._now())

    async def extend(self, subnet_id: SubnetID) -> None:
        """Track a subnet for a few more minutes. Raises NodeUnavailable, HeightTooNew."""
        subnet = self._tracked.get(subnet_id)
        if subnet is not None and self._now() - subnet.used_at < _EXTEND_S:
            return
        height = await self._heights.first()
        validators = await self._sets.at(
            subnet_id, height, is_chosen=False, origin=CallOrigin.DAEMON
        )
        with self.track(subnet_id, validators):
            pass

    def all_readiness(self) -> Iterator[SubnetReadiness]:
        """Yield the connected part of every tracked subnet, the Primary Network first."""
        return (self._readiness(subnet) for subnet in tuple(self._tracked))

    def readiness(self) -> tuple[SubnetReadiness, ...]:
        """Return the connected part of the Primary Network and of each configured subnet."""
        return tuple(self._readiness(subnet) for subnet in self._tracked.pinned)

    def readiness_of(self, subnet_id: SubnetID) -> SubnetReadiness | None:
        """Return the connected part of the Primary Network or of a configured subnet.

        None for another subnet.
        """
        subnets = (subnet for subnet in self._tracked.pinned if subnet.subnet_id == subnet_id)
        return next(map(self._readiness, subnets), None)

    def validators_of(self, subnet_id: SubnetID) -> CanonicalValidatorSet | None:
        """Return the set by which the connected weight of a tracked subnet is counted, if any."""
        subnet = self._tracked.get(subnet_id)
        return None if subnet is None else subnet.validators

    async def run(self) -> None:
        """Refresh sets, look up hints and expire subnets until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_refreshing())
            tasks.create_task(self._keep_discovering())
            while True:
                await asyncio.sleep(min(_EXPIRY_CHECK_S, self._settings.untrack_unused_after_s))
                self.expire()

    async def refresh(self) -> bool:
        """Fetch every tracked set at the proposed height. Return whether all were fetched."""
        try:
            height = await self._heights.first()
        except NodeUnavailable:
            return False
        limit = asyncio.Semaphore(_MAX_CONCURRENT_SETS)
        subnets = tuple(self._tracked)
        outcomes = await asyncio.gather(
            *(self._refresh_subnet(subnet, height, limit) for subnet in subnets)
        )
        self._peers.set_validators(await self._all_validators(height))
        self._pass_hints(self._node_ids())
        for refreshed in self._watchers:
            refreshed()
        return all(outcomes)

    async def discover(self) -> bool:
        """Ask the info nodes for peers and pass on hints of validators.

        Return whether every node replied.
        """
        try:
            peers = await self._info.peers()
        except NodeUnavailable:
            return False
        hints: dict[NodeID, tuple[PeerHint, ...]] = {}
        for hint in peers.hints:
            if hint.node_id in hints or len(hints) < _MAX_HINTED_NODES:
                hints[hint.node_id] = (*hints.get(hint.node_id, ()), hint)
        self._hints = hints
        self._pass_hints(self._node_ids())
        return peers.complete

    def expire(self) -> None:
        """Untrack the subnets and sets that have been unused for long enough."""
        now = self._now()
        self._untrack(self._tracked.expire(now))
        for subnet in self._tracked:
            if subnet.drop_sets_unused_since(now - self._settings.untrack_unused_after_s):
                self._update_peers(subnet)

    async def _keep_refreshing(self) -> None:
        while True:
            is_complete = await self.refresh()
            period_s = self._settings.validator_refresh_period_s
            await asyncio.sleep(period_s if is_complete else min(_RETRY_S, period_s))

    async def _keep_discovering(self) -> None:
        """Discover until it succeeds; then at each refresh while a validator is not connected.

        A newly named subnet with nodes without hints does not wait for the next refresh.
        """
        period_s = self._settings.validator_refresh_period_s
        is_complete = False
        while True:
            if not is_complete or any(
                not self._peers.is_connected(node_id) for node_id in self._node_ids()
            ):
                self._unhinted.clear()
                is_complete = await self.discover()
            if not self._hints:
                await asyncio.sleep(_RETRY_S)
                continue
            await asyncio.sleep(min(_DISCOVERY_GAP_S, period_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, period_s - _DISCOVERY_GAP_S)):
                    await self._unhinted.wait()

    async def _refresh_subnet(
        self, subnet: TrackedSubnet, height: int, limit: asyncio.Semaphore
    ) -> bool:
        subnet_id = subnet.subnet_id
        try:
            async with limit, asyncio.timeout(_SET_TIMEOUT_S):
                validators = await self._sets.at(
                    subnet_id, height, is_chosen=False, origin=CallOrigin.DAEMON
                )
        except (NodeUnavailable, HeightTooNew, TimeoutError) as error:
            reason = str(error) or error_words(error)
            level = logging.WARNING if subnet.fail(reason, self._now()) else logging.DEBUG
            log.log(
                level,
                "validator set refresh failed",
                extra={"subnet_id": id_text(subnet_id), "reason": reason},
            )
            return False
        if subnet_id == PRIMARY_NETWORK:
            self._peers.set_weights(
                {
                    node_id: validator.weight // len(validator.node_ids)
                    for validator in validators.validators
                    for node_id in validator.node_ids
                }
            )
        if self._tracked.get(subnet_id) is subnet and subnet.refresh(validators):
            self._update_peers(subnet)
        return True

    async def _all_validators(self, height: int) -> set[NodeID]:
        """Return the validators of all subnets if a node lists them, else the tracked ones'."""
        node_ids = set(self._node_ids())
        try:
            sets = await self._platform.all_validators_at(height, origin=CallOrigin.DAEMON)
        except (NodeUnavailable, RpcRefusal):
            return node_ids
        node_ids.update(entry.node_id for entries in sets.values() for entry in entries)
        node_ids.discard(EMPTY_NODE_ID)
        return node_ids

    def _node_ids(self) -> Iterator[NodeID]:
        return (node_id for subnet in self._tracked for node_id in subnet.node_ids)

    def _update_peers(self, subnet: TrackedSubnet) -> None:
        self._peers.track(subnet.subnet_id, subnet.node_ids)
        self._pass_hints(subnet.node_ids)
        if any(node_id not in self._hints for node_id in subnet.node_ids):
            self._unhinted.set()

    def _pass_hints(self, node_ids: Iterable[NodeID]) -> None:
        for node_id in node_ids:
            for hint in self._hints.get(node_id, ()):
                if not self._peers.is_connected(node_id):
                    self._peers.add_hint(hint.node_id, hint.host, hint.port)

    def _untrack(self, subnet_ids: Iterable[SubnetID]) -> None:
        for subnet_id in subnet_ids:
            self._peers.untrack(subnet_id)

    def _readiness(self, subnet: TrackedSubnet) -> SubnetReadiness:
        validators = subnet.validators
        if validators is None:
            return SubnetReadiness(subnet.subnet_id, False, 0, 0, ())
        missing = [
            validator
            for validator in validators.validators
            if not any(map(self._peers.is_connected, validator.node_ids))
        ]
        all_weight = sum(validator.weight for validator in validators.validators)
        connected = all_weight - sum(validator.weight for validator in missing)
        missing.sort(key=lambda validator: validator.weight, reverse=True)
        total, failure = validators.total_weight, self._failure(subnet)
        return SubnetReadiness(subnet.subnet_id, True, connected, total, tuple(missing), failure)

    def _failure(self, subnet: TrackedSubnet) -> str | None:
        """Return why the set of a subnet cannot be read; None if it could be a short time ago.

        Returns None while the height is stale: no set can be read then, and the height's own
        check reports it.
        """
        since = subnet.failing_since
        is_stale = since is not None and self._now() - since >= self._settings.height_stale_after_s
        return subnet.failure if is_stale and self._heights.is_fresh else None
