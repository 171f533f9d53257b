"""The grammar of `GET .../aggregateSignatures/{txHash}`: the path's hash and the query's parameters.

Source of truth: the specification's endpoint 2; its parameters beyond `txHash` are those of endpoint 1, in the same
spellings and ranges, and the extensions `registrationTxHash`, `justification`, `explain`, `destinationBlockchainId` and
`report`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeVar

from msgspec import Struct

from warpseal.api.http.settings import ApiSettings
from warpseal.api.signing.aggregation_request import percentages
from warpseal.api.signing.errors import MalformedTransactionHash, UndecodableBody, UndecodableJustification
from warpseal.api.signing.request_fields import (
    FLAG,
    PERCENTAGE,
    TEXT,
    WHOLE_NUMBER,
    RequestField,
    RequestFields,
    decode_destination,
    decode_hex,
    decode_id,
    plain_flag,
    plain_height,
    plain_hex,
    plain_seconds,
    plain_uint64,
)
from warpseal.delivery.destination import DESTINATION_FIELD
from warpseal.delivery.request import L1DeliveryRequest
from warpseal.errors import InvalidRequest
from warpseal.l1.request import L1Request
from warpseal.resources.chains import PrimaryChains

T = TypeVar("T")

_FRACTION: Final = re.compile(r"\d{1,9}\.\d{1,9}", re.ASCII)


class L1Query(Struct, frozen=True):
    """A request by transaction. is_explain: it is explained only. delivery: None: no report on it is wanted."""

    request: L1Request
    is_explain: bool
    delivery: L1DeliveryRequest | None = None


def parse_l1_query(
    tx_hash: str, query: Iterable[tuple[str, str]], settings: ApiSettings, chains: PrimaryChains | None = None
) -> L1Query:
    """Parse a path and its query. Raises an InvalidRequest, or UnresolvedChain without `chains`.

    A missing quorum is that of the manager's chain, else 67 percent. A missing height means the epoch height; 0 and
    2^64-1 mean the proposed height.
    """
    fields = QUERY_FIELDS.collect(query, ignore_unknown=settings.ignore_unknown_fields)
    named_quorum = _convert("quorumPercentage", fields, plain_uint64) or 0
    quorum, buffer = percentages(named_quorum, _convert("quorumPercentageBuffer", fields, plain_uint64) or 0)
    registration, justification = fields.get("registrationTxHash"), fields.get("justification", "")
    request = L1Request(
        tx_id=decode_id("txHash", tx_hash, MalformedTransactionHash),
        quorum=quorum,
        buffer=buffer,
        height=(_convert("pChainHeight", fields, plain_height) or 0) if "pChainHeight" in fields else None,
        registration_tx_id=(
            None if registration is None else decode_id("registrationTxHash", registration, MalformedTransactionHash)
        ),
        justification=decode_hex(
            "justification",
            plain_hex("justification", justification),
            settings.max_message_bytes,
            UndecodableJustification,
        ),
        timeout_s=_convert("timeoutSeconds", fields, _seconds),
        is_default_quorum=not named_quorum,
    )
    destination = fields.get("destinationBlockchainId")
    wants_report = _convert("report", fields, plain_flag) or False
    delivery = None
    if destination is not None or wants_report:
        delivery = L1DeliveryRequest(
            request, None if destination is None else decode_destination(destination, chains), wants_report
        )
    return L1Query(request, _convert("explain", fields, plain_flag) or False, delivery)


def _convert(field: str, fields: Mapping[str, str], convert: Callable[[str, str], T]) -> T | None:
    """Return a parameter as a number or a flag, or None if it is missing. Raises InvalidRequest."""
    if field not in fields:
        return None
    try:
        return convert(field, fields[field])
    except UndecodableBody as error:
        raise InvalidRequest(field, error.reason) from None


def _seconds(field: str, text: str) -> float | None:
    """Return seconds; a query has no numbers, so that a fraction comes as text."""
    return plain_seconds(field, Decimal(text) if _FRACTION.fullmatch(text) else text)


def _parameter(name: str, schema: Mapping[str, Any], description: str) -> RequestField:
    """Return a parameter that stays a text until its turn: the text of a 400 names the first error."""
    return RequestField(name, lambda _, text: text, schema, description)


QUERY_FIELDS: Final = RequestFields(
    _parameter("quorumPercentage", PERCENTAGE, "By default that of the manager's chain, else 67."),
    _parameter("quorumPercentageBuffer", PERCENTAGE, "By default 0."),
    _parameter("pChainHeight", WHOLE_NUMBER, "By default that of the destination's epoch; 0: the proposed one."),
    _parameter("registrationTxHash", TEXT, "The transaction that began the validation."),
    _parameter("justification", TEXT, "Hex of a proof of the validation's registration."),
    _parameter("explain", FLAG, "Return the plan for signing instead of a signed message."),
    _parameter("timeoutSeconds", WHOLE_NUMBER, "How long the caller waits."),
    _parameter(DESTINATION_FIELD, TEXT, "The chain of the L1's manager; another one is refused."),
    _parameter("report", FLAG, "Return the report on the destination as well."),
)
