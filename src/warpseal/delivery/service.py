"""The use case: a message that the next block of its destination accepts, and a report on what
decides that.

Source of truth: ACP-181; avalanchego `graft/subnet-evm/precompile/contracts/warp/config.go`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager
from typing import Any, Final

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
    QuorumSource,
    RawHeaders,
    SignedSet,
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
from warpseal.delivery.warp_rules import SignerSource, WarpRules, choose_signing_subnet
from warpseal.errors import WarpsealError
from warpseal.l1.explain import Explanation
from warpseal.l1.request import HeightSource, L1Request, L1SignedMessage
from warpseal.l1.service import L1MessageService
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.resources.base import UNSET
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import HeightTooNew
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, id_text
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet, has_quorum

log = logging.getLogger(__name__)

MAX_PERCENTAGE: Final = 100
MISSED: Final = (QuorumNotReached, QuorumImpossible, NoValidators)
"""The errors that have advice."""
# How often a message is signed again because the epoch ended in the meantime.
_MAX_EPOCHS: Final = 3
# The lookups of a destination and of the height by transaction note a new epoch at most this long
# after each other.
_EPOCH_LAG_S: Final = 0.25
_LATEST_TIMEOUT_S: Final = 1.0
_MAX_LOADS: Final = 64
_LOAD_TIMEOUT_S: Final = 10.0
_MAX_RECENT: Final = 2_048
# Requests with a longer message and justification are not kept.
_MAX_RECENT_BYTES: Final = 2_048


class _Terms(Struct, frozen=True):
    """How a message is signed for a destination.

    verifying_subnet_id: whose set the destination takes.
    """

    signing_subnet_id: SubnetID
    signed_by: SignerSource
    verifying_subnet_id: SubnetID
    height: int
    height_source: HeightSource
    quorum: int
    quorum_source: QuorumSource


_DeliveryKey = tuple[Any, ...]


class _CachedDelivery(Struct, frozen=True):
    """The outcome of a request. It has no validator set, so that none outlives its cache.

    proposed_height: the proposed height of the P-Chain at that time.
    set_digest: the digest of the validator set that signed.
    """

    destination: Destination
    terms: _Terms
    proposed_height: int | None
    aggregation_request: AggregationRequest
    signed_message: bytes
    set_digest: bytes
    report: DestinationReport
    headers: RawHeaders


class DeliveryService:
    """Used from one event loop.

    unix_now: Unix seconds, which are compared with the times of epochs.
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
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s(
            request.aggregation.timeout_s
        )
        destination = self._destinations.known(request.destination_id)
        recent = None if destination is None or request.wants_report else self._find_recent(request)
        if recent is None or (recent.destination, recent.proposed_height) != (
            destination,
            self._proposed_height.last,
        ):
            return await self._sign(request, deadline)
        try:
            aggregation = await self._aggregate(recent.aggregation_request)
        except MISSED as error:
            latest = await self._latest(recent.destination, deadline)
            if recent.terms.height_source == "epoch" and _has_moved(
                recent.destination, latest, deadline
            ):
                return await self._sign(request, deadline)
            await self._add_advice(error, latest, recent.terms)
            raise
        # The epoch may have ended while validators were asked.
        is_current = (
            aggregation.cached or self._destinations.known(request.destination_id) == destination
        )
        is_same = (
            aggregation.signed_message == recent.signed_message
            and aggregation.members.digest == recent.set_digest
        )
        if not (is_current and is_same):
            return await self._sign(request, deadline)
        return Delivery(aggregation, recent.report, recent.headers)

    async def _sign(self, request: DeliveryRequest, deadline: float) -> Delivery[Aggregation]:
        """Sign a message at the height at which its destination verifies now, and report on the
        result.

        The destination is looked up before the message is signed, since it decides the height, the
        set and the quorum; and once more afterwards, since its epoch may have ended while
        validators were asked. If the signature does not verify in the new epoch, all is done again
        with the new height, at most `_MAX_EPOCHS` times in all: the shares are in the cache by
        then, so a repetition asks only validators that are new. A missed quorum is treated in the
        same way before it becomes an error, because the new epoch may have the quorum that the old
        one lacked.

        The sets of the heights in question are loaded while the round runs. They are awaited only
        after it, for a bounded time: a report with fewer heights is better than none. The next
        epoch's message is made last, from what is left of the caller's time, so that it never
        delays or fails the message that was asked for.
        """
        original = request.aggregation
        source_chain_id = P_CHAIN if original.message is None else original.message.source_chain_id
        async with _bounded(deadline, NodeUnavailable("the subnet of the message's chain")):
            source_subnet_id = await self._chains.subnet_of(source_chain_id)
        latest = await self._resolve(request.destination_id, deadline)
        for epochs_left in reversed(range(_MAX_EPOCHS)):
            destination = latest
            terms = _terms(request, destination, source_chain_id, source_subnet_id)
            signing = replace(
                original,
                signing_subnet_id=terms.signing_subnet_id,
                quorum=terms.quorum,
                buffer=min(original.buffer, MAX_PERCENTAGE - terms.quorum),
                height=terms.height,
                is_epoch_height=terms.height_source != "request",
                timeout_s=self._remaining_s(deadline),
            )
            self._prefetch(destination, terms.verifying_subnet_id)
            try:
                aggregation = await self._aggregate(signing)
            except MISSED as error:
                latest = await self._latest(destination, deadline)
                if (
                    epochs_left
                    and terms.height_source == "epoch"
                    and _has_moved(destination, latest, deadline)
                ):
                    continue
                await self._add_advice(error, latest, terms)
                raise
            latest = await self._latest(destination, deadline)
            await self._load_sets(latest, terms.verifying_subnet_id, is_whole=request.wants_report)
            signed = SignedSet(
                aggregation.signed_message, aggregation.members, aggregation.signed_weight
            )
            proposed_height = self._proposed_height.last
            report = self._report(latest, terms, signed)
            if not _is_outrun(latest, report, deadline):
                break
        if not request.wants_report:
            delivery = Delivery(aggregation, report, report.headers())
            if latest == destination:
                again = replace(signing, timeout_s=original.timeout_s, is_ahead=False)
                digest, message = aggregation.members.digest, aggregation.signed_message
                recent = _CachedDelivery(
                    latest, terms, proposed_height, again, message, digest, report, delivery.headers
                )
                self._remember(request, recent)
            return delivery

        async def sign_again(height: int, timeout_s: float) -> bytes:
            return (
                await self._aggregate(replace(signing, height=height, timeout_s=timeout_s))
            ).signed_message

        subnet_id = terms.verifying_subnet_id
        return await self._deliver_whole(
            aggregation, latest, report, subnet_id, deadline, sign_again
        )

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

    async def _aggregate(self, request: AggregationRequest) -> Aggregation:
        """Aggregate.

        Raises NodeUnavailable if nodes do not know a height that the caller did not choose.
        """
        try:
            return await self._aggregator.aggregate(request)
        except HeightTooNew:
            if not request.is_epoch_height:
                raise
            raise NodeUnavailable(f"the validator set at P-Chain height {request.height}") from None

    async def _resolve(self, chain_id: ChainID, deadline: float) -> Destination:
        late = DestinationUnavailable(id_text(chain_id), "its nodes did not answer in time")
        async with _bounded(deadline, late):
            return await self._destinations.resolve(chain_id)

    async def _latest(self, destination: Destination, deadline: float) -> Destination:
        """Return the destination as it is now: its epoch may have ended while validators were
        asked.

        The lookup has some time after the deadline, at which a quorum is missed.
        """
        try:
            earliest = asyncio.get_running_loop().time() + _LATEST_TIMEOUT_S
            return await self._resolve(destination.chain_id, max(deadline, earliest))
        except WarpsealError:
            return destination

    def _find_recent(self, request: DeliveryRequest) -> _CachedDelivery | None:
        try:  # `get` of cachetools hashes the key once more.
            return self._recent[_delivery_key(request)]
        except KeyError:
            return None

    def _remember(self, request: DeliveryRequest, recent: _CachedDelivery) -> None:
        """Keep the outcome of a request, so that an equal one only has to find the same signed
        message again.
        """
        aggregation, candidates = request.aggregation, len(self._heights(recent.destination))
        size_bytes = len(aggregation.justification) + (
            0 if aggregation.message is None else len(aggregation.message.raw)
        )
        if size_bytes <= _MAX_RECENT_BYTES and len(recent.report.heights) == candidates:
            self._recent[_delivery_key(request)] = recent

    async def sign_l1(self, request: L1DeliveryRequest) -> Delivery[L1SignedMessage]:
        """Return the signed message of a transaction with a report; its destination is the chain of
        the L1's manager.

        Raises DestinationMismatch, WarpDisabled, DestinationUnavailable, and what
        L1MessageService.get raises.
        """
        original = request.l1
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s(original.timeout_s)
        async with _bounded(deadline, NodeUnavailable("the transaction")):
            chain_id = await self._l1_messages.manager_chain(original)
        _require_manager_chain(request, id_text(chain_id))
        latest = await self._resolve(chain_id, deadline)
        for epochs_left in reversed(range(_MAX_EPOCHS)):
            destination, subnet_id = latest, latest.subnet_id
            self._prefetch(destination, subnet_id)
            try:
                signed = await self._l1_messages.get(
                    replace(original, timeout_s=self._remaining_s(deadline))
                )
            except MISSED as error:
                latest = await self._latest(destination, deadline)
                if (
                    epochs_left
                    and original.height is None
                    and _has_moved(destination, latest, deadline)
                ):
                    await asyncio.sleep(_EPOCH_LAG_S)
                    continue
                source: HeightSource = "request" if original.height else "epoch"
                await self._add_advice(
                    error, latest, _l1_terms(original, latest, subnet_id, latest.height, source)
                )
                raise
            latest = await self._latest(destination, deadline)
            await self._load_sets(latest, subnet_id, is_whole=request.wants_report)
            report = await self._l1_report(original, latest, signed)
            if not epochs_left or not _is_outrun(latest, report, deadline):
                break
            await asyncio.sleep(_EPOCH_LAG_S)
        if not request.wants_report:
            return Delivery(signed, report, report.headers())

        async def sign_again(height: int, timeout_s: float) -> bytes:
            again = replace(original, height=height, timeout_s=timeout_s)
            return (await self._l1_messages.get(again)).signed_message

        return await self._deliver_whole(signed, latest, report, subnet_id, deadline, sign_again)

    async def explain_l1(self, request: L1DeliveryRequest) -> Explanation:
        """Return the explanation of a transaction's message.

        Raises DestinationMismatch, InvalidTimeout.
        """
        explanation = await self._l1_messages.explain(request.l1)
        if explanation.message:
            _require_manager_chain(request, explanation.message.manager_chain_id)
        return explanation

    async def _l1_report(
        self, l1_request: L1Request, destination: Destination, signed: L1SignedMessage
    ) -> DestinationReport:
        subnet_id, height = signed.signing_subnet_id, signed.height
        terms = _l1_terms(l1_request, destination, subnet_id, height, signed.height_source)
        members = await self._sets.at(subnet_id, height, is_chosen=True, epoch=True)
        weight = members.weight_of(SignedMessage.parse(signed.signed_message).signer_indices)
        return self._report(destination, terms, SignedSet(signed.signed_message, members, weight))

    # Validator sets of the heights at which the destination may verify.

    def _heights(self, destination: Destination) -> list[tuple[HeightLabel, int]]:
        heights: list[tuple[HeightLabel, int]] = [("current", destination.height)]
        if destination.epoch != NO_EPOCH:
            heights.append(("next", destination.proposed_height))
        if self._proposed_height.last is not None:
            heights.append(("proposed", self._proposed_height.last))
        return heights

    def _prefetch(
        self, destination: Destination, subnet_id: SubnetID
    ) -> dict[int, asyncio.Task[None]]:
        """Load the sets that are not known; return the loads by height.

        They go on when their callers have left.
        """
        loads: dict[int, asyncio.Task[None]] = {}
        for _, height in self._heights(destination):
            key = (subnet_id, height)
            load = self._loads.get(key)
            if (
                load is None
                and len(self._loads) < _MAX_LOADS
                and self._sets.known(subnet_id, height) is None
            ):
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
        self, destination: Destination, subnet_id: SubnetID, *, is_whole: bool = True
    ) -> None:
        """Wait for the sets that are not known, or for the current epoch's only; a load may take
        too long.
        """
        loads = self._prefetch(destination, subnet_id)
        awaited = [
            load for height, load in loads.items() if is_whole or height == destination.height
        ]
        if awaited:
            await asyncio.wait(awaited, timeout=self._settings.sets_timeout_s)

    def _report(
        self, destination: Destination, terms: _Terms, signed: SignedSet
    ) -> DestinationReport:
        heights = tuple(
            weigh(label, height, members, signed, destination.rules.quorum)
            for label, height in self._heights(destination)
            if (members := self._sets.known(terms.verifying_subnet_id, height)) is not None
        )
        verifies = {weight.epoch: weight.verifies for weight in heights}
        return DestinationReport(
            destination_blockchain_id=id_text(destination.chain_id),
            signing_subnet_id=id_text(terms.signing_subnet_id),
            signed_by=terms.signed_by,
            p_chain_height=str(terms.height),
            p_chain_height_source=terms.height_source,
            quorum=DestinationQuorum(percentage=terms.quorum, source=terms.quorum_source),
            heights=heights,
            epoch=destination.describe_epoch(),
            verifies_now=verifies.get("current", UNSET),
            serves_next=verifies.get("next", UNSET),
        )

    # The next epoch, and advice.

    async def _deliver_whole(
        self,
        result: S,
        destination: Destination,
        report: DestinationReport,
        subnet_id: SubnetID,
        deadline: float,
        sign_again: Callable[[int, float], Awaitable[bytes]],
    ) -> Delivery[S]:
        """Return a delivery with its whole report: with advice, and with a second message for the
        next epoch.

        sign_again: returns the message signed at a height, within some seconds.
        """
        verifies_at_present = any(
            weight.verifies for weight in report.heights if weight.epoch == "proposed"
        )
        if report.verifies_now is False and verifies_at_present:
            report = replace(report, advice=await self._advise(destination, subnet_id) or UNSET)
        sealed_from, following = destination.sealed_from, None
        is_ending = (
            sealed_from is not None and self._unix_now() + self._settings.window_s >= sealed_from
        )
        if is_ending and report.serves_next is False and report.p_chain_height_source != "request":
            timeout_s = min(self._remaining_s(deadline), self._settings.next_timeout_s)
            following = NextSignedMessage(
                predicted=True, p_chain_height=str(destination.proposed_height)
            )
            try:
                signed_message = await sign_again(destination.proposed_height, timeout_s)
                following = replace(following, signed_message=signed_message.hex())
            except WarpsealError as error:
                following = replace(following, error=error.code)
        return Delivery(result, report, report.headers(), True, following)

    def _remaining_s(self, deadline: float) -> float:
        return self._limits.remaining_s(deadline, asyncio.get_running_loop().time())

    async def _add_advice(
        self, error: WarpsealError, destination: Destination, terms: _Terms
    ) -> None:
        """Add the advice to the detail of an error, unless the present set would lack the quorum as
        well.
        """
        if terms.height_source == "request":
            return
        failed = (
            error.shortfall.failed_keys
            if isinstance(error, QuorumNotReached | QuorumImpossible)
            else frozenset()
        )
        advice = await self._advise(
            destination,
            terms.verifying_subnet_id,
            lambda now: _can_reach(now, terms.quorum, failed),
        )
        if advice is not None:
            error.detail["advice"] = advice

    async def _advise(
        self,
        destination: Destination,
        subnet_id: SubnetID,
        suffices: Callable[[CanonicalValidatorSet], bool] = lambda now: True,
    ) -> DeliveryAdvice | None:
        """Return the advice if the destination verifies with another set than the present one, as
        far as known.

        suffices: whether the present set can sign the message.
        """
        await self._load_sets(destination, subnet_id)
        sets, pinned, present = self._sets, destination.height, self._proposed_height.last
        before = sets.known(subnet_id, pinned)
        now = None if present is None else sets.known(subnet_id, present)
        if before is None or now is None or present is None or present <= pinned:
            return None
        if before is now or before.digest == now.digest or not suffices(now):
            return None
        timeout_s = self._settings.advice_timeout_s
        height = await self._needed_heights.find(subnet_id, pinned, present, now.digest, timeout_s)
        return advise(destination, height, self._unix_now())


def _delivery_key(request: DeliveryRequest) -> _DeliveryKey:
    """Return what is equal for equal requests.

    A tuple is compared in a fifth of the time of a request.
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
    """Check that the message of a transaction is for its destination.

    chain: the chain of the L1's manager.
    """
    if request.destination_id is not None and id_text(request.destination_id) != chain:
        reason = (
            f"the message of this transaction is verified on {chain}, the chain of the L1's manager"
        )
        raise DestinationMismatch(DESTINATION_FIELD, reason, manager_blockchain_id=chain)


def _has_moved(before: Destination, latest: Destination, deadline: float) -> bool:
    """Return whether the destination verifies at another height than before, and time is left."""
    return latest.height != before.height and asyncio.get_running_loop().time() < deadline


def _is_outrun(destination: Destination, report: DestinationReport, deadline: float) -> bool:
    """Return whether the epoch ended while the message was signed, which does not verify any more."""
    has_time = asyncio.get_running_loop().time() < deadline
    has_moved = report.p_chain_height_source == "epoch" and report.p_chain_height != str(
        destination.height
    )
    return has_time and has_moved and report.verifies_now is False


def _can_reach(members: CanonicalValidatorSet, quorum: int, failed_keys: Set[bytes]) -> bool:
    """Return whether a set reaches a quorum, in percent, without the validators that failed to
    sign.
    """
    weight = sum(
        member.weight for member in members.validators if member.public_key not in failed_keys
    )
    return has_quorum(weight, members.total_weight, quorum)


def _l1_terms(
    l1_request: L1Request,
    destination: Destination,
    subnet_id: SubnetID,
    height: int,
    source: HeightSource,
) -> _Terms:
    quorum, quorum_source = _quorum(
        None if l1_request.is_default_quorum else l1_request.quorum, destination.rules
    )
    return _Terms(
        subnet_id, "destination", destination.subnet_id, height, source, quorum, quorum_source
    )


def _terms(
    request: DeliveryRequest,
    destination: Destination,
    source_chain_id: ChainID,
    source_subnet_id: SubnetID,
) -> _Terms:
    aggregation = request.aggregation
    verifying_subnet_id, signed_by = choose_signing_subnet(
        source_chain_id,
        source_subnet_id,
        destination.chain_id,
        destination.subnet_id,
        destination.rules,
    )
    signing_subnet_id = aggregation.signing_subnet_id
    if signing_subnet_id is None:
        signing_subnet_id = verifying_subnet_id
    else:
        signed_by = "request"
    height_source: HeightSource = "proposed" if destination.epoch == NO_EPOCH else "epoch"
    height = destination.height
    if aggregation.height is not None:
        height, height_source = aggregation.height, "request"
    quorum, quorum_source = _quorum(
        aggregation.quorum if request.names_quorum else None, destination.rules
    )
    return _Terms(
        signing_subnet_id,
        signed_by,
        verifying_subnet_id,
        height,
        height_source,
        quorum,
        quorum_source,
    )


def _quorum(percent: int | None, rules: WarpRules) -> tuple[int, QuorumSource]:
    """Return the quorum and its source: the caller's quorum if it is higher than the destination's."""
    return (
        (percent, "request")
        if percent is not None and percent > rules.quorum
        else (rules.quorum, rules.source)
    )


@asynccontextmanager
async def _bounded(deadline: float, late: WarpsealError) -> AsyncIterator[None]:
    """Bound a lookup in time. Raises `late` when it takes too long."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise late from None
