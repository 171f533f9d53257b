"""The outermost middleware of the API port: CORS, and the headers that were set before the
response.

Source of truth: the Fetch standard's CORS protocol. Credentials are never allowed, so a page reads
nothing that any client could not read; request headers are therefore allowed as requested.
Starlette's CORSMiddleware answers preflights with a body and status 200, refuses those of other
sites itself, and knows no wildcard inside a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpseal.api.http.responses import response_headers
from warpseal.api.http.settings import ANY_ORIGIN, ApiSettings

METHODS: Final = "GET, HEAD, POST, PUT, OPTIONS"
REQUEST_HEADERS: Final = (
    "accept, cache-control, content-type, expires, if-none-match, pragma, "
    "x-glacier-api-key, x-request-id, x-service-api-key"
)
EXPOSED: Final = (
    "etag, ratelimit-limit, ratelimit-policy, ratelimit-remaining, ratelimit-reset, retry-after,"
    " x-request-id, x-warpseal-index, x-warpseal-p-chain-height, x-warpseal-p-chain-height-source,"
    " x-warpseal-signing-subnet-id, x-warpseal-source, x-warpseal-unchecked, x-warpseal-epoch,"
    " x-warpseal-quorum, x-warpseal-weights, x-warpseal-verifies-now, x-warpseal-ignored,"
    " deprecation, link"
)
_MAX_AGE_S: Final = 86_400
_FIRST_FAILURE: Final = 400
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,1024}")


class CorsMiddleware:
    """Answers preflights, and adds CORS headers and `response_headers` to every other response.

    It forbids caches to store a failure, which they may otherwise do for a 404.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._origins = AllowedOrigins(settings.http_allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = dict(scope["headers"])
        allowed = self._allow_headers(request)
        if allowed and scope["method"] == "OPTIONS" and b"access-control-request-method" in request:
            await _respond_to_preflight(request, allowed, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *allowed]
                if allowed:
                    headers.append((b"access-control-expose-headers", EXPOSED.encode()))
                for name, value in response_headers(scope).items():
                    headers.append((name.encode(), value.encode("latin-1")))
                if message["status"] >= _FIRST_FAILURE:
                    headers.append((b"cache-control", b"no-store"))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _allow_headers(self, request: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """Return the headers that let a browser's page read the response; none if it must not."""
        origin = request.get(b"origin")
        if self._origins.is_any:
            return [(b"access-control-allow-origin", b"*")] if origin else []
        if not origin or not self._origins.allow(origin.decode("latin-1")):
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


async def _respond_to_preflight(
    request: Mapping[bytes, bytes], allowed: list[tuple[bytes, bytes]], send: Send
) -> None:
    requested = request.get(b"access-control-request-headers", b"")
    allowed_headers = requested if _HEADER_NAMES.fullmatch(requested) else REQUEST_HEADERS.encode()
    headers = [
        *allowed,
        (b"access-control-allow-methods", METHODS.encode()),
        (b"access-control-allow-headers", allowed_headers),
        (b"access-control-max-age", str(_MAX_AGE_S).encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class AllowedOrigins:
    """The origins whose browser pages may read responses.

    is_any: Whether pages of all origins may read responses.

    Source of truth: the node's `http-allowed-origins`: names in any case, each with at most one `*`
    for any characters.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        names = [origin.rstrip("/").lower() for origin in origins]
        self.is_any = ANY_ORIGIN in names
        self._patterns = [
            re.compile(re.escape(name).replace(r"\*", ".*", 1), re.DOTALL) for name in names
        ]

    def allow(self, origin: str) -> bool:
        """Return whether pages of this origin may read responses."""
        return self.is_any or any(pattern.fullmatch(origin.lower()) for pattern in self._patterns)
