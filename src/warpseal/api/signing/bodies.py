"""Bodies of the aggregation endpoints, and of the request of a preflight.

`/aggregate-signatures` sends them with keys in kebab case; the OpenAPI document derives these schemas.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, field

from warpseal.delivery.report import DestinationReport
from warpseal.delivery.request import NextSignedMessage
from warpseal.l1.request import SupersededStatement
from warpseal.resources.base import UNSET, Resource, UnsetType

_Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]


class AggregateSignaturesRequest(Resource, frozen=True, gc=False, kw_only=True):
    """A message to be signed, a justification, or both. Keys in kebab case mean the same."""

    message: Annotated[str, Meta(description="Hex of the unsigned message, with or without 0x.")] | UnsetType = UNSET
    justification: Annotated[str, Meta(description="Hex of the justification.")] | UnsetType = UNSET
    signing_subnet_id: (
        Annotated[str, Meta(description="Base58-check or hex; by default the subnet of the source chain.")] | UnsetType
    ) = UNSET
    quorum_percentage: (
        Annotated[_Percent, Meta(description="By default 67, or that of the destination.")] | UnsetType
    ) = UNSET
    quorum_percentage_buffer: (
        Annotated[_Percent, Meta(description="By default 0; quorum and buffer are at most 100 together.")] | UnsetType
    ) = UNSET
    p_chain_height: (
        Annotated[
            int,
            Meta(ge=0, description="By default the proposed height, as with 0; or that of the destination."),
        ]
        | UnsetType
    ) = UNSET
    timeout_seconds: Annotated[float, Meta(ge=0, description="How long the caller waits.")] | UnsetType = UNSET
    destination_blockchain_id: (
        Annotated[str, Meta(description="The chain that has to accept the message: base58-check or hex.")] | UnsetType
    ) = UNSET
    report: (
        Annotated[bool, Meta(description="Return the report on the destination, and a message for its next epoch.")]
        | UnsetType
    ) = UNSET


class SignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """The signed message, hex without 0x.

    report: if the request asks for it. next: a message for the next epoch, if it needs another one.
    """

    signed_message: str
    report: DestinationReport | UnsetType = UNSET
    next: NextSignedMessage | UnsetType = UNSET


class KebabSignedMessage(SignedMessage, frozen=True, gc=False, kw_only=True):
    """The signed message as the reference aggregator writes it: all keys in kebab case."""


class SignedL1Message(SignedMessage, frozen=True, gc=False, kw_only=True):
    """The signed message of a transaction. superseded: what replaces it, if it is not true any more."""

    superseded: SupersededStatement | UnsetType = UNSET


class CallToTest(Resource, frozen=True, gc=False, kw_only=True):
    """A call of a contract at the destination, executed without being sent."""

    to: Annotated[str, Meta(description="The contract.")]
    from_: Annotated[str, Meta(description="The caller; by default the zero address.")] | UnsetType = field(
        name="from", default=UNSET
    )
    data: Annotated[str, Meta(description="Hex; by default empty.")] | UnsetType = UNSET
    gas: Annotated[int, Meta(ge=1, le=50_000_000, description="By default 5000000.")] | UnsetType = UNSET


class VerifyRequest(Resource, frozen=True, gc=False, kw_only=True):
    """A signed message and the chain that is to verify it. Keys in kebab case mean the same."""

    signed_message: Annotated[str, Meta(description="Hex of the signed message, with or without 0x.")]
    destination_blockchain_id: Annotated[str, Meta(description="Base58-check or hex.")]
    signing_subnet_id: (
        Annotated[str, Meta(description="Base58-check or hex; by default the one that the destination demands.")]
        | UnsetType
    ) = UNSET
    quorum_percentage: (
        Annotated[_Percent, Meta(description="Counts if it is higher than that of the destination.")] | UnsetType
    ) = UNSET
    call: CallToTest | UnsetType = UNSET
