"""The use case: from a request to a signed message that was verified, or to the reason why there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Final

from cachetools import TTLCache

from warpseal.aggregation.archive_writer import PinnedMessages, ShareAuditor
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.ports import AggregationDeps
from warpseal.aggregation.resolve import AggregationRequest, ResolvedRequest, Resolver
from warpseal.aggregation.result_cache import ResultCache, SignedResult
from warpseal.aggregation.round_runner import Caller, MissedQuorum, OpenRounds, RoundDeps, RoundKey
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import ShareCache, SharedByteLimit
from warpseal.aggregation.verification import CryptoPool
from warpseal.errors import (
    InvalidTimeout,
    QuorumImpossible,
    QuorumNotReached,
    StoreDown,
    Verdict,
    WarpsealError,
)
from warpseal.metrics.samples import CacheSample
from warpseal.warp.ids import SubnetID, id_text

__all__ = ["Aggregation", "AggregationDeps", "AggregationRequest", "SignatureAggregator"]

log = logging.getLogger("warpseal.aggregation")

_OK: Final = "ok"
_CANCELLED: Final = "cancelled"
_MAX_OFFENDERS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A signed message whose signature and weight were verified as they stand in its bytes.

    height: of the validator set. stages: seconds by stage (validators, connect, collect, verify, total); the
    commit of a new result counts as verifying. cached: the result was in memory. signers: their number;
    signed_weight: theirs.
    """

    signed_message: bytes
    height: int
    signing_subnet_id: SubnetID
    quorum: int
    stages: Mapping[str, float]
    cached: bool
    signers: int
    signed_weight: int
    total_weight: int


class SignatureAggregator:
    """Used from one event loop. executor: worker threads for sums and pairings; clock: measures the stages.

    auditor: has a `run` of its own; without it shares are verified only when they are needed.
    """

    def __init__(
        self,
        deps: AggregationDeps,
        network_id: int,
        settings: AggregationSettings,
        *,
        executor: Executor | None = None,
        random: Random | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._metrics = deps.metrics
        self._settings = settings
        self._clock = clock
        self._memory = SharedByteLimit(settings.cache_bytes)
        # Shares are attached first, so they are evicted first: a result is worth more than its shares.
        self._shares = ShareCache(settings.signature_cache_size, self._memory)
        self._results = ResultCache(self._memory, settings.cache_bytes, settings.below_buffer_ttl_s)
        self._pinned = PinnedMessages(deps.archive)
        pool = CryptoPool(executor)
        self.auditor: Final = ShareAuditor(deps.archive, self._shares, pool)
        self._resolver = Resolver(
            deps.heights, deps.sets, deps.chains, deps.epochs, network_id, settings.empty_set_retry_s
        )
        self._rounds = OpenRounds(
            RoundDeps(
                ports=deps,
                shares=self._shares,
                results=self._results,
                offenders=TTLCache(_MAX_OFFENDERS, settings.suspect_s, lambda: asyncio.get_running_loop().time()),
                pool=pool,
                settings=settings,
                random=random or Random(),
            )
        )

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        """Return the signed message that a request asks for.

        Raises InvalidTimeout; what Resolver.resolve raises; QuorumImpossible, QuorumNotReached, StoreDown.
        """
        trace = _RequestTrace(self._clock)
        outcome = _CANCELLED
        try:
            aggregation = await self._aggregate(request, trace)
            outcome = _OK
        except WarpsealError as error:
            outcome = error.code
            raise
        finally:
            stages = trace.finish()
            self._metrics.observe_aggregation(outcome, stages)
            _log(outcome, trace, stages)
        return aggregation

    def caches(self) -> tuple[CacheSample, ...]:
        """Return lookups and size of the caches of shares and of results."""
        shares, results = self._shares.lookups, self._results.lookups
        results_bytes = self._results.used_bytes
        return (
            CacheSample("shares", shares.hits, shares.misses, self._memory.used_bytes - results_bytes),
            CacheSample("answers", results.hits, results.misses, results_bytes),
        )

    async def _aggregate(self, request: AggregationRequest, trace: _RequestTrace) -> Aggregation:
        deadline = asyncio.get_running_loop().time() + self._timeout_s(request)
        resolved = trace.resolved = await self._resolver.resolve(request, deadline)
        now = asyncio.get_running_loop().time()
        trace.stages["validators"] = self._clock() - trace.started_at
        validators = resolved.validators
        goal = QuorumGoal(request.quorum, request.buffer, deadline, validators.total_weight, request.stored_only)
        if request.is_pinned:
            self._pinned.pin(resolved.message)
        result = self._results.find(resolved.message.id, validators.digest, goal, now)
        is_cached = result is not None
        if result is None:
            result = await self._collect(request, trace, resolved, goal)
        elif request.is_pinned:
            await self._pinned.ensure_stored(resolved.message, result, validators)
        trace.result = result
        return Aggregation(
            signed_message=result.signed_message,
            height=resolved.height,
            signing_subnet_id=resolved.subnet_id,
            quorum=request.quorum,
            stages=trace.finish(),
            cached=is_cached,
            signers=result.signers,
            signed_weight=result.weight,
            total_weight=validators.total_weight,
        )

    async def _collect(
        self, request: AggregationRequest, trace: _RequestTrace, resolved: ResolvedRequest, goal: QuorumGoal
    ) -> SignedResult:
        outcome_set = asyncio.get_running_loop().create_future()
        caller = Caller(goal, resolved.height, resolved.hints, self._clock, outcome_set)
        key = RoundKey(resolved.message, request.justification, resolved.subnet_id, resolved.validators)
        try:
            outcome = await self._rounds.collect(key, caller)
        finally:
            if resolved.message.id in self._pinned:
                self.auditor.notify()
        trace.stages.update(outcome.stages)
        if isinstance(outcome, MissedQuorum):
            raise trace.error(outcome, stored_only=goal.stored_only)
        if request.is_pinned:
            self._pinned.mark_stored(resolved.message, outcome.result)
        return outcome.result

    def _timeout_s(self, request: AggregationRequest) -> float:
        timeout_s = self._settings.default_timeout_s if request.timeout_s is None else request.timeout_s
        longest_s = self._settings.max_timeout_s
        if not 0 < timeout_s <= longest_s:
            raise InvalidTimeout("timeoutSeconds", f"{timeout_s:g} is not within 0..{longest_s:g} seconds")
        return timeout_s


class _RequestTrace:
    """What is known of one request, for its log line and its metrics."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.started_at = clock()
        self._clock = clock
        self.stages: dict[str, float] = {}
        self.resolved: ResolvedRequest | None = None
        self.result: SignedResult | None = None
        self.failure: MissedQuorum | None = None

    def error(self, failure: MissedQuorum, *, stored_only: bool) -> QuorumImpossible | QuorumNotReached | StoreDown:
        """Note a failure and return it as an error; with stored shares alone no quorum is impossible for good."""
        self.failure = failure
        if stored_only and (failure.is_incomplete or failure.is_late):
            # The store may hold more than was read, so the answer says nothing about it.
            return StoreDown("what was signed earlier cannot be read now")
        if failure.shortfall.verdict is Verdict.NEVER and not stored_only:
            return QuorumImpossible(failure.shortfall)
        return QuorumNotReached(failure.shortfall, at_deadline=failure.is_late)

    def finish(self) -> Mapping[str, float]:
        """Return seconds by stage, the total included."""
        self.stages["total"] = self._clock() - self.started_at
        return dict(self.stages)

    def fields(self) -> dict[str, object]:
        """Return the fields of the log line."""
        fields: dict[str, object] = {}
        if self.resolved is not None:
            fields["message_id"] = id_text(self.resolved.message.id)
            fields["signing_subnet_id"] = id_text(self.resolved.subnet_id)
            fields["height"] = self.resolved.height
            fields["total_weight"] = self.resolved.validators.total_weight
            fields["hints"] = self.resolved.hints or None
        if self.result is not None:
            fields["signers"] = self.result.signers
            fields["signed_weight"] = self.result.weight
        if self.failure is not None:
            shortfall = self.failure.shortfall
            fields["verdict"] = shortfall.verdict.value
            fields["signed_weight"] = shortfall.signed_weight
            fields["required_weight"] = shortfall.required_weight
            fields["counts"] = dict(shortfall.counts)
        return {key: value for key, value in fields.items() if value is not None}


def _log(outcome: str, trace: _RequestTrace, stages: Mapping[str, float]) -> None:
    """Log an aggregation; one that succeeded is in the access log already."""
    level = logging.DEBUG if outcome == _OK else logging.INFO
    if log.isEnabledFor(level):
        seconds = {f"{stage}_s": round(taken, 6) for stage, taken in stages.items()}
        log.log(level, "aggregation", extra={"outcome": outcome, **trace.fields(), **seconds})
