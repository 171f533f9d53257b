"""The use case: from a request to a signed message that was verified, or to a reason why there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Final

from warpseal.aggregation.answers import Answer, AnswerCache
from warpseal.aggregation.background import ShareAuditor
from warpseal.aggregation.budget import ByteBudget
from warpseal.aggregation.callers import Caller, Missed, Subject
from warpseal.aggregation.fanouts import FanOuts
from warpseal.aggregation.goals import Goal
from warpseal.aggregation.no_archive import NoArchive
from warpseal.aggregation.pledges import Pledges
from warpseal.aggregation.ports import Activity, Archive, Chains, Epochs, Followed, Heights, Metrics, Peers, Sets
from warpseal.aggregation.request import Aggregation, AggregationRequest
from warpseal.aggregation.resolving import Resolved, Resolver, Sources
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.shares import ShareCache
from warpseal.aggregation.suspects import Suspects
from warpseal.aggregation.tools import Tools
from warpseal.aggregation.workbench import Workbench
from warpseal.errors import (
    InvalidTimeout,
    QuorumImpossible,
    QuorumNotReached,
    StoreDown,
    Verdict,
    WarpsealError,
)
from warpseal.metrics.samples import CacheSample
from warpseal.warp.ids import id_text

__all__ = ["Aggregation", "AggregationDeps", "AggregationRequest", "SignatureAggregator"]

log = logging.getLogger("warpseal.aggregation")

_OK: Final = "ok"
_CANCELLED: Final = "cancelled"


@dataclass(frozen=True, slots=True)
class AggregationDeps:
    """What the aggregation works with. archive: what was signed before; without one nothing is kept."""

    peers: Peers
    heights: Heights
    sets: Sets
    chains: Chains
    epochs: Epochs
    activity: Activity
    followed: Followed
    metrics: Metrics
    archive: Archive = field(default_factory=NoArchive)


class SignatureAggregator:
    """Used from one event loop. executor: worker threads for sums and pairings; clock: for how long stages take.

    auditor: has a `run` of its own; without it shares are verified only when they are needed.
    """

    def __init__(
        self,
        rooms: AggregationDeps,
        network_id: int,
        settings: AggregationSettings,
        *,
        executor: Executor | None = None,
        random: Random | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._rooms = rooms
        self._settings = settings
        self._clock = clock
        self._budget = ByteBudget(settings.cache_bytes)
        # Shares are attached first, so they give way first: an answer is worth more than what it was made of.
        self._shares = ShareCache(settings.signature_cache_size, self._budget)
        self._answers = AnswerCache(self._budget, settings.cache_bytes, settings.below_buffer_ttl_s)
        self._pledges = Pledges(rooms.archive)
        workbench = Workbench(executor)
        self.auditor: Final = ShareAuditor(rooms.archive, self._shares, workbench)
        sources = Sources(rooms.heights, rooms.sets, rooms.chains, rooms.epochs)
        self._resolver = Resolver(sources, network_id, settings.empty_set_retry_s)
        self._fan_outs = FanOuts(
            Tools(
                peers=rooms.peers,
                sets=rooms.sets,
                activity=rooms.activity,
                followed=rooms.followed,
                archive=rooms.archive,
                metrics=rooms.metrics,
                shares=self._shares,
                answers=self._answers,
                suspects=Suspects(settings.suspect_s),
                workbench=workbench,
                settings=settings,
                random=random or Random(),
            )
        )

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        """Return the signed message that a request asks for.

        Raises InvalidTimeout; what Resolver.resolve raises; QuorumImpossible, QuorumNotReached.
        """
        work = _Work(self._clock)
        outcome = _CANCELLED
        try:
            aggregation = await self._aggregate(request, work)
            outcome = _OK
        except WarpsealError as error:
            outcome = error.code
            raise
        finally:
            stages = work.finish()
            self._rooms.metrics.observe_aggregation(outcome, stages)
            _log(outcome, work, stages)
        return aggregation

    def caches(self) -> tuple[CacheSample, ...]:
        """Return how the caches of shares and of finished answers stand."""
        answers_bytes = self._answers.held_bytes
        shares, answers = self._shares.lookups, self._answers.lookups
        return (
            CacheSample("shares", shares.hits, shares.misses, self._budget.used_bytes - answers_bytes),
            CacheSample("answers", answers.hits, answers.misses, answers_bytes),
        )

    async def _aggregate(self, request: AggregationRequest, work: _Work) -> Aggregation:
        deadline = asyncio.get_running_loop().time() + self._patience_s(request)
        resolved = work.resolved = await self._resolver.resolve(request, deadline)
        now = asyncio.get_running_loop().time()
        work.stages["validators"] = self._clock() - work.started_at
        total = resolved.members.total_weight
        goal = Goal(request.quorum, request.buffer, deadline, total, stored_only=request.stored_only)
        if request.is_pinned:
            self._pledges.message(resolved.message)
        answer = self._answers.find(resolved.message.id, resolved.members.digest, goal, now)
        work.is_cached = answer is not None
        if answer is None:
            answer = await self._collect(request, work, resolved, goal)
        elif request.is_pinned:
            await self._pledges.cached(resolved.message, answer, resolved.members)
        work.answer = answer
        return Aggregation(
            signed_message=answer.signed_message,
            height=resolved.height,
            signing_subnet_id=resolved.subnet_id,
            quorum=request.quorum,
            stages=work.finish(),
            cached=work.is_cached,
            signers=answer.signers,
            signed_weight=answer.weight,
            total_weight=total,
        )

    async def _collect(self, request: AggregationRequest, work: _Work, resolved: Resolved, goal: Goal) -> Answer:
        loop = asyncio.get_running_loop()
        caller = Caller(goal, resolved.height, resolved.hints, self._clock, loop.create_future())
        subject = Subject(resolved.message, request.justification, resolved.subnet_id, resolved.members)
        try:
            outcome = await self._fan_outs.collect(subject, caller)
        finally:
            if self._pledges.holds(resolved.message.id):
                self.auditor.wake()
        work.stages.update(outcome.stages)
        if isinstance(outcome, Missed):
            raise work.failed(outcome, stored_only=goal.stored_only)
        if request.is_pinned:
            self._pledges.fresh(resolved.message, outcome.answer)
        return outcome.answer

    def _patience_s(self, request: AggregationRequest) -> float:
        timeout_s = self._settings.default_timeout_s if request.timeout_s is None else request.timeout_s
        longest_s = self._settings.max_timeout_s
        if not 0 < timeout_s <= longest_s:
            raise InvalidTimeout("timeoutSeconds", f"{timeout_s:g} is not within 0..{longest_s:g} seconds")
        return timeout_s


class _Work:
    """What is known of one request, for its log line and its metrics."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.started_at = clock()
        self._clock = clock
        self.stages: dict[str, float] = {}
        self.resolved: Resolved | None = None
        self.is_cached = False
        self.answer: Answer | None = None
        self.missed: Missed | None = None

    def failed(self, missed: Missed, *, stored_only: bool) -> QuorumImpossible | QuorumNotReached | StoreDown:
        """Note a failure and return it as an error; of what is kept alone nothing is impossible for ever."""
        self.missed = missed
        if stored_only and (missed.is_unread or missed.late):
            # There may be more than was seen: nothing is said of what the store has.
            return StoreDown("what was signed earlier cannot be read now")
        if missed.shortfall.verdict is Verdict.NEVER and not stored_only:
            return QuorumImpossible(missed.shortfall)
        return QuorumNotReached(missed.shortfall, at_deadline=missed.late)

    def finish(self) -> Mapping[str, float]:
        """Return seconds by stage, the whole of it included."""
        self.stages["total"] = self._clock() - self.started_at
        return dict(self.stages)

    def fields(self) -> dict[str, object]:
        """Return what the log line shows."""
        fields: dict[str, object] = {}
        if self.resolved is not None:
            fields["message_id"] = id_text(self.resolved.message.id)
            fields["signing_subnet_id"] = id_text(self.resolved.subnet_id)
            fields["height"] = self.resolved.height
            fields["total_weight"] = self.resolved.members.total_weight
            fields["hints"] = self.resolved.hints or None
        if self.answer is not None:
            fields["signers"] = self.answer.signers
            fields["signed_weight"] = self.answer.weight
        if self.missed is not None:
            fields["verdict"] = self.missed.shortfall.verdict.value
            fields["signed_weight"] = self.missed.shortfall.signed_weight
            fields["required_weight"] = self.missed.shortfall.required_weight
            fields["counts"] = dict(self.missed.shortfall.counts)
        return {key: value for key, value in fields.items() if value is not None}


def _log(outcome: str, work: _Work, stages: Mapping[str, float]) -> None:
    """Say why there is no answer; where there is one, the front door's line tells what most people want to know."""
    level = logging.DEBUG if outcome == _OK else logging.INFO
    if log.isEnabledFor(level):
        seconds = {f"{stage}_s": round(taken, 6) for stage, taken in stages.items()}
        log.log(level, "aggregation", extra={"outcome": outcome, **work.fields(), **seconds})
