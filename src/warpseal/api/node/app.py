"""The node API: all paths under `/ext` as one ASGI app, and the switch between it and the other
paths.

Source of truth: avalanchego `api/server`: access checks, routes and common response headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from warpseal.api.http.allowed_hosts import AllowedHosts
from warpseal.api.http.cors import AllowedOrigins, CorsMiddleware
from warpseal.api.http.error_response import Dialect, error_response
from warpseal.api.http.http_protocol import MAX_NODE_MESSAGE_BYTES
from warpseal.api.http.middleware import ErrorMiddleware, RequestLog
from warpseal.api.http.request_body import DiscardUnread
from warpseal.api.http.responses import not_found_response, text_response
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.node.access import AdminGuard
from warpseal.api.node.admin import CHAINS, AdminMethods
from warpseal.api.node.admin import NAME as ADMIN
from warpseal.api.node.endpoints import HEALTH, HealthEndpoint, JsonRpcEndpoint
from warpseal.api.node.router import PREFIX, Router, RouteTarget
from warpseal.api.node.settings import NodeApiSettings
from warpseal.errors import WarpsealError
from warpseal.forwarding.primary.methods import CHAIN, INDEX, INFO, ROUTES
from warpseal.metrics.registry import Metrics
from warpseal.ops.health.registry import HealthRegistry
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.resources.chains import PrimaryChain

if TYPE_CHECKING:
    from warpseal.api.rpc.metering import RouteMeter
    from warpseal.forwarding.primary.gateway import Gateway

_GATEWAY_PATHS: Final = frozenset({CHAIN, INDEX, INFO}.union(*PRIMARY_NAMES.values()))
"""First parts of the paths behind /ext/ that the gateway may have."""
RPC_ROUTE: Final = "/rpc"
WS_ROUTE: Final = "/ws"
"""Routes below the path of an EVM chain."""
_MISSING_SETTINGS: Final = {
    **{
        PREFIX + route.endpoint(alias) + route.sub_route: ": set gateway-nodes to serve this path"
        for route in ROUTES
        for alias in PRIMARY_NAMES[route.chain]
    },
    **{
        f"{PREFIX}{CHAINS}{alias}{route}": (
            ": add the C-Chain to evm-chains, or set gateway-nodes, to serve this path"
        )
        for alias in PRIMARY_NAMES[PrimaryChain.C]
        for route in (RPC_ROUTE, WS_ROUTE)
    },
}
"""What would serve the paths of the primary chains, by path."""
_ROUTE_HEADER: Final = b"avalanche-api-route"
_NODE_ID: Final = b"node-id"
_HOST: Final = b"host"
_WRONG_HOST: Final = "invalid host specified"
# Messages that start a response, including the refusal of a WebSocket handshake.
_STARTS: Final = ("http.response.start", "websocket.http.response.start")


def switch_paths(ext: ASGIApp, others: ASGIApp) -> ASGIApp:
    """Return an app that sends requests under `/ext/` to one app and all others to another one."""

    async def switch(scope: Scope, receive: Receive, send: Send) -> None:
        app = ext if scope.get("path", "").startswith(PREFIX) else others
        await app(scope, receive, send)

    return switch


class NodeInterfaces:
    """The ASGI app of the node API. Web pages may read every endpoint except administration."""

    def __init__(
        self,
        settings: ApiSettings,
        node: NodeApiSettings,
        metrics: Metrics,
    ) -> None:
        self.router = Router()
        self.node_id = ""
        self._gateway: StartupGate[Gateway] | None = None
        # They record the requests that are refused before their endpoint has them.
        self._meters: dict[ASGIApp, RouteMeter | None] = {}
        self._settings = settings
        self._node = node
        self._hosts = AllowedHosts(node.allowed_hosts)
        self._origins = AllowedOrigins(settings.http_allowed_origins)
        within = ErrorMiddleware(self._dispatch)
        discarding = DiscardUnread(within, settings, MAX_NODE_MESSAGE_BYTES)
        self._app = RequestLog(discarding, metrics, {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_node_id(message: Message) -> None:
            if message["type"] in _STARTS and self.node_id:
                message["headers"] = [
                    *message.get("headers", ()),
                    (_NODE_ID, self.node_id.encode()),
                ]
            await send(message)

        await self._app(scope, receive, send_with_node_id)

    def add(
        self, endpoint: str, routes: Mapping[str, ASGIApp], template: str | None = None
    ) -> None:
        """Mount an endpoint that pages of the allowed origins may read.

        template: The name in metrics, if the name of the endpoint contains an id.

        Raises CallRefused if the path is in use.
        """
        shared = {route: CorsMiddleware(app, self._settings) for route, app in routes.items()}
        self.router.add(endpoint, shared, template)
        for route, app in routes.items():
            self._meters[shared[route]] = getattr(app, "meter", None)

    def add_health(self, registry: HealthRegistry) -> None:
        """Mount the health endpoint, unless it is disabled."""
        if self._node.health_enabled:
            self.add(HEALTH, HealthEndpoint(registry, self._settings).routes())

    def add_admin(self, admin: AdminMethods) -> None:
        """Mount the administration endpoint behind its guard, if it is enabled."""
        if self._node.admin_enabled:
            rpc = JsonRpcEndpoint(ADMIN, admin.methods(), self._settings)
            self.router.add(ADMIN, {"": AdminGuard(rpc, self._node.admin_token or None)})

    def expect_gateway(self, gate: StartupGate[Gateway]) -> None:
        """Let requests to the paths of the primary chains wait until the gateway is mounted."""
        self._gateway = gate

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # The client may leave before its response.
            with suppress(WebSocketDisconnect):
                await self._dispatch_socket(scope, receive, send)
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == _HOST]
        if not all(map(self._hosts.allow, hosts)):
            refusal = text_response(403, _WRONG_HOST)
            meter = self._meter_at(scope["path"])
            if meter is None:
                await refusal(scope, receive, send)
            else:
                await meter.request(scope).respond(refusal, receive, send)
            return
        if any(name == _ROUTE_HEADER for name, _ in scope["headers"]):
            app: ASGIApp = Response(status_code=404)
        else:
            target = await self._find(scope["path"])
            scope["endpoint"] = target.template if target else ""
            app = target.app if target else self._not_found(scope["path"])
        await app(scope, receive, send)

    async def _dispatch_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch a WebSocket handshake.

        Its origin is checked here, since browsers let any page open a WebSocket.
        """
        headers = dict(scope["headers"])
        try:
            target = await self._find(scope["path"])
        except WarpsealError as error:
            response = error_response(error, Dialect.NODE)
            await WebSocket(scope, receive, send).send_denial_response(response)
            return
        refusal = None
        if not self._hosts.allow(headers.get(_HOST, b"").decode("latin-1")):
            refusal = _WRONG_HOST
        elif b"origin" in headers and not self._origins.allow(headers[b"origin"].decode("latin-1")):
            refusal = "origin not allowed"
        if refusal is not None:
            denial = text_response(403, refusal)
            meter = self._meter_at(scope["path"])
            if meter is not None:
                meter.socket(scope).record_refused_handshake(denial.status_code)
        elif target is None or _ROUTE_HEADER in headers:
            denial = self._not_found(scope["path"])
        else:
            await target.app(scope, receive, send)
            return
        await WebSocket(scope, receive, send).send_denial_response(denial)

    def _not_found(self, path: str) -> Response:
        """Return the response for a path without an app, with the settings that would serve it."""
        hint = _MISSING_SETTINGS.get(path, "") if self._gateway is None else ""
        return not_found_response(hint)

    def _meter_at(self, path: str) -> RouteMeter | None:
        """Return the meter of the route at a path; None if its requests are not metered."""
        target = self.router.find(path)
        return None if target is None else self._meters.get(target.app)

    async def _find(self, path: str) -> RouteTarget | None:
        """Return the app of a path.

        Paths of the primary chains wait for the gateway. Raises WarpsealError.
        """
        target = self.router.find(path)
        if target is None and self._gateway is not None and path.split("/", 3)[2] in _GATEWAY_PATHS:
            await self._gateway.wait()
            target = self.router.find(path)
        return target
