"""The use case: from a request to a verified signed message, or to the reason of the failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from random import Random
from time import perf_counter
from typing import Final, NamedTuple

from msgspec import Struct

from warpseal.aggregation.admission import RoundAdmission
from warpseal.aggregation.caches import SignatureCaches
from warpseal.aggregation.caller import Caller
from warpseal.aggregation.errors import QuorumImpossible, QuorumNotReached
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.interfaces import (
    ActivitySource,
    AggregationMetrics,
    ChainSource,
    EpochSource,
    PeerClient,
    ProposedHeightSource,
    ShareArchive,
    ShortfallListener,
    SigningCheck,
    SubnetTracking,
    ValidatorSetSource,
)
from warpseal.aggregation.pinned_messages import PinnedMessages
from warpseal.aggregation.reports import AggregationReports
from warpseal.aggregation.request_course import OK, RequestCourse
from warpseal.aggregation.resolve import AggregationRequest, Resolver
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.round_history import RoundHistory
from warpseal.aggregation.round_runner import OpenRounds
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.verification import CryptoPool, ShareAuditor
from warpseal.errors import WarpsealError
from warpseal.runtime.tracing import active_trace
from warpseal.warp.ids import MessageID, SubnetID
from warpseal.warp.message import SignedMessage, UnsignedMessage
from warpseal.warp.quorum_shortfall import QuorumShortfall
from warpseal.warp.validator_set import CanonicalValidatorSet

__all__ = ["Aggregation", "AggregationRequest", "SignatureAggregator"]

_CANCELLED: Final = "cancelled"
_MAX_REASON_CHARACTERS: Final = 500


class Aggregation(Struct, frozen=True):
    """A signed message whose signature and weight were verified as they stand in its bytes.

    height: P-Chain height of the validator set `members`.
    cached: whether the result was in memory.
    signers: number of signers.
    signed_weight: weight of the signers in the set.
    """

    signed_message: bytes
    height: int
    signing_subnet_id: SubnetID
    cached: bool
    signers: int
    members: CanonicalValidatorSet
    signed_weight: int


class SignedRequest(NamedTuple):
    """A signed message, and the other parts of the request for it.

    signing_subnet_id: None if the request named no signing subnet.
    """

    signed_message: bytes
    justification: bytes = b""
    signing_subnet_id: SubnetID | None = None


def _allow_all(message: UnsignedMessage, subnet_id: SubnetID | None) -> None:
    """Allow every signature."""


def _ignore_shortfall(message: UnsignedMessage, shortfall: QuorumShortfall) -> None:
    """Ignore a missed quorum."""


class SignatureAggregator:
    """Signs messages; used from one event loop.

    executor: worker threads for sums and pairings; None means the event loop's own.
    clock: clock that measures the stages; unix_clock dates the records.
    admission: the turns of rounds, which say whether a caller waits.
    auditor: verifies pinned shares while its `run` runs; without it shares are verified only when
        a sum needs them.
    """

    def __init__(
        self,
        *,
        network_id: int,
        settings: AggregationSettings,
        heights: ProposedHeightSource,
        epochs: EpochSource,
        sets: ValidatorSetSource,
        chains: ChainSource,
        peers: PeerClient,
        tracker: SubnetTracking,
        activity: ActivitySource,
        archive: ShareArchive,
        metrics: AggregationMetrics,
        check_allowed: SigningCheck = _allow_all,
        on_shortfall: ShortfallListener = _ignore_shortfall,
        executor: Executor | None = None,
        random: Random | None = None,
        clock: Callable[[], float] = perf_counter,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.admission: Final = RoundAdmission()
        self.caches: Final = SignatureCaches(settings)
        self.check_allowed: Final = check_allowed
        self.reports: Final = AggregationReports(metrics, unix_clock)
        pool = CryptoPool(executor)
        self.auditor: Final = ShareAuditor(archive, self.caches.shares, pool)
        self._settings = settings
        self._clock = clock
        self._history = RoundHistory(metrics, on_shortfall)
        self._pinned = PinnedMessages(archive)
        self._resolver = Resolver(
            heights, sets, chains, epochs, network_id, settings.empty_set_retry_s
        )
        self._rounds = OpenRounds(
            peers=peers,
            tracker=tracker,
            activity=activity,
            sets=sets,
            archive=archive,
            caches=self.caches,
            history=self._history,
            admission=self.admission,
            pool=pool,
            settings=settings,
            random=random or Random(),
        )
        self._first_signed: SignedRequest | None = None

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        """Return the signed message that a request asks for.

        Raises InvalidTimeout, QuorumImpossible, QuorumNotReached, StoreDown, and the errors of
        Resolver.resolve and of `check_allowed`.
        """
        course = RequestCourse(self._clock)
        outcome, reason = _CANCELLED, ""
        callers = 0 if request.is_ahead else 1
        self.admission.callers += callers
        try:
            aggregation = await self._aggregate(request, course)
            outcome = OK
        except WarpsealError as error:
            outcome, reason = error.code, str(error)[:_MAX_REASON_CHARACTERS]
            raise
        finally:
            self.admission.callers -= callers
            report = partial(self._report, request, course, outcome, reason)
            if request.defer_report is not None:
                request.defer_report(report)
            elif outcome == OK and active_trace() is None:
                # The response does not wait for its report: it is written in this turn of the loop.
                asyncio.get_running_loop().call_soon(report)
            else:
                report()
        if self._first_signed is None:
            self._first_signed = SignedRequest(
                aggregation.signed_message, request.justification, request.signing_subnet_id
            )
        return aggregation

    async def _aggregate(self, request: AggregationRequest, course: RequestCourse) -> Aggregation:
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
        caller = Caller(resolved, goal, self._clock, is_ahead=request.is_ahead)
        caller.stages["validators"] = self._clock() - course.started_at
        course.caller = caller
        # Before anything is pinned or asked: a forbidden message leaves no trace in the archive.
        self.check_allowed(message, resolved.subnet_id)
        if request.is_pinned:
            self._pinned.pin(message)
        result = self.caches.results.find(message.id, validators.digest, goal, loop.time())
        course.is_cached = result is not None
        if result is None:
            result = await self._collect(request, caller)
        if request.is_pinned:
            await self._pinned.ensure_stored(resolved, result, is_new=not course.is_cached)
            # It may have been forbidden while its signature was stored.
            self.check_allowed(message, resolved.subnet_id)
        course.result = result
        return Aggregation(
            result.signed_message,
            resolved.height,
            resolved.subnet_id,
            course.is_cached,
            result.signers,
            validators,
            result.weight,
        )

    async def _collect(self, request: AggregationRequest, caller: Caller) -> SignedResult:
        """Return the result of a round, or raise the error of its failure with advice."""
        resolved = caller.request
        try:
            result = await self._rounds.collect(caller)
        except (QuorumNotReached, QuorumImpossible) as error:
            if request.refusal is not None:
                raise request.refusal from None
            hint = None
            if not request.stored_only:
                hint = await self._resolver.advise_subnet(resolved, error.shortfall)
            if hint is None:
                raise
            advised_error = error.advised(hint)
            caller.shortfall = advised_error.shortfall
            raise advised_error from None
        finally:
            if resolved.message.id in self._pinned:
                self.auditor.notify()
        # It may have been forbidden while validators were asked.
        self.check_allowed(resolved.message, resolved.subnet_id)
        return result

    def _report(
        self, request: AggregationRequest, course: RequestCourse, outcome: str, reason: str
    ) -> None:
        """Report an outcome.

        A look into the store without a result is no outcome, unless its caller is refused for it.
        """
        is_look = request.stored_only and request.refusal is None
        if outcome == OK or not is_look:
            self.reports.report(course, outcome, reason)

    @property
    def first_signed(self) -> SignedRequest | None:
        """The first signed message with its request; None while it may not be handed out."""
        if self._first_signed is None:
            return None
        signed_message = SignedMessage.parse(self._first_signed.signed_message)
        with suppress(WarpsealError):
            self.check_allowed(signed_message.unsigned, None)
            return self._first_signed
        return None

    def open_message_ids(self) -> frozenset[MessageID]:
        """Return the messages that validators are asked to sign now."""
        return self._rounds.message_ids()

    def last_shortfall(self, message_id: MessageID) -> QuorumShortfall | None:
        """Return why the last request of the last hour for a message missed its quorum.

        None if the message was signed since.
        """
        return self._history.last_shortfall(message_id)
