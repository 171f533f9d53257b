"""The gateway on a real server, in front of nodes that answer from the recordings and count what
they are asked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import aiohttp
from aiohttp import web
from starlette.responses import PlainTextResponse

from tests.api.node.fixtures import C_CHAIN, SETTINGS, X_CHAIN
from tests.api.node.fixtures import serving as serving_app
from tests.chains.exchanges import lines
from tests.eventually import until
from tests.forwarding.evm.evm import HALTS, HANGS
from tests.forwarding.evm.test_endpoint import Admission
from tests.indexer.replay import ReplayNode
from tests.indexer.replay import serving as serving_node
from warpseal.api.node.app import NodeInterfaces, switch_paths
from warpseal.api.node.forwarded_routes import ForwardedRoutes
from warpseal.api.node.settings import NodeApiSettings
from warpseal.forwarding.primary.gateway import Gateway, build_gateway
from warpseal.forwarding.primary.methods import ROUTES
from warpseal.forwarding.settings import EvmRpcSettings, GatewaySettings
from warpseal.metrics.registry import Metrics
from warpseal.resources.chains import PrimaryChains
from warpseal.runtime.process import running
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.node import open_sessions
from warpseal.usage.recorder import UsageRecorder
from warpseal.warp.ids import id_text

CHAINS = PrimaryChains(X_CHAIN, C_CHAIN)
NETWORK_ID = 88888
FORWARDING = EvmRpcSettings(
    connect_timeout_s=0.5, call_timeout_s=10.0, poll_s=0.05, retry_after_s=3.0
)
P, X, AVAX, INFO = "/ext/bc/P", "/ext/bc/X", "/ext/bc/C/avax", "/ext/info"
TX_ID = "2oYMBNV4eNHyqk2fjjV5nVQLDbtmNJzq5s3qs3Lo6ftnC6FByM"


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    """Return one recorded call of each method on each route, as far as there is one."""
    return tuple(lines("gateway.jsonl"))


@cache
def _results() -> Mapping[str, Any]:
    return {_key(row["path"], row["method"], row["params"]): row["result"] for row in recorded()}


def _key(path: str, method: str, params: Any) -> str:
    return json.dumps([path, method, params], sort_keys=True)


@dataclass
class GatewayNode(ReplayNode):
    """A node of the primary network that keeps what it was asked: path and body of each call.

    replies may be HALTS or HANGS.
    status: HTTP status of every reply, except those to the pool.
    absent: paths that do not exist.
    """

    replies: dict[str, Any] = field(
        default_factory=lambda: {
            f"{service}.issueTx": {"txID": TX_ID} for service in ("platform", "avm", "avax")
        }
    )
    status: int = 200
    absent: tuple[str, ...] = ()
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def forwarded(self) -> list[str]:
        """The paths of clients' calls; those of the pool have their fields in another order."""
        return [path for path, body in self.seen if body.startswith(b'{"jsonrpc":"2.0","method"')]

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        call = json.loads(body)
        method = call["method"]
        self.seen.append((request.path_qs, body))
        self.headers.append(request.headers)
        assert request.transport is not None
        reply = self.replies.get(method)
        if reply is HALTS:
            self.call_counts[method] += 1
            request.transport.abort()
        if reply in (HALTS, HANGS):
            self.call_counts[method] += reply is HANGS
            await until(request.transport.is_closing)
            return web.Response()
        if request.path in self.absent:
            return web.Response(status=404, text="404 page not found")
        if self.status != 200:
            self.call_counts[method] += 1
            return web.Response(status=self.status, text="not now")
        if "id" not in call:
            self.call_counts[method] += 1
            return web.Response()
        return await super().handle(request)

    def _result(self, path: str, method: str, params: Any) -> Any:
        is_height = method in ("platform.getHeight", "avm.getHeight", "info.getNetworkID")
        recorded = (
            None
            if is_height or method in self.replies
            else _results().get(_key(path, method, params))
        )
        return super()._result(path, method, params) if recorded is None else recorded


@dataclass
class ServedGateway:
    """A running gateway, and a client of it."""

    url: str
    session: aiohttp.ClientSession
    gateway: Gateway
    interfaces: NodeInterfaces
    usage: UsageRecorder

    async def send(
        self, http: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, str, bytes]:
        """Return status, content type and body of the response.

        `_` in names of headers stands for `-`.
        """
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            http,
            self.url + path,
            data=body,
            headers=request_headers,
            skip_auto_headers=("content-type",),
        ) as response:
            return response.status, response.headers.get("content-type", ""), await response.read()

    async def call(self, path: str, method: str, params: Any = None, **headers: str) -> Any:
        """Return the result of a call, or code and message of its error."""
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        _, _, body = await self.send(
            "POST", path, json.dumps(call).encode(), content_type="application/json", **headers
        )
        reply = json.loads(body)
        return (
            reply["result"]
            if "result" in reply
            else (reply["error"]["code"], reply["error"]["message"])
        )

    async def until_checked(self) -> None:
        """Wait until every node was verified, or found to be unusable."""
        pools = [forwarder.pool for forwarder in self.gateway.forwarders.values()]

        def are_checked() -> bool:
            unknown = (None, "not asked yet")
            return all(
                node.head is not None or node.failure not in unknown
                for pool in pools
                for node in pool.nodes
            )

        await until(are_checked)


@asynccontextmanager
async def serve_nodes(*nodes: GatewayNode) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(serving_node(node))
        yield


@asynccontextmanager
async def serve_gateway(
    nodes: Sequence[str | NodeEndpoint],
    admission: Admission | None = None,
    node_api: NodeApiSettings | None = None,
    **settings: Any,
) -> AsyncIterator[ServedGateway]:
    """Serve the gateway in front of nodes, by their URLs.

    settings: other settings of the gateway.
    """
    endpoints = tuple(NodeEndpoint(node) if isinstance(node, str) else node for node in nodes)
    usage = UsageRecorder()
    node_api = node_api or NodeApiSettings()
    interfaces = NodeInterfaces(SETTINGS, node_api, Metrics())
    routes = ForwardedRoutes(interfaces, admission or Admission(), SETTINGS, node_api, usage)
    async with open_sessions() as sessions:
        gateway = build_gateway(
            GatewaySettings(endpoints, **settings), sessions, FORWARDING, NETWORK_ID
        )
        for route in ROUTES:
            chain_id = CHAINS.id_of(route.chain)
            routes.add_gateway(route, gateway, chain_id)
            by_id, primary = route.endpoint(id_text(chain_id)), route.endpoint()
            if (
                by_id != primary
                and interfaces.router.find(f"/ext/{primary}{route.sub_route}") is None
            ):
                interfaces.router.alias(by_id, primary)
        app = switch_paths(interfaces, PlainTextResponse("not under /ext"))
        async with (
            serving_app(app) as url,
            aiohttp.ClientSession() as session,
            running(gateway.run()),
        ):
            yield ServedGateway(url, session, gateway, interfaces, usage)


async def direct(node: GatewayNode, path: str, body: bytes) -> tuple[int, str, bytes]:
    """Return what a node itself answers."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            node.url + path, data=body, headers={"content-type": "application/json"}
        ) as response,
    ):
        return response.status, response.headers["content-type"], await response.read()
