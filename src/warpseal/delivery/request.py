"""Requests and results of signing for a destination."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from warpseal.aggregation.resolve import AggregationRequest
from warpseal.aggregation.service import Aggregation
from warpseal.delivery.report import DestinationReport, RawHeaders
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.warp.ids import ChainID

S = TypeVar("S", Aggregation, L1SignedMessage)


class DeliveryRequest(Struct, frozen=True):
    """A request for a message that a destination accepts.

    aggregation: request of the caller, whose height and signing subnet win if it has them.
    names_quorum: the caller named the quorum.
    wants_report: the response has the report, and a message for the next epoch if needed.
    """

    aggregation: AggregationRequest
    destination_id: ChainID
    names_quorum: bool = False
    wants_report: bool = False


class L1DeliveryRequest(Struct, frozen=True):
    """A request for the message of a transaction with a report.

    destination_id: chain that the caller expects; None accepts the chain of the L1's manager.
    wants_report: the response has the report, and a message for the next epoch if needed.
    """

    l1: L1Request
    destination_id: ChainID | None = None
    wants_report: bool = False


class NextSignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """A second message, for the predicted height of the next epoch.

    error: code of the error with which signing it ended.
    """

    p_chain_height: str
    predicted: bool
    signed_message: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Delivery(Struct, Generic[S], frozen=True):
    """A message that was signed for a destination.

    headers: short form of the report.
    is_reported: the caller wants the report.
    """

    result: S
    report: DestinationReport
    headers: RawHeaders
    is_reported: bool = False
    next: NextSignedMessage | None = None
