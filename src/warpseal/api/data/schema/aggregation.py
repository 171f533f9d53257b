"""Bodies of the endpoints that are no part of the history, for the OpenAPI document: aggregation, health, readiness.

Their handlers are older than these objects; tests hold that both know the same fields.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from warpseal.api.data.schema.base import UNSET, Resource, UnsetType

_Percent = Annotated[int, Meta(ge=0, le=100)]


class AggregateSignaturesRequest(Resource, frozen=True, gc=False, kw_only=True):
    """What is to be signed: a message, a justification, or both. Keys in kebab case mean the same."""

    message: Annotated[str, Meta(description="Hex of the unsigned message, with or without 0x.")] | UnsetType = UNSET
    justification: Annotated[str, Meta(description="Hex of the justification.")] | UnsetType = UNSET
    signing_subnet_id: (
        Annotated[str, Meta(description="Base58-check or hex; by default the subnet of the source chain.")] | UnsetType
    ) = UNSET
    quorum_percentage: Annotated[_Percent, Meta(description="By default 67.")] | UnsetType = UNSET
    quorum_percentage_buffer: (
        Annotated[_Percent, Meta(description="By default 0; quorum and buffer are at most 100 together.")] | UnsetType
    ) = UNSET
    p_chain_height: Annotated[int, Meta(ge=0, description="By default the proposed height, as with 0.")] | UnsetType = (
        UNSET
    )
    timeout_seconds: Annotated[float, Meta(ge=0, description="How long the caller waits.")] | UnsetType = UNSET


class SignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """The signed message, hex without 0x. superseded: what has replaced it, where it is not true any more."""

    signed_message: str
    superseded: dict[str, Any] | UnsetType = UNSET


class Explanation(Resource, frozen=True, gc=False, kw_only=True):
    """How the signed message of a transaction would come about: the transaction, the message, who would sign it."""


class KebabSignedMessage(Resource, frozen=True, gc=False, kw_only=True, rename="kebab"):
    """The signed message in the words of the reference aggregator."""

    signed_message: str


class KebabError(Resource, frozen=True, gc=False, kw_only=True):
    """A failure in the words of the reference aggregator."""

    error: str
    code: str
    detail: dict[str, Any]


class Health(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the daemon can sign; the status is 200 while it lives."""

    status: str
    details: dict[str, Any]


class Readiness(Resource, frozen=True, gc=False, kw_only=True):
    """How much of each subnet's weight is connected, and what is missing."""

    ready: bool
    subnets: list[dict[str, Any]]
    faults: list[str] | UnsetType = UNSET
