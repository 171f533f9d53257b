"""The daemon's ports: its servers, the gates where requests wait for the start, and the subsystems
of the ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import Struct
from starlette.types import ASGIApp

from warpseal.api.data.endpoint_needs import EndpointNeeds
from warpseal.api.data.routes import DataApi
from warpseal.api.http.access import UsageAccess
from warpseal.api.http.allowed_hosts import AllowedHosts
from warpseal.api.http.listener import Listener
from warpseal.api.http.server import HttpServer
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.node.app import switch_paths
from warpseal.api.routes import api_app, metrics_api_app, metrics_app
from warpseal.api.signing.endpoints import AggregatorEndpoints
from warpseal.api.signing.signing_service import SigningService
from warpseal.api.status.endpoints import StatusEndpoints
from warpseal.api.status.probes import MetricsPage, ProbeEndpoints
from warpseal.config.keys import Config
from warpseal.daemon.registries import Registries
from warpseal.daemon.status import DaemonStatus
from warpseal.daemon.subsystems import Stage, grpc_calls, grpc_server, open_stage
from warpseal.ops.logs.loggers import DaemonLoggers


class DaemonPorts(Struct, frozen=True):
    """The servers by name: api, metrics; metrics-api and grpc if they have a port.

    opened: the subsystems by name.
    """

    servers: Mapping[str, HttpServer | grpc_server.GrpcServer]
    registries: Registries
    opened: dict[str, Any]


@asynccontextmanager
async def open_ports(
    config: Config,
    listeners: Mapping[str, Listener],
    loggers: DaemonLoggers,
    stopping: asyncio.Event,
) -> AsyncIterator[DaemonPorts]:
    """Build the servers of the listeners, and hold the subsystems of the ports.

    Raises StartupError.

    stopping: set when the daemon stops.
    """
    registries, timeout_s = Registries(config, loggers), config.aggregation.default_timeout_s
    signing, data = StartupGate[SigningService](timeout_s), StartupGate[EndpointNeeds](timeout_s)
    registries.starting_gates += (signing, data)
    usage_access = UsageAccess(config.usage.readers, config.node_api.admin_token)
    data_api = DataApi(
        data, config.api, config.data_api, usage_access=usage_access, stopping=stopping
    )
    opened: dict[str, Any] = {
        "signing_gate": signing,
        "data_gate": data,
        "admission": data_api.access,
        "probes": ProbeEndpoints(
            registries.health, registries.ready, config.validators.ready_subnet_ids
        ),
    }
    async with AsyncExitStack() as stack:
        await open_stage(Stage.PORTS, config, stack, opened, registries)
        servers = _build_servers(registries, listeners, signing, data_api, opened, stopping)
        yield DaemonPorts(servers, registries, opened)


def _build_servers(
    registries: Registries,
    listeners: Mapping[str, Listener],
    signing: StartupGate[SigningService],
    data_api: DataApi,
    opened: Mapping[str, Any],
    stopping: asyncio.Event,
) -> dict[str, HttpServer | grpc_server.GrpcServer]:
    config, metrics = registries.config, registries.metrics
    settings = config.api
    aggregator = AggregatorEndpoints(signing, settings, metrics)
    probes: ProbeEndpoints = opened["probes"]
    status = DaemonStatus(registries, probes, opened["node_api"].aliases)
    hosts = AllowedHosts(config.node_api.allowed_hosts)
    status_endpoints = StatusEndpoints(status, settings, hosts, listeners["metrics"].port, stopping)
    app = api_app(aggregator, probes, status_endpoints, data_api, settings, metrics)
    apps: dict[str, ASGIApp] = {
        "api": switch_paths(opened["node_api"].interfaces, app),
        "metrics": metrics_app(MetricsPage(metrics), settings, metrics),
        "metrics-api": metrics_api_app(data_api, probes, settings, metrics),
    }
    servers: dict[str, HttpServer | grpc_server.GrpcServer] = {
        name: HttpServer(app, listeners[name], settings)
        for name, app in apps.items()
        if name in listeners
    }
    if "grpc" in listeners:
        calls = grpc_calls.GrpcCalls(
            aggregator, data_api, probes, settings, config.aggregation.max_timeout_s
        )
        servers["grpc"] = grpc_server.GrpcServer(calls, listeners["grpc"], settings, metrics)
    return servers
