"""The grammar of an aggregation request: every spelling in use, one meaning.

Source of truth: the specification's endpoint 1 for names and ranges; the reference aggregator for the order
in which errors are found, because the text of a 400 names the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warpseal.aggregation.errors import NothingToSign, UnusableJustification
from warpseal.aggregation.service import AggregationRequest
from warpseal.api.http.settings import ApiSettings
from warpseal.api.signing.errors import (
    AllZeroes,
    FieldTooLarge,
    InvalidQuorum,
    InvalidQuorumBuffer,
    NotAWarpMessage,
    UndecodableJustification,
    UndecodableMessage,
)
from warpseal.api.signing.request_fields import BODY_FIELDS, decode_destination, decode_hex, decode_id
from warpseal.delivery.request import DeliveryRequest
from warpseal.errors import InvalidRequest
from warpseal.messages.errors import InvalidSigningSubnet
from warpseal.resources.chains import PrimaryChains
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ID_BYTES, SubnetID
from warpseal.warp.justification import L1ValidatorRegistrationJustification, MalformedJustification
from warpseal.warp.message import UnsignedMessage, unwrap_log_data
from warpseal.warp.validator_set import DEFAULT_QUORUM

MAX_PERCENTAGE: Final = 100
# ABI log data carries a message between two words of 32 bytes and less than one word of padding.
_LOG_DATA_OVERHEAD_BYTES: Final = 3 * 32


def parse_aggregation_request(
    body: bytes, settings: ApiSettings, chains: PrimaryChains | None = None
) -> AggregationRequest | DeliveryRequest:
    """Parse a request body. Raises an InvalidRequest that names the first error, or UnresolvedChain without `chains`.

    A missing quorum is 67 percent, or that of the destination; a missing height, 0 and 2^64-1 mean the proposed height
    (None), or that of the destination's epoch. Only the form of a justification without a message is checked; the
    aggregation resolves its message.
    """
    fields = BODY_FIELDS.read(body, ignore_unknown=settings.ignore_unknown_fields)
    return build_aggregation_request(fields, settings, chains)


def build_aggregation_request(
    fields: Mapping[str, Any], settings: ApiSettings, chains: PrimaryChains | None = None
) -> AggregationRequest | DeliveryRequest:
    """Return the request with the fields of `BODY_FIELDS`. Raises as `parse_aggregation_request` does."""
    message, justification = _subject(
        fields.get("message", ""), fields.get("justification", ""), settings.max_message_bytes
    )
    quorum, buffer = percentages(fields.get("quorumPercentage", 0), fields.get("quorumPercentageBuffer", 0))
    subnet = fields.get("signingSubnetId")
    request = AggregationRequest(
        message=message,
        justification=justification,
        signing_subnet_id=SubnetID(decode_id("signingSubnetId", subnet, InvalidSigningSubnet)) if subnet else None,
        quorum=quorum,
        buffer=buffer,
        height=fields.get("pChainHeight"),
        timeout_s=fields.get("timeoutSeconds"),
    )
    destination, wants_report = fields.get("destinationBlockchainId"), fields.get("report", False)
    if destination is None:
        if wants_report:
            raise InvalidRequest("report", "the report is about a destination: name its blockchain id as well")
        return request
    names_quorum = bool(fields.get("quorumPercentage", 0))
    return DeliveryRequest(request, decode_destination(destination, chains), names_quorum, wants_report)


def _subject(message_hex: str, justification_hex: str, limit_bytes: int) -> tuple[UnsignedMessage | None, bytes]:
    """Return message and justification; without a message, the justification must name one."""
    raw = decode_hex("message", message_hex, limit_bytes + _LOG_DATA_OVERHEAD_BYTES, UndecodableMessage)
    if not raw:
        return None, _lone_justification(justification_hex, limit_bytes)
    message = _unpack(raw)
    if len(message.raw) > limit_bytes:
        raise FieldTooLarge("message", limit_bytes)
    justification = decode_hex("justification", justification_hex, limit_bytes, UndecodableJustification)
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
            pass  # The reference also treats the bytes as a message in this case.
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
        reason = "without a message it must be a subnet id of 32 bytes or an L1ValidatorRegistrationJustification"
        raise UnusableJustification("justification", f"{reason}: {error}") from None
    return raw


def percentages(quorum: int, buffer: int) -> tuple[int, int]:
    """Return quorum and buffer; a quorum of 0 was not given. Raises InvalidQuorum, InvalidQuorumBuffer."""
    quorum = quorum or DEFAULT_QUORUM
    if quorum > MAX_PERCENTAGE:
        raise InvalidQuorum("quorumPercentage", f"{quorum} is not within 0..{MAX_PERCENTAGE}")
    if quorum + buffer > MAX_PERCENTAGE:
        reason = f"{buffer} and the quorum of {quorum} exceed {MAX_PERCENTAGE} together"
        raise InvalidQuorumBuffer("quorumPercentageBuffer", reason)
    return quorum, buffer
