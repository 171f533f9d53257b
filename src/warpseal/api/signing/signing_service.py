"""What endpoints and gRPC use to sign messages: one object behind the gate of signing."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from warpseal.aggregation.service import Aggregation, AggregationRequest, SignedRequest
from warpseal.delivery.request import Delivery, DeliveryRequest, L1DeliveryRequest
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.resources.chains import PrimaryChains
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage

if TYPE_CHECKING:
    # The ports listen before the libraries of databases and of peers are loaded.
    from warpseal.aggregation.service import SignatureAggregator
    from warpseal.delivery.preflight import Preflight, PreflightAnswer, PreflightRequest
    from warpseal.delivery.service import DeliveryService
    from warpseal.l1.explain import Explanation
    from warpseal.l1.service import L1MessageService
    from warpseal.node.node_view import NodeViewClient
    from warpseal.store.archive import Archive


class SigningService:
    """Signs messages on request, and says what hinders them. Methods raise WarpsealErrors."""

    def __init__(
        self,
        network_id: int,
        aggregator: SignatureAggregator,
        l1_messages: L1MessageService,
        delivery: DeliveryService,
        preflight: Preflight,
        archive: Archive,
        nodes: NodeViewClient,
    ) -> None:
        self.network_id = network_id
        self._aggregator = aggregator
        self._l1_messages = l1_messages
        self._delivery = delivery
        self._preflight = preflight
        self._archive = archive
        self._nodes = nodes

    @property
    def first_signed(self) -> SignedRequest | None:
        """The first message that was signed since the start, with its request."""
        return self._aggregator.first_signed

    def sign(
        self, request: AggregationRequest | DeliveryRequest
    ) -> Awaitable[Aggregation | Delivery[Aggregation]]:
        """Sign a message, for its destination if the request names one."""
        if isinstance(request, DeliveryRequest):
            return self._delivery.sign(request)
        return self._aggregator.aggregate(request)

    def sign_l1(
        self, request: L1Request | L1DeliveryRequest
    ) -> Awaitable[L1SignedMessage | Delivery[L1SignedMessage]]:
        """Sign the message of a transaction, for its destination if the request names one."""
        if isinstance(request, L1DeliveryRequest):
            return self._delivery.sign_l1(request)
        return self._l1_messages.get(request)

    def explain_l1(self, request: L1DeliveryRequest) -> Awaitable[Explanation]:
        """Report what has to be true before the message of a transaction is signed."""
        return self._delivery.explain_l1(request)

    def verify(self, request: PreflightRequest) -> Awaitable[PreflightAnswer]:
        """Run the preflight of a signed message."""
        return self._preflight.check(request)

    def find_message(self, message_id: MessageID) -> Awaitable[UnsignedMessage | None]:
        """Return a message of the store. Raises StoreDown."""
        return self._archive.find_message(message_id)

    def primary_chains(self) -> Awaitable[PrimaryChains]:
        """Return the ids of the X- and C-Chain. Raises NodeUnavailable."""
        return self._nodes.primary_chains(self.network_id)
