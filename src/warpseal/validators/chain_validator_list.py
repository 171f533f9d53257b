"""The current validators of a chain and their uptimes, by a node of the chain or by the daemon.

Source of truth: subnet-evm's validators API, platform.getCurrentValidators. The daemon's own list
has the P-Chain's validators; their connections and uptimes are the daemon's observations, just as
every node lists its own observations.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from warpseal.errors import CallRefused
from warpseal.node.chain_apis import ChainValidatorsClient, ListedValidator
from warpseal.node.p_chain import CurrentValidation
from warpseal.node.platform import PlatformClient
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import loop_time
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.validators.balances import describe_underfunded, underfunded_validations
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import HeightTooNew, UnknownChain
from warpseal.validators.settings import ValidatorSettings
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.validators.uptime.node_uptime import Uptime
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import MissingSigner

log = logging.getLogger(__name__)

S = TypeVar("S")

RETRY_S: Final = 10.0
"""Seconds until nodes that never replied are called again, if the daemon has a list of its own."""
STALE_S: Final = 60.0
"""Seconds for which current validations are used while no node replies."""
_FLOAT32_DIGITS: Final = 9
_MAX_CONCURRENCY: Final = 4

Validations = tuple[CurrentValidation, ...]


class CurrentValidations:
    """The current validations of subnets, cached for seconds; callers share a call to a node.

    Used from one event loop, for a set of subnets that the configuration bounds.
    on_update: function that receives each reply of the nodes.
    ttl_s: seconds for which a reply is used without a new call.
    min_balance_navax: balance below which an L1 validator is underfunded.
    now: clock in seconds that never goes back; by default the event loop's.
    """

    def __init__(
        self,
        platform: PlatformClient,
        on_update: Callable[[Validations], None] = lambda validations: None,
        *,
        ttl_s: float = 10.0,
        min_balance_navax: int = 0,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._platform = platform
        self._on_update = on_update
        self._ttl_s = ttl_s
        self._min_balance_navax = min_balance_navax
        self._now = now or loop_time
        self._latest: dict[SubnetID, tuple[Validations, float]] = {}
        self._flights: SingleFlight[SubnetID, Validations] = SingleFlight()

    async def of(self, subnet_id: SubnetID) -> Validations:
        """Return a subnet's validations, at most `ttl_s` old, or `STALE_S` while no node replies.

        Raises NodeUnavailable.
        """
        if (validations := self._younger(subnet_id, self._ttl_s)) is not None:
            return validations
        try:
            return await self._flights.run(
                subnet_id, lambda: self._fetch(subnet_id, CallOrigin.CALLER)
            )
        except NodeUnavailable:
            if (validations := self._younger(subnet_id, STALE_S)) is not None:
                return validations
            raise

    def latest(self, subnet_id: SubnetID) -> Validations | None:
        """Return the last reply about a subnet without a call; None if it is over a minute old."""
        return self._younger(subnet_id, STALE_S)

    def underfunded(self, subnet_id: SubnetID) -> tuple[MissingSigner, ...]:
        """Return the L1 validators of a subnet that are inactive or nearly drained, as far as
        known.
        """
        validations = self.latest(subnet_id) or ()
        underfunded = underfunded_validations(validations, self._min_balance_navax)
        return tuple(map(describe_underfunded, underfunded))

    async def refresh(self, subnet_id: SubnetID) -> None:
        """Call a node now, before a caller waits for it. Raises NodeUnavailable."""
        await self._flights.run(subnet_id, lambda: self._fetch(subnet_id, CallOrigin.DAEMON))

    async def _fetch(self, subnet_id: SubnetID, origin: CallOrigin) -> Validations:
        validations = await self._platform.current_validations(subnet_id, origin=origin)
        self._latest[subnet_id] = validations, self._now()
        self._on_update(validations)
        return validations

    def _younger(self, subnet_id: SubnetID, than_s: float) -> Validations | None:
        validations, at = self._latest.get(subnet_id, (None, 0.0))
        return validations if self._now() - at < than_s else None


class LocalView:
    """The validators of subnets as this daemon sees them.

    No node lists the Primary Network's in this form.
    """

    def __init__(
        self,
        chains: ChainLookup,
        current: CurrentValidations,
        is_connected: Callable[[NodeID], bool],
        uptime: Callable[[CurrentValidation], Uptime],
    ) -> None:
        self._chains = chains
        self._current = current
        self._is_connected = is_connected
        self._uptime = uptime

    async def subnet_of(self, chain_id: ChainID) -> SubnetID | None:
        """Return the subnet that validates a chain.

        None: the Primary Network validates the chain, or no subnet does. Raises NodeUnavailable.
        """
        try:
            subnet_id = await self._chains.subnet_of(chain_id)
        except UnknownChain:
            return None
        except RpcRefusal:
            raise NodeUnavailable("platform.validatedBy") from None
        return None if subnet_id == PRIMARY_NETWORK else subnet_id

    async def list_validators(
        self, subnet_id: SubnetID, node_ids: Sequence[NodeID]
    ) -> tuple[ListedValidator, ...]:
        """Return the validators with these node ids, or all if none is given.

        Raises NodeUnavailable.
        """
        requested_ids = frozenset(node_ids)
        current = await self._current.of(subnet_id)
        return tuple(
            self._entry(validation)
            for validation in current
            if not requested_ids or validation.node_id in requested_ids
        )

    def _entry(self, validation: CurrentValidation) -> ListedValidator:
        uptime = self._uptime(validation)
        return ListedValidator(
            validation_id=id_text(validation.validation_id),
            node_id=node_id_text(validation.node_id),
            weight=validation.weight,
            start_timestamp=validation.start_unix_s,
            is_active=validation.is_active,
            is_l1_validator=validation.is_l1,
            # Nodes never list an inactive validator as connected.
            is_connected=validation.is_active and self._is_connected(validation.node_id),
            uptime_percentage=format_percentage(uptime.percentage),
            uptime_seconds=uptime.connected_s,
        )


class ChainValidatorList:
    """The validators of one chain.

    nodes: configured nodes of the chain, possibly none.
    now: clock in seconds that never goes back.
    """

    def __init__(
        self,
        chain_id: ChainID,
        nodes: ChainValidatorsClient,
        local_view: LocalView,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._chain_id = chain_id
        self._nodes = nodes
        self._local_view = local_view
        self._now = now or loop_time
        self._not_before = float("-inf")

    async def locally_listed_subnet(self) -> SubnetID | None:
        """Return the subnet that only the daemon lists; None if a node lists it.

        Raises NodeUnavailable.
        """
        if await self._nodes.are_served() and self._nodes.has_answered:
            return None
        return await self._local_view.subnet_of(self._chain_id)

    async def are_served(self) -> bool:
        """Return whether the validators can be listed.

        True also while no node says which subnet validates the chain.
        """
        try:
            if await self._local_view.subnet_of(self._chain_id) is not None:
                return True
        except NodeUnavailable:
            return True
        return await self._nodes.are_served()

    async def current(self, node_ids: Sequence[NodeID]) -> tuple[ListedValidator, ...] | None:
        """Return the validators with these node IDs, or all without IDs; None if there is no list.

        Raises CallRefused with a node's message, and NodeUnavailable if a node that serves them did
        not answer.
        """
        listed = await self._list_by_nodes(node_ids)
        if listed is not None:
            return listed
        try:
            subnet_id = await self._local_view.subnet_of(self._chain_id)
            if subnet_id is None:
                return None
            return await self._local_view.list_validators(subnet_id, node_ids)
        except NodeUnavailable as error:
            raise CallRefused(f"failed to get current validator set: {error}") from None

    async def _list_by_nodes(
        self, node_ids: Sequence[NodeID]
    ) -> tuple[ListedValidator, ...] | None:
        """Return the list of a node; None if no node serves it.

        Raises CallRefused, NodeUnavailable.

        A node's measurements are never mixed with the daemon's: once a node has answered, its
        failure is an error.
        """
        if not self._nodes.has_answered and self._now() < self._not_before:
            return None
        try:
            return await self._nodes.current(node_ids)
        except NodeUnavailable:
            if self._nodes.has_answered or await self._local_view.subnet_of(self._chain_id) is None:
                raise
            self._not_before = self._now() + RETRY_S
            return None


class ValidatorRefresher:
    """Refreshes what callers would otherwise wait for: validations and chains of subnets.

    The subnets are the tracked ones, the Primary Network, and those of configured chains without a
    node that lists them. Their uptimes can then be counted, and the subnet of each of their chains
    is known while no node answers. One refresh of a subnet calls the P-Chain once, and only a few
    refreshes run at the same time.
    on_blockchain: function that takes each blockchain of a tracked subnet at every refresh.
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
        limit = asyncio.Semaphore(_MAX_CONCURRENCY)
        # Configured chains have nodes of their own: calls to the P-Chain's nodes never wait for one
        # that hangs.
        configured_limit = asyncio.Semaphore(_MAX_CONCURRENCY)
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

    async def _repeat(
        self, limit: asyncio.Semaphore, refresh: Callable[[S], Awaitable[object]], subject: S
    ) -> None:
        while True:
            try:
                async with limit:
                    await refresh(subject)
            except (NodeUnavailable, HeightTooNew, RpcRefusal) as error:
                log.debug("validator refresh failed", extra={"reason": str(error)})
            await asyncio.sleep(self._period_s)


def format_percentage(percentage: float) -> int | float:
    """Return a percentage as nodes print it: the shortest decimal of a 32-bit float.

    A whole number has no point.
    """
    rounded = _as_float32(percentage)
    if rounded.is_integer():
        return int(rounded)
    texts = (f"{rounded:.{digits}g}" for digits in range(1, _FLOAT32_DIGITS + 1))
    return next(float(text) for text in texts if _as_float32(float(text)) == rounded)


def _as_float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
