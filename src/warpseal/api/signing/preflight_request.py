"""The grammar of `POST .../verify`: the fields of its body in every spelling of the other endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from warpseal.api.http.settings import ApiSettings
from warpseal.api.openapi.describe import COMPONENT
from warpseal.api.signing.aggregation_request import MAX_PERCENTAGE
from warpseal.api.signing.errors import (
    InvalidQuorum,
    NotAWarpMessage,
    UndecodableMessage,
)
from warpseal.api.signing.request_fields import (
    PERCENTAGE,
    TEXT,
    JsonPairs,
    RequestField,
    RequestFields,
    decode_destination,
    decode_hex,
    decode_id,
    plain_hex,
    plain_text,
    plain_uint64,
)
from warpseal.delivery.destination import DESTINATION_FIELD
from warpseal.delivery.preflight import DestinationCall, PreflightRequest
from warpseal.errors import InvalidRequest
from warpseal.messages.errors import InvalidSigningSubnet
from warpseal.resources.chains import PrimaryChains
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import SubnetID
from warpseal.warp.message import SignedMessage

MAX_CALL_GAS: Final = 50_000_000
DEFAULT_CALL_GAS: Final = 5_000_000
# Signers of the largest sets, and the signature.
_SIGNATURE_OVERHEAD_BYTES: Final = 4_096
_ADDRESS_BYTES: Final = 20
_WORD_BYTES: Final = 32
_HEX_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]{1,16}")


def parse_preflight_request(
    body: bytes, settings: ApiSettings, chains: PrimaryChains | None = None
) -> PreflightRequest:
    """Parse a request body. Raises an InvalidRequest that names the first error, or UnresolvedChain without `chains`.

    A quorum of 0 counts as not given.
    """
    fields = VERIFY_FIELDS.read(body, ignore_unknown=settings.ignore_unknown_fields)
    signed = _signed_message(fields, settings.max_message_bytes)
    destination = fields.get(DESTINATION_FIELD)
    if destination is None:
        raise InvalidRequest(DESTINATION_FIELD, "is missing: name the chain that is to verify the message")
    destination_id = decode_destination(destination, chains)
    subnet = fields.get("signingSubnetId")
    quorum = fields.get("quorumPercentage") or None
    if quorum is not None and quorum > MAX_PERCENTAGE:
        raise InvalidQuorum("quorumPercentage", f"{quorum} is not within 0..{MAX_PERCENTAGE}")
    call = fields.get("call")
    return PreflightRequest(
        signed=signed,
        destination_id=destination_id,
        signing_subnet_id=SubnetID(decode_id("signingSubnetId", subnet, InvalidSigningSubnet)) if subnet else None,
        quorum=quorum,
        call=None if call is None else _call(call, settings),
    )


def _signed_message(fields: Mapping[str, Any], limit_bytes: int) -> SignedMessage:
    raw = decode_hex(
        "signedMessage", fields.get("signedMessage", ""), limit_bytes + _SIGNATURE_OVERHEAD_BYTES, UndecodableMessage
    )
    if not raw:
        raise InvalidRequest("signedMessage", "is missing: send the bytes of the signed message in hex")
    try:
        return SignedMessage.parse(_without_predicate_padding(raw), allows_padding=True)
    except MalformedMessage as error:
        raise NotAWarpMessage("signedMessage", f"not a signed Warp message: {error}") from None


def _without_predicate_padding(raw: bytes) -> bytes:
    """Return the message in the storage keys of an access list: it ends with 0xff, then zeros. Else the bytes."""
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
    return DestinationCall(
        sender=_address("call.from", call_fields["from"]) if "from" in call_fields else None,
        contract=_address("call.to", call_fields["to"]),
        data=decode_hex("call.data", call_fields.get("data", ""), settings.max_message_bytes, InvalidRequest),
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
        "gas", _gas, {"type": "integer", "minimum": 1, "maximum": MAX_CALL_GAS}, f"By default {DEFAULT_CALL_GAS}."
    ),
)
VERIFY_FIELDS: Final = RequestFields(
    RequestField("signedMessage", plain_hex, TEXT, "Hex of the signed message, with or without 0x.", is_required=True),
    RequestField(DESTINATION_FIELD, plain_text, TEXT, "Base58-check or hex.", is_required=True),
    RequestField(
        "signingSubnetId", plain_text, TEXT, "Base58-check or hex; by default the one that the destination demands."
    ),
    RequestField("quorumPercentage", plain_uint64, PERCENTAGE, "Counts if it is higher than that of the destination."),
    RequestField("call", lambda _, value: value, {"$ref": COMPONENT.format(name="CallToTest")}),
)
