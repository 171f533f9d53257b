"""The daemon's process: its task group and its signals; ports.py has its ports, startup.py the services behind them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from warpseal.api.http.listener import Listener
from warpseal.config.keys import Config
from warpseal.daemon.listening import listening_file
from warpseal.errors import StartupError
from warpseal.indexer.subprocess import IndexSubprocess
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.peers.data_dir import may_be_in_use
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.process import first_error, hangup_signal, running, stop_signals, ungrouped
from warpseal.version import __version__

if TYPE_CHECKING:
    from warpseal.daemon import ports as daemon_ports
    from warpseal.daemon import startup
    from warpseal.ops import traces
    from warpseal.peers import identity
else:
    # They are most of what a start costs. The ports listen before them, so that clients connect and wait.
    daemon_ports = LazyModule("warpseal.daemon.ports")
    startup = LazyModule("warpseal.daemon.startup")
    identity = LazyModule("warpseal.peers.identity")
    traces = LazyModule("warpseal.ops.traces")

log = logging.getLogger(__name__)

_INTERRUPTED_EXIT_CODE: Final = 130
_TRACE_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


async def serve(
    config: Config,
    announce: Callable[[str, str], None],
    loggers: DaemonLoggers | None = None,
    index_command: Sequence[str] = (),
    on_loaded: Callable[[], None] = lambda: None,
) -> None:
    """Run the daemon until SIGTERM or SIGINT, the second of which ends the process at once. Raises StartupError.

    SIGHUP opens the log files again.

    announce: called with the URLs of the API and of the metrics page once both ports listen; beside another daemon on
    the data folder, once this one holds the folder of its network. loggers: those whose levels the node API shows and
    changes. index_command: starts the index process if a chain is indexed; empty: another service manager starts it.
    on_loaded: called once all modules are imported that a daemon needs.
    """
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(_INTERRUPTED_EXIT_CODE)
        stopping.set()

    loggers = loggers or DaemonLoggers(config.logs.level)
    with (
        stop_signals(stop),
        hangup_signal(loggers.reopen),
        ungrouped(StartupError),
        open_listeners(config) as listeners,
    ):
        try:
            build_ports = daemon_ports.build_ports
        except ImportError as error:
            if error.name != "warpseal.bls":
                raise
            raise StartupError(str(error)) from None

        ports = build_ports(config, listeners, loggers, stopping)
        tracing = build_tracing(os.environ, config.api.grace_period_s)
        if config.peers.is_configured_identity_missing:
            # A client that waits for the first response reads these files next.
            identity.create_configured_identity(config.peers)
        announced = ExitStack()
        is_announced = False

        def announce_once() -> None:
            """Log, print and write where the daemon listens, unless that is done."""
            nonlocal is_announced
            if is_announced:
                return
            is_announced = True
            addresses = {name.replace("-", "_"): listener.address for name, listener in listeners.items()}
            log.info("listening", extra={"version": __version__, **addresses, "data_dir": config.peers.data_dir})
            api_url, metrics_url = listeners["api"].url, listeners["metrics"].url
            announced.enter_context(listening_file(config.peers.data_dir, api_url, metrics_url))
            announce(api_url, metrics_url)

        failures: list[StartupError] = []

        def start_indexer() -> None:
            announce_once()
            if (config.indexer.chains or config.node.has_evm_index) and index_command:
                tasks.create_task(run_indexer())

        async def run_indexer() -> None:
            """Run the index process until the daemon stops; it ends while requests in flight finish."""
            index_process = IndexSubprocess(index_command, config.indexer)
            async with running(ports.background.keep_running("index process", index_process.run)):
                await stopping.wait()

        async def forward_evm_calls() -> None:
            await ports.evm_api.run(ports.node_api.health, ports.node_api.add_evm_chain_id)

        async def start() -> None:
            start_services = startup.start_services
            on_loaded()
            try:
                await start_services(config, ports, start_indexer)
            except* StartupError as errors:
                failures.append(first_error(errors))
                stopping.set()

        api_servers = [server for name, server in ports.servers.items() if name in ("api", "grpc")]
        other_servers = [server for name, server in ports.servers.items() if name not in ("api", "grpc")]
        with announced:
            # A daemon of another network may have its own folder in data-dir.
            if not may_be_in_use(config.peers.data_dir):
                announce_once()
            async with ports.evm_api.opened(), tracing, asyncio.TaskGroup() as tasks:
                serving_api = [tasks.create_task(server.run()) for server in api_servers]
                serving_others = [tasks.create_task(server.run()) for server in other_servers]
                background = (
                    tasks.create_task(ports.node_api.run()),
                    tasks.create_task(ports.background.keep_running("forwarding of EVM chains", forward_evm_calls)),
                    tasks.create_task(start()),
                )
                await stopping.wait()
                if not failures:
                    log.info("stopping", extra={"grace_period_s": config.api.grace_period_s})
                # Requests that wait for the start are answered, and do not wait any more.
                grace_s = 0.0 if failures else None
                for server in api_servers:
                    server.stop(grace_s=grace_s)
                await asyncio.gather(*serving_api)
                for server in other_servers:
                    server.stop(grace_s=grace_s)
                await asyncio.gather(*serving_others)
                for task in background:
                    task.cancel()
                if failures:
                    raise failures[0]
        log.info("stopped")


def build_tracing(environ: Mapping[str, str], grace_s: float) -> AbstractAsyncContextManager[None]:
    """Return the block in which requests are traced, if the environment names a collector. Raises StartupError."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    name = next(filter(environ.get, _TRACE_ENDPOINTS), None)
    if is_off or name is None:
        return nullcontext()
    try:
        exporter = traces.TraceExporter
    except ImportError as error:
        raise StartupError(
            f"{name} is set, and {error.name}, which sends traces, is not installed: "
            "pip install 'warpseal[otel]', or set OTEL_SDK_DISABLED=true"
        ) from None
    return exporter(environ).opened(grace_s)


@contextmanager
def open_listeners(config: Config) -> Iterator[Mapping[str, Listener]]:
    """Hold the ports of the configuration, by their names. Raises StartupError."""
    api = config.api
    ports = {
        "api": api.api_port,
        "metrics": api.metrics_port,
        "metrics-api": api.metrics_api_port,
        "grpc": api.grpc_port,
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(closing(Listener(api.api_host, port, name=name)))
            for name, port in ports.items()
            if port is not None
        }
