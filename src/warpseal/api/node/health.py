"""The health endpoint: `/ext/health` by GET and by JSON-RPC, and its three sub-routes.

Source of truth: the specification's health API. A GET of an unhealthy report answers 503; JSON-RPC always answers 200.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.node.jsonrpc_endpoint import JsonRpcEndpoint, Method, NoParams
from warpseal.api.settings import ApiSettings
from warpseal.ops.health.registry import HealthRegistry, HealthReport

NAME: Final = "health"
MAX_TAGS: Final = 64
_JSON: Final = {"content-type": "application/json"}


class TagParams(msgspec.Struct):
    """health.health and health.readiness."""

    tags: list[str] = []


class HealthEndpoint:
    """Serves the reports of the health registry."""

    def __init__(self, registry: HealthRegistry, settings: ApiSettings) -> None:
        self._registry = registry
        methods: Mapping[str, Method[Any]] = {
            "health": Method(TagParams, self._health),
            "readiness": Method(TagParams, self._readiness),
            "liveness": Method(NoParams, self._liveness),
        }
        self._rpc = JsonRpcEndpoint(NAME, methods, settings)

    def routes(self) -> Mapping[str, ASGIApp]:
        """Return the endpoint's own route and its sub-routes."""
        return {"": self.dispatch, "/health": self.health, "/readiness": self.readiness, "/liveness": self.liveness}

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the report to a GET; handle any other method as JSON-RPC."""
        await (self.health if scope["method"] == "GET" else self._rpc)(scope, receive, send)

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the last results of all checks, or of those with a tag in the query."""
        await _response(self._registry.health(_tags(scope)))(scope, receive, send)

    async def readiness(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send whether the daemon has started up."""
        await _response(self._registry.readiness(_tags(scope)))(scope, receive, send)

    async def liveness(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a report without checks."""
        await _response(self._registry.liveness())(scope, receive, send)

    async def _health(self, params: TagParams) -> msgspec.Raw:
        return msgspec.Raw(self._registry.health(params.tags[:MAX_TAGS]).body)

    async def _readiness(self, params: TagParams) -> msgspec.Raw:
        return msgspec.Raw(self._registry.readiness(params.tags[:MAX_TAGS]).body)

    async def _liveness(self, params: NoParams) -> msgspec.Raw:
        return msgspec.Raw(self._registry.liveness().body)


def _response(report: HealthReport) -> Response:
    return Response(report.body + b"\n", 200 if report.is_healthy else 503, _JSON)


def _tags(scope: Scope) -> list[str]:
    query = scope["query_string"]
    if not query:
        return []
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return [value for name, value in pairs if name == "tag"][:MAX_TAGS]
