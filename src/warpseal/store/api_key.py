"""The API key of a caller: its text and its digest.

Separate from api_keys.py, because the HTTP ports open before the store is loaded.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Final

from msgspec import Struct

from warpseal.warp.ids import MalformedID, cb58_decode, cb58_encode

KEY_PREFIX: Final = "wsk_"
_KEY_BYTES: Final = 24


class ApiKey(Struct, frozen=True):
    """A stored key.

    digest: SHA-256 of the text of the key.
    hint: last characters of the text.
    units_per_minute, units_per_day: compute units that callers may use; 0 stands for any number.
    created_at, revoked_at: Unix seconds.
    """

    name: str
    digest: bytes
    hint: str
    units_per_minute: int
    units_per_day: int
    created_at: float
    revoked_at: float | None = None


class NameTaken(Exception):
    """The name belongs to a key that exists or was revoked."""


def new_key_text() -> str:
    """Return the text of a new key; it is displayed once and never stored."""
    return KEY_PREFIX + cb58_encode(os.urandom(_KEY_BYTES))


def digest_key(text: str) -> bytes | None:
    """Return the SHA-256 of a key; None if the checksum is wrong, so that no query is needed."""
    try:
        raw = cb58_decode(text.removeprefix(KEY_PREFIX)) if text.startswith(KEY_PREFIX) else b""
    except MalformedID:
        return None
    return sha256(text.encode("ascii")).digest() if len(raw) == _KEY_BYTES else None
