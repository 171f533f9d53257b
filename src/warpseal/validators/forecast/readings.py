"""Readings for a forecast: the validators of a subnet and the fee at one chain time, and how many L1 validators pay it.

Source of truth: platform.getCurrentValidators and platform.getValidatorFeeState of a node. Nodes do not return the
number of active L1 validators: the index has it, or it follows from the excess, which moves by the validators above the
target each second (ACP-77).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warpseal.ledger.chain_time import l1_fee_price
from warpseal.ledger.params import DAY_S, L1FeeConfig
from warpseal.node.p_chain import CurrentValidation, L1FeeState
from warpseal.node.platform import PlatformClient
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.ports import PrimaryNetworkIndex
from warpseal.resources.queries import BlockQuery, PageRequest, TimeRange
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.limits import CallOrigin
from warpseal.warp.ids import SubnetID

FEE_STATE: Final = "platform.getValidatorFeeState"
_CONFIG_TTL_S: Final = 600.0
_MAX_STATES: Final = 16
# An average over a longer time says nothing about today.
_MAX_SLOPE_S: Final = DAY_S
_MAX_INDEX_AGE_S: Final = 60
# The P-Chain may accept a block between two calls, but hardly ever between each of them.
_ATTEMPTS: Final = 3
_MOST: Final = 2**64 - 1


class ActiveSource(StrEnum):
    """The source of the number of active L1 validators."""

    INDEX = "index"
    SLOPE = "slope"
    MINIMUM = "minimum"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FeeReading:
    """The fee at the time of a reading. active: validators that pay it; None: unknown, of MINIMUM up to the target."""

    config: L1FeeConfig
    state: L1FeeState
    active: int | None
    source: ActiveSource


@dataclass(frozen=True, slots=True)
class SubnetReading:
    """The current validations of a subnet, and the fee, at the chain time `fee.state.time_s`."""

    validations: tuple[CurrentValidation, ...]
    fee: FeeReading


class FeeStates:
    """The last fee states, and the number of active L1 validators that follows from two of them. Pure."""

    def __init__(self) -> None:
        self._states: deque[L1FeeState] = deque(maxlen=_MAX_STATES)

    def add(self, state: L1FeeState) -> None:
        """Add a state, of any time."""
        if state not in self._states:
            self._states.append(state)

    def active_before(self, state: L1FeeState, config: L1FeeConfig) -> int | None:
        """Return the mean number of active validators since the newest earlier state, rounded.

        None if there is none within a day, if the excess was cut off at 0 or at 2^64 - 1, or if no network can have
        the number.
        """
        earlier = [other for other in self._states if 0 < state.time_s - other.time_s <= _MAX_SLOPE_S]
        if not earlier:
            return None
        last = max(earlier, key=lambda other: other.time_s)
        if not (0 < last.excess < _MOST and 0 < state.excess < _MOST):
            return None
        seconds = state.time_s - last.time_s
        active = config.target + (2 * (state.excess - last.excess) + seconds) // (2 * seconds)
        return active if 0 <= active <= config.capacity else None


class ForecastReader:
    """Reads from nodes. index: returns the index of the primary chains; None while there is none."""

    def __init__(self, platform: PlatformClient, index: Callable[[], PrimaryNetworkIndex | None]) -> None:
        self._platform = platform
        self._index = index
        self._states = FeeStates()
        self._config: TtlCache[None, L1FeeConfig] = TtlCache(1)
        # Height of the last indexed block, and the number after it.
        self._indexed: tuple[int, int] | None = None

    async def read(self, subnet_id: SubnetID, origin: CallOrigin) -> SubnetReading:
        """Return the validations and the fee, of one chain time if no block comes in between. Raises NodeUnavailable.

        Of three attempts with a block in between the last one counts, in which a balance differs by a few seconds' fee.
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
        return FeeReading(config, state, active, ActiveSource.UNKNOWN if active is None else ActiveSource.SLOPE)

    async def _fee_config(self, state: L1FeeState, origin: CallOrigin) -> L1FeeConfig:
        """Return the parameters by which the node computed the price. Raises NodeUnavailable if they do not give it."""
        cached = self._config.get(None)
        if cached is not None and l1_fee_price(cached.value, state.excess) == state.price:
            return cached.value
        config = await self._platform.fee_config(origin)
        if l1_fee_price(config, state.excess) != state.price:
            raise NodeUnavailable(FEE_STATE)
        self._config.put(None, config, ttl_s=_CONFIG_TTL_S)
        return config

    async def _indexed_active(self, state: L1FeeState) -> int | None:
        """Return the number after the last indexed block; None without a complete index near the tip."""
        index = self._index()
        if index is None:
            return None
        fresh = next((chain for chain in index.freshness() if chain.chain is PrimaryChain.P), None)
        if fresh is None or fresh.first_height or abs(state.time_s - fresh.time) > _MAX_INDEX_AGE_S:
            return None
        if self._indexed is not None and self._indexed[0] == fresh.height:
            return self._indexed[1]
        try:
            page = await index.blocks(BlockQuery(PrimaryChain.P, TimeRange()), PageRequest(1))
        except StoreDown:
            return None
        active = page.items[0].active_l1_validators if page.items else None
        if not isinstance(active, int):
            return None
        self._indexed = fresh.height, active
        return active
