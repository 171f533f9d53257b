"""The daemon's process: its ports, its task group, its signals."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from warpseal.api.aggregator.endpoints import AggregatorEndpoints, SigningServices
from warpseal.api.data.routes import DataApi
from warpseal.api.data.services import DataServices
from warpseal.api.data.usage_endpoint import UsageAccess
from warpseal.api.node.access import AllowedHosts
from warpseal.api.node.app import switch_paths
from warpseal.api.probes import MetricsPage, ProbeEndpoints
from warpseal.api.routes import api_app, metrics_api_app, metrics_app
from warpseal.api.server import HttpServer
from warpseal.api.startup_gate import StartupGate
from warpseal.api.status.endpoints import StatusEndpoints
from warpseal.config.keys import Config
from warpseal.daemon.evm_api import EvmApi
from warpseal.daemon.gateway_api import GatewayApi
from warpseal.daemon.listening import listening_file
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.status import DaemonStatus
from warpseal.errors import StartupError
from warpseal.indexer.subprocess import IndexSubprocess
from warpseal.metrics.registry import Metrics
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.runtime.process import first_error, hangup_signal, running, stop_signals, ungrouped
from warpseal.version import __version__

log = logging.getLogger(__name__)

_INTERRUPTED_EXIT_CODE: Final = 130


async def serve(
    config: Config,
    announce: Callable[[str, str], None],
    loggers: DaemonLoggers | None = None,
    index_command: Sequence[str] = (),
) -> None:
    """Run the daemon until SIGTERM or SIGINT, the second of which ends the process at once. Raises StartupError.

    SIGHUP opens the log files again.

    announce: called with the URLs of the API and of the metrics page once both ports listen. loggers: those
    whose levels the node API shows and changes. index_command: starts the index process if a chain is indexed;
    empty: another service manager starts it.
    """
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(_INTERRUPTED_EXIT_CODE)
        stopping.set()

    loggers = loggers or DaemonLoggers(config.logs.level)
    with stop_signals(stop), hangup_signal(loggers.reopen), ungrouped(StartupError):
        await _serve(config, announce, loggers, stopping, index_command)


async def _serve(
    config: Config,
    announce: Callable[[str, str], None],
    loggers: DaemonLoggers,
    stopping: asyncio.Event,
    index_command: Sequence[str],
) -> None:
    metrics, timeout_s = Metrics(), config.aggregation.default_timeout_s
    signing, data = StartupGate[SigningServices](timeout_s), StartupGate[DataServices](timeout_s)
    probes = ProbeEndpoints(signing, config.validators.ready_subnet_ids)
    node_api = NodeApi(config, probes.readiness, loggers, metrics)
    node_api.mount()
    data_api = DataApi(
        data,
        config.api,
        config.data_api,
        usage_access=UsageAccess(config.usage.readers, config.node_api.admin_token),
    )
    evm_api = EvmApi(config, node_api.interfaces, data_api.access, metrics)
    evm_api.check_files()
    gateway_api = GatewayApi(config, node_api, evm_api, data_api.access)
    aggregator = AggregatorEndpoints(signing, config.api, metrics)
    status = DaemonStatus(config, probes, node_api, evm_api)
    hosts = AllowedHosts(config.node_api.allowed_hosts)
    status_endpoints = StatusEndpoints(status, config.api, hosts, lambda: metrics_server.port, stopping)
    app = api_app(aggregator, probes, status_endpoints, data_api, config.api, metrics)
    api_server = HttpServer(
        switch_paths(node_api.interfaces, app), config.api.api_host, config.api.api_port, config.api
    )
    metrics_page = metrics_app(MetricsPage(metrics), config.api, metrics)
    metrics_host, metrics_port = config.api.metrics_host, config.api.metrics_port
    metrics_server = HttpServer(metrics_page, metrics_host, metrics_port, config.api, name="metrics")
    other_servers = [metrics_server]
    if config.api.metrics_api_port is not None:
        metrics_api = metrics_api_app(data_api, probes, config.api, metrics)
        port = config.api.metrics_api_port
        other_servers.append(HttpServer(metrics_api, config.api.api_host, port, config.api, name="metrics-api"))
    for server in (api_server, *other_servers):
        server.bind()
    if config.peers.is_configured_identity_missing:
        # A client that waits for the first answer reads these files next. Imported late: it costs time.
        from warpseal.peers.identity import create_configured_identity

        create_configured_identity(config.peers)
    bound = {"api": api_server.address, "metrics": metrics_server.address}
    if len(other_servers) > 1:
        bound["metrics_api"] = other_servers[-1].address
    log.info("listening", extra={"version": __version__, **bound, "data_dir": config.peers.data_dir})

    failures: list[StartupError] = []

    def start_indexer() -> None:
        if (config.indexer.chains or config.node.has_evm_index) and index_command:
            tasks.create_task(_run_until(stopping, IndexSubprocess(index_command, config.indexer)))

    async def start() -> None:
        # Imported late: the ports listen already, and requests that come meanwhile wait at the gates.
        from warpseal.daemon.startup import start_services

        try:
            await start_services(config, signing, data, node_api, evm_api, gateway_api, status, metrics, start_indexer)
        except* StartupError as errors:
            failures.append(first_error(errors))
            stopping.set()

    with listening_file(config.peers.data_dir, api_server.url, metrics_server.url):
        announce(api_server.url, metrics_server.url)
        async with evm_api.opened(), asyncio.TaskGroup() as tasks:
            serving_api = tasks.create_task(api_server.run())
            serving_others = [tasks.create_task(server.run()) for server in other_servers]
            background = (
                tasks.create_task(node_api.run()),
                tasks.create_task(evm_api.run(node_api.health, node_api.add_evm_chain_id)),
                tasks.create_task(start()),
            )
            await stopping.wait()
            if not failures:
                log.info("stopping", extra={"grace_period_s": config.api.grace_period_s})
            # Requests that wait for the start are answered, and do not wait any more.
            grace_s = 0.0 if failures else None
            api_server.stop(grace_s=grace_s)
            await serving_api
            for server in other_servers:
                server.stop(grace_s=grace_s)
            await asyncio.gather(*serving_others)
            for task in background:
                task.cancel()
            if failures:
                raise failures[0]
    log.info("stopped")


async def _run_until(stopping: asyncio.Event, child: IndexSubprocess) -> None:
    """Run the index process until the daemon stops; it ends while requests in flight finish."""
    async with running(child.run()):
        await stopping.wait()
