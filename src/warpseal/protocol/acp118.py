"""Signature requests: what a validator is asked to sign, and the share in its answer.

Source of truth: ACP-118. A request carries the handler id in front, a response does not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from google.protobuf.message import DecodeError

from warpseal.pb import sdk_pb2
from warpseal.protocol.wire import encode_varint

SIGNATURE_REQUEST_HANDLER: Final = 2
SIGNATURE_BYTES: Final = 96
_HANDLER_PREFIX: Final = encode_varint(SIGNATURE_REQUEST_HANDLER)
# Field 1, 96 bytes: all that a node ever writes.
_SIGNATURE_PREFIX: Final = bytes((0x0A, SIGNATURE_BYTES))
RESPONSE_BYTES: Final = len(_SIGNATURE_PREFIX) + SIGNATURE_BYTES


class NoSignature(StrEnum):
    """An answer without a share."""

    EMPTY = "empty"
    MALFORMED = "malformed"


def encode_signature_request(message: bytes, justification: bytes) -> bytes:
    """Return the app bytes that ask for a signature over an unsigned Warp message."""
    request = sdk_pb2.SignatureRequest(message=message, justification=justification)
    return _HANDLER_PREFIX + request.SerializeToString()


def decode_signature_response(body: bytes) -> bytes | NoSignature:
    """Return the 96 bytes of a share, not yet looked at; EMPTY when the validator has nothing to say.

    MALFORMED is everything else: no such message, or a signature of another length.
    """
    if len(body) == RESPONSE_BYTES and body.startswith(_SIGNATURE_PREFIX):
        return body[len(_SIGNATURE_PREFIX) :]
    try:
        signature = sdk_pb2.SignatureResponse.FromString(body).signature
    except DecodeError:
        return NoSignature.MALFORMED
    if not signature:
        return NoSignature.EMPTY
    return signature if len(signature) == SIGNATURE_BYTES else NoSignature.MALFORMED
