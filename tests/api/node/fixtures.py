"""The node API on a real server, with services that each test configures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from tests.ops.health.subnets import FakeSubnets
from warpseal.api.http.listener import Listener
from warpseal.api.http.server import HttpServer
from warpseal.api.http.settings import ApiSettings
from warpseal.api.node.admin import AdminMethods
from warpseal.api.node.app import NodeInterfaces, switch_paths
from warpseal.api.node.settings import NodeApiSettings
from warpseal.errors import CallRefused
from warpseal.metrics.registry import Metrics
from warpseal.ops.health.chains import FollowedChain, chain_check
from warpseal.ops.health.checks import (
    PeerTraffic,
    bootstrap_check,
    database_check,
    diskspace_check,
    network_check,
    router_check,
)
from warpseal.ops.health.registry import HealthRegistry
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.ops.plugins.registry import LoadedVMs
from warpseal.ops.profiles.profiler import Profiler
from warpseal.ops.settings import HealthSettings
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.progress import ChainProgress
from warpseal.store.values import StoreStatus
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID, parse_id

SETTINGS = ApiSettings(api_host="127.0.0.1", api_port=0, metrics_port=0, grace_period_s=1.0)
C_CHAIN = ChainID(parse_id("Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7"))
X_CHAIN = ChainID(bytes([88]) * 32)
L1_CHAIN = "vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj"
L1_SUBNET = SubnetID(parse_id("2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"))
NODE_ID = "NodeID-7fdvUNLVpGgng9tyYzBifCzT7XJrqMKNS"
ADMIN, HEALTH = "/ext/admin", "/ext/health"


class FakeProfiler(Profiler):
    """Starts and stops, and writes nothing. written: the names of what would have been written."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.is_running = False
        self.kinds: list[str] = []

    async def start_cpu(self) -> None:
        if self.is_running:
            raise CallRefused("cpu profiler already running")
        self.is_running = True

    async def stop_cpu(self) -> None:
        if not self.is_running:
            raise CallRefused("cpu profiler doesn't exist")
        self.is_running = False

    async def write_memory(self) -> None:
        self.kinds.append("memory")

    async def write_locks(self) -> None:
        self.kinds.append("locks")

    async def write_stacks(self) -> None:
        self.kinds.append("stacks")


@dataclass
class FakePlugins:
    """Returns the given values."""

    loaded: LoadedVMs = field(default_factory=lambda: LoadedVMs({}, {}))

    async def load(self) -> LoadedVMs:
        return self.loaded


@dataclass(frozen=True)
class Reply:
    """An HTTP response as it came."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, str]:
        error = self.json["error"]
        return error["code"], error["message"]


@dataclass
class NodeApiSetup:
    """What answers, and a client."""

    interfaces: NodeInterfaces
    registry: HealthRegistry
    aliases: ChainAliases
    loggers: DaemonLoggers
    plugins: FakePlugins
    profiler: FakeProfiler
    url: str
    session: aiohttp.ClientSession

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request with these headers, and no content type but theirs."""
        skipped = ("content-type", "user-agent", "accept", "accept-encoding")
        async with self.session.request(
            method,
            self.url + path,
            data=body,
            headers=headers,
            skip_auto_headers=skipped,
            allow_redirects=False,
        ) as response:
            return Reply(response.status, response.headers, await response.text())

    async def rpc(self, path: str, method: str, params: object = None, **headers: str) -> Reply:
        """Call a method of dialect A."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.send(
            "POST", path, json.dumps(body).encode(), {"content-type": "application/json", **headers}
        )

    async def admin(self, method: str, **params: object) -> Any:
        """Return the result of an administration method, or the text of its error."""
        reply = await self.rpc(ADMIN, f"admin.{method}", params)
        assert reply.status == 200, reply.text
        return reply.json["result"] if "result" in reply.json else reply.error[1]


@asynccontextmanager
async def started_node_api(
    node: NodeApiSettings | None = None,
    settings: ApiSettings = SETTINGS,
) -> AsyncIterator[NodeApiSetup]:
    """Serve the node interfaces, administration switched on, over a registry without checks."""
    node = node or NodeApiSettings(admin_enabled=True)
    interfaces = NodeInterfaces(settings, node, Metrics())
    registry, aliases, loggers = (
        HealthRegistry(HealthSettings()),
        ChainAliases(),
        DaemonLoggers("debug"),
    )
    aliases.add_primary_chains(X_CHAIN, C_CHAIN)
    loggers.add_chains(("P", "X", "C"))
    plugins, profiler = FakePlugins(), FakeProfiler()
    interfaces.node_id = NODE_ID
    interfaces.add_health(registry)
    interfaces.add_admin(
        AdminMethods(interfaces.router, aliases, loggers, lambda: plugins.load(), profiler)
    )
    app = switch_paths(interfaces, PlainTextResponse("not under /ext"))
    async with serving(app, settings) as url, aiohttp.ClientSession() as session:
        yield NodeApiSetup(interfaces, registry, aliases, loggers, plugins, profiler, url, session)


@asynccontextmanager
async def serving(app: ASGIApp, settings: ApiSettings = SETTINGS) -> AsyncIterator[str]:
    """Serve an app on a free port of this machine."""
    server = HttpServer(app, Listener(settings.api_host, 0), settings)
    running = asyncio.create_task(server.run())
    try:
        yield server.url
    finally:
        server.stop()
        await running


def recorded_checks(registry: HealthRegistry, folder: Path) -> None:
    """Register checks as a node of the recorded network has them, of a healthy daemon."""
    readiness = {
        PRIMARY_NETWORK: SubnetReadiness(PRIMARY_NETWORK, True, 100, 100, ()),
        L1_SUBNET: SubnetReadiness(L1_SUBNET, True, 99, 100, ()),
    }
    standing = ChainProgress(chain="p-chain", height=10, node_height=10, block_id=bytes(32))
    chains = [FollowedChain(name, PRIMARY_NETWORK, lambda: standing) for name in ("C", "P", "X")]
    chains.append(
        FollowedChain(L1_CHAIN, L1_SUBNET, lambda: replace(standing, height=54, node_height=54))
    )
    traffic = PeerTraffic(6, 9.5, 9.5, 10, 0, 0, 96, None)
    subnets = FakeSubnets(lambda: list(readiness.values()))
    registry.register(
        *(chain_check(chain, subnets, 120.0, lambda: 10.0) for chain in chains),
        bootstrap_check((PRIMARY_NETWORK,), subnets, dict),
        database_check(lambda: StoreStatus("off", True)),
        diskspace_check(folder, HealthSettings(warn_disk_percent=0, fail_disk_percent=0)),
        network_check(lambda: traffic, lambda: 10.0),
        router_check(lambda: traffic, lambda: 10.0),
    )
