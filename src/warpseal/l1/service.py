"""The use case: returns the signed message of a P-Chain transaction, which the manager of its L1
needs.

The subnet of the manager's chain signs, at the height at which that chain verifies. A superseded
message is only served if it was signed before. Source of truth: ACP-77; avalanchego
`vms/platformvm/network/warp.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from warpseal.aggregation.errors import NoValidators, QuorumImpossible, QuorumNotReached
from warpseal.aggregation.service import Aggregation, AggregationRequest, SignatureAggregator
from warpseal.aggregation.settings import AggregationSettings
from warpseal.errors import WarpsealError
from warpseal.l1.context import L1Lookups, SigningContext
from warpseal.l1.errors import MessageSuperseded
from warpseal.l1.explain import Explainer, Explanation
from warpseal.l1.heights import PROPOSED, HeightChoice
from warpseal.l1.request import L1Request, L1SignedMessage, SupersededStatement
from warpseal.l1.settings import L1Settings
from warpseal.l1.validity import NO_NODE_ANSWERED, Superseded, cancel_when_superseded
from warpseal.messages.attestation import Attestation
from warpseal.messages.errors import SigningBlocked
from warpseal.store.archive import Archive
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import HeightTooNew
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import ChainID, id_text

# Codes of validators that refuse because of their state: the subnet, validation, nonce or weight is
# not as stated.
STATE_REFUSALS: Final = frozenset({6, 11, 12, 14, 16, 17})
# For stored signatures only the validator set may have to be fetched.
_STORED_TIMEOUT_S: Final = 5.0
# A node may fail at the deadline of a request; a look into the store takes milliseconds.
_STORED_GRACE_S: Final = 0.5
_MAX_PERCENTAGE: Final = 100


class L1MessageService:
    """Used from one event loop.

    limits: settings that bound the time of a request.
    on_signed: called with the id of a transaction, its message and the height of the validator set
        that signed, also if the message was signed before.
    """

    def __init__(
        self,
        lookups: L1Lookups,
        aggregator: SignatureAggregator,
        archive: Archive,
        sets: ValidatorSets,
        heights: ProposedHeight,
        settings: L1Settings,
        limits: AggregationSettings,
        *,
        on_signed: Callable[[bytes, Attestation, int], None] | None = None,
    ) -> None:
        self._lookups = lookups
        self._aggregator = aggregator
        self._archive = archive
        self._sets = sets
        self._proposed_height = heights
        self._on_signed = on_signed
        self._settings = settings
        self._limits = limits

    async def get(self, request: L1Request) -> L1SignedMessage:
        """Return the signed message of a transaction.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, MessageSuperseded,
        ProofMismatch, OriginNotIndexed, UnknownChain, InvalidTimeout, NodeUnavailable, and what the
        aggregation raises.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s(request.timeout_s)
        try:
            return await self._get(request, deadline)
        except NodeUnavailable:
            stored = await self._stored_without_node(request, deadline)
            if stored is None:
                raise
            return stored

    async def _get(self, request: L1Request, deadline: float) -> L1SignedMessage:
        # A node that hangs leaves time to read what is stored.
        reserve_s = min(_STORED_TIMEOUT_S, (deadline - asyncio.get_running_loop().time()) / 2)
        try:
            async with asyncio.timeout_at(deadline - reserve_s):
                context = await self._lookups.resolve(request)
                validity = await self._lookups.validity.current(
                    context.attestation, context.at_least
                )
        except TimeoutError:
            raise NodeUnavailable("the transaction, its manager's subnet and the epoch") from None
        if isinstance(validity, Superseded):
            return await self._superseded(request, context, validity)
        current = await self._current(request, context, deadline)
        if current.superseded is None and self._on_signed is not None:
            self._on_signed(request.tx_id, context.attestation, current.height)
        return replace(current, is_unchecked=validity == NO_NODE_ANSWERED)

    async def manager_chain(self, request: L1Request) -> ChainID:
        """Return the chain that verifies the message of a transaction.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, NodeUnavailable.
        """
        return (await self._lookups.transactions.find(request.tx_id)).message().manager_chain_id

    async def explain(self, request: L1Request) -> Explanation:
        """Return how the message would be signed and which check would fail; asks no validator.

        Raises InvalidTimeout.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s(request.timeout_s)
        services = (
            self._lookups,
            self._aggregator,
            self._archive,
            self._sets,
            self._proposed_height,
        )
        return await Explainer(*services, request, deadline).explain()

    async def _current(
        self, request: L1Request, context: SigningContext, deadline: float
    ) -> L1SignedMessage:
        """Collect signatures for a message that is not known to be superseded."""
        justification = context.attestation.justification
        if justification is None:
            try:
                async with asyncio.timeout_at(deadline):
                    origin = await self._lookups.origins.find(context.attestation, request)
            except TimeoutError:
                raise NodeUnavailable("the transaction that the caller names") from None
            if origin is None:
                # Before the search, which takes seconds: stored signatures need no proof any more.
                with suppress(StoreDown, QuorumNotReached, QuorumImpossible):
                    return _result(await self._aggregate_stored(request, context), context)
                origin = await self._lookups.origins.search(
                    context.attestation, context.signing_subnet_id, deadline
                )
            justification = origin.origin.justification
        aggregation_request = _aggregation_request(request, context, justification)
        outcome = await self._collect(aggregation_request, context, deadline)
        if isinstance(outcome, Superseded):
            return await self._superseded(request, context, outcome)
        return _result(outcome, context)

    async def _collect(
        self, request: AggregationRequest, context: SigningContext, deadline: float
    ) -> Aggregation | Superseded:
        """Ask validators until the message is superseded. Raises QuorumNotReached and others."""
        # If the message becomes superseded, the store decides the outcome, which is read next.
        reports: list[Callable[[], None]] = []
        work = self._aggregate(replace(request, defer_report=reports.append), deadline)
        try:
            outcome = await cancel_when_superseded(
                work,
                lambda: self._lookups.validity.current(context.attestation, context.at_least),
                self._settings.recheck_interval_s,
            )
            if isinstance(outcome, Superseded):
                reports.clear()
            return outcome
        except QuorumNotReached as error:
            # Validators that refuse because of their state may know more than the node that was
            # asked.
            if any(missing.error_code in STATE_REFUSALS for missing in error.shortfall.missing):
                validity = await self._lookups.validity.refresh(
                    context.attestation, context.at_least
                )
                if isinstance(validity, Superseded):
                    reports.clear()
                    return validity
            raise
        finally:
            for report in reports:
                report()

    async def _superseded(
        self, request: L1Request, context: SigningContext, validity: Superseded
    ) -> L1SignedMessage:
        """Return the message if it was signed while it was valid.

        The result and the error have the justification of a removal message, if it is known.
        Raises MessageSuperseded, StoreDown.
        """
        validation_id = context.attestation.validation_id
        if validity.is_removal and validation_id is not None:
            origin = await self._lookups.origins.load(validation_id)
            if origin is not None:
                validity = replace(validity, justification=origin.origin.justification)
        superseded = validity.statement()
        refusal = MessageSuperseded(id_text(request.tx_id), superseded)
        stored = await self._aggregate_stored(request, context, refusal)
        return _result(stored, context, superseded)

    async def _stored_without_node(
        self, request: L1Request, deadline: float
    ) -> L1SignedMessage | None:
        """Return a stored signed message for the newest set in memory, while no node answers.

        The result is None if the store or the memory lacks something, or if this takes longer than
        the deadline and a grace period allow.

        The store has the signature and its signers' keys, but the set decides on weights and on the
        order of the bits.
        """
        lookups, now = self._lookups, asyncio.get_running_loop().time()
        until = min(max(deadline, now + _STORED_GRACE_S), now + _STORED_TIMEOUT_S)
        try:
            async with asyncio.timeout_at(until):
                located = await lookups.transactions.find(request.tx_id)
                attestation = located.message()
                subnet_id = await lookups.find_subnet(attestation.manager_chain_id)
                at_least = located.height or 0
                height = request.height or self._sets.newest_height(subnet_id)
                if height is None:
                    return None
                validity = await lookups.validity.current(attestation, at_least)
                quorum = await lookups.quorum(request, attestation.manager_chain_id)
                choice = HeightChoice(height, "epoch")
                context = SigningContext(attestation, at_least, subnet_id, choice, quorum)
                stored = await self._aggregate_stored(request, context)
        except SigningBlocked:
            raise
        except (WarpsealError, TimeoutError):
            return None
        superseded = validity.statement() if isinstance(validity, Superseded) else None
        source = HeightChoice(height, "request") if request.height else PROPOSED
        result = _result(stored, replace(context, choice=source), superseded)
        return replace(result, is_unchecked=validity == NO_NODE_ANSWERED)

    async def _aggregate_stored(
        self, request: L1Request, context: SigningContext, refusal: WarpsealError | None = None
    ) -> Aggregation:
        """Return the message signed by stored signatures.

        Raises StoreDown, and if they do not suffice the refusal; without a refusal
        QuorumNotReached or QuorumImpossible.
        """
        timeout_s = min(_STORED_TIMEOUT_S, self._limits.max_timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        aggregation_request = _aggregation_request(request, context, b"")
        aggregation_request = replace(aggregation_request, stored_only=True, refusal=refusal)
        return await self._aggregate(aggregation_request, deadline)

    async def _aggregate(self, request: AggregationRequest, deadline: float) -> Aggregation:
        """Aggregate for the chosen height; for the proposed height if the epoch height has no
        usable set.
        """
        loop = asyncio.get_running_loop()
        request = replace(request, timeout_s=self._limits.remaining_s(deadline, loop.time()))
        try:
            return await self._aggregator.aggregate(request)
        except (HeightTooNew, NoValidators):
            if not request.is_epoch_height:
                raise
        timeout_s = self._limits.remaining_s(deadline, loop.time())
        request = replace(request, height=None, is_epoch_height=False, timeout_s=timeout_s)
        return await self._aggregator.aggregate(request)


def _aggregation_request(
    request: L1Request, context: SigningContext, justification: bytes
) -> AggregationRequest:
    return AggregationRequest(
        message=context.attestation.message,
        justification=justification,
        signing_subnet_id=context.signing_subnet_id,
        quorum=context.quorum,
        buffer=min(request.buffer, _MAX_PERCENTAGE - context.quorum),
        height=context.choice.height,
        timeout_s=None,
        is_epoch_height=context.choice.is_epoch,
        is_pinned=True,
    )


def _result(
    aggregation: Aggregation, context: SigningContext, superseded: SupersededStatement | None = None
) -> L1SignedMessage:
    # The aggregation is for the proposed height if the epoch height had no usable set.
    source = context.choice.source
    if context.choice.is_epoch and aggregation.height != context.choice.height:
        source = PROPOSED.source
    return L1SignedMessage(
        signed_message=aggregation.signed_message,
        height=aggregation.height,
        height_source=source,
        signing_subnet_id=aggregation.signing_subnet_id,
        cached=aggregation.cached,
        superseded=superseded,
    )
