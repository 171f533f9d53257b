"""Turns an encoded resource into an HTTP answer: entity tag, cacheability, compression, nothing sent twice.

Source of truth: RFC 9110 sections 8.8.3 and 13.1.2 (entity tags, If-None-Match) and 12.5.3 (Accept-Encoding), RFC 9111.
"""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from warpseal.api.data.schema.base import ENCODER, Resource

JSON: Final = "application/json"
COMPRESSED_FROM_BYTES: Final = 1_024
FINAL_PAGE_S: Final = 3_600
FINAL_S: Final = 86_400
_LEVEL: Final = 1
_IN_THREAD_FROM_BYTES: Final = 65_536
_TAG_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class ResourceResponse:
    """What a request is answered with. final_s: how long it cannot change, in seconds; 0: it may at any time."""

    shape: Resource
    final_s: int = 0


async def respond(request: Request, answer: ResourceResponse, *, is_private: bool) -> Response:
    """Return the answer as it goes out. is_private: only to callers with a key, so shared caches must not keep it."""
    return await respond_bytes(request, ENCODER.encode(answer.shape), JSON, _cache_control(answer.final_s, is_private))


async def respond_bytes(request: Request, body: bytes, media_type: str, cache_control: str) -> Response:
    """Return bytes as they go out: not at all where the client has them, compressed where that helps."""
    tag = f'W/"{blake2b(body, digest_size=_TAG_BYTES).hexdigest()}"'
    headers = {"etag": tag, "cache-control": cache_control, "vary": "Accept-Encoding"}
    if _has(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    if len(body) >= COMPRESSED_FROM_BYTES and accepts_gzip(request.headers.get("accept-encoding", "")):
        headers["content-encoding"] = "gzip"
        body = await _compressed(body)
    return Response(body, 200, headers, media_type=media_type)


def _cache_control(final_s: int, is_private: bool) -> str:
    shared = "private" if is_private else "public"
    return f"{shared}, max-age={final_s}" if final_s else f"{shared}, no-cache"


async def _compressed(body: bytes) -> bytes:
    if len(body) < _IN_THREAD_FROM_BYTES:
        return gzip.compress(body, _LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, _LEVEL, mtime=0)


def _has(given: str, tag: str) -> bool:
    """Tell whether If-None-Match names the tag; weak comparison."""
    bare = tag.removeprefix("W/")
    return any(one.strip() == "*" or one.strip().removeprefix("W/") == bare for one in given.split(","))


def accepts_gzip(given: str) -> bool:
    """Tell whether a client takes gzip: named, or by *, and not with q=0."""
    weights: dict[str, bool] = {}
    for item in given.lower().split(","):
        coding, _, parameters = item.partition(";")
        weights[coding.strip()] = not _is_zero(parameters)
    return weights.get("gzip", weights.get("*", False))


def _is_zero(parameters: str) -> bool:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return False
    try:
        return float(value) == 0
    except ValueError:
        return False


_SCOPE_KEY: Final = "warpseal.headers"


def response_headers(scope: Scope) -> dict[str, str]:
    """Return the headers that the answer to this request will carry, lower case; callers add to them."""
    headers: dict[str, str] = scope.setdefault(_SCOPE_KEY, {})
    return headers
