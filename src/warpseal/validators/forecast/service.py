"""Forecasts of subnets: on request, kept for seconds, and of the tracked ones in the background.

A validator counts as answering if its node was connected to this daemon at some time of the last
day (by whole hours): every connected node answers pings, whether or not a signature was asked of
it.

Source of truth for validators and the fee: platform.getCurrentValidators and
platform.getValidatorFeeState of a node. Nodes do not return the number of active L1 validators: the
index has it, or it follows from the excess, which moves by the validators above the target each
second (ACP-77).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from enum import StrEnum
from typing import Final

from msgspec import Struct

from warpseal.ledger.chain_time import l1_fee_price
from warpseal.ledger.params import DAY_S, L1FeeConfig
from warpseal.node.p_chain import CurrentValidation, L1FeeState
from warpseal.node.platform import PlatformClient
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.interfaces import PrimaryNetworkIndex
from warpseal.resources.queries import BlockQuery, PageRequest, TimeRange
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.throttle import Throttle
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import HeightTooNew, UnknownSubnet
from warpseal.validators.forecast.fee_curve import share_fee_curve
from warpseal.validators.forecast.outlook import ForecastValidator, QuorumOutlook, forecast_quorum
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import ValidatorSettings
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text

log = logging.getLogger(__name__)

FEE_STATE: Final = "platform.getValidatorFeeState"
_CONFIG_TTL_S: Final = 600.0
_MAX_STATES: Final = 16
# An average over a longer time says nothing about today.
_MAX_SLOPE_S: Final = DAY_S
_MAX_INDEX_AGE_S: Final = 60
# The P-Chain may accept a block between two calls, but hardly ever between each of them.
_ATTEMPTS: Final = 3
_MOST: Final = 2**64 - 1
_MAX_FORECASTS: Final = 256
# With more of them, the thread would compute for more than a tenth of a second.
_MAX_VALIDATORS: Final = 2_500
# Connections to validators come first.
_FIRST_S: Final = 10.0
# After a failure, and while validators were not observed yet.
_RETRY_S: Final = 5.0
# Forecasts in the background take 5 % of a core at most: new curves are made for each excess.
_REST_FACTOR: Final = 20
_MAX_CONCURRENCY: Final = 4

ConnectedSince = Callable[[Iterable[NodeID], float], Awaitable[Mapping[NodeID, bool]]]


class ActiveSource(StrEnum):
    """The source of the number of active L1 validators."""

    INDEX = "index"
    SLOPE = "slope"
    MINIMUM = "minimum"
    UNKNOWN = "unknown"


class FeeReading(Struct, frozen=True):
    """The fee at the time of a reading.

    active: number of validators that pay the fee; None if it is unknown, or MINIMUM, up to the
        target.
    """

    config: L1FeeConfig
    state: L1FeeState
    active: int | None
    source: ActiveSource


class SubnetReading(Struct, frozen=True):
    """The current validations of a subnet, and the fee, at the chain time `fee.state.time_s`."""

    validations: tuple[CurrentValidation, ...]
    fee: FeeReading


class FeeStates:
    """The last fee states, and the number of active L1 validators that follows from two of them.

    Pure.
    """

    def __init__(self) -> None:
        self._states: deque[L1FeeState] = deque(maxlen=_MAX_STATES)

    def add(self, state: L1FeeState) -> None:
        """Add a state, of any time."""
        if state not in self._states:
            self._states.append(state)

    def active_before(self, state: L1FeeState, config: L1FeeConfig) -> int | None:
        """Return the mean number of active validators since the newest earlier state, rounded.

        None if there is none within a day, if the excess was cut off at 0 or at 2^64 - 1, or if no
        network can have the number.
        """
        earlier = [
            other for other in self._states if 0 < state.time_s - other.time_s <= _MAX_SLOPE_S
        ]
        if not earlier:
            return None
        last = max(earlier, key=lambda other: other.time_s)
        if not (0 < last.excess < _MOST and 0 < state.excess < _MOST):
            return None
        seconds = state.time_s - last.time_s
        active = config.target + (2 * (state.excess - last.excess) + seconds) // (2 * seconds)
        return active if 0 <= active <= config.capacity else None


class ForecastReader:
    """Reads the validations of a subnet and the fee.

    index: function that returns the index of the primary chains; None while there is none.
    """

    def __init__(
        self, platform: PlatformClient, index: Callable[[], PrimaryNetworkIndex | None]
    ) -> None:
        self._platform = platform
        self._index = index
        self._states = FeeStates()
        self._config: TtlCache[None, L1FeeConfig] = TtlCache(1)
        # Height of the last indexed block, and the number after it.
        self._indexed: tuple[int, int] | None = None

    async def read(self, subnet_id: SubnetID, origin: CallOrigin) -> SubnetReading:
        """Return the validations and the fee, of one chain time if no block comes in between.

        Raises NodeUnavailable.

        Of three attempts with a block in between the last one counts, in which a balance differs by
        a few seconds' fee.
        """
        state = await self._read_state(origin)
        for _ in range(_ATTEMPTS):
            before = state
            validations = await self._platform.current_validations(subnet_id, origin)
            state = await self._read_state(origin)
            if state == before or all(validation.balance is None for validation in validations):
                break
        return SubnetReading(validations, await self._fee(state, origin))

    async def _read_state(self, origin: CallOrigin) -> L1FeeState:
        state = await self._platform.fee_state(origin)
        self._states.add(state)
        return state

    async def _fee(self, state: L1FeeState, origin: CallOrigin) -> FeeReading:
        config = await self._fee_config(state, origin)
        active = await self._indexed_active(state)
        if active is not None:
            return FeeReading(config, state, active, ActiveSource.INDEX)
        if state.excess == 0:
            return FeeReading(config, state, None, ActiveSource.MINIMUM)
        active = self._states.active_before(state, config)
        return FeeReading(
            config, state, active, ActiveSource.UNKNOWN if active is None else ActiveSource.SLOPE
        )

    async def _fee_config(self, state: L1FeeState, origin: CallOrigin) -> L1FeeConfig:
        """Return the parameters by which the node computed the price.

        Raises NodeUnavailable if they do not give it.
        """
        cached = self._config.get(None)
        if cached is not None and l1_fee_price(cached.value, state.excess) == state.price:
            return cached.value
        config = await self._platform.fee_config(origin)
        if l1_fee_price(config, state.excess) != state.price:
            raise NodeUnavailable(FEE_STATE)
        self._config.put(None, config, ttl_s=_CONFIG_TTL_S)
        return config

    async def _indexed_active(self, state: L1FeeState) -> int | None:
        """Return the number of active validators after the last indexed block.

        None without a complete index near the tip.
        """
        index = self._index()
        if index is None:
            return None
        chains = index.progress()
        progress = next((chain for chain in chains if chain.chain == PrimaryChain.P), None)
        if progress is None or progress.height is None or progress.first_height:
            return None
        if abs(state.time_s - progress.block_time) > _MAX_INDEX_AGE_S:
            return None
        if self._indexed is not None and self._indexed[0] == progress.height:
            return self._indexed[1]
        try:
            page = await index.blocks(BlockQuery(PrimaryChain.P, TimeRange()), PageRequest(1))
        except StoreDown:
            return None
        active = page.items[0].active_l1_validators if page.items else None
        if not isinstance(active, int):
            return None
        self._indexed = progress.height, active
        return active


class SubnetKind(StrEnum):
    """Why the validators of a subnet stay: they have balances, or stakes that end."""

    L1 = "l1"
    PERMISSIONED = "permissioned"
    PRIMARY = "primary"


class SubnetForecast(Struct, frozen=True):
    """The forecast of a subnet.

    fee: fee of active L1 validators; None for a subnet that is no L1.
    is_answering_known: the daemon observed the validators.
    """

    subnet_id: SubnetID
    kind: SubnetKind
    fee: FeeReading | None
    outlook: QuorumOutlook
    is_answering_known: bool


class ForecastService:
    """Makes the forecasts of subnets. Used from one event loop.

    connected_since: function that returns whether each observed node was connected since a Unix
        time.
    is_unreachable: function that returns whether the daemon tracks a subnet, and failed to connect
        to its validator or has no address of it.
    executor: threads that compute the forecasts.
    unix_clock: clock in Unix seconds.
    on_forecast: function that takes each new forecast of a tracked subnet.
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
        on_forecast: Callable[[SubnetForecast], None] = lambda forecast: None,
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
        self._on_forecast = on_forecast
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._tracked = tuple(
            subnet
            for subnet in dict.fromkeys(settings.tracked_subnet_ids)
            if subnet != PRIMARY_NETWORK
        )
        self._cache: TtlCache[SubnetID, SubnetForecast] = TtlCache(_MAX_FORECASTS, now)
        self._latest: TtlCache[SubnetID, SubnetForecast] = TtlCache(max(1, len(self._tracked)), now)
        self._flights: SingleFlight[SubnetID, SubnetForecast] = SingleFlight()
        # CPU time of the last forecast of each tracked subnet.
        self._computing_s: dict[SubnetID, float] = {}

    async def forecast(
        self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER
    ) -> SubnetForecast:
        """Return the forecast of a subnet, a few seconds old at most.

        Raises UnknownSubnet, NodeUnavailable.
        """
        cached = self._cache.get(subnet_id)
        if cached is not None:
            return cached.value
        return await self._flights.run(subnet_id, lambda: self._make(subnet_id, origin))

    def latest(self) -> Sequence[SubnetForecast]:
        """Return the last forecast of each tracked subnet that is not older than some minutes."""
        entries = (self._latest.get(subnet_id) for subnet_id in self._tracked)
        return tuple(cached.value for cached in entries if cached is not None)

    async def run(self) -> None:
        """Refresh the forecasts of the tracked subnets until cancelled.

        No node is called if there are none.
        """
        limit = asyncio.Semaphore(_MAX_CONCURRENCY)
        async with asyncio.TaskGroup() as tasks:
            for subnet_id in self._tracked:
                tasks.create_task(self._keep_refreshing(subnet_id, limit))

    async def _keep_refreshing(self, subnet_id: SubnetID, limit: asyncio.Semaphore) -> None:
        await self._sleep(min(_FIRST_S, self._refresh_s))
        while True:
            is_complete = False
            try:
                async with limit:
                    is_complete = (
                        await self.forecast(subnet_id, CallOrigin.DAEMON)
                    ).is_answering_known
            except (NodeUnavailable, UnknownSubnet) as error:
                log.debug(
                    "forecast failed", extra={"subnet_id": id_text(subnet_id), "reason": str(error)}
                )
            await self._sleep(
                self._rest_s(self._refresh_s if is_complete else min(_RETRY_S, self._refresh_s))
            )

    def _rest_s(self, least_s: float) -> float:
        return max(least_s, _REST_FACTOR * sum(self._computing_s.values()))

    async def _make(self, subnet_id: SubnetID, origin: CallOrigin) -> SubnetForecast:
        try:
            kind = await self._kind_of(subnet_id)
            reading = await self._reader.read(subnet_id, origin)
            if len(reading.validations) > _MAX_VALIDATORS:
                raise NodeUnavailable(f"a forecast of at most {_MAX_VALIDATORS} validators")
            keyed = await self._keyed_stakes(subnet_id, reading.validations, origin)
        except (RpcRefusal, HeightTooNew):
            raise NodeUnavailable("the validators of a subnet") from None
        connected = await self._connected_since(
            [validation.node_id for validation in reading.validations], self._unix_clock() - DAY_S
        )
        throttle = Throttle(math.inf)

        def measure_outlook() -> tuple[QuorumOutlook, float]:
            started_at = self._cpu_clock()
            outlook = _outlook(reading, keyed, connected, throttle.step)
            return outlook, self._cpu_clock() - started_at

        try:
            outlook, computing_s = await asyncio.get_running_loop().run_in_executor(
                self._executor, measure_outlook
            )
        finally:
            # A stop of the daemon would wait for the thread.
            throttle.cancel()
        fee = reading.fee if kind is SubnetKind.L1 else None
        forecast = SubnetForecast(
            subnet_id, kind, fee, outlook, self._is_observed(subnet_id, outlook, connected)
        )
        self._cache.put(subnet_id, forecast, self._ttl_s)
        if subnet_id in self._tracked:
            self._computing_s[subnet_id] = computing_s
            self._latest.put(subnet_id, forecast, self._stale_s + self._rest_s(0.0))
            self._on_forecast(forecast)
        return forecast

    def _is_observed(
        self, subnet_id: SubnetID, outlook: QuorumOutlook, connected: Mapping[NodeID, bool]
    ) -> bool:
        """Return whether the daemon observed, or tried to reach, each validator that can sign."""
        signers = (row.validator.node_id for row in outlook.validators if row.validator.can_sign)
        return bool(connected) and all(
            node_id in connected or self._is_unreachable(node_id, subnet_id) for node_id in signers
        )

    async def _kind_of(self, subnet_id: SubnetID) -> SubnetKind:
        if subnet_id == PRIMARY_NETWORK:
            return SubnetKind.PRIMARY
        subnet = await self._chains.subnet(subnet_id)
        return SubnetKind.L1 if subnet.is_l1 else SubnetKind.PERMISSIONED

    async def _keyed_stakes(
        self, subnet_id: SubnetID, validations: Iterable[CurrentValidation], origin: CallOrigin
    ) -> frozenset[NodeID]:
        """Return the nodes that have a BLS key in the set at the proposed height.

        The set is not read if all validators are of L1s, which have a key.
        """
        if all(validation.is_l1 for validation in validations):
            return frozenset()
        height = await self._heights.first()
        members = await self._sets.at(subnet_id, height, is_chosen=False, origin=origin)
        return frozenset(members.node_ids)


def _outlook(
    reading: SubnetReading,
    keyed: frozenset[NodeID],
    connected: Mapping[NodeID, bool],
    step: Callable[[], None],
) -> QuorumOutlook:
    """Return the forecast; the price stays if the number of active validators is unknown."""
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
    # At the target the price stays.
    active = config.target if fee.active is None else fee.active
    today = share_fee_curve(config, active, state.excess)
    at_capacity = share_fee_curve(config, config.capacity, state.excess)
    return forecast_quorum(validators, state.time_s, today, at_capacity, step=step)
