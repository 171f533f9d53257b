"""HTTP responses: entity tags, caching, compression, and headers that are set before the response.

Source of truth: RFC 9110 sections 8.8.3 and 13.1.2 (entity tags, If-None-Match) and 12.5.3 (Accept-Encoding), RFC 9111.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from warpseal.runtime.locks import AsyncLock

JSON: Final = "application/json"
COMPRESSED_FROM_BYTES: Final = 1_024
FINAL_PAGE_S: Final = 3_600
FINAL_S: Final = 86_400
_GZIP_LEVEL: Final = 1
_IN_THREAD_FROM_BYTES: Final = 65_536
_TAG_BYTES: Final = 12
_ZERO_WEIGHT: Final = re.compile(r"\s*q\s*=\s*(?:0+\.?0*|\.0+)\s*")


def json_response(body: Any, status: int = 200) -> Response:
    """Return a body that msgspec encodes, as it goes out to every client."""
    return Response(msgspec.json.encode(body), status, media_type=JSON)


async def respond(request: Request, body: bytes, media_type: str, cache_control: str) -> Response:
    """Return bytes as they go out: status 304 if the client has them, compressed if they are long enough."""
    tag = _entity_tag(body)
    headers = {"etag": tag, "cache-control": cache_control, "vary": "Accept-Encoding"}
    if _matches(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    if len(body) >= COMPRESSED_FROM_BYTES and accepts_gzip(request.headers.get("accept-encoding", "")):
        headers["content-encoding"] = "gzip"
        in_thread = len(body) >= _IN_THREAD_FROM_BYTES
        compress = partial(gzip.compress, body, _GZIP_LEVEL, mtime=0)
        body = await asyncio.to_thread(compress) if in_thread else compress()
    return Response(body, 200, headers, media_type=media_type)


class EncodedBody:
    """The body of a response, which is compressed once for all clients."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain
        self._lock = AsyncLock()
        self._compressed: bytes | None = None

    @cached_property
    def tag(self) -> str:
        """The entity tag."""
        return _entity_tag(self.plain)

    async def compressed(self) -> bytes | None:
        """Return the body in gzip; None if it is too short for that."""
        if len(self.plain) < COMPRESSED_FROM_BYTES:
            return None
        async with self._lock:
            if self._compressed is None:
                self._compressed = await asyncio.to_thread(gzip.compress, self.plain, _GZIP_LEVEL, mtime=0)
            return self._compressed


async def respond_encoded(request: Request, body: EncodedBody, media_type: str, cache_control: str) -> Response:
    """Return a body that is kept: status 304 if the client has it, compressed if it is long enough."""
    headers = {"etag": body.tag, "cache-control": cache_control, "vary": "Accept-Encoding"}
    if _matches(request.headers.get("if-none-match", ""), body.tag):
        return Response(status_code=304, headers=headers)
    compressed = await body.compressed() if accepts_gzip(request.headers.get("accept-encoding", "")) else None
    if compressed is not None:
        headers["content-encoding"] = "gzip"
    return Response(body.plain if compressed is None else compressed, 200, headers, media_type=media_type)


def _entity_tag(body: bytes) -> str:
    return f'W/"{blake2b(body, digest_size=_TAG_BYTES).hexdigest()}"'


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
    """Return the headers that the answer to this request will carry, lower case; callers add to them."""
    headers: dict[str, str] = scope.setdefault(_SCOPE_KEY, {})
    return headers
