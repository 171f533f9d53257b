"""Ids of subnets, chains, nodes, validations and messages, and their text forms.

Source of truth: avalanchego `ids/` and `utils/cb58`: base58 of the bytes and the last four bytes of
their SHA-256. Base58 is written here and not taken from the `base58` package: that one takes 2.4
times as long to encode an id (7.7 against 3.2 microseconds), pages of the data API encode thousands
of ids, and its decoder ignores trailing white space.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from hashlib import sha256
from typing import Final, NewType

SubnetID = NewType("SubnetID", bytes)
ChainID = NewType("ChainID", bytes)
NodeID = NewType("NodeID", bytes)
ValidationID = NewType("ValidationID", bytes)
MessageID = NewType("MessageID", bytes)

ID_BYTES: Final = 32
NODE_ID_BYTES: Final = 20
PRIMARY_NETWORK: Final = SubnetID(bytes(ID_BYTES))
P_CHAIN: Final = ChainID(bytes(ID_BYTES))
# Nodes list all inactive L1 validators together under this id, without a key.
EMPTY_NODE_ID: Final = NodeID(bytes(NODE_ID_BYTES))

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_DIGITS: Final = bytes(_ALPHABET.find(chr(byte)) % 256 for byte in range(256))
_NOT_A_DIGIT: Final = 255
_CHECKSUM_BYTES: Final = 4
_NODE_ID_PREFIX: Final = "NodeID-"
# Base conversion takes quadratic time; the longest id has 50 characters.
_MAX_TEXT_LENGTH: Final = 256
_MAX_CACHED_TEXTS: Final = 1_024


class MalformedID(ValueError):
    """The text is no id. The message never holds more than 64 characters of it."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"{text[:64]!r}: {reason}")
        self.reason = reason


def cb58_encode(raw: bytes) -> str:
    """Return base58 of `raw` and its four checksum bytes."""
    checked = raw + sha256(raw).digest()[-_CHECKSUM_BYTES:]
    number = int.from_bytes(checked, "big")
    pairs = []
    while number:
        number, pair = divmod(number, 3364)
        pairs.append(_PAIRS[pair])
    pairs.reverse()
    leading_zeros = len(checked) - len(checked.lstrip(b"\x00"))
    return "1" * leading_zeros + "".join(pairs).lstrip("1")


def cb58_decode(text: str) -> bytes:
    """Return the bytes that base58-check `text` stands for. Raises MalformedID."""
    if len(text) > _MAX_TEXT_LENGTH:
        raise MalformedID(text, f"{len(text)} characters are more than any id has")
    try:
        digits = text.encode("ascii").translate(_DIGITS)
    except UnicodeEncodeError:
        raise MalformedID(text, "not base58") from None
    if _NOT_A_DIGIT in digits:
        raise MalformedID(text, "not base58")
    number = 0
    for digit in digits:
        number = number * 58 + digit
    leading_zeros = len(digits) - len(digits.lstrip(b"\x00"))
    checked = bytes(leading_zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
    if len(checked) < _CHECKSUM_BYTES:
        raise MalformedID(text, "too short to hold a checksum")
    raw = checked[:-_CHECKSUM_BYTES]
    if sha256(raw).digest()[-_CHECKSUM_BYTES:] != checked[-_CHECKSUM_BYTES:]:
        raise MalformedID(text, "wrong checksum")
    return raw


def hash160(raw: bytes) -> bytes:
    """Return RIPEMD-160 of SHA-256 of `raw`, 20 bytes: the hash of node ids and addresses."""
    digest = sha256(raw).digest()
    try:
        return hashlib.new("ripemd160", digest).digest()
    except ValueError:
        # OpenSSL 3.0.0 to 3.0.6 lack it, as do systems in FIPS mode. This package costs 0.1 s, and
        # 2 MiB.
        from Crypto.Hash import RIPEMD160

        return RIPEMD160.new(digest).digest()


def node_id_from_certificate(der: bytes) -> NodeID:
    """Return the node id of a leaf certificate, from the certificate's whole DER."""
    return NodeID(hash160(der))


def node_id_text(node_id: NodeID) -> str:
    """Return the text form of a node id, `NodeID-` and base58-check."""
    return _NODE_ID_PREFIX + cb58_encode(node_id)


def parse_node_id(text: str) -> NodeID:
    """Return the 20 bytes of a node id from its text with the prefix. Raises MalformedID."""
    if not text.startswith(_NODE_ID_PREFIX):
        raise MalformedID(text, f"a node id starts with {_NODE_ID_PREFIX}")
    raw = cb58_decode(text.removeprefix(_NODE_ID_PREFIX))
    return NodeID(_require_id_length(raw, NODE_ID_BYTES, text))


@lru_cache(_MAX_CACHED_TEXTS)
def id_text(raw: bytes) -> str:
    """Return the base58-check text of a 32-byte id."""
    return cb58_encode(raw)


def parse_id(text: str) -> bytes:
    """Return the 32 bytes of an id from base58-check, or from hex with or without 0x.

    Raises MalformedID.
    """
    digits = text[2:] if text[:2].lower() == "0x" else text
    # Base58-check of 32 bytes has at most 50 characters, so that 64 cannot mean anything else.
    if digits is text and len(text) != 2 * ID_BYTES:
        return _require_id_length(cb58_decode(text), ID_BYTES, text)
    if len(digits) != 2 * ID_BYTES:
        raise MalformedID(text, f"hex of {ID_BYTES} bytes has {2 * ID_BYTES} digits")
    try:
        return _require_id_length(bytes.fromhex(digits), ID_BYTES, text)
    except ValueError:
        raise MalformedID(text, "not hex") from None


def _require_id_length(raw: bytes, length: int, text: str) -> bytes:
    if len(raw) != length:
        raise MalformedID(text, f"{len(raw)} bytes, not {length}")
    return raw
