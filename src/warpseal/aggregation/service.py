"""The use case: from a request to a signed message that was verified, or to the reason of the
failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from random import Random
from time import perf_counter
from typing import Final, NamedTuple

from cachetools import LRUCache, TTLCache
from msgspec import Struct, field

from warpseal.aggregation.admission import RoundAdmission
from warpseal.aggregation.errors import QuorumImpossible, QuorumNotReached
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.ports import AggregationDeps, ShareArchive
from warpseal.aggregation.resolve import AggregationRequest, ResolvedRequest, Resolver
from warpseal.aggregation.result_cache import ResultCache, SignedResult
from warpseal.aggregation.round_runner import Caller, OpenRounds, RoundDeps
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import ShareCache, SharedByteLimit
from warpseal.aggregation.verification import CryptoPool, ShareAuditor, stored_signature
from warpseal.bls import SHARE_BYTES
from warpseal.errors import WarpsealError
from warpseal.metrics.samples import CacheSample
from warpseal.runtime.tracing import Span, Trace, active_trace
from warpseal.usage.response_times import bucket_of
from warpseal.warp.ids import MessageID, SubnetID, id_text
from warpseal.warp.message import SignedMessage, UnsignedMessage
from warpseal.warp.quorum_shortfall import QuorumShortfall
from warpseal.warp.validator_set import CanonicalValidatorSet

__all__ = ["Aggregation", "AggregationDeps", "AggregationRequest", "SignatureAggregator"]

log = logging.getLogger("warpseal.aggregation")

_OK: Final = "ok"
_CANCELLED: Final = "cancelled"
_MAX_RECENT: Final = 100
_MAX_REASON_CHARACTERS: Final = 500
_MAX_OFFENDERS: Final = 65_536
# A key whose share was bad is distrusted for this long.
_SUSPECT_S: Final = 600.0
_MAX_PINNED: Final = 16_384
# Each has at most 50 missing validators.
_MAX_SHORTFALLS: Final = 256
_SHORTFALL_S: Final = 3_600.0


class Aggregation(Struct, frozen=True):
    """A signed message whose signature and weight were verified as they stand in its bytes.

    height: P-Chain height of the validator set `members`.
    cached: whether the result was in memory.
    signers: number of signers, who have `signed_weight` in the set.
    """

    signed_message: bytes
    height: int
    signing_subnet_id: SubnetID
    cached: bool
    signers: int
    members: CanonicalValidatorSet
    signed_weight: int


class SignedRequest(NamedTuple):
    """A signed message, and what the request for it had beside the message.

    signing_subnet_id: None: it had none.
    """

    signed_message: bytes
    justification: bytes = b""
    signing_subnet_id: SubnetID | None = None


class AggregationRecord(Struct, frozen=True):
    """One finished aggregation, for operators.

    ended_at: time in Unix seconds.
    reason: text of the error, if it failed.
    stages: seconds by stage (validators, connect, collect, verify, total); the commit of a new
    result counts as
        verifying. The fields after it are None, or 0, if the request failed before they were known.
    required_weight: weight of the quorum without its buffer.
    """

    ended_at: float
    outcome: str
    reason: str
    stages: Mapping[str, float]
    message_id: MessageID | None = None
    signing_subnet_id: SubnetID | None = None
    height: int | None = None
    signed_weight: int = 0
    required_weight: int = 0
    total_weight: int = 0


class SignatureAggregator:
    """Used from one event loop.

    executor: worker threads for sums and pairings.
    clock: clock that measures the stages; unix_clock dates the records.
    auditor: verifies pinned shares while its `run` runs; without it shares are verified only when
    they are needed. admission: says whether a caller waits.
    recent: the aggregations that ended last, without those that were in memory; last_hour has their
    counts by minute. check_allowed: raises an error if no signature of a message may be made or
    handed out.
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
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = deps.metrics
        self._settings = settings
        self._clock = clock
        self._unix_clock = unix_clock
        self.recent: Final[deque[AggregationRecord]] = deque(maxlen=_MAX_RECENT)
        self.last_hour: Final = LastHour()
        self.check_allowed: Final = deps.check_allowed
        self._first_signed: SignedRequest | None = None
        self._memory = SharedByteLimit(settings.cache_bytes)
        # Shares are attached first, so they are evicted first: a result is worth more than its
        # shares.
        self._shares = ShareCache(settings.signature_cache_size, self._memory)
        self._results = ResultCache(self._memory, settings.cache_bytes, settings.below_buffer_ttl_s)
        self._pinned = PinnedMessages(deps.archive)
        pool = CryptoPool(executor)
        self.auditor: Final = ShareAuditor(deps.archive, self._shares, pool)
        self._resolver = Resolver(
            deps.heights,
            deps.sets,
            deps.chains,
            deps.is_epoch_height,
            network_id,
            settings.empty_set_retry_s,
        )
        offenders: TTLCache[bytes, bool] = TTLCache(
            _MAX_OFFENDERS, _SUSPECT_S, lambda: asyncio.get_running_loop().time()
        )
        self._shortfalls: TTLCache[MessageID, QuorumShortfall] = TTLCache(
            _MAX_SHORTFALLS, _SHORTFALL_S, lambda: asyncio.get_running_loop().time()
        )
        self.admission: Final = RoundAdmission()
        self._rounds = OpenRounds(
            RoundDeps(
                deps,
                self._shares,
                self._results,
                offenders,
                LRUCache(_MAX_PINNED),
                self._shortfalls,
                pool,
                settings,
                random or Random(),
                self.admission,
            )
        )

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        """Return the signed message that a request asks for.

        Raises InvalidTimeout; what Resolver.resolve, `check_allowed` raise; QuorumImpossible,
        QuorumNotReached, StoreDown.
        """
        trace = _RequestTrace(self._clock)
        outcome, reason = _CANCELLED, ""
        callers = 0 if request.is_ahead else 1
        self.admission.callers += callers
        try:
            aggregation = await self._aggregate(request, trace)
            outcome = _OK
            if self._first_signed is None:
                self._first_signed = SignedRequest(
                    aggregation.signed_message, request.justification, request.signing_subnet_id
                )
        except WarpsealError as error:
            outcome, reason = error.code, str(error)[:_MAX_REASON_CHARACTERS]
            raise
        finally:
            self.admission.callers -= callers
            report = partial(self._report, request, trace, outcome, reason)
            if request.defer_report is None:
                report()
            else:
                request.defer_report(report)
        return aggregation

    def _report(
        self, request: AggregationRequest, trace: _RequestTrace, outcome: str, reason: str
    ) -> None:
        """Count and log the outcome: the code that the caller gets."""
        is_outcome = outcome == _OK or not request.stored_only or request.refusal is not None
        if is_outcome:
            stages = trace.stages()
            spans = active_trace()
            trace_id = "" if spans is None else trace.add_spans(spans, outcome, stages)
            self._metrics.observe_aggregation(outcome, stages, trace_id)
            if not trace.is_cached:
                ended_at = self._unix_clock()
                self.recent.append(trace.record(ended_at, outcome, reason, stages))
                self.last_hour.add(ended_at, outcome, stages["total"], has_succeeded=outcome == _OK)
            # An aggregation that succeeded is in the access log already.
            level = logging.DEBUG if outcome == _OK else logging.INFO
            if log.isEnabledFor(level):
                seconds = {
                    f"{stage}_s": round(duration_s, 6) for stage, duration_s in stages.items()
                }
                log.log(
                    level, "aggregation", extra={"outcome": outcome, **trace.fields(), **seconds}
                )

    @property
    def first_signed(self) -> SignedRequest | None:
        """The first signed message with its request; None before it, and while it may not be handed
        out.
        """
        if self._first_signed is not None:
            with suppress(WarpsealError):
                self.check_allowed(
                    SignedMessage.parse(self._first_signed.signed_message).unsigned, None
                )
                return self._first_signed
        return None

    def open_message_ids(self) -> frozenset[MessageID]:
        """Return the messages that validators are asked to sign now."""
        return self._rounds.message_ids()

    def last_shortfall(self, message_id: MessageID) -> QuorumShortfall | None:
        """Return why the last request of the last hour for a message was missed; None also if it
        was signed.
        """
        return self._shortfalls.get(message_id)

    def caches(self) -> tuple[CacheSample, ...]:
        """Return lookups and size of the caches of shares and of results."""
        shares, results = self._shares.lookups, self._results.lookups
        results_bytes = self._results.used_bytes
        return (
            CacheSample(
                "shares", shares.hits, shares.misses, self._memory.used_bytes - results_bytes
            ),
            CacheSample(
                "answers",
                results.hits,
                results.misses,
                results_bytes,
                self._results.served_signatures,
            ),
        )

    async def _aggregate(self, request: AggregationRequest, trace: _RequestTrace) -> Aggregation:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.timeout_s(request.timeout_s)
        resolved = await self._resolver.resolve(request, deadline)
        message, validators = resolved.message, resolved.validators
        goal = QuorumGoal(
            request.quorum,
            request.buffer,
            deadline,
            validators.total_weight,
            request.stored_only,
            is_height_fixed=request.height is not None and not request.is_epoch_height,
        )
        caller = trace.caller = Caller(resolved, goal, self._clock, request.is_ahead)
        caller.stages["validators"] = self._clock() - trace.started_at
        self.check_allowed(message, resolved.subnet_id)
        if request.is_pinned:
            self._pinned.pin(message)
        result = self._results.find(message.id, validators.digest, goal, loop.time())
        trace.is_cached = result is not None
        if result is None:
            try:
                result = await self._rounds.collect(caller)
                # It may be forbidden since validators were asked.
                self.check_allowed(message, resolved.subnet_id)
            except (QuorumNotReached, QuorumImpossible) as error:
                if request.refusal is not None:
                    raise request.refusal from None
                hint = (
                    None
                    if goal.stored_only
                    else await self._resolver.advise_subnet(resolved, error.shortfall)
                )
                if hint is None:
                    raise
                caller.shortfall = error.shortfall.advised(hint)
                if isinstance(error, QuorumImpossible):
                    raise QuorumImpossible(caller.shortfall) from None
                raise QuorumNotReached(caller.shortfall, at_deadline=error.at_deadline) from None
            finally:
                if message.id in self._pinned:
                    self.auditor.notify()
        if request.is_pinned:
            await self._pinned.ensure_stored(resolved, result, is_new=not trace.is_cached)
        trace.result = result
        return Aggregation(
            result.signed_message,
            resolved.height,
            resolved.subnet_id,
            trace.is_cached,
            result.signers,
            validators,
            result.weight,
        )


class PinnedMessages(Struct, eq=False):
    """Messages and results that are known to be stored and never evicted; the least recently used
    are pinned again.
    """

    _archive: ShareArchive
    _names: LRUCache[bytes, bool] = field(default_factory=lambda: LRUCache(_MAX_PINNED))

    def __contains__(self, message_id: MessageID) -> bool:
        return message_id in self._names

    def pin(self, message: UnsignedMessage) -> None:
        """Never evict a message from the archive."""
        if self._add(message.id):
            self._archive.pin(message)

    async def ensure_stored(
        self, request: ResolvedRequest, result: SignedResult, *, is_new: bool
    ) -> None:
        """Return when a result is committed.

        is_new: whether it was committed after its message was pinned; the archive may have evicted
            an older one.
        """
        if self._add(request.message.id + result.signed_message[-SHARE_BYTES:]) and not is_new:
            signature = stored_signature(result, request.message, request.validators)
            await self._archive.store_signature(request.message, signature, request.subnet_id)

    def _add(self, name: bytes) -> bool:
        is_new = name not in self._names
        self._names[name] = True
        return is_new


class _RequestTrace:
    """The course of one request, for its log line and its metrics.

    caller: None until the request is resolved.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.started_at = clock()
        self.caller: Caller | None = None
        self.result: SignedResult | None = None
        self.is_cached = False
        self._clock = clock

    def stages(self) -> Mapping[str, float]:
        """Return seconds by stage, the total included."""
        stages = {} if self.caller is None else self.caller.stages
        return {**stages, "total": self._clock() - self.started_at}

    def record(
        self, ended_at: float, outcome: str, reason: str, stages: Mapping[str, float]
    ) -> AggregationRecord:
        if self.caller is None:
            return AggregationRecord(ended_at, outcome, reason, stages)
        request, shortfall = self.caller.request, self.caller.shortfall
        weight = (
            self.result.weight
            if self.result is not None
            else shortfall.signed_weight
            if shortfall
            else 0
        )
        return AggregationRecord(
            ended_at,
            outcome,
            reason,
            stages,
            request.message.id,
            request.subnet_id,
            request.height,
            weight,
            self.caller.goal.required_weight,
            request.validators.total_weight,
        )

    def add_spans(self, spans: Trace, outcome: str, stages: Mapping[str, float]) -> str:
        """Add the aggregation, its stages and its rounds of asking; return the trace id, empty if
        it is not sampled.
        """
        if not spans.is_sampled:
            return ""
        at, ended_at, error = (
            self.started_at,
            self.started_at + stages["total"],
            "" if outcome == _OK else outcome,
        )
        attributes = {"outcome": outcome, "cached": self.is_cached, **self.fields()}
        aggregation = Span("aggregation", at, attributes, ended_at, error=error)
        spans.add(aggregation)
        for stage, duration_s in stages.items():
            if stage != "total":
                spans.add(Span(stage, at, {}, at + duration_s, aggregation.span_id))
                at += duration_s
        for ask in () if self.caller is None else self.caller.asks:
            # A caller that joined the round shares what was asked before.
            asked_at = max(ask.asked_at, self.started_at)
            spans.add(Span("ask", asked_at, ask.describe(), ended_at, aggregation.span_id))
        return f"{spans.trace_id:032x}"

    def fields(self) -> dict[str, object]:
        if self.caller is None:
            return {}
        request, shortfall = self.caller.request, self.caller.shortfall
        fields: dict[str, object] = {
            "message_id": id_text(request.message.id),
            "signing_subnet_id": id_text(request.subnet_id),
            "height": request.height,
            "total_weight": request.validators.total_weight,
        }
        if self.result is not None:
            fields |= {"signers": self.result.signers, "signed_weight": self.result.weight}
        if shortfall is not None:
            fields |= {"verdict": shortfall.verdict.value, "signed_weight": shortfall.signed_weight}
            fields |= {
                "required_weight": shortfall.required_weight,
                "counts": dict(shortfall.counts),
            }
            fields |= {"hints": shortfall.hints} if shortfall.hints else {}
        return fields


MINUTES: Final = 60
_MINUTE_S: Final = 60


class MinuteCounts(Struct):
    """One minute.

    start_s: Unix seconds.
    outcomes: counts.
    times: of successful ones, counts by bucket of a sketch.
    """

    start_s: int
    outcomes: Counter[str] = field(default_factory=Counter)
    times: Counter[int] = field(default_factory=Counter)


class LastHour:
    """Counts aggregations; a minute without any takes no place."""

    def __init__(self) -> None:
        self._minutes: deque[MinuteCounts] = deque(maxlen=MINUTES)

    def add(self, ended_at: float, outcome: str, seconds: float, *, has_succeeded: bool) -> None:
        """Count an aggregation that ended at a Unix time."""
        start_s = int(ended_at) // _MINUTE_S * _MINUTE_S
        # If the clock was set back, later minutes have not been yet.
        while self._minutes and self._minutes[-1].start_s > start_s:
            self._minutes.pop()
        if not self._minutes or self._minutes[-1].start_s != start_s:
            self._minutes.append(MinuteCounts(start_s))
        minute = self._minutes[-1]
        minute.outcomes[outcome] += 1
        if has_succeeded:
            minute.times[bucket_of(1_000 * seconds)] += 1

    def minutes(self, unix_s: float) -> Sequence[MinuteCounts]:
        """Return the minutes of the hour before a Unix time that have aggregations, oldest first."""
        return [
            minute
            for minute in self._minutes
            if unix_s - MINUTES * _MINUTE_S < minute.start_s <= unix_s
        ]
