"""Who may use `/v1`, and how much: API keys, and compute units by key or by client address.

Source of truth: the specification's Authentication section; header names and default limits of the hosted service.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.data.rate_limit import ComputeUnitLimits, RateLimiter, RateLimitResult
from warpseal.api.data.responses import response_headers
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.in_flight import client_address
from warpseal.api.request_log import log_fields
from warpseal.api.startup_gate import StartupGate
from warpseal.errors import ApiKeyRefused, ApiKeyRequired, RateLimited, StoreDown
from warpseal.store.api_key import ApiKey, digest_of

KEY_HEADERS: Final = ("x-service-api-key", "x-glacier-api-key")
_RAW_KEY_HEADERS: Final = tuple(name.encode() for name in KEY_HEADERS)
REMEMBERED_S: Final = 10.0
MAX_REMEMBERED: Final = 10_000
_IPV6_SITE_BITS: Final = 64

Endpoint = Callable[[Request], Awaitable[Response]]


class ApiAccess:
    """Lets requests pass or not. now: monotonic seconds."""

    def __init__(
        self, gate: StartupGate[DataServices], settings: DataApiSettings, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._gate = gate
        self._settings = settings
        self._now = now
        self._anonymous = ComputeUnitLimits(settings.rate_limit_per_minute, settings.rate_limit_per_day)
        self._buckets = RateLimiter()
        self._known: OrderedDict[bytes, tuple[ApiKey | None, float]] = OrderedDict()

    @property
    def is_private(self) -> bool:
        """Whether answers are for callers with a key only."""
        return self._settings.require_api_key

    def guard(self, endpoint: Endpoint, units: int) -> Endpoint:
        """Return an endpoint that lets a request through only when it may pass, at a cost of so many units."""

        async def guarded(request: Request) -> Response:
            await self.admit(request, units)
            return await endpoint(request)

        return guarded

    def keyed(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that lets a request through where a key is not required, or is there; at no cost.

        Signing has limits of its own, and relayers must not be turned away for asking often.
        """

        async def guarded(request: Request) -> Response:
            if self.is_private:
                key = await self._key(request)
                log_fields(request.scope)["api_key"] = key.name if key else None
            return await endpoint(request)

        return guarded

    async def admit(self, request: Request, units: int) -> None:
        """Count a request. Raises ApiKeyRequired, ApiKeyRefused, RateLimited; StoreDown where a key is required."""
        key = await self._key(request)
        verdict = self._count(request, key, units)
        if verdict is None:
            return
        headers = response_headers(request.scope)
        headers.update(_rate_limit_headers(verdict))
        if not verdict.passes:
            headers["ratelimit-reset"] = str(verdict.reset_s)
            raise RateLimited(verdict.limit, verdict.window_s, verdict.reset_s)

    def _count(self, request: Request, key: ApiKey | None, units: int) -> RateLimitResult | None:
        if key is not None:
            log_fields(request.scope)["api_key"] = key.name
            return self._buckets.take(
                f"key {key.name}", ComputeUnitLimits(key.units_per_minute, key.units_per_day), units, self._now()
            )
        caller, is_loopback = client_network(client_address(request.scope))
        if is_loopback and not self._settings.rate_limit_loopback:
            return None
        return self._buckets.take(caller, self._anonymous, units, self._now())

    async def _key(self, request: Request) -> ApiKey | None:
        """Return the caller's key; without a need for one, a key that is none counts as not given."""
        text = _given_key(request)
        if not self._settings.require_api_key:
            return await self._valid(text) if text else None
        if text is None:
            raise ApiKeyRequired
        key = await self._valid(text)
        if key is None:
            raise ApiKeyRefused
        return key

    async def _valid(self, text: str) -> ApiKey | None:
        digest = digest_of(text)
        if digest is None:
            return None
        try:
            key = await self._look_up(digest)
        except StoreDown:
            if self._settings.require_api_key:
                raise
            return None
        return None if key is None or key.revoked_at is not None else key

    async def _look_up(self, digest: bytes) -> ApiKey | None:
        known = self._known.get(digest)
        if known is not None and known[1] > self._now():
            return known[0]
        key = await (await self._gate.wait()).key_store.key_of(digest)
        self._known[digest] = key, self._now() + REMEMBERED_S
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return key


@lru_cache(MAX_REMEMBERED)
def client_network(address: str) -> tuple[str, bool]:
    """Return whom an address belongs to, and whether it is of this machine; of IPv6, 64 bits are one site."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address, False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, _IPV6_SITE_BITS), strict=False)), parsed.is_loopback
    return str(parsed), parsed.is_loopback


def _given_key(request: Request) -> str | None:
    """Return the key that a request carries, as it stands there."""
    for wanted in _RAW_KEY_HEADERS:
        for name, value in request.scope["headers"]:
            if name == wanted and value:
                return str(value, "latin-1")
    return None


def _rate_limit_headers(verdict: RateLimitResult) -> dict[str, str]:
    return {
        "ratelimit-policy": f"{verdict.limit};w={verdict.window_s}",
        "ratelimit-limit": str(verdict.limit),
        "ratelimit-remaining": str(verdict.remaining),
    }
