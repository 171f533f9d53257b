"""Page tokens: the query, the item behind which the next page begins, and an expiry; signed against
forgery.

A token carries the whole query, so that it may come alone. Its expiry is rounded up to five
minutes, so that equal requests get equal tokens and their responses can be recognized as unchanged.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from warpseal.api.data.endpoint_needs import KeyStore
from warpseal.api.data.endpoints import PAGE_TOKEN, Parameter
from warpseal.api.data.errors import ExpiredPageToken, InvalidPageToken, PageTokenMismatch
from warpseal.api.data.parameters import Value
from warpseal.resources.queries import PageRequest, Position

VALID_S: Final = 24 * 3600
ROUNDING_S: Final = 300
MAX_TOKEN_CHARACTERS: Final = 16_384
_SIGNATURE_BYTES: Final = 16
_VERSION: Final = 1


class PageQuery(msgspec.Struct, frozen=True, array_like=True, tag=_VERSION):
    """A request for a page, and the content of a token.

    subject: the item that the path names, in its canonical spelling.
    values: parameters of the request other than page size and page token.
    size: number of items on a page.
    position: position of the item behind which the page begins; None for the first page.
    expires_at: expiry of the token, unix seconds.
    heights: heights of the chains that were read; None without replicas.
    """

    operation: str
    subject: bytes
    values: dict[str, Any]
    size: int
    position: Position | None = None
    expires_at: int = 0
    heights: dict[str, int] | None = None

    @property
    def page(self) -> PageRequest:
        """The requested page."""
        return PageRequest(self.size, self.position)


class PageTokens:
    """Encodes and decodes page tokens.

    now: unix seconds.
    """

    def __init__(self, keys: KeyStore, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now
        self._cached_keys: tuple[bytes, ...] = ()
        # The last valid token and its body: a request reads its token for the heights, and again
        # for the page.
        self._verified: tuple[str | None, bytes] = None, b""

    async def encode(self, query: PageQuery, position: Position) -> str:
        """Return the token of the page that begins behind `position`."""
        expires_at = -(-(int(self._now()) + VALID_S) // ROUNDING_S) * ROUNDING_S
        body = msgspec.msgpack.encode(replace(query, position=position, expires_at=expires_at))
        return (
            base64.urlsafe_b64encode(_signature((await self._all_keys())[0], body) + body)
            .rstrip(b"=")
            .decode()
        )

    async def heights(self, token: str) -> dict[str, int] | None:
        """Return the heights that a token carries; None if it carries none, or is not valid."""
        with suppress(InvalidPageToken, msgspec.DecodeError):
            return msgspec.msgpack.decode(await self._verify(token), type=PageQuery).heights
        return None

    async def decode(self, token: str, operation: str, subject: bytes) -> PageQuery:
        """Return the content of a token. Raises InvalidPageToken, ExpiredPageToken."""
        body = await self._verify(token)
        try:
            query = msgspec.msgpack.decode(body, type=PageQuery)
        except msgspec.DecodeError:
            raise InvalidPageToken(
                PAGE_TOKEN.name, "made by another version of this service"
            ) from None
        if (query.operation, query.subject) != (operation, subject):
            raise InvalidPageToken(PAGE_TOKEN.name, "given out for another path")
        if self._now() > query.expires_at:
            raise ExpiredPageToken(
                PAGE_TOKEN.name, "older than 24 hours; begin again with the first page"
            )
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in query.values.items()
        }
        return replace(query, values=values)

    async def _verify(self, token: str) -> bytes:
        """Return what a token carries. Raises InvalidPageToken."""
        if token == self._verified[0]:
            return self._verified[1]
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise InvalidPageToken(
                PAGE_TOKEN.name, f"longer than {MAX_TOKEN_CHARACTERS} characters"
            )
        try:
            raw = base64.b64decode(
                token.encode("ascii") + b"=" * (-len(token) % 4), altchars=b"-_", validate=True
            )
        except ValueError:
            raw = b""
        signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        keys = await self._all_keys() if body else ()
        if not any(hmac.compare_digest(signature, _signature(key, body)) for key in keys):
            raise InvalidPageToken(PAGE_TOKEN.name, "not given out by this service")
        self._verified = token, body
        return body

    async def _all_keys(self) -> tuple[bytes, ...]:
        if not self._cached_keys:
            self._cached_keys = tuple(await self._keys.token_keys())
        return self._cached_keys


def check_unchanged(
    query: PageQuery, values: Mapping[str, Value], parameters: Sequence[Parameter]
) -> None:
    """Raise PageTokenMismatch if a given parameter differs from the one that a token carries."""
    defaults = {parameter.name: parameter.default for parameter in parameters}
    for name, value in values.items():
        if query.values.get(name, defaults[name]) != value:
            raise PageTokenMismatch(name, "differs from the request that the page token continues")


def _signature(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, sha256)[:_SIGNATURE_BYTES]
