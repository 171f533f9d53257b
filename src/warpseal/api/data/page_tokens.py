"""Page tokens: what was asked, behind which item the next page begins, and until when; sealed against forgery.

A token carries the whole query, so that it may come alone. Its expiry is rounded up to five minutes, so that equal
requests are given equal tokens and their answers can be recognised as unchanged.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Protocol

import msgspec

from warpseal.api.data.parameters import PAGE_TOKEN, Parameter, Value
from warpseal.errors import ExpiredPageToken, InvalidPageToken, PageTokenMismatch
from warpseal.history.queries import Position

VALID_S: Final = 24 * 3600
ROUNDING_S: Final = 300
KEY_BYTES: Final = 32
MAX_TOKEN_CHARACTERS: Final = 16_384
_SEAL_BYTES: Final = 16
_VERSION: Final = 1


class TokenKeys(Protocol):
    """The keys that seal page tokens: the same for every daemon on one store, and after a restart."""

    async def token_keys(self) -> Sequence[bytes]:
        """Return the keys of 32 bytes: the first seals, any of them opens. Raises StoreDown."""
        ...


class EphemeralTokenKeys:
    """A key that lasts as long as the process: for a daemon that keeps no store."""

    def __init__(self) -> None:
        self._key = os.urandom(KEY_BYTES)

    async def token_keys(self) -> Sequence[bytes]:
        """Return the one key."""
        return (self._key,)


class TokenPayload(msgspec.Struct, frozen=True, array_like=True):
    """What a token says. operation, subject: which path it belongs to. values: the parameters that were given.

    expires_at: unix seconds.
    """

    version: int
    operation: str
    subject: bytes
    values: dict[str, Any]
    size: int
    position: tuple[int | bytes, ...]
    expires_at: int


class PageQuery(msgspec.Struct, frozen=True):
    """One request for a page: its path, its parameters without the paging ones, and how many items a page has.

    subject: what stands in the path, in one spelling.
    """

    operation: str
    subject: bytes
    values: Mapping[str, Value]
    size: int


class PageTokens:
    """Seals and opens page tokens. now: unix seconds."""

    def __init__(self, keys: TokenKeys, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now
        self._held: tuple[bytes, ...] = ()

    async def seal(self, asked: PageQuery, position: Position) -> str:
        """Return the token of the page that begins behind `position`."""
        valid_until = int(self._now()) + VALID_S
        said = TokenPayload(
            _VERSION,
            asked.operation,
            asked.subject,
            {name: list(value) if isinstance(value, tuple) else value for name, value in asked.values.items()},
            asked.size,
            position,
            -(-valid_until // ROUNDING_S) * ROUNDING_S,
        )
        body = msgspec.msgpack.encode(said)
        return base64.urlsafe_b64encode(_signature((await self._all_keys())[0], body) + body).rstrip(b"=").decode()

    async def open(self, token: str, operation: str, subject: bytes) -> TokenPayload:
        """Return what a token says. Raises InvalidPageToken, ExpiredPageToken."""
        body = await self._authentic(_decode(token))
        try:
            said = msgspec.msgpack.decode(body, type=TokenPayload)
        except msgspec.DecodeError:
            raise InvalidPageToken(PAGE_TOKEN.name, "made by another version of this service") from None
        if (said.version, said.operation, said.subject) != (_VERSION, operation, subject):
            raise InvalidPageToken(PAGE_TOKEN.name, "given out for another path")
        if self._now() > said.expires_at:
            raise ExpiredPageToken(PAGE_TOKEN.name, "older than 24 hours; begin again with the first page")
        return said

    async def _authentic(self, raw: bytes) -> bytes:
        seal, body = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if not any(hmac.compare_digest(seal, _signature(key, body)) for key in await self._all_keys()):
            raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service")
        return body

    async def _all_keys(self) -> tuple[bytes, ...]:
        if not self._held:
            self._held = tuple(await self._keys.token_keys())
        return self._held


def merge_parameters(
    said: TokenPayload, given: Mapping[str, Value], parameters: Sequence[Parameter]
) -> dict[str, Value]:
    """Return the parameters that a token carries. Raises PageTokenMismatch where a given one differs."""
    carried: dict[str, Value] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in said.values.items()
    }
    defaults = {parameter.name: parameter.default for parameter in parameters}
    for name, value in given.items():
        if carried.get(name, defaults[name]) != value:
            raise PageTokenMismatch(name, "differs from the request that the page token continues")
    return carried


def _signature(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, sha256)[:_SEAL_BYTES]


def _decode(token: str) -> bytes:
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise InvalidPageToken(PAGE_TOKEN.name, f"longer than {MAX_TOKEN_CHARACTERS} characters")
    try:
        raw = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service") from None
    if len(raw) <= _SEAL_BYTES:
        raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service")
    return raw
