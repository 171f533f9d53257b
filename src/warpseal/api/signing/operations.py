"""The operations of the aggregation endpoints, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from warpseal.api.http.operations import (
    ERRORS,
    KEBAB_ERRORS,
    SIGNING,
    OperationRow,
    Responses,
    describe_query,
    refer_to,
)
from warpseal.api.signing.endpoints import (
    KEBAB_AGGREGATE,
    V1_AGGREGATE,
    V1_VERIFY,
    KebabSignedMessage,
    SignedL1Message,
    SignedMessage,
)
from warpseal.api.signing.request_fields import BODY_FIELDS
from warpseal.api.signing.requests import CALL_FIELDS, QUERY_FIELDS, VERIFY_FIELDS
from warpseal.delivery.preflight import PreflightAnswer
from warpseal.l1.explain import Explanation

_AGGREGATE_BODY: Final = "AggregateSignaturesRequest"
_VERIFY_BODY: Final = "VerifyRequest"

REQUEST_BODIES: Final = {
    _AGGREGATE_BODY: BODY_FIELDS.schema(
        "A message to be signed, a justification, or both. Keys in kebab case mean the same."
    ),
    _VERIFY_BODY: VERIFY_FIELDS.schema(
        "A signed message and the chain that is to verify it. Keys in kebab case mean the same."
    ),
    "CallToTest": CALL_FIELDS.schema(
        "A call of a contract at the destination, executed without being sent."
    ),
}
"""Schemas of the bodies that are parsed by tables of fields."""

_V1_RESPONSES: Final[Responses] = {201: SignedMessage, **ERRORS}
_KEBAB_RESPONSES: Final[Responses] = {200: KebabSignedMessage, **KEBAB_ERRORS}
_L1_PARAMETERS: Final[list[dict[str, Any]]] = [
    describe_query(field.name, field.description, **field.schema) for field in QUERY_FIELDS.fields
]

OPERATIONS: Final = (
    OperationRow(
        SIGNING,
        "post",
        V1_AGGREGATE,
        "aggregateSignatures",
        "Aggregate the signatures over a message.",
        _V1_RESPONSES,
        body=refer_to(_AGGREGATE_BODY),
    ),
    OperationRow(
        SIGNING,
        "get",
        V1_AGGREGATE + "/{txHash}",
        "getAggregatedSignatures",
        "The signed message of a P-Chain transaction about an L1.",
        {201: SignedL1Message, 200: Explanation, **ERRORS},
        _L1_PARAMETERS,
    ),
    OperationRow(
        SIGNING,
        "post",
        KEBAB_AGGREGATE,
        "aggregateSignaturesAsReference",
        "The same as the reference aggregator answers: keys in kebab case, status 200.",
        _KEBAB_RESPONSES,
        body=refer_to(_AGGREGATE_BODY),
    ),
    OperationRow(
        SIGNING,
        "put",
        KEBAB_AGGREGATE,
        "putSignaturesAsReference",
        "The same as POST.",
        _KEBAB_RESPONSES,
        body=refer_to(_AGGREGATE_BODY),
    ),
    OperationRow(
        SIGNING,
        "post",
        V1_VERIFY,
        "verifySignedMessage",
        "Whether the next block of a destination would accept a signed message, and why not.",
        {200: PreflightAnswer, **ERRORS},
        body=refer_to(_VERIFY_BODY),
    ),
)
