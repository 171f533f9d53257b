"""The routes of the Data API and of the Metrics API, made of the table of endpoints, and access to
them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data.endpoint_needs import EndpointNeeds
from warpseal.api.data.endpoints import ENDPOINTS, EndpointRow, load
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.http.access import ApiAccess, UsageAccess, require_token
from warpseal.api.http.event_stream import EventStreams
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.store.api_key import ApiKey

if TYPE_CHECKING:
    from warpseal.api.data.request_context import ContextFactory

MAX_LISTENERS: Final = 1_000
MAX_LISTENERS_PER_CLIENT: Final = 16
_CONTEXTS: Final = "api.data.request_context:ContextFactory"


class GatedKeys:
    """The API keys of the key store; a lookup waits for the store while the daemon starts."""

    def __init__(self, gate: StartupGate[EndpointNeeds]) -> None:
        self._gate = gate

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Return an API key by its digest. Raises StillStarting, StoreDown."""
        needs = await self._gate.wait()
        return await needs.key_store.find_key(digest)


class DataApi:
    """The Data API and the Metrics API, for the API port to mount.

    gate: the gate at which requests wait for the objects that endpoints need.
    settings: settings of the API port.
    data: settings of the Data API, which also configure the CorsMiddleware around the app.
    access: the check of callers, which guards other routes as well.
    event_streams: the streams of events, by gRPC as well.
    now: clock of unix seconds.
    monotonic: clock of seconds that never go back.
    stopping: the event that is set when the daemon stops.
    """

    def __init__(
        self,
        gate: StartupGate[EndpointNeeds],
        settings: ApiSettings,
        data: DataApiSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        usage_access: UsageAccess | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self.settings = data
        self.access = ApiAccess(GatedKeys(gate), settings, monotonic)
        self.gate = gate
        self.event_streams = EventStreams(
            stopping or asyncio.Event(), MAX_LISTENERS, MAX_LISTENERS_PER_CLIENT
        )
        self._usage_access = usage_access or UsageAccess()
        self._api_settings = settings
        self._now = now
        self._contexts: ContextFactory | None = None
        # Counts a request that costs so many compute units, or raises a WarpsealError.
        self._admit = {
            "data": self.access.admit,
            "metrics": self.access.admit_to_metrics_api,
            "usage": self._admit_usage,
            "admin": self._admit_admin,
        }

    def routes(self) -> list[Route]:
        """Return the routes of the Data API."""
        return self._routes([endpoint for endpoint in ENDPOINTS if endpoint.admission != "metrics"])

    def metrics_routes(self) -> list[Route]:
        """Return the routes of the Metrics API, which a port of its own has as well."""
        return self._routes([endpoint for endpoint in ENDPOINTS if endpoint.admission == "metrics"])

    def _context_factory(self, needs: EndpointNeeds) -> ContextFactory:
        """Return the maker of contexts, whose module the first request loads."""
        if self._contexts is None:
            factory: Callable[..., ContextFactory] = load(_CONTEXTS)
            self._contexts = factory(
                needs, self._api_settings, self.settings, self.event_streams, self._now
            )
        return self._contexts

    async def _admit_usage(self, request: Request, units: int) -> None:
        await self.access.admit(request, units, needs_key=self._usage_access.needs_key)
        self._usage_access.check(request)

    async def _admit_admin(self, request: Request, units: int) -> None:
        await self.access.admit(request, units)
        require_token(request, self._usage_access.admin_token)

    def _routes(self, endpoints: Iterable[EndpointRow]) -> list[Route]:
        by_path: dict[str, dict[str, EndpointRow]] = {}
        # The template of a path matches that path with a verb as well: {tokenId} and
        # {tokenId}:reindex.
        for endpoint in sorted(endpoints, key=lambda endpoint: ":" not in endpoint.path):
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        return [self._route(path, by_method) for path, by_method in by_path.items()]

    def _route(self, path: str, endpoints: Mapping[str, EndpointRow]) -> Route:
        """Return the route of a path.

        endpoints: the rows of the path by HTTP method.
        """

        async def respond(request: Request) -> Response:
            # A HEAD is a GET whose response is sent without its body.
            method = "GET" if request.method == "HEAD" else request.method
            endpoint = endpoints[method]
            await self._admit[endpoint.admission](request, endpoint.units)
            handler = load(endpoint.handler)
            needs = await self.gate.wait()
            context = await self._context_factory(needs).create(request, endpoint)
            if endpoint.context:
                context = await load(endpoint.context).of(context)
            response: Response = await handler(context, *needs.arguments(endpoint))
            return response

        return Route(path, respond, methods=list(endpoints))
