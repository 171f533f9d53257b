"""Admission of forwarded calls by HTTP, the same for both JSON-RPC dialects: key, limits, units and
metering.

Source of truth: "Access" in docs/node-interfaces.md and docs/gateway.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warpseal.api.http.errors import RateLimited
from warpseal.api.http.middleware import log_fields
from warpseal.api.http.request_body import SMALL_BYTES, declared_length, parse_body, read_body
from warpseal.api.http.responses import response_headers
from warpseal.api.http.settings import ApiSettings
from warpseal.api.rpc.metering import MeteredRequest, RouteMeter
from warpseal.errors import WarpsealError
from warpseal.upstream.jsonrpc import RpcCall

B = TypeVar("B")
CountUnits = Callable[[bytes], int]
"""Returns the units of a request body for the rate limit."""


class Admission(Protocol):
    """Decides whether a caller may make a request, and counts it."""

    async def check(self, request: Request) -> None:
        """Check the key of a request, and that the caller has a unit left.

        Counts nothing, raises as `admit` does.
        """

    async def admit(self, request: Request, units: int) -> None:
        """Count a request. Raises ApiKeyRequired, ApiKeyRefused, RateLimited, StoreDown."""


class RpcEndpoint(ABC, Generic[B]):
    """Serves one route of forwarded calls.

    B: The type of a parsed body.
    """

    _max_body_bytes: int

    def __init__(
        self,
        admission: Admission,
        settings: ApiSettings,
        count_units: CountUnits,
        meter: RouteMeter | None,
    ) -> None:
        self._admission = admission
        self._settings = replace(settings, max_body_bytes=self._max_body_bytes)
        self._count_units = count_units
        self.meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with MeteredRequest(self.meter, scope) as metered:
            response = self._http_refusal(scope)
            if response is None:
                response = await self._admit(scope, receive, metered)
        await metered.respond(response, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, metered: MeteredRequest) -> Response:
        caller = Request(scope_for_admission(scope))
        body = b""
        try:
            # A caller without a key or a unit must not cost the daemon the reading and parsing of a
            # large body.
            if not 0 < declared_length(scope) <= SMALL_BYTES:
                await self._admission.check(caller)
            body = await read_body(scope, receive, self._settings)
            metered.body_read()
            await self._admission.admit(caller, await parse_body(self._count_units, body))
        except WarpsealError as error:
            # A small body is parsed for the ids of the response and the methods of the metered
            # calls.
            request = self._parse(body) if len(body) <= SMALL_BYTES else None
            metered.calls = self._calls_of(request)
            metered.entries = await parse_body(self._count_entries, body)
            if isinstance(error, RateLimited):
                return self._rate_limit_response(request, error)
            raise
        return await self._handle(scope, await parse_body(self._parse, body), metered)

    @staticmethod
    @abstractmethod
    def _http_refusal(scope: Scope) -> Response | None: ...

    @staticmethod
    @abstractmethod
    def _parse(body: bytes) -> B: ...

    @staticmethod
    @abstractmethod
    def _calls_of(request: B | None) -> Sequence[RpcCall]: ...

    @staticmethod
    def _count_entries(body: bytes) -> int:
        return 1

    @staticmethod
    @abstractmethod
    def _rate_limit_response(request: B | None, error: RateLimited) -> Response: ...

    @abstractmethod
    async def _handle(self, scope: Scope, request: B, metered: MeteredRequest) -> Response: ...


def scope_for_admission(scope: Scope) -> Scope:
    """Return the scope of a request, also of one that opens a WebSocket, as that of an HTTP
    request.
    """
    response_headers(scope)
    log_fields(scope)
    return {**scope, "type": "http", "method": scope.get("method", "GET")}


def retry_after(error: RateLimited) -> str:
    """Return the value of the header Retry-After: whole seconds, at least one."""
    return str(max(1, round(error.retry_after_s)))
