"""The health endpoint: `/ext/health` by GET and by JSON-RPC, and its three sub-routes.

Source of truth: the specification's health API. A GET of an unhealthy report answers 503; JSON-RPC always answers 200.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.http.settings import ApiSettings
from warpseal.api.node.jsonrpc_endpoint import JsonRpcEndpoint, Method, NoParams
from warpseal.ops.health.registry import HealthRegistry, NodeHealth

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
        methods: dict[str, Method[Any]] = {
            name: Method(TagParams, partial(self._report, name)) for name in ("health", "readiness")
        }
        methods["liveness"] = Method(NoParams, partial(self._report, "liveness"))
        self._gets = {name: partial(self._get, name) for name in methods}
        self._rpc = JsonRpcEndpoint(NAME, methods, settings)

    def routes(self) -> Mapping[str, ASGIApp]:
        """Return the endpoint's own route and its sub-routes."""
        return {"": self.dispatch, **{f"/{name}": app for name, app in self._gets.items()}}

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the report to a GET; handle any other method as JSON-RPC."""
        await (self._gets["health"] if scope["method"] == "GET" else self._rpc)(scope, receive, send)

    async def _get(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        result = await self._report(name, TagParams(_tags(scope)))
        body = msgspec.json.encode(result) + b"\n"
        await Response(body, 200 if result.healthy else 503, _JSON)(scope, receive, send)

    async def _report(self, name: str, params: Any) -> NodeHealth:
        """Return the last results of all checks, or of those with a tag; of the startup checks; or no checks."""
        if name == "liveness":
            return NodeHealth({}, healthy=True)
        tags = params.tags[:MAX_TAGS]
        if name == "readiness":
            return self._registry.readiness(tags)
        await self._registry.run_old_checks(tags)
        return self._registry.health(tags)


def _tags(scope: Scope) -> list[str]:
    query = scope["query_string"]
    if not query:
        return []
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return [value for name, value in pairs if name == "tag"]
