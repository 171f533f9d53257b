"""HTTP responses: entity tags, caching, compression, and headers that are set before the response.

Source of truth: RFC 9110 sections 8.8.3 and 13.1.2 (entity tags, If-None-Match) and 12.5.3
(Accept-Encoding), RFC 9111.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Mapping
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

JSON: Final = "application/json"
NO_STORE: Final = "no-store"
SOURCE: Final = "x-warpseal-source"
"""Header that says whether this daemon or a node made the response."""
COMPRESSED_FROM_BYTES: Final = 1_024
FINAL_PAGE_S: Final = 3_600
FINAL_S: Final = 86_400
_GZIP_LEVEL: Final = 1
_IN_THREAD_FROM_BYTES: Final = 65_536
_TAG_BYTES: Final = 12
_ZERO_WEIGHT: Final = re.compile(r"\s*q\s*=\s*(?:0+\.?0*|\.0+)\s*")


def text_response(status: int, text: str) -> Response:
    """Return a response of one line with its newline. Browsers must not guess its type."""
    return PlainTextResponse(text + "\n", status, {"x-content-type-options": "nosniff"})


def not_found_response(hint: str = "") -> Response:
    """Return the response for a path that does not exist or must not be revealed.

    hint: advice about the setting that would serve the path.
    """
    return text_response(404, f"404 page not found{hint}")


def json_response(body: Any, status: int = 200) -> Response:
    """Return a body that msgspec encodes, as it goes out to every client."""
    return Response(msgspec.json.encode(body), status, media_type=JSON)


def unstored_response(body: Any, status: int = 200) -> Response:
    """Return a body that msgspec encodes, for a client that must not store it."""
    response = json_response(body, status)
    response.headers["cache-control"] = NO_STORE
    return response


class EncodedBody:
    """The body of a response; one that is kept is compressed once for all clients."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain
        self._lock = asyncio.Lock()
        self._compressed: bytes | None = None

    @cached_property
    def tag(self) -> str:
        """The entity tag."""
        return f'W/"{blake2b(self.plain, digest_size=_TAG_BYTES).hexdigest()}"'

    async def respond(
        self,
        request: Request,
        media_type: str,
        cache_control: str,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return the response, compressed if it is long enough.

        If the client has a body that may be stored, the response is a 304.
        headers: headers of a response with any status.
        """
        headers = {"cache-control": cache_control, "vary": "Accept-Encoding", **(headers or {})}
        if cache_control != NO_STORE:
            headers["etag"] = self.tag
            if _matches(request.headers.get("if-none-match", ""), self.tag):
                return Response(status_code=304, headers=headers)
        takes_gzip = accepts_gzip(request.headers.get("accept-encoding", ""))
        if len(self.plain) < COMPRESSED_FROM_BYTES or not takes_gzip:
            return Response(self.plain, 200, headers, media_type)
        headers["content-encoding"] = "gzip"
        return Response(await self._compress(), 200, headers, media_type)

    async def _compress(self) -> bytes:
        async with self._lock:
            if self._compressed is None:
                compress = partial(gzip.compress, self.plain, _GZIP_LEVEL, mtime=0)
                in_thread = len(self.plain) >= _IN_THREAD_FROM_BYTES
                self._compressed = await asyncio.to_thread(compress) if in_thread else compress()
            return self._compressed


def _matches(if_none_match: str, tag: str) -> bool:
    """Return whether If-None-Match names the tag; weak comparison."""
    bare = tag.removeprefix("W/")
    names = [name.strip() for name in if_none_match.split(",")]
    return "*" in names or bare in [name.removeprefix("W/") for name in names]


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a client accepts gzip: by its name or by *, and not with q=0."""
    accepted: dict[str, bool] = {}
    for item in accept_encoding.lower().split(","):
        coding, _, parameters = item.partition(";")
        accepted[coding.strip()] = _ZERO_WEIGHT.fullmatch(parameters) is None
    return accepted.get("gzip", accepted.get("*", False))


_SCOPE_KEY: Final = "warpseal.headers"


def response_headers(scope: Scope) -> dict[str, str]:
    """Return the headers that the response to this request will carry, lower case; callers add to
    them.
    """
    headers: dict[str, str] = scope.setdefault(_SCOPE_KEY, {})
    return headers
