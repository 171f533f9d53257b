"""The health endpoint: `/ext/health` by GET and by JSON-RPC, and its three sub-routes.

Source of truth: the specification's health API. A GET of an unhealthy report answers 503; JSON-RPC always answers 200.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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

Report = Callable[[Sequence[str]], Awaitable[NodeHealth]]
"""Makes a report of the checks with these tags, or of all checks if there are none."""


class TagParams(msgspec.Struct):
    """health.health and health.readiness."""

    tags: list[str] = []


class HealthEndpoint:
    """Serves the reports of the health registry."""

    def __init__(self, registry: HealthRegistry, settings: ApiSettings) -> None:
        # The last results of all checks, or of those with a tag; whether the daemon has started up; no checks.
        async def health(tags: Sequence[str]) -> NodeHealth:
            await registry.run_old_checks(tags)
            return registry.health(tags)

        async def readiness(tags: Sequence[str]) -> NodeHealth:
            return registry.readiness(tags)

        async def liveness(tags: Sequence[str]) -> NodeHealth:
            return NodeHealth({}, healthy=True)

        reports: dict[str, Report] = {"health": health, "readiness": readiness, "liveness": liveness}
        self._gets = {name: _get_app(report) for name, report in reports.items()}
        methods: dict[str, Method[Any]] = {
            name: Method(NoParams if name == "liveness" else TagParams, _rpc_call(report))
            for name, report in reports.items()
        }
        self._rpc = JsonRpcEndpoint(NAME, methods, settings)

    def routes(self) -> Mapping[str, ASGIApp]:
        """Return the endpoint's own route and its sub-routes."""
        return {"": self.dispatch, **{f"/{name}": app for name, app in self._gets.items()}}

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the report to a GET; handle any other method as JSON-RPC."""
        await (self._gets["health"] if scope["method"] == "GET" else self._rpc)(scope, receive, send)


def _get_app(report: Report) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        result = await report(_tags(scope))
        body = msgspec.json.encode(result) + b"\n"
        await Response(body, 200 if result.healthy else 503, _JSON)(scope, receive, send)

    return app


def _rpc_call(report: Report) -> Callable[[Any], Awaitable[NodeHealth]]:
    async def call(params: Any) -> NodeHealth:
        return await report(getattr(params, "tags", ())[:MAX_TAGS])

    return call


def _tags(scope: Scope) -> list[str]:
    query = scope["query_string"]
    if not query:
        return []
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return [value for name, value in pairs if name == "tag"][:MAX_TAGS]
