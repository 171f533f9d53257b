"""Page tokens: the query, the item behind which the next page begins, and an expiry; signed against forgery.

A token carries the whole query, so that it may come alone. Its expiry is rounded up to five minutes, so that equal
requests get equal tokens and their answers can be recognized as unchanged.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from warpseal.api.data.parameters import PAGE_TOKEN, Parameter, Value
from warpseal.api.data.services import KeyStore
from warpseal.errors import ExpiredPageToken, InvalidPageToken, PageTokenMismatch
from warpseal.history.queries import Position

VALID_S: Final = 24 * 3600
ROUNDING_S: Final = 300
MAX_TOKEN_CHARACTERS: Final = 16_384
_SIGNATURE_BYTES: Final = 16
_VERSION: Final = 1


class TokenPayload(msgspec.Struct, frozen=True, array_like=True):
    """The content of a token. operation, subject: the path that it belongs to. values: the given parameters.

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
    """One request for a page: its path, its parameters without the paging ones, and the size of a page.

    subject: what the path names, in one spelling.
    """

    operation: str
    subject: bytes
    values: Mapping[str, Value]
    size: int


class PageTokens:
    """Encodes and decodes page tokens. now: unix seconds."""

    def __init__(self, keys: KeyStore, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now
        self._cached_keys: tuple[bytes, ...] = ()

    async def encode(self, query: PageQuery, position: Position) -> str:
        """Return the token of the page that begins behind `position`."""
        valid_until = int(self._now()) + VALID_S
        payload = TokenPayload(
            _VERSION,
            query.operation,
            query.subject,
            {name: list(value) if isinstance(value, tuple) else value for name, value in query.values.items()},
            query.size,
            position,
            -(-valid_until // ROUNDING_S) * ROUNDING_S,
        )
        body = msgspec.msgpack.encode(payload)
        return base64.urlsafe_b64encode(_signature((await self._all_keys())[0], body) + body).rstrip(b"=").decode()

    async def decode(self, token: str, operation: str, subject: bytes) -> TokenPayload:
        """Return the content of a token. Raises InvalidPageToken, ExpiredPageToken."""
        body = await self._verify(_decode_base64(token))
        try:
            payload = msgspec.msgpack.decode(body, type=TokenPayload)
        except msgspec.DecodeError:
            raise InvalidPageToken(PAGE_TOKEN.name, "made by another version of this service") from None
        if (payload.version, payload.operation, payload.subject) != (_VERSION, operation, subject):
            raise InvalidPageToken(PAGE_TOKEN.name, "given out for another path")
        if self._now() > payload.expires_at:
            raise ExpiredPageToken(PAGE_TOKEN.name, "older than 24 hours; begin again with the first page")
        return payload

    async def _verify(self, raw: bytes) -> bytes:
        signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if not any(hmac.compare_digest(signature, _signature(key, body)) for key in await self._all_keys()):
            raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service")
        return body

    async def _all_keys(self) -> tuple[bytes, ...]:
        if not self._cached_keys:
            self._cached_keys = tuple(await self._keys.token_keys())
        return self._cached_keys


def merge_parameters(
    payload: TokenPayload, given: Mapping[str, Value], parameters: Sequence[Parameter]
) -> dict[str, Value]:
    """Return the parameters that a token carries. Raises PageTokenMismatch if a given one differs."""
    carried: dict[str, Value] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in payload.values.items()
    }
    defaults = {parameter.name: parameter.default for parameter in parameters}
    for name, value in given.items():
        if carried.get(name, defaults[name]) != value:
            raise PageTokenMismatch(name, "differs from the request that the page token continues")
    return carried


def _signature(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, sha256)[:_SIGNATURE_BYTES]


def _decode_base64(token: str) -> bytes:
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise InvalidPageToken(PAGE_TOKEN.name, f"longer than {MAX_TOKEN_CHARACTERS} characters")
    try:
        raw = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service") from None
    if len(raw) <= _SIGNATURE_BYTES:
        raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service")
    return raw
