"""What a node says of text that is no blockchain id; clients have seen these words before.

Source of truth: avalanchego `utils/cb58`, `utils/hashing` and the base58 library behind them.
"""

from __future__ import annotations

from typing import Final

from warpseal.errors import CallRefused
from warpseal.warp.ids import ID_BYTES, ChainID, MalformedID, cb58_decode

_ALPHABET: Final = frozenset("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
_MAX_CHARACTERS: Final = 256


def chain_id_of(text: str) -> ChainID:
    """Return the id behind base58-check text, in no other form. Raises CallRefused."""
    _check_characters(text)
    try:
        raw = cb58_decode(text)
    except MalformedID as error:
        is_short = "too short" in error.reason
        reason = "input string is smaller than the checksum size" if is_short else "invalid input checksum"
        raise CallRefused(reason) from None
    if len(raw) != ID_BYTES:
        raise CallRefused(f"invalid hash length: expected {ID_BYTES} bytes but got {len(raw)}")
    return ChainID(raw)


def _check_characters(text: str) -> None:
    bad = next((char for char in text if char not in _ALPHABET), None)
    if not text:
        raise CallRefused("base58 decoding error: zero length string")
    if bad is not None and ord(bad) > 127:
        raise CallRefused("base58 decoding error: high-bit set on invalid digit")
    if bad is not None:
        raise CallRefused(f"base58 decoding error: invalid base58 digit ({bad!r})")
    if len(text) > _MAX_CHARACTERS:
        raise CallRefused(f"{len(text)} characters are more than any id has")
