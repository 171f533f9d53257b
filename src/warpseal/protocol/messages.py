"""Peer messages: opening what arrives and encoding what is sent.

Source of truth: proto/warpseal/pb/p2p.proto. An envelope is opened without building objects; the answers to
requests, of which a round brings a thousand, have a path for the bytes that every known node writes and fall
back to the generated parser for every other legal encoding.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from warpseal.pb import p2p_pb2
from warpseal.protocol.acp118 import RESPONSE_BYTES
from warpseal.protocol.compression import Zstd
from warpseal.protocol.errors import Undecodable
from warpseal.protocol.framing import encode_frame
from warpseal.protocol.wire import LENGTH_DELIMITED, encode_member, members, read_varint


class Member(IntEnum):
    """The members of a message that somebody here looks at, by field number."""

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

# Bodies above these sizes are never built into objects: nothing that we read comes near them.
_PARSED_BYTES: Final = 64 * 1024
_HANDSHAKE_BYTES: Final = 256 * 1024
_ID_BYTES: Final = 32
_KNOWN: Final = frozenset(Member)
# An envelope holds one member; a few fields of a later protocol beside it are passed over.
_ENVELOPE_FIELDS: Final = 8
_ERROR_FIELDS: Final = 16
_ERROR_TEXT_BYTES: Final = 200
_MASK_32: Final = 0xFFFF_FFFF
# What an AppResponse or AppError begins with: field 1, 32 bytes; then field 2 at this offset.
_CHAIN_PREFIX: Final = b"\x0a\x20"
_AFTER_CHAIN: Final = len(_CHAIN_PREFIX) + _ID_BYTES
_REQUEST_ID_KEY: Final = 0x10
# Field 3 with the length of a response that holds a share, all of it that a node writes.
_SHARE_FOLLOWS: Final = bytes((0x1A, RESPONSE_BYTES))
# Enough for the key and the length of anything up to 256 MiB.
_HEAD_BYTES: Final = 6
_HEADS_REMEMBERED: Final = 1024
# Longer answers than this hold no share behind a request id of 32 bits, or not in the bytes that nodes write.
_LONGEST_SHARE_BYTES: Final = _AFTER_CHAIN + 1 + 5 + len(_SHARE_FOLLOWS) + RESPONSE_BYTES


def open_envelope(frame: bytes, zstd: Zstd) -> tuple[int, bytes]:
    """Return (field number, body) of the member that a frame holds, inflated when it came compressed.

    Numbers that nobody here knows are returned like all others. Raises Undecodable, also for a compressed
    message in a compressed message.
    """
    number, body = _only_member(frame)
    if number != Member.COMPRESSED:
        return number, body
    number, body = _only_member(zstd.inflate(body))
    if number == Member.COMPRESSED:
        raise Undecodable("compressed twice")
    return number, body


def _only_member(raw: bytes) -> tuple[int, bytes]:
    """Return the member of a message: in all that nodes write, its one field, which fills it."""
    head = _member_head(raw[:_HEAD_BYTES])
    if head is not None and head[2] == len(raw):
        return head[0], raw[head[1] :]
    found: tuple[int, bytes] | None = None
    for number, value in members(raw, _ENVELOPE_FIELDS):
        if isinstance(value, bytes) and (found is None or number in _KNOWN):
            found = (number, value)
    if found is None:
        raise Undecodable("no member")
    return found


@lru_cache(maxsize=_HEADS_REMEMBERED)
def _member_head(first: bytes) -> tuple[int, int, int] | None:
    """Return (field number, offset of its value, where it ends) as told by a message's first bytes, else None.

    A thousand answers begin alike, so these bytes are looked at once.
    """
    try:
        key, offset = read_varint(first, 0)
        length, offset = read_varint(first, offset)
    except Undecodable:
        return None
    return (key >> 3, offset, offset + length) if key & 7 == LENGTH_DELIMITED else None


def decode_app_response(body: bytes) -> tuple[bytes, int, bytes]:
    """Return (chain id, request id, app bytes). Raises Undecodable."""
    head = _share_head(body[:-RESPONSE_BYTES]) if len(body) <= _LONGEST_SHARE_BYTES else None
    if head is not None:
        return head[0], head[1], body[-RESPONSE_BYTES:]
    try:
        response = p2p_pb2.AppResponse.FromString(body)
    except DecodeError as error:
        raise Undecodable(f"app response: {error}") from None
    return response.chain_id, response.request_id, response.app_bytes


@lru_cache(maxsize=_HEADS_REMEMBERED)
def _share_head(head: bytes) -> tuple[bytes, int] | None:
    """Return (chain id, request id) if `head` is all that stands before the share in an AppResponse, else None.

    It is the same in the answers of a whole wave, and looked at once.
    """
    if head[:2] != _CHAIN_PREFIX or len(head) <= _AFTER_CHAIN or head[_AFTER_CHAIN] != _REQUEST_ID_KEY:
        return None
    try:
        request_id, offset = read_varint(head, _AFTER_CHAIN + 1)
    except Undecodable:
        return None
    if request_id > _MASK_32 or head[offset:] != _SHARE_FOLLOWS:
        return None
    return head[2:_AFTER_CHAIN], request_id


def decode_app_error(body: bytes) -> tuple[bytes, int, int, str]:
    """Return (chain id, request id, code, text for people). Raises Undecodable.

    The text is cut to 200 bytes; control characters and invalid UTF-8, which the generated parser would
    refuse together with the code, are escaped.
    """
    chain_id, request_id, code, text = b"", 0, 0, b""
    for number, value in members(body, _ERROR_FIELDS):
        if isinstance(value, bytes):
            if number == 1:
                chain_id = value
            elif number == 4:
                text = value
        elif number == 2:
            request_id = value & _MASK_32
        elif number == 3:
            code = _zigzag(value & _MASK_32)
    return chain_id, request_id, code, readable(text[:_ERROR_TEXT_BYTES])


def _zigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def readable(raw: bytes) -> str:
    """Return bytes of a stranger as printable text: control characters and invalid UTF-8 are escaped."""
    text = raw.decode("utf-8", errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def decode_handshake(body: bytes) -> p2p_pb2.Handshake:
    """Return a handshake as it came, unchecked. Raises Undecodable."""
    _check_size(body, _HANDSHAKE_BYTES)
    try:
        return p2p_pb2.Handshake.FromString(body)
    except DecodeError as error:
        raise Undecodable(f"handshake: {error}") from None


def decode_claimed_addresses(body: bytes, limit: int) -> list[p2p_pb2.ClaimedIpPort]:
    """Return at most the first `limit` entries of a peer list, unchecked. Raises Undecodable."""
    try:
        return [
            p2p_pb2.ClaimedIpPort.FromString(value)
            for number, value in members(body, limit)
            if number == 1 and isinstance(value, bytes)
        ]
    except DecodeError as error:
        raise Undecodable(f"peer list: {error}") from None


def decode_app_request_ids(body: bytes) -> tuple[bytes, int]:
    """Return (chain id, request id) of a question that a peer asks us. Raises Undecodable."""
    _check_size(body, _PARSED_BYTES)
    try:
        request = p2p_pb2.AppRequest.FromString(body)
    except DecodeError as error:
        raise Undecodable(f"app request: {error}") from None
    return request.chain_id, request.request_id


def _check_size(body: bytes, limit: int) -> None:
    if len(body) > limit:
        raise Undecodable(f"{len(body)} bytes are more than such a message has")


def encode_handshake(handshake: p2p_pb2.Handshake) -> bytes:
    """Return the frame of a handshake, which nodes never compress."""
    return encode_frame(p2p_pb2.Message(handshake=handshake).SerializeToString())


def encode_get_peer_list(known_peers: bytes, salt: bytes, zstd: Zstd) -> bytes:
    """Return the frame that asks for addresses of all subnets beyond those in a marshalled bloom filter."""
    question = p2p_pb2.GetPeerList(known_peers=p2p_pb2.BloomFilter(filter=known_peers, salt=salt), all_subnets=True)
    return _compressed_frame(p2p_pb2.Message(get_peer_list=question), zstd)


def encode_app_request(chain_id: bytes, request_id: int, app_bytes: bytes, deadline_s: float, zstd: Zstd) -> bytes:
    """Return the frame of a question. The peer counts `deadline_s` from receipt and caps it at 10 s."""
    request = p2p_pb2.AppRequest(
        chain_id=chain_id, request_id=request_id, deadline=round(deadline_s * 1e9), app_bytes=app_bytes
    )
    return _compressed_frame(p2p_pb2.Message(app_request=request), zstd)


def encode_app_error(chain_id: bytes, request_id: int, code: int, text: str, zstd: Zstd) -> bytes:
    """Return the frame of a refusal."""
    refusal = p2p_pb2.AppError(chain_id=chain_id, request_id=request_id, error_code=code, error_message=text)
    return _compressed_frame(p2p_pb2.Message(app_error=refusal), zstd)


def _compressed_frame(message: p2p_pb2.Message, zstd: Zstd) -> bytes:
    return encode_frame(encode_member(Member.COMPRESSED, zstd.compress(message.SerializeToString())))
