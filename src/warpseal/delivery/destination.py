"""The epoch and the Warp rules of a chain, which decide on a message in its next block.

Source of truth: ACP-181; avalanchego `graft/subnet-evm/precompile/contracts/warp/config.go`,
`vms/platformvm/txs/executor/warp_verifier.go`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cachetools import LRUCache
from msgspec import Struct

from warpseal.chains.proposervm import Epoch
from warpseal.delivery.errors import DestinationUnavailable, WarpDisabled
from warpseal.delivery.warp_rules import ALWAYS_DEFAULT, WarpRules, WarpSchedule, parse_schedule
from warpseal.errors import WarpsealError
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.node.upstream import Upstream
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.upstream.errors import NodesDisagree, NodeUnavailable, RpcRefusal
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, id_text

log = logging.getLogger(__name__)

DESTINATION_FIELD: Final = "destinationBlockchainId"
_MAX_CHAINS: Final = 4_096
_MAX_SEEN_EPOCHS: Final = 4
# In addition to the second for which `EpochHeights` caches a response.
_TTL_S: Final = 0.25
_FAILURE_TTL_S: Final = 1.0
_RULES_TTL_S: Final = 30.0
# The rules of a chain change by its operators alone: while no node answers, the last known ones
# hold.
_MAX_RULES_AGE_S: Final = 3_600.0
_QUORUM_TIMEOUT_S: Final = 1.0


class DestinationEpoch(Resource, frozen=True, gc=False, kw_only=True):
    """The epoch of the next block of a destination. Times are Unix seconds.

    sealed_from: time from which on a block is the last one of the epoch.
    """

    number: int
    start_time: int
    p_chain_height: str
    sealed_from: int


@dataclass(frozen=True, slots=True)
class Destination:
    """A chain as it would verify a message in its next block.

    epoch: epoch of the next block; NO_EPOCH before Granite and without proposervm.
    epoch_duration_s: seconds after the epoch's start from which on a block seals it.
    proposed_height: P-Chain height that the next block would carry; the height of the next
        epoch if the next block seals this one.
    read_at: Unix seconds of the lookup; destinations that differ only in it are equal.
    """

    chain_id: ChainID
    subnet_id: SubnetID
    epoch: Epoch
    epoch_duration_s: int
    proposed_height: int
    rules: WarpRules
    read_at: float = field(compare=False)

    @property
    def height(self) -> int:
        """Return the P-Chain height at which the next block verifies messages."""
        return self.proposed_height if self.epoch == NO_EPOCH else self.epoch.p_chain_height

    @property
    def sealed_from(self) -> int | None:
        """Return the Unix seconds from which on a block is the last one of the epoch.

        None: the chain has no epochs.
        """
        return None if self.epoch == NO_EPOCH else self.epoch.start_time_s + self.epoch_duration_s

    def describe_epoch(self) -> DestinationEpoch | UnsetType:
        """Return the epoch for a response; UNSET before Granite."""
        if self.sealed_from is None:
            return UNSET
        return DestinationEpoch(
            number=self.epoch.number,
            start_time=self.epoch.start_time_s,
            p_chain_height=str(self.epoch.p_chain_height),
            sealed_from=self.sealed_from,
        )


class _ChainRules(Struct, eq=False):
    """The rules of a chain, as its nodes returned them.

    last_block_s: Unix seconds of the chain's last block at the time of the read.
    read_at: time of the read, seconds of the monotonic clock.
    evaluated: Unix seconds of the last evaluation, and its rules.
    """

    schedule: WarpSchedule
    last_block_s: int
    read_at: float
    evaluated: tuple[int, WarpRules | None] | None = None


class Destinations:
    """Looks destinations up at their nodes.

    Used from one event loop; concurrent callers share a lookup.
    configured: chains that have an entry in `evm-chains`.
    now: clock in seconds that never goes back.
    unix_now: clock in Unix seconds.
    """

    def __init__(
        self,
        upstream: Upstream,
        chains: ChainLookup,
        epochs: EpochHeights,
        network_id: int,
        configured: Set[ChainID] = frozenset(),
        *,
        now: Callable[[], float] | None = None,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        self._upstream = upstream
        self._chains = chains
        self._epochs = epochs
        self._network_id = network_id
        self._configured = configured
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._unix_now = unix_now
        self._destinations: TtlCache[ChainID, Destination | WarpsealError] = TtlCache(
            _MAX_CHAINS, now
        )
        self._flights: SingleFlight[ChainID, Destination] = SingleFlight(outlives_callers=True)
        self._rules: LRUCache[ChainID, _ChainRules] = LRUCache(_MAX_CHAINS)
        self._rules_flights: SingleFlight[ChainID, _ChainRules] = SingleFlight()
        self._rules_failed: TtlCache[ChainID, None] = TtlCache(_MAX_CHAINS, now)
        self._quorum_flights: SingleFlight[ChainID, None] = SingleFlight(outlives_callers=True)
        # The epochs of a chain that were noted last, by number; a node may lag, or forge one.
        self._epochs_seen: LRUCache[ChainID, LRUCache[int, Epoch]] = LRUCache(_MAX_CHAINS)
        self._epoch_duration_s: int | None = None

    def cached(self, chain_id: ChainID) -> Destination | None:
        """Return a destination as `resolve` would without a call to a node; None otherwise."""
        cached = self._destinations.get(chain_id)
        if cached is None or not isinstance(cached.value, Destination):
            return None
        return cached.value

    async def resolve(self, chain_id: ChainID) -> Destination:
        """Return a chain as its nodes see it, at most a second and a quarter old.

        A lookup goes on when its callers have left: its end shows which node hangs.
        Raises UnknownChain, WarpDisabled, DestinationUnavailable, NodeUnavailable.
        """
        cached = self._destinations.get(chain_id)
        if cached is None:
            # The chain has to exist, so that no caller can start lookups without end.
            subnet_id = await self._chains.subnet_of(chain_id)
            return await self._flights.run(chain_id, lambda: self._find(chain_id, subnet_id))
        if isinstance(cached.value, WarpsealError):
            raise cached.value.with_traceback(None)
        return cached.value

    async def quorum(self, chain_id: ChainID) -> int | None:
        """Return the quorum that a chain demands, in percent; None if it is not read in a second.

        Raises nothing. A lookup that takes longer goes on: its end shows which node hangs.
        """
        cached = self._rules.get(chain_id)
        if cached is None or self._now() - cached.read_at > _RULES_TTL_S:
            if self._rules_failed.get(chain_id) is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_QUORUM_TIMEOUT_S):
                        await self._quorum_flights.run(
                            chain_id, lambda: self._look_up_rules(chain_id)
                        )
            cached = self._rules.get(chain_id)
        rules = None if cached is None else self._rules_now(cached)
        return None if rules is None else rules.quorum

    def previous_epoch(self, destination: Destination) -> Epoch | None:
        """Return the epoch before the destination's; None if this daemon has not seen it."""
        epochs, number = self._epochs_seen.get(destination.chain_id), destination.epoch.number - 1
        # Epochs begin with 1.
        return None if epochs is None or number < 1 else epochs.get(number)

    async def _find(self, chain_id: ChainID, subnet_id: SubnetID) -> Destination:
        try:
            destination = await self._read(chain_id, subnet_id)
        except (DestinationUnavailable, WarpDisabled) as error:
            self._destinations.put(chain_id, error, _FAILURE_TTL_S)
            raise
        self._destinations.put(chain_id, destination, _TTL_S)
        epochs = self._epochs_seen.setdefault(chain_id, LRUCache(_MAX_SEEN_EPOCHS))
        epochs[destination.epoch.number] = destination.epoch
        return destination

    async def _read(self, chain_id: ChainID, subnet_id: SubnetID) -> Destination:
        try:
            all_rules, epoch, proposed, duration_s = await asyncio.gather(
                self._recent_rules(chain_id, subnet_id),
                self._epochs.epoch(chain_id),
                self._epochs.proposed_height(chain_id),
                self._duration_s(),
            )
            is_run = (
                all_rules.schedule is not ALWAYS_DEFAULT
                and self._upstream.chain_rpc.is_shared(chain_id)
            )
            if epoch is None and proposed is None and is_run:
                # The nodes run the chain. If they serve the proposervm of the P-Chain, they would
                # serve the chain's as well: it has none (Simplex), and its blocks verify at the
                # height that the P-Chain proposes.
                proposed = await self._epochs.proposed_height(P_CHAIN)
                epoch = None if proposed is None else NO_EPOCH
        except NodesDisagree:
            raise
        except NodeUnavailable as error:
            reason = f"its nodes did not answer: {error}"
            raise DestinationUnavailable(id_text(chain_id), reason, error.attempts) from None
        rules = self._rules_now(all_rules)
        if rules is None:
            raise _warp_disabled(chain_id, "its Warp precompile is disabled, or not active yet")
        if epoch is None or proposed is None:
            raise DestinationUnavailable(
                id_text(chain_id),
                f"no configured node reports its epoch; {self._missing_setting(chain_id)}",
            )
        return Destination(
            chain_id, subnet_id, epoch, duration_s, proposed, rules, self._unix_now()
        )

    def _missing_setting(self, chain_id: ChainID) -> str:
        """Return the advice to the operator, in words."""
        name = id_text(chain_id)
        if chain_id in self._configured:
            return (
                "the rpc of its entry in evm-chains must be of a node that serves"
                f" /ext/bc/{name}/proposervm next to /ext/bc/{name}/rpc, or a node of p-chain-api"
                " or info-api must run the chain"
            )
        if chain_id == P_CHAIN:
            return "a node of p-chain-api or info-api must serve /ext/bc/P/proposervm"
        return (
            "name a node that runs it in p-chain-api, in info-api, or in evm-chains with"
            f" blockchain-id {name}"
        )

    async def _duration_s(self) -> int:
        if self._epoch_duration_s is None:
            self._epoch_duration_s = await self._upstream.info.epoch_duration_s()
        return self._epoch_duration_s

    async def _recent_rules(self, chain_id: ChainID, subnet_id: SubnetID) -> _ChainRules:
        """Return the rules of a chain, at most half a minute old while its nodes answer.

        Raises NodeUnavailable.
        """
        cached = self._rules.get(chain_id)
        age_s = float("inf") if cached is None else self._now() - cached.read_at
        # For a second after a failure the last rules hold, so that not each request tries again.
        ttl_s = _MAX_RULES_AGE_S if self._rules_failed.get(chain_id) else _RULES_TTL_S
        if cached is not None and age_s <= ttl_s:
            return cached
        try:
            return await self._rules_flights.run(
                chain_id, lambda: self._read_rules(chain_id, subnet_id)
            )
        except NodeUnavailable:
            self._rules_failed.put(chain_id, None, _FAILURE_TTL_S)
            if cached is None or age_s > _MAX_RULES_AGE_S:
                raise
            return cached

    async def _read_rules(self, chain_id: ChainID, subnet_id: SubnetID) -> _ChainRules:
        schedule, last_block_s = None, 0
        if chain_id != P_CHAIN:
            if subnet_id == PRIMARY_NETWORK:
                primary = await self._upstream.view.primary_chains(self._network_id)
                if chain_id == primary.x:
                    raise _warp_disabled(chain_id, "it is the X-Chain")
            schedule, last_block_s = await asyncio.gather(
                self._upstream.chain_rpc.chain_config(chain_id, parse_schedule),
                self._last_block_s(chain_id),
            )
        rules = _ChainRules(
            ALWAYS_DEFAULT if schedule is None else schedule, last_block_s, self._now()
        )
        self._rules[chain_id] = rules
        return rules

    async def _last_block_s(self, chain_id: ChainID) -> int:
        """Return the time of the last block, Unix seconds; 0 if no node returns it."""
        try:
            return await self._upstream.chain_rpc.latest_block_time_s(chain_id) or 0
        except NodeUnavailable:
            return 0

    def _rules_now(self, cached: _ChainRules) -> WarpRules | None:
        """Return the rules for the next block; its time is not before its parent's."""
        moment = max(int(self._unix_now()), cached.last_block_s)
        if cached.evaluated is None or cached.evaluated[0] != moment:
            cached.evaluated = moment, cached.schedule.rules_at(moment)
        return cached.evaluated[1]

    async def _look_up_rules(self, chain_id: ChainID) -> None:
        try:
            await self._recent_rules(chain_id, await self._chains.subnet_of(chain_id))
        except (WarpsealError, RpcRefusal) as error:
            self._rules_failed.put(chain_id, None, _FAILURE_TTL_S)
            log.debug(
                "Warp rules unavailable",
                extra={"chain_id": id_text(chain_id), "reason": str(error)},
            )


def _warp_disabled(chain_id: ChainID, reason: str) -> WarpDisabled:
    return WarpDisabled(
        DESTINATION_FIELD, f"{id_text(chain_id)} verifies no Warp messages: {reason}"
    )
