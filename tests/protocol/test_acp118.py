"""Signature requests and what answers them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.pb import sdk_pb2
from warpseal.protocol.messages import (
    NoSignature,
    decode_signature_response,
    encode_signature_request,
)
from warpseal.warp.protobuf import encode_varint

MESSAGE = bytes.fromhex(
    "00000000007b010203000000000000000000000000000000000000000000000000000000000000000006666f6f626172"
)
SIGNATURE = bytes(range(96))


def test_a_request_is_the_handler_id_and_the_message() -> None:
    assert encode_signature_request(MESSAGE, b"").hex() == "02" + "0a30" + MESSAGE.hex()


def test_a_justification_goes_along() -> None:
    raw = encode_signature_request(MESSAGE, b"because")
    parsed = sdk_pb2.SignatureRequest.FromString(raw[1:])
    assert (raw[0], parsed.message, parsed.justification) == (2, MESSAGE, b"because")


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (1, "01"), (2, "02"), (127, "7f"), (128, "8001"), (300, "ac02")],
)
def test_handler_ids_are_varints(number: int, encoded: str) -> None:
    assert encode_varint(number).hex() == encoded


def test_the_share_is_extracted_from_the_response() -> None:
    assert decode_signature_response(b"\x0a\x60" + SIGNATURE) == SIGNATURE


def test_a_share_is_found_among_fields_of_a_later_protocol() -> None:
    assert decode_signature_response(b"\x0a\x60" + SIGNATURE + b"\x12\x01x") == SIGNATURE
    assert decode_signature_response(b"\x12\x01x" + b"\x0a\x60" + SIGNATURE) == SIGNATURE


@pytest.mark.parametrize("body", [b"", b"\x0a\x00", b"\x12\x01x"])
def test_a_response_without_a_share_is_empty(body: bytes) -> None:
    assert decode_signature_response(body) is NoSignature.EMPTY


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x60" + SIGNATURE[:-1],
        b"\x0a\x5f" + SIGNATURE[:-1],
        b"\x0a\x61" + SIGNATURE + b"x",
        b"junk",
    ],
)
def test_a_response_that_is_not_a_share_is_malformed(body: bytes) -> None:
    assert decode_signature_response(body) is NoSignature.MALFORMED


@given(st.binary(max_size=120))
def test_no_body_raises(body: bytes) -> None:
    decoded = decode_signature_response(body)
    assert isinstance(decoded, NoSignature) or len(decoded) == 96
