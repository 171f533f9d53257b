"""HTTP responses of the Data API: entity tags, caching, compression, and headers that are set before the response.

Source of truth: RFC 9110 sections 8.8.3 and 13.1.2 (entity tags, If-None-Match) and 12.5.3 (Accept-Encoding), RFC 9111.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from functools import partial
from hashlib import blake2b
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

JSON: Final = "application/json"
COMPRESSED_FROM_BYTES: Final = 1_024
FINAL_PAGE_S: Final = 3_600
FINAL_S: Final = 86_400
_GZIP_LEVEL: Final = 1
_IN_THREAD_FROM_BYTES: Final = 65_536
_TAG_BYTES: Final = 12
_ZERO_WEIGHT: Final = re.compile(r"\s*q\s*=\s*(?:0+\.?0*|\.0+)\s*")


async def respond(request: Request, body: bytes, media_type: str, cache_control: str) -> Response:
    """Return bytes as they go out: status 304 if the client has them, compressed if they are long enough."""
    tag = f'W/"{blake2b(body, digest_size=_TAG_BYTES).hexdigest()}"'
    headers = {"etag": tag, "cache-control": cache_control, "vary": "Accept-Encoding"}
    if _matches(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    if len(body) >= COMPRESSED_FROM_BYTES and accepts_gzip(request.headers.get("accept-encoding", "")):
        headers["content-encoding"] = "gzip"
        in_thread = len(body) >= _IN_THREAD_FROM_BYTES
        compress = partial(gzip.compress, body, _GZIP_LEVEL, mtime=0)
        body = await asyncio.to_thread(compress) if in_thread else compress()
    return Response(body, 200, headers, media_type=media_type)


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
