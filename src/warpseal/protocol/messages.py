"""Decoding and encoding of peer messages, and of the signature requests of ACP-118 in them.

Source of truth: proto/warpseal/pb/p2p.proto. Envelopes are opened without building objects.
Responses, of which a round brings a thousand, are sliced directly if they have the encoding that
nodes write, and go through the generated parser otherwise.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Final, TypeVar

from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message as ProtobufMessage

from warpseal.pb import p2p_pb2, sdk_pb2
from warpseal.protocol.framing import Zstd, encode_frame
from warpseal.warp.protobuf import (
    LENGTH_DELIMITED,
    DecodeError,
    encode_field,
    encode_varint,
    iter_fields,
    read_varint,
)

M = TypeVar("M", bound=ProtobufMessage)


class MessageType(IntEnum):
    """The types of messages, by field number of the envelope."""

    COMPRESSED = 2
    PING = 11
    PONG = 12
    HANDSHAKE = 13
    PEER_LIST = 14
    APP_REQUEST = 30
    APP_RESPONSE = 31
    APP_GOSSIP = 32
    APP_ERROR = 34
    GET_PEER_LIST = 35


PING_FRAME: Final = encode_frame(bytes.fromhex("5a00"))
PONG_FRAME: Final = encode_frame(bytes.fromhex("6200"))
EMPTY_PEER_LIST_FRAME: Final = encode_frame(bytes.fromhex("7200"))
UNREGISTERED_HANDLER_CODE: Final = -2
UNREGISTERED_HANDLER_TEXT: Final = "unregistered handler"

SIGNATURE_BYTES: Final = 96
_SIGNATURE_REQUEST_HANDLER: Final = encode_varint(2)
# Field 1 with 96 bytes: the only encoding that nodes write.
_SIGNATURE_PREFIX: Final = bytes((0x0A, SIGNATURE_BYTES))
RESPONSE_BYTES: Final = len(_SIGNATURE_PREFIX) + SIGNATURE_BYTES

# Larger bodies are never parsed: the messages that this daemon reads are far smaller.
_PARSED_BYTES: Final = 64 * 1024
_HANDSHAKE_BYTES: Final = 256 * 1024
_ID_BYTES: Final = 32
_KNOWN: Final = frozenset(MessageType)
# An envelope holds one message; a few fields of a later protocol around it are skipped.
_ENVELOPE_FIELDS: Final = 8
_ERROR_FIELDS: Final = 16
_ERROR_TEXT_BYTES: Final = 200
_MASK_32: Final = 0xFFFF_FFFF
# The start of an AppResponse: field 1 with 32 bytes, then field 2 at this offset.
_CHAIN_PREFIX: Final = b"\x0a\x20"
_AFTER_CHAIN: Final = len(_CHAIN_PREFIX) + _ID_BYTES
_REQUEST_ID_KEY: Final = 0x10
# Field 3 with the length of a response that holds a share, in the encoding of nodes.
_SHARE_FOLLOWS: Final = bytes((0x1A, RESPONSE_BYTES))
# The key and the length of a field of up to 256 MiB.
_HEAD_BYTES: Final = 6
_CACHED_HEADS: Final = 1024
# A longer response does not consist of a 32-bit request ID and a share in the encoding of nodes.
_LONGEST_SHARE_BYTES: Final = _AFTER_CHAIN + 1 + 5 + len(_SHARE_FOLLOWS) + RESPONSE_BYTES


def open_envelope(frame: bytes, zstd: Zstd) -> tuple[int, bytes]:
    """Return (field number, body) of the message in a frame, decompressed if necessary.

    The number may be unknown. Raises DecodeError, also for a compressed message inside a compressed
    message.
    """
    number, body = _single_field(frame)
    if number != MessageType.COMPRESSED:
        return number, body
    number, body = _single_field(zstd.inflate(body))
    # messages.go, unmarshal: one level; a compressed message inside is of an unknown type.
    if number == MessageType.COMPRESSED:
        raise DecodeError("compressed twice")
    return number, body


def _single_field(raw: bytes) -> tuple[int, bytes]:
    """Return the message field of an envelope. Nodes write exactly one field."""
    head = _field_head(raw[:_HEAD_BYTES])
    if head is not None and head[2] == len(raw):
        return head[0], raw[head[1] :]
    field: tuple[int, bytes] | None = None
    for number, value in iter_fields(raw, _ENVELOPE_FIELDS):
        if isinstance(value, bytes) and (field is None or number in _KNOWN):
            field = (number, value)
    if field is None:
        raise DecodeError("no message")
    return field


@lru_cache(maxsize=_CACHED_HEADS)
def _field_head(first: bytes) -> tuple[int, int, int] | None:
    """Return (field number, offset of the value, end of the value) of a message.

    first: its first bytes. Returns None if they are no field of bytes.

    It is cached because a thousand responses begin alike.
    """
    try:
        key, offset = read_varint(first, 0)
        length, offset = read_varint(first, offset)
    except DecodeError:
        return None
    return (key >> 3, offset, offset + length) if key & 7 == LENGTH_DELIMITED else None


def decode_app_response(body: bytes) -> tuple[bytes, int, bytes]:
    """Return (chain id, request id, app bytes). Raises DecodeError."""
    head = _share_head(body[:-RESPONSE_BYTES]) if len(body) <= _LONGEST_SHARE_BYTES else None
    if head is not None:
        return head[0], head[1], body[-RESPONSE_BYTES:]
    response = _parse(p2p_pb2.AppResponse, body)
    return response.chain_id, response.request_id, response.app_bytes


@lru_cache(maxsize=_CACHED_HEADS)
def _share_head(head: bytes) -> tuple[bytes, int] | None:
    """Return (chain id, request id) of an AppResponse with a share.

    head: all bytes before the share. Returns None for another encoding.

    It is cached because all responses to a request share it.
    """
    if head[:2] != _CHAIN_PREFIX or len(head) <= _AFTER_CHAIN:
        return None
    if head[_AFTER_CHAIN] != _REQUEST_ID_KEY:
        return None
    try:
        request_id, offset = read_varint(head, _AFTER_CHAIN + 1)
    except DecodeError:
        return None
    if request_id > _MASK_32 or head[offset:] != _SHARE_FOLLOWS:
        return None
    return head[2:_AFTER_CHAIN], request_id


def decode_app_error(body: bytes) -> tuple[bytes, int, int, str]:
    """Return (chain id, request id, code, readable text). Raises DecodeError.

    The text is cut to 200 bytes. Control characters and invalid UTF-8 are escaped; the generated
    parser would refuse the whole message for them.
    """
    chain_id, request_id, code, text = b"", 0, 0, b""
    for number, value in iter_fields(body, _ERROR_FIELDS):
        if isinstance(value, bytes):
            if number == 1:
                chain_id = value
            elif number == 4:
                text = value
        elif number == 2:
            request_id = value & _MASK_32
        elif number == 3:
            # p2p.proto: sint32 (zigzag), though the text of ACP-25 says uint32.
            code = (value & _MASK_32) >> 1 ^ -(value & 1)
    return chain_id, request_id, code, escape_text(text[:_ERROR_TEXT_BYTES])


def escape_text(raw: bytes) -> str:
    """Return received bytes as printable text: control characters and invalid UTF-8 are escaped."""
    text = raw.decode("utf-8", errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def decode_handshake(body: bytes) -> p2p_pb2.Handshake:
    """Return a handshake, unchecked. Raises DecodeError."""
    return _parse(p2p_pb2.Handshake, body, _HANDSHAKE_BYTES)


def decode_peer_list(body: bytes, limit: int) -> list[p2p_pb2.ClaimedIpPort]:
    """Return at most the first `limit` entries of a peer list, unchecked. Raises DecodeError."""
    return [
        _parse(p2p_pb2.ClaimedIpPort, value)
        for number, value in iter_fields(body, limit)
        if number == 1 and isinstance(value, bytes)
    ]


def decode_app_request_ids(body: bytes) -> tuple[bytes, int]:
    """Return (chain id, request id) of a peer's request. Raises DecodeError."""
    request = _parse(p2p_pb2.AppRequest, body, _PARSED_BYTES)
    return request.chain_id, request.request_id


def _parse(message_type: type[M], body: bytes, limit: int | None = None) -> M:
    """Return a message of at most `limit` bytes. Raises DecodeError."""
    if limit is not None and len(body) > limit:
        raise DecodeError(f"{len(body)} bytes, at most {limit} are read")
    try:
        return message_type.FromString(body)
    except ProtobufError as error:
        raise DecodeError(f"{message_type.__name__}: {error}") from None


def encode_handshake(handshake: p2p_pb2.Handshake) -> bytes:
    """Return the frame of a handshake, uncompressed as nodes send it."""
    return encode_frame(p2p_pb2.Message(handshake=handshake).SerializeToString())


def encode_get_peer_list(known_peers: bytes, salt: bytes, zstd: Zstd) -> bytes:
    """Return the frame that asks for the addresses that a marshalled bloom filter lacks."""
    request = p2p_pb2.GetPeerList(
        known_peers=p2p_pb2.BloomFilter(filter=known_peers, salt=salt), all_subnets=True
    )
    return _compressed_frame(p2p_pb2.Message(get_peer_list=request), zstd)


def encode_app_request(
    chain_id: bytes, request_id: int, app_bytes: bytes, deadline_s: float, zstd: Zstd
) -> bytes:
    """Return the frame of a request.

    deadline_s: seconds, which the peer counts from receipt and caps at 10.
    """
    request = p2p_pb2.AppRequest(
        chain_id=chain_id,
        request_id=request_id,
        deadline=round(deadline_s * 1e9),
        app_bytes=app_bytes,
    )
    return _compressed_frame(p2p_pb2.Message(app_request=request), zstd)


def encode_app_error(chain_id: bytes, request_id: int, code: int, text: str, zstd: Zstd) -> bytes:
    """Return the frame of an application error."""
    error = p2p_pb2.AppError(
        chain_id=chain_id, request_id=request_id, error_code=code, error_message=text
    )
    return _compressed_frame(p2p_pb2.Message(app_error=error), zstd)


def _compressed_frame(message: p2p_pb2.Message, zstd: Zstd) -> bytes:
    compressed = zstd.compress(message.SerializeToString())
    return encode_frame(encode_field(MessageType.COMPRESSED, compressed))


class NoSignature(StrEnum):
    """Why a response holds no share."""

    EMPTY = "empty"
    MALFORMED = "malformed"


def encode_signature_request(message: bytes, justification: bytes) -> bytes:
    """Return the app bytes that ask for a signature of an unsigned Warp message.

    They begin with the handler ID.
    """
    request = sdk_pb2.SignatureRequest(message=message, justification=justification)
    return _SIGNATURE_REQUEST_HANDLER + request.SerializeToString()


def decode_signature_response(body: bytes) -> bytes | NoSignature:
    """Return the 96 bytes of a share, unchecked; a response has no handler ID.

    Returns EMPTY for a response without a signature, and MALFORMED for other bytes or another
    length.
    """
    if len(body) == RESPONSE_BYTES and body.startswith(_SIGNATURE_PREFIX):
        return body[len(_SIGNATURE_PREFIX) :]
    try:
        signature = sdk_pb2.SignatureResponse.FromString(body).signature
    except ProtobufError:
        return NoSignature.MALFORMED
    # A handler of before ACP-118, or one that has not seen the message yet, answers without a
    # signature.
    if not signature:
        return NoSignature.EMPTY
    return signature if len(signature) == SIGNATURE_BYTES else NoSignature.MALFORMED
