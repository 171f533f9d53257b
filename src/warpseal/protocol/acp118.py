"""Signature requests of ACP-118, and the signature share in a response.

A request starts with the handler ID, a response does not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from google.protobuf.message import DecodeError as ProtobufError

from warpseal.pb import sdk_pb2
from warpseal.warp.protobuf import encode_varint

SIGNATURE_REQUEST_HANDLER: Final = 2
SIGNATURE_BYTES: Final = 96
_HANDLER_PREFIX: Final = encode_varint(SIGNATURE_REQUEST_HANDLER)
# Field 1 with 96 bytes: the only encoding that nodes write.
_SIGNATURE_PREFIX: Final = bytes((0x0A, SIGNATURE_BYTES))
RESPONSE_BYTES: Final = len(_SIGNATURE_PREFIX) + SIGNATURE_BYTES


class NoSignature(StrEnum):
    """Why a response holds no share."""

    EMPTY = "empty"
    MALFORMED = "malformed"


def encode_signature_request(message: bytes, justification: bytes) -> bytes:
    """Return the app bytes that ask for a signature over an unsigned Warp message."""
    request = sdk_pb2.SignatureRequest(message=message, justification=justification)
    return _HANDLER_PREFIX + request.SerializeToString()


def decode_signature_response(body: bytes) -> bytes | NoSignature:
    """Return the 96 bytes of a share, unchecked.

    Returns EMPTY for a response without a signature, and MALFORMED for other bytes or another length.
    """
    if len(body) == RESPONSE_BYTES and body.startswith(_SIGNATURE_PREFIX):
        return body[len(_SIGNATURE_PREFIX) :]
    try:
        signature = sdk_pb2.SignatureResponse.FromString(body).signature
    except ProtobufError:
        return NoSignature.MALFORMED
    # A handler of before ACP-118, or one that has not seen the message yet, answers without a signature.
    if not signature:
        return NoSignature.EMPTY
    return signature if len(signature) == SIGNATURE_BYTES else NoSignature.MALFORMED
