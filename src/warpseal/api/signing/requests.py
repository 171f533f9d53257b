"""The grammars of the requests to aggregate, for an L1 transaction, and to verify: every spelling
has one meaning.

Source of truth: the endpoints 1 and 2 of the specification for names and ranges, with extensions of
our own; the reference aggregator for the order in which errors are found, because the text of a 400
names the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeVar

from msgspec import Struct

from warpseal.aggregation.errors import NothingToSign, UnusableJustification
from warpseal.aggregation.service import AggregationRequest
from warpseal.api.http.settings import ApiSettings
from warpseal.api.signing.errors import (
    AllZeroes,
    FieldTooLarge,
    InvalidQuorum,
    InvalidQuorumBuffer,
    MalformedTransactionHash,
    NotAWarpMessage,
    UndecodableBody,
    UndecodableJustification,
    UndecodableMessage,
)
from warpseal.api.signing.request_fields import (
    BODY_FIELDS,
    FLAG,
    PERCENTAGE,
    TEXT,
    WHOLE_NUMBER,
    JsonPairs,
    RequestField,
    RequestFields,
    decode_destination,
    decode_hex,
    decode_id,
    plain_flag,
    plain_height,
    plain_hex,
    plain_seconds,
    plain_text,
    plain_uint64,
)
from warpseal.delivery.destination import DESTINATION_FIELD
from warpseal.delivery.preflight import DestinationCall, PreflightRequest
from warpseal.delivery.request import DeliveryRequest, L1DeliveryRequest
from warpseal.errors import InvalidRequest
from warpseal.l1.request import L1Request
from warpseal.messages.errors import InvalidSigningSubnet
from warpseal.resources.chains import PrimaryChains
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ID_BYTES, SubnetID
from warpseal.warp.justification import L1ValidatorRegistrationJustification, MalformedJustification
from warpseal.warp.message import SignedMessage, UnsignedMessage, unwrap_log_data
from warpseal.warp.validator_set import DEFAULT_QUORUM

T = TypeVar("T")

MAX_PERCENTAGE: Final = 100
# ABI log data carries a message between two words of 32 bytes and less than one word of padding.
_LOG_DATA_OVERHEAD_BYTES: Final = 3 * 32
_FRACTION: Final = re.compile(r"\d{1,9}\.\d{1,9}", re.ASCII)
MAX_CALL_GAS: Final = 50_000_000
DEFAULT_CALL_GAS: Final = 5_000_000
# Signers of the largest sets, and the signature.
_SIGNATURE_OVERHEAD_BYTES: Final = 4_096
_ADDRESS_BYTES: Final = 20
_WORD_BYTES: Final = 32
_HEX_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]{1,16}")


def parse_aggregation_request(
    body: bytes, settings: ApiSettings, chains: PrimaryChains | None = None
) -> AggregationRequest | DeliveryRequest:
    """Parse a request body.

    Raises an InvalidRequest that names the first error, or UnresolvedChain without `chains`.

    A missing quorum is 67 percent, or that of the destination; a missing height, 0 and 2^64-1 mean
    the proposed height (None), or that of the destination's epoch. Only the form of a justification
    without a message is checked; the aggregation resolves its message.
    """
    fields = BODY_FIELDS.read(body, ignore_unknown=settings.ignore_unknown_fields)
    return build_aggregation_request(fields, settings, chains)


def build_aggregation_request(
    fields: Mapping[str, Any], settings: ApiSettings, chains: PrimaryChains | None = None
) -> AggregationRequest | DeliveryRequest:
    """Return the request with the fields of `BODY_FIELDS`.

    Raises as `parse_aggregation_request` does.
    """
    message, justification = _subject(
        fields.get("message", ""), fields.get("justification", ""), settings.max_message_bytes
    )
    quorum, buffer = percentages(
        fields.get("quorumPercentage", 0), fields.get("quorumPercentageBuffer", 0)
    )
    request = AggregationRequest(
        message=message,
        justification=justification,
        signing_subnet_id=_signing_subnet(fields),
        quorum=quorum,
        buffer=buffer,
        height=fields.get("pChainHeight"),
        timeout_s=fields.get("timeoutSeconds"),
    )
    destination, wants_report = fields.get("destinationBlockchainId"), fields.get("report", False)
    if destination is None:
        if wants_report:
            reason = "the report is about a destination: name its blockchain id as well"
            raise InvalidRequest("report", reason)
        return request
    names_quorum = bool(fields.get("quorumPercentage", 0))
    destination_id = decode_destination(destination, chains)
    return DeliveryRequest(request, destination_id, names_quorum, wants_report)


def _signing_subnet(fields: Mapping[str, Any]) -> SubnetID | None:
    """Return the subnet that a request names. Raises InvalidSigningSubnet."""
    text = fields.get("signingSubnetId")
    if not text:
        return None
    return SubnetID(decode_id("signingSubnetId", text, InvalidSigningSubnet))


def _subject(
    message_hex: str, justification_hex: str, limit_bytes: int
) -> tuple[UnsignedMessage | None, bytes]:
    """Return message and justification; without a message, the justification must name one."""
    raw = decode_hex(
        "message", message_hex, limit_bytes + _LOG_DATA_OVERHEAD_BYTES, UndecodableMessage
    )
    if not raw:
        return None, _lone_justification(justification_hex, limit_bytes)
    message = _unpack(raw)
    if len(message.raw) > limit_bytes:
        raise FieldTooLarge("message", limit_bytes)
    justification = decode_hex(
        "justification", justification_hex, limit_bytes, UndecodableJustification
    )
    if not any(message.raw) and not any(justification):
        raise AllZeroes("message", "nothing but zero bytes, and there is no justification")
    return message, justification


def _unpack(raw: bytes) -> UnsignedMessage:
    """Return the message that `raw` is, or that it carries as the data of a SendWarpMessage log."""
    inner = unwrap_log_data(raw)
    if inner is not None:
        try:
            return UnsignedMessage.parse(inner)
        except MalformedMessage:
            # The reference also treats the bytes as a message in this case.
            pass
    try:
        return UnsignedMessage.parse(raw)
    except MalformedMessage as error:
        raise NotAWarpMessage("message", f"not an unsigned Warp message: {error}") from None


def _lone_justification(text: str, limit_bytes: int) -> bytes:
    """Return a justification that names a message: a subnet id, or the proof of a validation."""
    raw = decode_hex("justification", text, limit_bytes, UnusableJustification)
    if not raw:
        raise NothingToSign("message", "neither a message nor a justification was given")
    if len(raw) == ID_BYTES:
        return raw
    try:
        L1ValidatorRegistrationJustification.parse(raw)
    except MalformedJustification as error:
        reason = (
            "without a message it must be a subnet id of 32 bytes or an"
            " L1ValidatorRegistrationJustification"
        )
        raise UnusableJustification("justification", f"{reason}: {error}") from None
    return raw


def percentages(quorum: int, buffer: int) -> tuple[int, int]:
    """Return quorum and buffer; a quorum of 0 means the default.

    Raises InvalidQuorum, InvalidQuorumBuffer.
    """
    quorum = quorum or DEFAULT_QUORUM
    if quorum > MAX_PERCENTAGE:
        raise InvalidQuorum("quorumPercentage", f"{quorum} is not within 0..{MAX_PERCENTAGE}")
    if quorum + buffer > MAX_PERCENTAGE:
        reason = f"{buffer} and the quorum of {quorum} exceed {MAX_PERCENTAGE} together"
        raise InvalidQuorumBuffer("quorumPercentageBuffer", reason)
    return quorum, buffer


class L1Query(Struct, frozen=True):
    """A request by transaction.

    is_explain: Whether the request is for the plan instead of a signed message.
    delivery: The request with its destination; None if it names none and no report.
    """

    request: L1Request
    is_explain: bool
    delivery: L1DeliveryRequest | None = None


def parse_l1_query(
    tx_hash: str,
    query: Iterable[tuple[str, str]],
    settings: ApiSettings,
    chains: PrimaryChains | None = None,
) -> L1Query:
    """Parse a path and its query. Raises an InvalidRequest, or UnresolvedChain without `chains`.

    A missing quorum is that of the manager's chain, else 67 percent. A missing height means the
    epoch height; 0 and 2^64-1 mean the proposed height.
    """
    fields = QUERY_FIELDS.collect(query, ignore_unknown=settings.ignore_unknown_fields)
    # The text of a 400 names the first error, so the order of these lines counts.
    quorum_field = _convert("quorumPercentage", fields, plain_uint64) or 0
    buffer_field = _convert("quorumPercentageBuffer", fields, plain_uint64) or 0
    quorum, buffer = percentages(quorum_field, buffer_field)
    tx_id = decode_id("txHash", tx_hash, MalformedTransactionHash)
    height = None
    if "pChainHeight" in fields:
        height = _convert("pChainHeight", fields, plain_height) or 0
    registration_tx_id = None
    if "registrationTxHash" in fields:
        registration = fields["registrationTxHash"]
        registration_tx_id = decode_id("registrationTxHash", registration, MalformedTransactionHash)
    justification = decode_hex(
        "justification",
        plain_hex("justification", fields.get("justification", "")),
        settings.max_message_bytes,
        UndecodableJustification,
    )
    request = L1Request(
        tx_id=tx_id,
        quorum=quorum,
        buffer=buffer,
        height=height,
        registration_tx_id=registration_tx_id,
        justification=justification,
        timeout_s=_convert("timeoutSeconds", fields, _seconds),
        is_default_quorum=not quorum_field,
    )
    destination = fields.get("destinationBlockchainId")
    wants_report = _convert("report", fields, plain_flag) or False
    delivery = None
    if destination is not None or wants_report:
        destination_id = None
        if destination is not None:
            destination_id = decode_destination(destination, chains)
        delivery = L1DeliveryRequest(request, destination_id, wants_report)
    is_explain = _convert("explain", fields, plain_flag) or False
    return L1Query(request, is_explain, delivery)


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
    """Return a converted parameter. A 400 names the first error, so each waits for its turn."""
    return RequestField(name, lambda _, text: text, schema, description)


QUERY_FIELDS: Final = RequestFields(
    _parameter("quorumPercentage", PERCENTAGE, "By default that of the manager's chain, else 67."),
    _parameter("quorumPercentageBuffer", PERCENTAGE, "By default 0."),
    _parameter(
        "pChainHeight",
        WHOLE_NUMBER,
        "By default that of the destination's epoch; 0: the proposed one.",
    ),
    _parameter("registrationTxHash", TEXT, "The transaction that began the validation."),
    _parameter("justification", TEXT, "Hex of a proof of the validation's registration."),
    _parameter("explain", FLAG, "Return the plan for signing instead of a signed message."),
    _parameter("timeoutSeconds", WHOLE_NUMBER, "How long the caller waits."),
    _parameter(DESTINATION_FIELD, TEXT, "The chain of the L1's manager; another one is refused."),
    _parameter("report", FLAG, "Return the report on the destination as well."),
)


def parse_preflight_request(
    body: bytes, settings: ApiSettings, chains: PrimaryChains | None = None
) -> PreflightRequest:
    """Parse a request body.

    Raises an InvalidRequest that names the first error, or UnresolvedChain without `chains`.

    A quorum of 0 counts as not given.
    """
    fields = VERIFY_FIELDS.read(body, ignore_unknown=settings.ignore_unknown_fields)
    signed = _signed_message(fields, settings.max_message_bytes)
    destination = fields.get(DESTINATION_FIELD)
    if destination is None:
        reason = "is missing: name the chain that is to verify the message"
        raise InvalidRequest(DESTINATION_FIELD, reason)
    destination_id = decode_destination(destination, chains)
    quorum = fields.get("quorumPercentage") or None
    if quorum is not None and quorum > MAX_PERCENTAGE:
        raise InvalidQuorum("quorumPercentage", f"{quorum} is not within 0..{MAX_PERCENTAGE}")
    call = fields.get("call")
    return PreflightRequest(
        signed=signed,
        destination_id=destination_id,
        signing_subnet_id=_signing_subnet(fields),
        quorum=quorum,
        call=None if call is None else _call(call, settings),
    )


def _signed_message(fields: Mapping[str, Any], limit_bytes: int) -> SignedMessage:
    raw = decode_hex(
        "signedMessage",
        fields.get("signedMessage", ""),
        limit_bytes + _SIGNATURE_OVERHEAD_BYTES,
        UndecodableMessage,
    )
    if not raw:
        reason = "is missing: send the bytes of the signed message in hex"
        raise InvalidRequest("signedMessage", reason)
    try:
        return SignedMessage.parse(_without_predicate_padding(raw), allows_padding=True)
    except MalformedMessage as error:
        raise NotAWarpMessage("signedMessage", f"not a signed Warp message: {error}") from None


def _without_predicate_padding(raw: bytes) -> bytes:
    """Return a message without the padding of an access list's storage keys: 0xff, then zeros."""
    bare = raw.rstrip(b"\x00")
    if len(raw) % _WORD_BYTES or bare[-1:] != b"\xff":
        return raw
    try:
        SignedMessage.parse(raw, allows_padding=True)
    except MalformedMessage:
        return bare[:-1]
    return raw


def _call(pairs: Any, settings: ApiSettings) -> DestinationCall:
    if not isinstance(pairs, JsonPairs):
        raise InvalidRequest("call", "not an object with from, to, data and gas")
    call_fields = CALL_FIELDS.collect(pairs, parent="call.")
    if "to" not in call_fields:
        raise InvalidRequest("call.to", "is missing: name the contract")
    sender = _address("call.from", call_fields["from"]) if "from" in call_fields else None
    contract = _address("call.to", call_fields["to"])
    digits = call_fields.get("data", "")
    data = decode_hex("call.data", digits, settings.max_message_bytes, InvalidRequest)
    return DestinationCall(
        sender=sender,
        contract=contract,
        data=data,
        gas=call_fields.get("gas", DEFAULT_CALL_GAS),
    )


def _address(field: str, digits: str) -> bytes:
    raw = decode_hex(field, digits, _ADDRESS_BYTES, InvalidRequest)
    if len(raw) != _ADDRESS_BYTES:
        raise InvalidRequest(field, f"not an address of {_ADDRESS_BYTES} bytes")
    return raw


def _gas(field: str, value: Any) -> int:
    is_hex = isinstance(value, str) and _HEX_NUMBER.fullmatch(value) is not None
    gas = int(value, 16) if is_hex else plain_uint64(field, value)
    if not 0 < gas <= MAX_CALL_GAS:
        raise InvalidRequest(field, f"{gas} is not within 1..{MAX_CALL_GAS}")
    return gas


CALL_FIELDS: Final = RequestFields(
    RequestField("to", plain_hex, TEXT, "The contract.", is_required=True),
    RequestField("from", plain_hex, TEXT, "The caller; by default the zero address."),
    RequestField("data", plain_hex, TEXT, "Hex; by default empty."),
    RequestField(
        "gas",
        _gas,
        {"type": "integer", "minimum": 1, "maximum": MAX_CALL_GAS},
        f"By default {DEFAULT_CALL_GAS}.",
    ),
)
VERIFY_FIELDS: Final = RequestFields(
    RequestField(
        "signedMessage",
        plain_hex,
        TEXT,
        "Hex of the signed message, with or without 0x.",
        is_required=True,
    ),
    RequestField(DESTINATION_FIELD, plain_text, TEXT, "Base58-check or hex.", is_required=True),
    RequestField(
        "signingSubnetId",
        plain_text,
        TEXT,
        "Base58-check or hex; by default the one that the destination demands.",
    ),
    RequestField(
        "quorumPercentage",
        plain_uint64,
        PERCENTAGE,
        "Counts if it is higher than that of the destination.",
    ),
    RequestField("call", lambda _, value: value, {"$ref": "#/components/schemas/CallToTest"}),
)
