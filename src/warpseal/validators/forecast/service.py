"""Forecasts of subnets: on request, kept for seconds, and of the tracked ones in the background.

A validator counts as answering if its node was connected to this daemon at some time of the last day (by whole hours):
every connected node answers pings, whether or not a signature was asked of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from warpseal.ledger.params import DAY_S
from warpseal.node.p_chain import CurrentValidation
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.throttle import Throttle
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import HeightTooNew, UnknownSubnet
from warpseal.validators.forecast.fee_curve import share_fee_curve
from warpseal.validators.forecast.outlook import ForecastValidator, QuorumOutlook, forecast_quorum
from warpseal.validators.forecast.readings import FeeReading, ForecastReader, SubnetReading
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import ValidatorSettings
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text

log = logging.getLogger(__name__)

_MAX_FORECASTS: Final = 256
# The first forecast computes for a second; connections to validators come first.
_FIRST_S: Final = 10.0
# After a failure, and while validators were not observed yet.
_RETRY_S: Final = 5.0
# While the excess changes with each block, every forecast computes for so long: it may take 5 % of a core.
_REST_FACTOR: Final = 20
_MAX_CONCURRENCY: Final = 4

ConnectedSince = Callable[[Iterable[NodeID], float], Awaitable[Mapping[NodeID, bool]]]


class SubnetKind(StrEnum):
    """How the validators of a subnet stay: with balances, or with stakes that end."""

    L1 = "l1"
    PERMISSIONED = "permissioned"
    PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class SubnetForecast:
    """The forecast of a subnet. fee: of L1s. is_answering_known: whether the daemon observed the validators."""

    subnet_id: SubnetID
    kind: SubnetKind
    fee: FeeReading | None
    outlook: QuorumOutlook
    is_answering_known: bool


class ForecastService:
    """Forecasts of any subnet. Used from one event loop.

    connected_since: function that returns whether each observed node was connected since a Unix time.
    is_unreachable: function that returns whether the daemon tracks a subnet and has failed to connect to its validator,
        or has no address of it.
    executor: threads that compute the forecasts.
    unix_clock: Unix time in seconds.
    now: clock in seconds that never goes back.
    cpu_clock: CPU seconds of the calling thread.
    sleep: pause between the forecasts in the background.
    """

    def __init__(
        self,
        reader: ForecastReader,
        chains: ChainLookup,
        heights: ProposedHeight,
        sets: ValidatorSets,
        connected_since: ConnectedSince,
        is_unreachable: Callable[[NodeID, SubnetID], bool],
        settings: ValidatorSettings,
        *,
        executor: Executor | None = None,
        unix_clock: Callable[[], float] = time.time,
        now: Callable[[], float] | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reader = reader
        self._chains = chains
        self._heights = heights
        self._sets = sets
        self._connected_since = connected_since
        self._is_unreachable = is_unreachable
        self._ttl_s = settings.forecast_ttl_s
        self._refresh_s = settings.forecast_refresh_s
        self._stale_s = settings.forecast_stale_after_s
        self._executor = executor
        self._unix_clock = unix_clock
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._tracked = tuple(
            subnet for subnet in dict.fromkeys(settings.tracked_subnet_ids) if subnet != PRIMARY_NETWORK
        )
        self._cache: TtlCache[SubnetID, SubnetForecast] = TtlCache(_MAX_FORECASTS, now)
        self._latest: TtlCache[SubnetID, SubnetForecast] = TtlCache(max(1, len(self._tracked)), now)
        self._flights: SingleFlight[SubnetID, SubnetForecast] = SingleFlight()
        # CPU time of the last forecast of each tracked subnet.
        self._computing_s: dict[SubnetID, float] = {}

    async def forecast(self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER) -> SubnetForecast:
        """Return the forecast of a subnet, a few seconds old at most. Raises UnknownSubnet, NodeUnavailable."""
        cached = self._cache.get(subnet_id)
        if cached is not None:
            return cached.value
        return await self._flights.run(subnet_id, lambda: self._make(subnet_id, origin))

    def latest(self) -> Sequence[SubnetForecast]:
        """Return the last forecast of each tracked subnet, without those that are older than some minutes."""
        entries = (self._latest.get(subnet_id) for subnet_id in self._tracked)
        return tuple(cached.value for cached in entries if cached is not None)

    async def run(self) -> None:
        """Refresh the forecasts of the tracked subnets until cancelled. No node is called if there are none."""
        limit = AsyncSemaphore(_MAX_CONCURRENCY)
        async with asyncio.TaskGroup() as tasks:
            for subnet_id in self._tracked:
                tasks.create_task(self._keep_refreshing(subnet_id, limit))

    async def _keep_refreshing(self, subnet_id: SubnetID, limit: asyncio.Semaphore) -> None:
        await self._sleep(min(_FIRST_S, self._refresh_s))
        while True:
            is_complete = False
            try:
                async with limit:
                    is_complete = (await self.forecast(subnet_id, CallOrigin.DAEMON)).is_answering_known
            except (NodeUnavailable, UnknownSubnet) as error:
                log.debug("forecast failed", extra={"subnet_id": id_text(subnet_id), "reason": str(error)})
            await self._sleep(self._rest_s(self._refresh_s if is_complete else min(_RETRY_S, self._refresh_s)))

    def _rest_s(self, least_s: float) -> float:
        return max(least_s, _REST_FACTOR * sum(self._computing_s.values()))

    async def _make(self, subnet_id: SubnetID, origin: CallOrigin) -> SubnetForecast:
        try:
            kind = await self._kind_of(subnet_id)
            reading = await self._reader.read(subnet_id, origin)
            keyed = await self._keyed_stakes(subnet_id, reading.validations, origin)
        except (RpcRefusal, HeightTooNew):
            raise NodeUnavailable("the validators of a subnet") from None
        connected = await self._connected_since(
            [validation.node_id for validation in reading.validations], self._unix_clock() - DAY_S
        )
        throttle = Throttle(math.inf)
        try:
            outlook, computing_s = await asyncio.get_running_loop().run_in_executor(
                self._executor, partial(_measured_outlook, self._cpu_clock, reading, keyed, connected, throttle.step)
            )
        finally:
            # A stop of the daemon would wait for the thread.
            throttle.cancel()
        fee = reading.fee if kind is SubnetKind.L1 else None
        forecast = SubnetForecast(subnet_id, kind, fee, outlook, self._is_observed(subnet_id, outlook, connected))
        self._cache.put(subnet_id, forecast, self._ttl_s)
        if subnet_id in self._tracked:
            self._computing_s[subnet_id] = computing_s
            self._latest.put(subnet_id, forecast, self._stale_s + self._rest_s(0.0))
        return forecast

    def _is_observed(self, subnet_id: SubnetID, outlook: QuorumOutlook, connected: Mapping[NodeID, bool]) -> bool:
        """Return whether the weight that answered is known: each validator that can sign was observed, or sought."""
        signers = (row.validator.node_id for row in outlook.validators if row.validator.can_sign)
        return bool(connected) and all(
            node_id in connected or self._is_unreachable(node_id, subnet_id) for node_id in signers
        )

    async def _kind_of(self, subnet_id: SubnetID) -> SubnetKind:
        if subnet_id == PRIMARY_NETWORK:
            return SubnetKind.PRIMARY
        return SubnetKind.L1 if (await self._chains.subnet(subnet_id)).is_l1 else SubnetKind.PERMISSIONED

    async def _keyed_stakes(
        self, subnet_id: SubnetID, validations: Iterable[CurrentValidation], origin: CallOrigin
    ) -> frozenset[NodeID]:
        """Return the nodes that have a BLS key by the set at the proposed height; none if all validators are of L1s."""
        if all(validation.is_l1 for validation in validations):
            return frozenset()
        height = await self._heights.first()
        return frozenset((await self._sets.at(subnet_id, height, is_chosen=False, origin=origin)).node_ids)


def _measured_outlook(
    cpu_clock: Callable[[], float],
    reading: SubnetReading,
    keyed: frozenset[NodeID],
    connected: Mapping[NodeID, bool],
    step: Callable[[], None],
) -> tuple[QuorumOutlook, float]:
    """Return the forecast, and the CPU time that it took."""
    started_at = cpu_clock()
    return _outlook(reading, keyed, connected, step), cpu_clock() - started_at


def _outlook(
    reading: SubnetReading, keyed: frozenset[NodeID], connected: Mapping[NodeID, bool], step: Callable[[], None]
) -> QuorumOutlook:
    """Return the forecast. If the number of active validators is unknown, the price stays as it is."""
    validators = [
        ForecastValidator(
            id=validation.validation_id,
            node_id=validation.node_id,
            weight=validation.weight + validation.delegated,
            balance_navax=validation.balance,
            end_s=validation.end_unix_s,
            has_key=validation.is_l1 or validation.node_id in keyed,
            has_answered=connected.get(validation.node_id, False),
        )
        for validation in reading.validations
    ]
    fee, config, state = reading.fee, reading.fee.config, reading.fee.state
    if all(validator.balance_navax is None for validator in validators):
        return forecast_quorum(validators, state.time_s)
    today = share_fee_curve(config, config.target if fee.active is None else fee.active, state.excess)
    at_capacity = share_fee_curve(config, config.capacity, state.excess)
    return forecast_quorum(validators, state.time_s, today, at_capacity, step=step)
