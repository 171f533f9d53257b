"""The use case: a message that the next block of its destination accepts, with a report.

Source of truth: ACP-181; avalanchego `graft/subnet-evm/precompile/contracts/warp/config.go`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from typing import Any, Final, Generic

from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from warpseal.aggregation.errors import NoValidators, QuorumImpossible, QuorumNotReached
from warpseal.aggregation.resolve import AggregationRequest
from warpseal.aggregation.service import Aggregation, SignatureAggregator
from warpseal.aggregation.settings import AggregationSettings
from warpseal.delivery.destination import DESTINATION_FIELD, Destination, Destinations
from warpseal.delivery.errors import DestinationMismatch, DestinationUnavailable
from warpseal.delivery.needed_height import NeededHeights
from warpseal.delivery.report import (
    DeliveryAdvice,
    DestinationQuorum,
    DestinationReport,
    HeightLabel,
    RawHeaders,
    SignedSet,
    WeightAtHeight,
    advise,
    weigh,
)
from warpseal.delivery.request import (
    Delivery,
    DeliveryRequest,
    L1DeliveryRequest,
    NextSignedMessage,
    S,
)
from warpseal.delivery.settings import DeliverySettings
from warpseal.delivery.signers import (
    L1MessageSigner,
    MessageSigner,
    Signer,
    SignerResult,
    SigningTerms,
    aggregate,
)
from warpseal.delivery.warp_rules import choose_signing_subnet
from warpseal.errors import WarpsealError
from warpseal.l1.explain import Explanation
from warpseal.l1.request import L1SignedMessage
from warpseal.l1.service import L1MessageService
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.resources.base import UNSET
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, id_text
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet, has_quorum

log = logging.getLogger(__name__)

MISSED: Final = (QuorumNotReached, QuorumImpossible, NoValidators)
"""The errors that have advice."""
# How often a message is signed again because the epoch ended in the meantime.
_MAX_EPOCHS: Final = 3
# A round that missed its quorum ends at the deadline, so the lookups have some time after it.
_LOOKUPS_S: Final = 1.0
_MAX_LOADS: Final = 64
_LOAD_TIMEOUT_S: Final = 10.0
_MAX_RECENT: Final = 2_048
# Requests with a longer message and justification are not kept.
_MAX_RECENT_BYTES: Final = 2_048


_DeliveryKey = tuple[Any, ...]


class _CachedDelivery(Struct, frozen=True):
    """The outcome of a request. It has no validator set, so that none outlives its cache.

    proposed_height: proposed height of the P-Chain at the time of the request.
    set_digest: digest of the validator set that signed.
    """

    destination: Destination
    terms: SigningTerms
    proposed_height: int | None
    aggregation_request: AggregationRequest
    signed_message: bytes
    set_digest: bytes
    report: DestinationReport
    headers: RawHeaders


class _Outcome(Struct, Generic[S], frozen=True):
    """A message that was signed in its destination's epoch.

    destination: destination as it was before the message was signed.
    latest: destination as it was afterwards.
    proposed_height: proposed height of the P-Chain at the time of the report.
    lookups_end: loop time at which lookups for the report end.
    """

    signed: SignerResult[S]
    destination: Destination
    latest: Destination
    proposed_height: int | None
    report: DestinationReport
    lookups_end: float


class DeliveryService:
    """Signs messages for their destinations. Used from one event loop.

    unix_now: clock in Unix seconds, with which the times of epochs are compared.
    """

    def __init__(
        self,
        destinations: Destinations,
        aggregator: SignatureAggregator,
        l1_messages: L1MessageService,
        chains: ChainLookup,
        sets: ValidatorSets,
        heights: ProposedHeight,
        settings: DeliverySettings,
        limits: AggregationSettings,
        *,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        self._destinations = destinations
        self._aggregator = aggregator
        self._l1_messages = l1_messages
        self._chains = chains
        self._sets = sets
        self._proposed_height = heights
        self._settings = settings
        self._limits = limits
        self._unix_now = unix_now
        self._needed_heights = NeededHeights(sets)
        self._recent: LRUCache[_DeliveryKey, _CachedDelivery] = LRUCache(_MAX_RECENT)
        self._loads: dict[tuple[SubnetID, int], asyncio.Task[None]] = {}

    async def sign(self, request: DeliveryRequest) -> Delivery[Aggregation]:
        """Return a message signed for a destination.

        Raises UnknownChain, WarpDisabled, DestinationUnavailable, and what the aggregation raises;
        a missed quorum has `advice` in its detail if the destination verifies with an old set.
        """
        timeout_s = self._limits.timeout_s(request.aggregation.timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        destination = self._destinations.cached(request.destination_id)
        if destination is not None and not request.wants_report:
            delivery = await self._sign_recent(request, destination, deadline)
            if delivery is not None:
                return delivery
        delivery = await self._sign_new(request, deadline)
        self._check_allowed(delivery.result)
        return delivery

    async def _sign_recent(
        self, request: DeliveryRequest, destination: Destination, deadline: float
    ) -> Delivery[Aggregation] | None:
        """Return the delivery of an earlier equal request, if it still holds; None otherwise.

        It holds if the aggregation returns the same message from the same set at the same
        destination: then the report is the same as well, and need not be made again.
        """
        recent = self._find_recent(request)
        # The report has the proposed height.
        heights = self._proposed_height
        if recent is None or recent.destination != destination:
            return None
        if recent.proposed_height != heights.last:
            return None
        try:
            aggregation = await aggregate(self._aggregator, recent.aggregation_request)
        except MISSED as error:
            lookups_end = _lookups_end(deadline)
            latest = await self._latest(recent.destination, lookups_end)
            is_epoch_height = recent.terms.height_source == "epoch"
            if is_epoch_height and _has_moved(recent.destination, latest, deadline):
                return None
            await self._add_advice(error, latest, recent.terms, lookups_end)
            raise
        # The epoch may have ended while validators were asked; for a cached message none was.
        is_current = (
            aggregation.cached or self._destinations.cached(request.destination_id) == destination
        )
        is_same_message = aggregation.signed_message == recent.signed_message
        is_same_set = aggregation.members.digest == recent.set_digest
        if not (is_current and is_same_message and is_same_set):
            return None
        return Delivery(aggregation, recent.report, recent.headers)

    async def _sign_new(self, request: DeliveryRequest, deadline: float) -> Delivery[Aggregation]:
        original = request.aggregation
        source_chain_id = P_CHAIN if original.message is None else original.message.source_chain_id
        async with _bounded(deadline, NodeUnavailable("the subnet of the message's chain")):
            source_subnet_id = await self._chains.subnet_of(source_chain_id)
        signer = MessageSigner(self._aggregator, request, source_chain_id, source_subnet_id)
        # The destination decides the height, the set and the quorum, so its lookup comes first.
        destination = await self._resolve(request.destination_id, deadline)
        outcome = await self._sign_in_epoch(
            signer, destination, deadline, is_whole=request.wants_report
        )
        if request.wants_report:
            return await self._deliver_whole(signer, outcome, deadline)
        aggregation, report = outcome.signed.result, outcome.report
        headers = report.headers()
        if outcome.latest == outcome.destination:
            terms = outcome.signed.terms
            aggregation_request = signer.build_request(terms, original.timeout_s)
            recent = _CachedDelivery(
                outcome.latest,
                terms,
                outcome.proposed_height,
                replace(aggregation_request, is_ahead=False),
                aggregation.signed_message,
                aggregation.members.digest,
                report,
                headers,
            )
            self._remember(request, recent)
        return Delivery(aggregation, report, headers)

    async def _sign_in_epoch(
        self, signer: Signer[S], destination: Destination, deadline: float, *, is_whole: bool
    ) -> _Outcome[S]:
        """Sign a message at the height at which its destination verifies now, and report on it.

        destination: destination as it is now.
        is_whole: the report waits for the sets of all heights.
        """
        latest = destination
        epochs_left = _MAX_EPOCHS
        while True:
            epochs_left -= 1
            destination = latest
            terms = signer.choose_terms(destination)
            # The sets of the heights in the report load while the round runs.
            self._prefetch(destination, terms.verifying_subnet_id)
            try:
                signed = await signer.sign(terms, self._remaining_s(deadline))
            except MISSED as error:
                # The destination is looked up before the miss becomes an error: the new epoch may
                # have the quorum that the old one lacked.
                lookups_end = _lookups_end(deadline)
                latest = await self._latest(destination, lookups_end)
                is_epoch_height = terms.height_source == "epoch"
                has_moved = is_epoch_height and _has_moved(destination, latest, deadline)
                if not epochs_left or not has_moved:
                    await self._add_advice(error, latest, terms, lookups_end)
                    raise
            else:
                # Its epoch may have ended while validators were asked.
                lookups_end = _lookups_end(deadline)
                latest = await self._latest(destination, lookups_end)
                # The sets are awaited only after the round, and for a bounded time: a report with
                # fewer heights is better than none.
                await self._load_sets(
                    latest, terms.verifying_subnet_id, lookups_end, is_whole=is_whole
                )
                proposed_height = self._proposed_height.last
                report = self._report(latest, signed.terms, signed.signed_set)
                if not epochs_left or not _is_outrun(latest, report, deadline):
                    return _Outcome(
                        signed, destination, latest, proposed_height, report, lookups_end
                    )
            # All is done again with the new height. The shares are in the cache by now, so that a
            # repetition asks only validators that are new.
            await asyncio.sleep(signer.epoch_lag_s)

    def _check_allowed(self, signed: Aggregation | L1SignedMessage) -> None:
        """Raise what `check_allowed` of the aggregator raises.

        A message may have been forbidden while its report, or a second message, was made.
        """
        message = SignedMessage.parse(signed.signed_message).unsigned
        self._aggregator.check_allowed(message, signed.signing_subnet_id)

    async def signing_set(
        self, source_chain_id: ChainID, destination_id: ChainID
    ) -> CanonicalValidatorSet:
        """Return the validators that sign messages of a chain for a destination now.

        Raises what `sign` raises.
        """
        source_subnet_id = await self._chains.subnet_of(source_chain_id)
        destination = await self._destinations.resolve(destination_id)
        subnet_id, _ = choose_signing_subnet(
            source_chain_id,
            source_subnet_id,
            destination_id,
            destination.subnet_id,
            destination.rules,
        )
        return await self._sets.at(subnet_id, destination.height, is_chosen=True, epoch=True)

    async def _resolve(self, chain_id: ChainID, deadline: float) -> Destination:
        late = DestinationUnavailable(id_text(chain_id), "its nodes did not answer in time")
        async with _bounded(deadline, late):
            return await self._destinations.resolve(chain_id)

    async def _latest(self, destination: Destination, lookups_end: float) -> Destination:
        """Return the destination as it is now; as it was if the lookup fails."""
        try:
            return await self._resolve(destination.chain_id, lookups_end)
        except WarpsealError:
            return destination

    def _find_recent(self, request: DeliveryRequest) -> _CachedDelivery | None:
        try:  # `get` of cachetools hashes the key once more.
            return self._recent[_delivery_key(request)]
        except KeyError:
            return None

    def _remember(self, request: DeliveryRequest, recent: _CachedDelivery) -> None:
        """Keep the outcome of a request for `_sign_recent`."""
        aggregation = request.aggregation
        size_bytes = len(aggregation.justification)
        if aggregation.message is not None:
            size_bytes += len(aggregation.message.raw)
        # A report that lacks a height may have it next time.
        is_complete = len(recent.report.heights) == len(self._heights(recent.destination))
        if size_bytes <= _MAX_RECENT_BYTES and is_complete:
            self._recent[_delivery_key(request)] = recent

    async def sign_l1(self, request: L1DeliveryRequest) -> Delivery[L1SignedMessage]:
        """Return the signed message of a transaction for the chain of its L1's manager.

        Raises DestinationMismatch, WarpDisabled, DestinationUnavailable, and what
        L1MessageService.get raises.
        """
        original = request.l1
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s(original.timeout_s)
        async with _bounded(deadline, NodeUnavailable("the transaction")):
            chain_id = await self._l1_messages.manager_chain(original)
        _require_manager_chain(request, id_text(chain_id))
        signer = L1MessageSigner(self._l1_messages, self._sets, original)
        destination = await self._resolve(chain_id, deadline)
        outcome = await self._sign_in_epoch(
            signer, destination, deadline, is_whole=request.wants_report
        )
        if request.wants_report:
            delivery = await self._deliver_whole(signer, outcome, deadline)
        else:
            delivery = Delivery(outcome.signed.result, outcome.report, outcome.report.headers())
        self._check_allowed(delivery.result)
        return delivery

    async def explain_l1(self, request: L1DeliveryRequest) -> Explanation:
        """Return the explanation of a transaction's message.

        Raises DestinationMismatch, InvalidTimeout.
        """
        explanation = await self._l1_messages.explain(request.l1)
        if explanation.message:
            _require_manager_chain(request, explanation.message.manager_chain_id)
        return explanation

    # Validator sets of the heights at which the destination may verify.

    def _heights(self, destination: Destination) -> list[tuple[HeightLabel, int]]:
        """Return the heights that a report has, in its order."""
        heights: list[tuple[HeightLabel, int]] = [("current", destination.height)]
        if destination.epoch != NO_EPOCH:
            heights.append(("next", destination.proposed_height))
        if self._proposed_height.last is not None:
            heights.append(("proposed", self._proposed_height.last))
        return heights

    def _prefetch(
        self, destination: Destination, subnet_id: SubnetID
    ) -> dict[int, asyncio.Task[None]]:
        """Load the sets that are not in the cache; return the loads by height.

        A load goes on when its callers have left: the next request needs the same set.
        """
        loads: dict[int, asyncio.Task[None]] = {}
        for _, height in self._heights(destination):
            key = (subnet_id, height)
            load = self._loads.get(key)
            has_room = len(self._loads) < _MAX_LOADS
            if load is None and has_room and self._sets.cached_set(subnet_id, height) is None:
                load = self._loads[key] = asyncio.create_task(self._load(subnet_id, height))
            if load is not None:
                loads[height] = load
        return loads

    async def _load(self, subnet_id: SubnetID, height: int) -> None:
        try:
            # A height beyond the tip of the P-Chain would be awaited for ever.
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await self._sets.at(subnet_id, height, is_chosen=True, epoch=True)
        except (WarpsealError, TimeoutError) as error:
            log.debug("validator set unavailable", extra={"height": height, "reason": str(error)})
        finally:
            del self._loads[subnet_id, height]

    async def _load_sets(
        self,
        destination: Destination,
        subnet_id: SubnetID,
        lookups_end: float,
        *,
        is_whole: bool = True,
    ) -> None:
        """Wait for the sets of the heights that a report has, for a bounded time.

        is_whole: False waits only for the set at the destination's height.
        """
        loads = self._prefetch(destination, subnet_id)
        awaited = [
            load for height, load in loads.items() if is_whole or height == destination.height
        ]
        if awaited:
            timeout_s = min(self._settings.sets_timeout_s, _time_left_s(lookups_end))
            await asyncio.wait(awaited, timeout=timeout_s)

    def _report(
        self, destination: Destination, terms: SigningTerms, signed: SignedSet
    ) -> DestinationReport:
        """Return the report on a signed message, with the heights whose sets are in the cache."""
        heights: list[WeightAtHeight] = []
        for label, height in self._heights(destination):
            members = self._sets.cached_set(terms.verifying_subnet_id, height)
            if members is not None:
                heights.append(weigh(label, height, members, signed, destination.rules.quorum))
        verifies = {weight.epoch: weight.verifies for weight in heights}
        return DestinationReport(
            destination_blockchain_id=id_text(destination.chain_id),
            signing_subnet_id=id_text(terms.signing_subnet_id),
            signed_by=terms.signed_by,
            p_chain_height=str(terms.height),
            p_chain_height_source=terms.height_source,
            quorum=DestinationQuorum(percentage=terms.quorum, source=terms.quorum_source),
            heights=tuple(heights),
            epoch=destination.describe_epoch(),
            verifies_now=verifies.get("current", UNSET),
            serves_next=verifies.get("next", UNSET),
        )

    # The next epoch, and advice.

    async def _deliver_whole(
        self, signer: Signer[S], outcome: _Outcome[S], deadline: float
    ) -> Delivery[S]:
        """Return a delivery with advice, and with a second message for the next epoch if needed."""
        destination, report, signed = outcome.latest, outcome.report, outcome.signed
        verifies_at_present = any(
            weight.verifies for weight in report.heights if weight.epoch == "proposed"
        )
        if report.verifies_now is False and verifies_at_present:
            subnet_id = signed.terms.verifying_subnet_id
            advice = await self._advise(destination, subnet_id, outcome.lookups_end)
            report = replace(report, advice=advice or UNSET)
        sealed_from = destination.sealed_from
        is_ending = (
            sealed_from is not None and self._unix_now() + self._settings.window_s >= sealed_from
        )
        following = None
        if is_ending and report.serves_next is False and report.p_chain_height_source != "request":
            following = await self._sign_following(signer, outcome, deadline)
        return Delivery(signed.result, report, report.headers(), True, following)

    async def _sign_following(
        self, signer: Signer[S], outcome: _Outcome[S], deadline: float
    ) -> NextSignedMessage:
        """Return the message for the next epoch, or the error that it ended with.

        It is signed last, from the rest of the caller's time, so that it never delays or fails the
        message that the caller asked for.
        """
        height = outcome.latest.proposed_height
        following = NextSignedMessage(predicted=True, p_chain_height=str(height))
        timeout_s = min(self._remaining_s(deadline), self._settings.next_timeout_s)
        try:
            signed = await signer.sign(outcome.signed.terms, timeout_s, height)
        except WarpsealError as error:
            return replace(following, error=error.code)
        return replace(following, signed_message=signed.signed_set.signed_message.hex())

    def _remaining_s(self, deadline: float) -> float:
        return self._limits.remaining_s(deadline, asyncio.get_running_loop().time())

    async def _add_advice(
        self,
        error: WarpsealError,
        destination: Destination,
        terms: SigningTerms,
        lookups_end: float,
    ) -> None:
        """Add the advice to an error, unless the present set would lack the quorum as well."""
        if terms.height_source == "request":
            return
        failed_keys: Set[bytes] = frozenset()
        if isinstance(error, QuorumNotReached | QuorumImpossible):
            failed_keys = error.shortfall.failed_keys

        def suffices(members: CanonicalValidatorSet) -> bool:
            return _can_reach(members, terms.quorum, failed_keys)

        advice = await self._advise(destination, terms.verifying_subnet_id, lookups_end, suffices)
        if advice is not None:
            error.detail["advice"] = advice

    async def _advise(
        self,
        destination: Destination,
        subnet_id: SubnetID,
        lookups_end: float,
        suffices: Callable[[CanonicalValidatorSet], bool] | None = None,
    ) -> DeliveryAdvice | None:
        """Return the advice if the destination verifies with another set than the present one.

        Without one of the two sets there is none.
        suffices: function that returns whether the present set can sign the message.
        """
        await self._load_sets(destination, subnet_id, lookups_end)
        pinned_height, present_height = destination.height, self._proposed_height.last
        if present_height is None or present_height <= pinned_height:
            return None
        pinned = self._sets.cached_set(subnet_id, pinned_height)
        present = self._sets.cached_set(subnet_id, present_height)
        if pinned is None or present is None or pinned.digest == present.digest:
            return None
        if suffices is not None and not suffices(present):
            return None
        timeout_s = min(self._settings.advice_timeout_s, _time_left_s(lookups_end))
        height = await self._needed_heights.find(
            subnet_id, pinned_height, present_height, present.digest, timeout_s
        )
        return advise(destination, height, self._unix_now())


def _delivery_key(request: DeliveryRequest) -> _DeliveryKey:
    """Return a key that is equal for equal requests.

    A tuple is compared in a fifth of the time that a request takes.
    """
    aggregation = request.aggregation
    message = None if aggregation.message is None else aggregation.message.raw
    numbers = (aggregation.quorum, aggregation.buffer, aggregation.height, aggregation.timeout_s)
    flags = (request.names_quorum, aggregation.is_pinned, aggregation.stored_only)
    return (
        request.destination_id,
        message,
        aggregation.justification,
        aggregation.signing_subnet_id,
        *numbers,
        *flags,
    )


def _require_manager_chain(request: L1DeliveryRequest, chain: str) -> None:
    """Raise DestinationMismatch if a request names another chain than that of the L1's manager."""
    if request.destination_id is not None and id_text(request.destination_id) != chain:
        reason = (
            f"the message of this transaction is verified on {chain}, the chain of the L1's manager"
        )
        raise DestinationMismatch(DESTINATION_FIELD, reason, manager_blockchain_id=chain)


def _lookups_end(deadline: float) -> float:
    """Return when all lookups that follow a round end that ends now."""
    return max(deadline, asyncio.get_running_loop().time() + _LOOKUPS_S)


def _time_left_s(end: float) -> float:
    return max(0.0, end - asyncio.get_running_loop().time())


def _has_moved(before: Destination, latest: Destination, deadline: float) -> bool:
    """Return whether the destination verifies at another height than before, and time is left."""
    return latest.height != before.height and asyncio.get_running_loop().time() < deadline


def _is_outrun(destination: Destination, report: DestinationReport, deadline: float) -> bool:
    """Return whether the message's epoch has ended, it verifies no more, and time is left."""
    if report.p_chain_height_source != "epoch" or report.verifies_now is not False:
        return False
    has_moved = report.p_chain_height != str(destination.height)
    return has_moved and asyncio.get_running_loop().time() < deadline


def _can_reach(members: CanonicalValidatorSet, quorum: int, failed_keys: Set[bytes]) -> bool:
    """Return whether a set reaches a quorum, in percent, without the keys that failed to sign."""
    weight = sum(
        member.weight for member in members.validators if member.public_key not in failed_keys
    )
    return has_quorum(weight, members.total_weight, quorum)


@asynccontextmanager
async def _bounded(deadline: float, late: WarpsealError) -> AsyncIterator[None]:
    """Bound a lookup in time. Raises `late` when it takes too long."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise late from None
