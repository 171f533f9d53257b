"""The endpoints of the status: the landing page, its event stream, and GET /status.json.

Requests from this machine see addresses. Others see the rest, or nothing if `public-page` is false.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from warpseal.api.http.allowed_hosts import AllowedHosts
from warpseal.api.http.errors import NotFound
from warpseal.api.http.event_stream import WRITE_TIMEOUT_S, EventStreams
from warpseal.api.http.middleware import is_from_this_machine
from warpseal.api.http.responses import JSON, NO_STORE
from warpseal.api.http.settings import ApiSettings
from warpseal.api.status.document import STATUS_PATH, StatusDocument
from warpseal.api.status.feed import StatusFeed, StatusSource
from warpseal.api.status.page import POLICY

PAGE_PATH: Final = "/"
EVENTS_PATH: Final = "/status/events"
METRICS_LINK_PATH: Final = "/status/metrics"

MAX_STREAMS: Final = 64
MAX_STREAMS_PER_CLIENT: Final = 16
_HEADERS: Final = {"cache-control": NO_STORE, "x-content-type-options": "nosniff"}
_PAGE_HEADERS: Final = {"content-security-policy": POLICY, "referrer-policy": "no-referrer"}


class StatusEndpoints:
    """Serves two audiences: clients on this machine, and all others.

    hosts: names of this machine.
    metrics_port: the port of /metrics.
    stopping: the event that is set when the daemon stops, and ends the event streams.
    interval_s: time between two looks for changes on behalf of an open page.
    write_timeout_s: time for which a client may leave an event unread.
    """

    def __init__(
        self,
        source: StatusSource,
        settings: ApiSettings,
        hosts: AllowedHosts,
        metrics_port: int,
        stopping: asyncio.Event,
        interval_s: float = 2.0,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self._source = source
        self._is_public = settings.public_page
        self._hosts = hosts
        self._metrics_port = metrics_port
        self._interval_s = interval_s
        self._feeds = {
            with_addresses: StatusFeed(
                source,
                settings.dashboards_url,
                with_addresses=with_addresses,
                max_age_s=interval_s / 2,
            )
            for with_addresses in (True, False)
        }
        self._streams = {
            audience: EventStreams(stopping, MAX_STREAMS, MAX_STREAMS_PER_CLIENT, write_timeout_s)
            for audience in self._feeds
        }

    def document_class(self) -> type[StatusDocument]:
        """Return the class of the status document, for the OpenAPI document."""
        return self._source.document_class

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(PAGE_PATH, self.page, methods=["GET"]),
            Route(STATUS_PATH, self.status, methods=["GET"]),
            Route(EVENTS_PATH, self.events, methods=["GET"]),
            Route(METRICS_LINK_PATH, self.metrics, methods=["GET"]),
        ]

    async def page(self, request: Request) -> Response:
        """GET /."""
        body = await self._feeds[self._admit(request.scope)].page()
        return await body.respond(request, "text/html", NO_STORE, {**_HEADERS, **_PAGE_HEADERS})

    async def status(self, request: Request) -> Response:
        """GET /status.json."""
        body = await self._feeds[self._admit(request.scope)].json()
        return await body.respond(request, JSON, NO_STORE, _HEADERS)

    async def events(self, request: Request) -> Response:
        """GET /status/events: the changes of the page since `version`, or since the last event of a
        broken stream.
        """
        audience = self._admit(request.scope)
        version = request.headers.get("last-event-id") or request.query_params.get("version", "")

        async def next_events() -> bytes:
            nonlocal version
            while True:
                version, changes = await self._feeds[audience].changes_since(version)
                if changes:
                    return b"".join(
                        [b"id: %s\ndata: %s\n\n" % (version.encode(), change) for change in changes]
                    )
                await asyncio.sleep(self._interval_s)

        return self._streams[audience].respond(request, next_events, lambda: b": nothing new\n\n")

    async def metrics(self, request: Request) -> Response:
        """GET /status/metrics: redirect to the metrics page, on its port of the host that the
        client has named.

        The client keeps its scheme: a proxy may have ended the TLS connection, and only the client
        knows.
        """
        self._admit(request.scope)
        host = urlsplit(f"http://{request.headers.get('host', '')}").hostname or "127.0.0.1"
        name = f"[{host}]" if ":" in host else host
        return RedirectResponse(f"//{name}:{self._metrics_port}/metrics", 307, _HEADERS)

    def _admit(self, scope: Scope) -> bool:
        """Return whether a request may see addresses. Raises NotFound if it may see nothing.

        It may if /ext/admin would be served to it without a token, and if no page of another site
        sent it: browsers send their origin, and their requests come from this machine as well.
        """
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        has_origin = any(name == b"origin" for name, _ in scope["headers"])
        is_operator = (
            is_from_this_machine(scope) and not has_origin and all(map(self._hosts.allow, hosts))
        )
        if not is_operator and not self._is_public:
            raise NotFound("no such path")
        return is_operator
