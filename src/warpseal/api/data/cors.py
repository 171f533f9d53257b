"""The outermost edge of the API port: what browsers must be told (CORS), and the headers noted for every answer.

Source of truth: the Fetch standard's CORS protocol. No credentials are ever allowed, so a page learns nothing that
anybody could not ask for; request headers are therefore granted as asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpseal.api.allowed_origins import AllowedOrigins
from warpseal.api.data.responses import response_headers
from warpseal.api.data.settings import DataApiSettings

METHODS: Final = "GET, HEAD, POST, PUT, OPTIONS"
REQUEST_HEADERS: Final = (
    "accept, cache-control, content-type, expires, if-none-match, pragma, "
    "x-glacier-api-key, x-request-id, x-service-api-key"
)
EXPOSED: Final = (
    "etag, ratelimit-limit, ratelimit-policy, ratelimit-remaining, ratelimit-reset, retry-after, "
    "x-request-id, x-warpseal-index, x-warpseal-p-chain-height, x-warpseal-p-chain-height-source, "
    "x-warpseal-signing-subnet-id, x-warpseal-source"
)
_MAX_AGE_S: Final = 86_400
_FAILED: Final = 400
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,1024}")

Headers = Mapping[bytes, bytes]


class CorsMiddleware:
    """Wraps an app: preflights are answered here; every other answer gets its CORS and its noted headers.

    No cache may keep a failure, which it else may for a 404.
    """

    def __init__(self, app: ASGIApp, settings: DataApiSettings) -> None:
        self._app = app
        self._origins = AllowedOrigins(settings.http_allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"])
        allowed = self._allowed(given)
        if allowed and scope["method"] == "OPTIONS" and b"access-control-request-method" in given:
            await _answer_preflight(given, allowed, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                noted = [(name.encode(), value.encode("latin-1")) for name, value in response_headers(scope).items()]
                exposed = [(b"access-control-expose-headers", EXPOSED.encode())] if allowed else []
                kept = [(b"cache-control", b"no-store")] if message["status"] >= _FAILED else []
                message["headers"] = [*message.get("headers", ()), *allowed, *exposed, *noted, *kept]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _allowed(self, given: Headers) -> list[tuple[bytes, bytes]]:
        """Return what tells a browser that its page may read the answer; nothing where it may not."""
        origin = given.get(b"origin")
        if self._origins.is_any:
            return [(b"access-control-allow-origin", b"*")] if origin else []
        if not origin or not self._origins.allow(origin.decode("latin-1")):
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


async def _answer_preflight(given: Headers, allowed: list[tuple[bytes, bytes]], send: Send) -> None:
    wanted = given.get(b"access-control-request-headers", b"")
    granted = wanted if _HEADER_NAMES.fullmatch(wanted) else REQUEST_HEADERS.encode()
    headers = [
        *allowed,
        (b"access-control-allow-methods", METHODS.encode()),
        (b"access-control-allow-headers", granted),
        (b"access-control-max-age", str(_MAX_AGE_S).encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
