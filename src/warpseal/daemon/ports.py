"""The daemon's ports: its servers, and the gates and APIs behind them, where requests wait until the services start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.types import ASGIApp

from warpseal.api.data.routes import DataApi
from warpseal.api.data.services import DataServices
from warpseal.api.http.access import UsageAccess
from warpseal.api.http.listener import Listener
from warpseal.api.http.server import HttpServer
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.node.access import AllowedHosts
from warpseal.api.node.app import switch_paths
from warpseal.api.routes import api_app, metrics_api_app, metrics_app
from warpseal.api.signing.endpoints import AggregatorEndpoints, SigningServices
from warpseal.api.status.endpoints import StatusEndpoints
from warpseal.api.status.probes import MetricsPage, ProbeEndpoints
from warpseal.config.keys import Config
from warpseal.daemon.forwarding_api import EvmApi, GatewayApi
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.status import DaemonStatus
from warpseal.metrics.registry import Metrics
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.lazy import LazyModule

if TYPE_CHECKING:
    from warpseal.api.grpc import calls as grpc_calls
    from warpseal.api.grpc import server as grpc_server
else:
    grpc_calls = LazyModule("warpseal.api.grpc.calls")
    grpc_server = LazyModule("warpseal.api.grpc.server")


class DaemonPorts(Struct, frozen=True):
    """The servers by name (api, metrics; metrics-api and grpc if they have a port), and what `start_services` opens.

    background: the work that signing does not need.
    """

    servers: Mapping[str, HttpServer | grpc_server.GrpcServer]
    signing: StartupGate[SigningServices]
    data: StartupGate[DataServices]
    node_api: NodeApi
    evm_api: EvmApi
    gateway_api: GatewayApi
    status: DaemonStatus
    metrics: Metrics
    background: BackgroundWork


def build_ports(
    config: Config, listeners: Mapping[str, Listener], loggers: DaemonLoggers, stopping: asyncio.Event
) -> DaemonPorts:
    """Build the servers of the listeners, by their names. stopping: set when the daemon stops. Raises StartupError."""
    metrics, timeout_s = Metrics(), config.aggregation.default_timeout_s
    signing, data = StartupGate[SigningServices](timeout_s), StartupGate[DataServices](timeout_s)
    background = BackgroundWork(metrics.count_background_failure)
    node_api = NodeApi(config, loggers, metrics, background)
    node_api.mount()
    probes = ProbeEndpoints(signing, node_api.health, config.validators.ready_subnet_ids)
    usage_access = UsageAccess(config.usage.readers, config.node_api.admin_token)
    data_api = DataApi(data, config.api, config.data_api, usage_access=usage_access, stopping=stopping)
    evm_api = EvmApi(config, node_api.interfaces, data_api.access, background, metrics)
    evm_api.check_files()
    gateway_api = GatewayApi(config, node_api, evm_api, data_api.access, background)
    aggregator = AggregatorEndpoints(signing, config.api, metrics)
    status = DaemonStatus(config, probes, node_api, evm_api)
    hosts = AllowedHosts(config.node_api.allowed_hosts)

    settings = config.api
    status_endpoints = StatusEndpoints(status, settings, hosts, listeners["metrics"].port, stopping)
    app = api_app(aggregator, probes, status_endpoints, data_api, settings, metrics)
    apps: dict[str, ASGIApp] = {
        "api": switch_paths(node_api.interfaces, app),
        "metrics": metrics_app(MetricsPage(metrics), settings, metrics),
        "metrics-api": metrics_api_app(data_api, probes, settings, metrics),
    }
    servers: dict[str, HttpServer | grpc_server.GrpcServer] = {
        name: HttpServer(app, listeners[name], settings) for name, app in apps.items() if name in listeners
    }
    if "grpc" in listeners:
        calls = grpc_calls.GrpcCalls(aggregator, data_api, probes, settings, config.aggregation.max_timeout_s)
        servers["grpc"] = grpc_server.GrpcServer(calls, listeners["grpc"], settings, metrics)
    return DaemonPorts(servers, signing, data, node_api, evm_api, gateway_api, status, metrics, background)
