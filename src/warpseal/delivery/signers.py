"""How a message is signed for a destination: the subnet, the height and the quorum.

The two signers differ only in what they sign: a message that the caller has, or the message of a
transaction. `DeliveryService` follows the destination's epoch for both.
"""

from __future__ import annotations

from typing import ClassVar, Final, Generic, Protocol

from msgspec import Struct
from msgspec.structs import replace

from warpseal.aggregation.resolve import AggregationRequest
from warpseal.aggregation.service import Aggregation, SignatureAggregator
from warpseal.delivery.destination import Destination
from warpseal.delivery.report import QuorumSource, SignedSet
from warpseal.delivery.request import DeliveryRequest, S
from warpseal.delivery.warp_rules import SignerSource, WarpRules, choose_signing_subnet
from warpseal.l1.request import HeightSource, L1Request, L1SignedMessage
from warpseal.l1.service import L1MessageService
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import HeightTooNew
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import ChainID, SubnetID
from warpseal.warp.message import SignedMessage

MAX_PERCENTAGE: Final = 100


class SigningTerms(Struct, frozen=True):
    """What a destination requires of a signed message.

    verifying_subnet_id: subnet whose validator set the destination takes.
    """

    signing_subnet_id: SubnetID
    signed_by: SignerSource
    verifying_subnet_id: SubnetID
    height: int
    height_source: HeightSource
    quorum: int
    quorum_source: QuorumSource


class SignerResult(Struct, Generic[S], frozen=True):
    """A message that a signer has signed.

    terms: terms by which the message was signed.
    """

    result: S
    terms: SigningTerms
    signed_set: SignedSet


class Signer(Protocol[S]):
    """Signs one message for its destination, as often as the destination's epoch ends.

    epoch_lag_s: seconds after which a new epoch that the daemon has seen counts for the signer.
    """

    epoch_lag_s: ClassVar[float]

    def choose_terms(self, destination: Destination) -> SigningTerms:
        """Return the terms of the destination's next block."""

    async def sign(
        self, terms: SigningTerms, timeout_s: float, height: int | None = None
    ) -> SignerResult[S]:
        """Sign the message.

        height: P-Chain height of another epoch; None for the height of the terms.
        """


class MessageSigner:
    """Signs a message that the caller has."""

    epoch_lag_s: ClassVar[float] = 0.0

    def __init__(
        self,
        aggregator: SignatureAggregator,
        request: DeliveryRequest,
        source_chain_id: ChainID,
        source_subnet_id: SubnetID,
    ) -> None:
        self._aggregator = aggregator
        self._request = request
        self._source_chain_id = source_chain_id
        self._source_subnet_id = source_subnet_id

    def choose_terms(self, destination: Destination) -> SigningTerms:
        """Return the terms of the destination's next block; the caller's subnet and height win."""
        aggregation = self._request.aggregation
        verifying_subnet_id, signed_by = choose_signing_subnet(
            self._source_chain_id,
            self._source_subnet_id,
            destination.chain_id,
            destination.subnet_id,
            destination.rules,
        )
        signing_subnet_id = verifying_subnet_id
        if aggregation.signing_subnet_id is not None:
            signing_subnet_id, signed_by = aggregation.signing_subnet_id, "request"
        height_source: HeightSource = "proposed" if destination.epoch == NO_EPOCH else "epoch"
        height = destination.height
        if aggregation.height is not None:
            height, height_source = aggregation.height, "request"
        requested_quorum = aggregation.quorum if self._request.names_quorum else None
        quorum, quorum_source = _choose_quorum(requested_quorum, destination.rules)
        return SigningTerms(
            signing_subnet_id,
            signed_by,
            verifying_subnet_id,
            height,
            height_source,
            quorum,
            quorum_source,
        )

    def build_request(
        self, terms: SigningTerms, timeout_s: float | None, height: int | None = None
    ) -> AggregationRequest:
        """Return the request of a message that is signed by these terms."""
        original = self._request.aggregation
        return replace(
            original,
            signing_subnet_id=terms.signing_subnet_id,
            quorum=terms.quorum,
            buffer=min(original.buffer, MAX_PERCENTAGE - terms.quorum),
            height=terms.height if height is None else height,
            is_epoch_height=terms.height_source != "request",
            timeout_s=timeout_s,
        )

    async def sign(
        self, terms: SigningTerms, timeout_s: float, height: int | None = None
    ) -> SignerResult[Aggregation]:
        """Aggregate the signatures of the message. Raises what `aggregate` raises."""
        request = self.build_request(terms, timeout_s, height)
        aggregation = await aggregate(self._aggregator, request)
        signed_set = SignedSet(
            aggregation.signed_message, aggregation.members, aggregation.signed_weight
        )
        return SignerResult(aggregation, terms, signed_set)


class L1MessageSigner:
    """Signs the message of a transaction; its destination is the chain of the L1's manager."""

    # `L1MessageService` looks up the epoch by itself, up to this time after the destination's
    # lookup has noted a new one.
    epoch_lag_s: ClassVar[float] = 0.25

    def __init__(
        self, l1_messages: L1MessageService, sets: ValidatorSets, request: L1Request
    ) -> None:
        self._l1_messages = l1_messages
        self._sets = sets
        self._request = request

    def choose_terms(self, destination: Destination) -> SigningTerms:
        """Return the terms of the destination's next block; the caller's height wins."""
        request = self._request
        height_source: HeightSource = "epoch"
        height = destination.height
        if request.height is not None:
            height, height_source = request.height, "request"
        requested_quorum = None if request.is_default_quorum else request.quorum
        quorum, quorum_source = _choose_quorum(requested_quorum, destination.rules)
        return SigningTerms(
            destination.subnet_id,
            "destination",
            destination.subnet_id,
            height,
            height_source,
            quorum,
            quorum_source,
        )

    async def sign(
        self, terms: SigningTerms, timeout_s: float, height: int | None = None
    ) -> SignerResult[L1SignedMessage]:
        """Sign the transaction's message. Raises what `L1MessageService.get` raises.

        Without a height, the service chooses the height of the epoch as it is by then: the terms of
        the result have that height.
        """
        request = replace(self._request, timeout_s=timeout_s)
        if height is not None:
            request = replace(request, height=height)
        signed = await self._l1_messages.get(request)
        members = await self._sets.at(
            signed.signing_subnet_id, signed.height, is_chosen=True, epoch=True
        )
        weight = members.weight_of(SignedMessage.parse(signed.signed_message).signer_indices)
        terms = replace(
            terms,
            signing_subnet_id=signed.signing_subnet_id,
            height=signed.height,
            height_source=signed.height_source,
        )
        return SignerResult(signed, terms, SignedSet(signed.signed_message, members, weight))


async def aggregate(aggregator: SignatureAggregator, request: AggregationRequest) -> Aggregation:
    """Aggregate the signatures of a message.

    Raises NodeUnavailable if nodes do not have a height that the caller did not choose.
    """
    try:
        return await aggregator.aggregate(request)
    except HeightTooNew:
        if not request.is_epoch_height:
            raise
        raise NodeUnavailable(f"the validator set at P-Chain height {request.height}") from None


def _choose_quorum(requested: int | None, rules: WarpRules) -> tuple[int, QuorumSource]:
    """Return the quorum in percent and its source: a caller may raise the destination's quorum."""
    if requested is not None and requested > rules.quorum:
        return requested, "request"
    return rules.quorum, rules.source
