"""Access to `/v1`: API keys, and limits of compute units by key or by client address.

Source of truth: the specification's Authentication section; header names and default limits of the
hosted service.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from cachetools import TTLCache
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from warpseal.api.http.clients import client_network
from warpseal.api.http.errors import (
    AdminTokenRefused,
    AdminTokenRequired,
    ApiKeyRefused,
    ApiKeyRequired,
    RateLimited,
)
from warpseal.api.http.middleware import client_address, is_from_this_machine, log_fields
from warpseal.api.http.rate_limit import ComputeUnitLimits, RateLimiter, RateLimitResult
from warpseal.api.http.request_body import key_in_query
from warpseal.api.http.responses import response_headers
from warpseal.api.http.settings import KEY_HEADERS, ApiSettings
from warpseal.store.api_key import ApiKey, digest_key
from warpseal.store.errors import StoreDown
from warpseal.usage.settings import UsageReaders

_RAW_KEY_HEADERS: Final = tuple(name.encode() for name in KEY_HEADERS)
KEY_TTL_S: Final = 10.0
MAX_CACHED_KEYS: Final = 10_000
_SCHEME: Final = "bearer "

Endpoint = Callable[[Request], Awaitable[Response]]


class CallerKeys(Protocol):
    """The API keys of callers."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Return an API key by its digest, revoked or not. Raises StoreDown."""


class ApiAccess:
    """Checks the API keys of requests, and counts their compute units.

    now: The clock of limits and of cached keys, in monotonic seconds.
    """

    def __init__(
        self,
        keys: CallerKeys,
        settings: ApiSettings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caller_keys = keys
        self._settings = settings
        self._now = now
        self._anonymous = ComputeUnitLimits(
            settings.rate_limit_per_minute, settings.rate_limit_per_day
        )
        self._limiter, self._metrics_limiter = RateLimiter(), RateLimiter()
        self._metrics_api = ComputeUnitLimits(
            settings.metrics_api_rate_limit_per_minute, settings.metrics_api_rate_limit_per_day
        )
        self._keys: TTLCache[bytes, ApiKey | None] = TTLCache(MAX_CACHED_KEYS, KEY_TTL_S, timer=now)

    def require_key(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that requires a key if the settings do, and costs no units.

        Signing has limits of its own, and relayers must not be refused for frequent requests.
        """

        async def guarded(request: Request) -> Response:
            await self.check_key(request)
            return await endpoint(request)

        return guarded

    async def check_key(self, request: Request) -> None:
        """Check the key if the settings require one.

        Raises ApiKeyRequired, ApiKeyRefused, StoreDown.
        """
        if self._settings.require_api_key:
            key = await self._key(request)
            log_fields(request.scope)["api_key"] = key.name if key else None

    async def check(self, request: Request) -> None:
        """Check the key of a request, and that the caller has a unit left, without counting.

        Raises as `admit` does.
        """
        key = await self._key(request)
        _apply(request, self._consume(request, key, 1, is_trial=True))

    async def admit(self, request: Request, units: int, *, needs_key: bool = False) -> None:
        """Count a request.

        needs_key: Whether a key is required even if the settings require none.

        Raises ApiKeyRequired, ApiKeyRefused, RateLimited; StoreDown if a key is required.
        """
        key = await self._key(request, needs_key=needs_key)
        _apply(request, self._consume(request, key, units))

    async def admit_to_metrics_api(self, request: Request, units: int) -> None:
        """Count a request by the network of its client, apart from requests to `/v1`.

        Keys do not count. Raises RateLimited.
        """
        caller = self._limited_network(request)
        if caller is not None:
            now = self._now()
            result = self._metrics_limiter.consume(caller, self._metrics_api, units, now)
            _apply(request, result)

    def _limited_network(self, request: Request) -> str | None:
        """Return the network of a client; None if it is on this machine and not limited."""
        network, is_loopback = client_network(client_address(request.scope))
        return None if is_loopback and not self._settings.rate_limit_loopback else network

    def _consume(
        self, request: Request, key: ApiKey | None, units: int, *, is_trial: bool = False
    ) -> RateLimitResult | None:
        if key is not None:
            log_fields(request.scope)["api_key"] = key.name
            limits = ComputeUnitLimits(key.units_per_minute, key.units_per_day)
            return self._limiter.consume(
                f"key {key.name}", limits, units, self._now(), is_trial=is_trial
            )
        caller = self._limited_network(request)
        if caller is None:
            return None
        return self._limiter.consume(caller, self._anonymous, units, self._now(), is_trial=is_trial)

    async def _key(self, request: Request, *, needs_key: bool = False) -> ApiKey | None:
        """Return the caller's key; an invalid key counts as none, unless a key is required."""
        is_required = needs_key or self._settings.require_api_key
        text = find_key_text(request)
        if text is None and is_required:
            raise ApiKeyRequired
        digest = None if text is None else digest_key(text)
        key = None
        if digest is not None:
            try:
                key = await self._find(digest)
            except StoreDown:
                # A caller without a key is served, and so is this caller.
                if is_required:
                    raise
        if key is not None and key.revoked_at is None:
            return key
        if is_required:
            raise ApiKeyRefused
        return None

    async def _find(self, digest: bytes) -> ApiKey | None:
        try:
            return self._keys[digest]
        except KeyError:
            key = self._keys[digest] = await self._caller_keys.find_key(digest)
            return key


def _apply(request: Request, result: RateLimitResult | None) -> None:
    """Set the headers of the response from the state of the caller's limits. Raises RateLimited."""
    if result is None:
        return
    headers = response_headers(request.scope)
    headers["ratelimit-policy"] = f"{result.limit};w={result.window_s}"
    headers["ratelimit-limit"] = str(result.limit)
    headers["ratelimit-remaining"] = str(result.remaining)
    if not result.is_allowed:
        headers["ratelimit-reset"] = str(result.reset_s)
        raise RateLimited(result.limit, result.window_s, result.reset_s)


def find_key_text(request: Request) -> str | None:
    """Return the key of a request as it was sent; a header goes before the query."""
    headers = request.scope["headers"]
    sent = (
        value for header in _RAW_KEY_HEADERS for name, value in headers if name == header and value
    )
    in_header = next((str(value, "latin-1") for value in sent), None)
    return in_header or key_in_query(request.scope)


def require_token(request: Request, admin_token: str) -> None:
    """Raise AdminTokenRequired or AdminTokenRefused for a request without the admin token.

    A daemon without an admin token refuses all requests.
    """
    if admin_token and "authorization" not in request.headers:
        raise AdminTokenRequired
    if not admin_token or not has_token(request.scope, admin_token):
        raise AdminTokenRefused


def has_token(scope: Scope, token: str) -> bool:
    """Return whether a request carries the bearer token."""
    credentials = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(credentials) != 1 or credentials[0][: len(_SCHEME)].decode("latin-1").lower() != _SCHEME:
        return False
    return hmac.compare_digest(credentials[0][len(_SCHEME) :].strip(), token.encode())


class UsageAccess(Struct, frozen=True):
    """The callers that may read the usage.

    admin_token: The token of the administrator; if it is empty, requests from this machine are the
        administrator's.
    """

    readers: UsageReaders = UsageReaders.ANYONE
    admin_token: str = ""

    @property
    def needs_key(self) -> bool:
        """Whether a caller needs an API key."""
        return self.readers is UsageReaders.KEYS

    def check(self, request: Request) -> None:
        """Raise AdminTokenRequired or AdminTokenRefused if only the administrator may read."""
        if self.readers is not UsageReaders.ADMIN:
            return
        if self.admin_token or not is_from_this_machine(request.scope):
            require_token(request, self.admin_token)
