"""The use case: from the hash of a P-Chain transaction to the signed message that its L1's manager needs.

Who signs is the subnet of the manager's chain, at the height at which that chain verifies. What is true no more is
served only from what was stored. Source of truth: ACP-77; avalanchego `vms/platformvm/network/warp.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.aggregation.settings import AggregationSettings
from warpseal.errors import (
    HeightTooNew,
    InvalidTimeout,
    MessageSuperseded,
    NodeUnavailable,
    NoValidators,
    QuorumImpossible,
    QuorumNotReached,
    StoreDown,
)
from warpseal.l1.context import L1Components, L1Deps, SigningContext
from warpseal.l1.explain import Explainer
from warpseal.l1.heights import PROPOSED
from warpseal.l1.origins import FoundOrigin, OriginHints
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.l1.settings import L1Settings
from warpseal.l1.supersede_guard import Watch
from warpseal.l1.validity import Superseded, Validity
from warpseal.warp.ids import id_text

# Refusals of the P-Chain that say "not yet" or "no more": subnet, validation, nonce or weight are not (any more) so.
DOUBTFUL_REFUSALS: Final = frozenset({6, 11, 12, 14, 16, 17})
# Of what is stored, only the validator set may have to be fetched.
_STORED_PATIENCE_S: Final = 5.0
_LEAST_TIMEOUT_S: Final = 0.001


class L1MessageService:
    """Used from one event loop. limits: of a request's time; executor: one worker thread of its own is best."""

    def __init__(
        self,
        rooms: L1Deps,
        network_id: int,
        settings: L1Settings,
        limits: AggregationSettings,
        *,
        executor: Executor | None = None,
    ) -> None:
        self._parts = L1Components.of(rooms, network_id, settings, executor)
        self._aggregator = rooms.aggregator
        self._explainer = Explainer(self._parts, rooms.heights, rooms.sets, rooms.archive)
        self._settings = settings
        self._limits = limits

    async def get(self, request: L1Request) -> L1SignedMessage:
        """Return the signed message of a transaction.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, MessageSuperseded, ProofMismatch,
        OriginNotIndexed, UnknownChain, InvalidTimeout, NodeUnavailable, and what the aggregation raises.
        """
        deadline = asyncio.get_running_loop().time() + self._patience_s(request)
        try:
            async with asyncio.timeout_at(deadline):
                subject = await self._parts.subject(request)
                truth = await self._parts.truths.of(subject.derived, subject.at_least)
        except TimeoutError:
            raise NodeUnavailable("the transaction, its manager's subnet and the epoch") from None
        if isinstance(truth, Superseded):
            return await self._superseded(request, subject, truth)
        return await self._current(request, subject, deadline)

    async def explain(self, request: L1Request) -> dict[str, Any]:
        """Return how the answer would come about and which check would fail, JSON-ready; nobody is asked to sign.

        Raises InvalidTimeout.
        """
        deadline = asyncio.get_running_loop().time() + self._patience_s(request)
        return await self._explainer.explain(request, deadline)

    async def _current(self, request: L1Request, subject: SigningContext, deadline: float) -> L1SignedMessage:
        """Collect signatures for a message that is true as far as is known."""
        justification = subject.derived.justification
        if justification is None:
            found = await self._origin_at_hand(request, subject, deadline)
            # Whoever signed before needs no proof any more.
            with suppress(StoreDown):
                if found is None and (stored := await self._stored(request, subject)) is not None:
                    return _answer(stored, subject)
            found = found or await self._parts.origins.search(subject.derived, subject.subnet_id, deadline)
            justification = found.origin.justification
        outcome = await self._collect(_wanted(request, subject, justification), subject, deadline)
        if isinstance(outcome, Superseded):
            return await self._superseded(request, subject, outcome)
        return _answer(outcome, subject)

    async def _collect(
        self, wanted: AggregationRequest, subject: SigningContext, deadline: float
    ) -> Aggregation | Superseded:
        """Ask validators for as long as the message may be true. Raises QuorumNotReached and others."""
        watch = Watch(
            lambda: self._parts.truths.of(subject.derived, subject.at_least), self._settings.recheck_interval_s
        )
        try:
            return await watch.over(self._aggregate(wanted, deadline))
        except QuorumNotReached as error:
            truth = await self._doubted(subject, error)
            if isinstance(truth, Superseded):
                return truth
            raise

    async def _origin_at_hand(self, request: L1Request, subject: SigningContext, deadline: float) -> FoundOrigin | None:
        hints = OriginHints(request.registration_tx_id, request.justification)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._parts.origins.at_hand(subject.derived, hints)
        except TimeoutError:
            raise NodeUnavailable("the transaction that the caller names") from None

    async def _superseded(self, request: L1Request, subject: SigningContext, truth: Superseded) -> L1SignedMessage:
        """Answer with what was signed while the message was true. Raises MessageSuperseded, StoreDown."""
        told = (await self._with_proof(truth, subject)).as_json()
        stored = await self._stored(request, subject)
        if stored is None:
            raise MessageSuperseded(id_text(request.tx_id), told)
        return _answer(stored, subject, told)

    async def _with_proof(self, truth: Superseded, subject: SigningContext) -> Superseded:
        """Return it with the justification of the removal that is true now, where that is at hand."""
        validation_id = subject.derived.validation_id
        if not truth.is_removal or validation_id is None:
            return truth
        found = await self._parts.origins.known(validation_id)
        return truth if found is None else replace(truth, justification=found.origin.justification)

    async def _stored(self, request: L1Request, subject: SigningContext) -> Aggregation | None:
        """Return the message signed by what was stored, or None where that does not suffice. Raises StoreDown."""
        until = asyncio.get_running_loop().time() + min(_STORED_PATIENCE_S, self._limits.max_timeout_s)
        try:
            return await self._aggregate(replace(_wanted(request, subject, b""), stored_only=True), until)
        except (QuorumNotReached, QuorumImpossible):
            return None

    async def _aggregate(self, wanted: AggregationRequest, deadline: float) -> Aggregation:
        """Aggregate for the height that was chosen; for the proposed one where that of an epoch serves nobody."""
        wanted = replace(wanted, timeout_s=_left_s(deadline))
        try:
            return await self._aggregator.aggregate(wanted)
        except (HeightTooNew, NoValidators):
            if not wanted.is_epoch_height:
                raise
        again = replace(wanted, height=None, is_epoch_height=False, timeout_s=_left_s(deadline))
        return await self._aggregator.aggregate(again)

    async def _doubted(self, subject: SigningContext, error: QuorumNotReached) -> Validity | None:
        """Look again, at every node, where validators said that something is not (any more) so."""
        codes = {missing.error_code for missing in error.shortfall.missing}
        if codes.isdisjoint(DOUBTFUL_REFUSALS):
            return None
        return await self._parts.truths.again(subject.derived, subject.at_least)

    def _patience_s(self, request: L1Request) -> float:
        timeout_s = self._limits.default_timeout_s if request.timeout_s is None else request.timeout_s
        longest_s = self._limits.max_timeout_s
        if not 0 < timeout_s <= longest_s:
            raise InvalidTimeout("timeoutSeconds", f"{timeout_s:g} is not within 0..{longest_s:g} seconds")
        return timeout_s


def _wanted(request: L1Request, subject: SigningContext, justification: bytes) -> AggregationRequest:
    return AggregationRequest(
        message=subject.derived.message,
        justification=justification,
        signing_subnet_id=subject.subnet_id,
        quorum=request.quorum,
        buffer=request.buffer,
        height=subject.choice.height,
        timeout_s=None,
        is_epoch_height=subject.choice.is_epoch,
        is_pinned=True,
    )


def _answer(made: Aggregation, subject: SigningContext, superseded: Mapping[str, Any] | None = None) -> L1SignedMessage:
    # Where the epoch's height served nobody, the answer is made for the proposed one.
    choice = subject.choice
    source = PROPOSED.source if choice.is_epoch and made.height != choice.height else choice.source
    return L1SignedMessage(
        signed_message=made.signed_message,
        height=made.height,
        height_source=source,
        signing_subnet_id=made.signing_subnet_id,
        cached=made.cached,
        superseded=superseded,
    )


def _left_s(deadline: float) -> float:
    return max(_LEAST_TIMEOUT_S, deadline - asyncio.get_running_loop().time())
