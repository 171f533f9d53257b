"""Frames of the peer protocol, as a node reads and writes them: length, envelope, zstd.

Source of truth: avalanchego `network/peer/msg_length.go`, `message/messages.go`,
`utils/compression`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from warpseal.pb import p2p_pb2 as p2p
from warpseal.runtime.zstd import Compressor, Decompressor, ZstdError

MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
LENGTH_BYTES: Final = 4
# Nodes always compress these messages and never the others.
COMPRESSED: Final = frozenset(
    ("peer_list", "get_peer_list", "app_request", "app_response", "app_gossip", "app_error")
)
_CACHEABLE_BYTES: Final = 16 * 1024
_LEVEL: Final = 5

_compressor: Final = Compressor(_LEVEL)
_decompressor: Final = Decompressor(MAX_MESSAGE_BYTES)


class OversizedFrame(ValueError):
    """A length beyond 2 MiB was announced."""


class UndecodableMessage(ValueError):
    """A frame that a node counts and skips."""


class FrameReader:
    """Splits a stream of bytes into message bodies; buffers at most one unfinished frame."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def unfinished(self) -> int:
        """The number of buffered bytes."""
        return len(self._buffer)

    @property
    def in_body(self) -> bool:
        """Whether the length of the unfinished frame is known."""
        return len(self._buffer) >= LENGTH_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that `data` completes, in order. Raises OversizedFrame."""
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while (body_start := start + LENGTH_BYTES) <= len(self._buffer):
            length = int.from_bytes(self._buffer[start:body_start], "big")
            if length > MAX_MESSAGE_BYTES:
                raise OversizedFrame(f"a message of {length} bytes was announced")
            if body_start + length > len(self._buffer):
                break
            start = body_start + length
            bodies.append(bytes(self._buffer[body_start:start]))
        del self._buffer[:start]
        return bodies


def framed(body: bytes) -> bytes:
    """Return a body behind its length."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode(message: p2p.Message) -> bytes:
    """Return the frame of a message, compressed if nodes compress it."""
    body = message.SerializeToString()
    if message.WhichOneof("message") in COMPRESSED:
        body = compressed(body)
    return framed(body)


def compressed(body: bytes) -> bytes:
    """Return the body of an envelope that holds `body` as a zstd frame with declared size."""
    return p2p.Message(compressed_zstd=_compressor.compress(body)).SerializeToString()


def decode(body: bytes) -> p2p.Message:
    """Return the message of a body, decompressed if necessary.

    It is shared between calls and must not be changed.

    Raises UndecodableMessage. A message of an unknown type has no field set.
    """
    return _decode_cached(body) if len(body) <= _CACHEABLE_BYTES else _decode(body)


def _decode(body: bytes) -> p2p.Message:
    outer = _parsed(body)
    if not outer.compressed_zstd:
        return outer
    inner = _parsed(_inflated(outer.compressed_zstd))
    if inner.WhichOneof("message") == "compressed_zstd":
        raise UndecodableMessage("compressed twice")
    return inner


# One request goes to a thousand validators in the same bytes.
_decode_cached = lru_cache(maxsize=512)(_decode)


def _parsed(body: bytes) -> p2p.Message:
    if not body:
        raise UndecodableMessage("an empty message")
    try:
        return p2p.Message.FromString(body)
    except DecodeError as error:
        raise UndecodableMessage(str(error)) from None


def _inflated(raw: bytes) -> bytes:
    try:
        return _decompressor.decompress(raw)
    except ZstdError as error:
        raise UndecodableMessage(str(error)) from None
