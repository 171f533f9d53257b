"""The daemon's process: its task group and its signals; ports.py has its ports, start.py what
stands behind them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, closing, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Final

from warpseal.api.http.listener import Listener
from warpseal.config.keys import Config
from warpseal.daemon.listening import listening_file
from warpseal.daemon.subsystems import PORTS, START, Stage, identity, load, load_stage, traces
from warpseal.errors import StartupError
from warpseal.indexer.subprocess import IndexSubprocess
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.peers.data_dir import may_be_in_use
from warpseal.runtime.process import first_error, hangup_signal, running, stop_signals, ungrouped
from warpseal.version import __version__

if TYPE_CHECKING:
    from warpseal.daemon.ports import DaemonPorts

log = logging.getLogger(__name__)

_INTERRUPTED_EXIT_CODE: Final = 130
_API_SERVERS: Final = ("api", "grpc")
"""Servers that are stopped first."""
_TRACE_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


async def serve(
    config: Config,
    announce: Callable[[str, str], None],
    loggers: DaemonLoggers | None = None,
    index_command: Sequence[str] = (),
    on_loaded: Callable[[], None] = lambda: None,
) -> None:
    """Run the daemon until SIGTERM or SIGINT. Raises StartupError.

    A second signal ends the process at once. SIGHUP opens the log files again.

    announce: function that takes the URLs of the API and of the metrics page, as soon as both ports
        listen. If another daemon may use the data folder, it is called later: when this daemon
        holds the folder of its network.
    loggers: loggers whose levels the node API shows and changes.
    index_command: command that starts the index process if a chain is indexed; empty if another
        service manager starts it.
    on_loaded: function that is called when all modules are imported that a daemon needs.
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
        async with load_ports().open_ports(config, listeners, loggers, stopping) as ports:
            tracing = build_tracing(os.environ, config.api.grace_period_s)
            if config.peers.is_configured_identity_missing:
                # A client that waits for the first response reads these files next.
                identity.create_configured_identity(config.peers)
            with Announcement(config, listeners, announce) as announcement:
                # A daemon of another network may have its own folder in data-dir.
                if not may_be_in_use(config.peers.data_dir):
                    announcement.publish()
                async with tracing:
                    process = DaemonProcess(
                        ports, stopping, index_command, on_loaded, announcement.publish
                    )
                    await process.run()
        log.info("stopped")


class Announcement:
    """Says once where the daemon listens: in the log, to the caller of `serve`, and in a file until
    the block ends.
    """

    def __init__(
        self,
        config: Config,
        listeners: Mapping[str, Listener],
        announce: Callable[[str, str], None],
    ) -> None:
        self._data_dir = config.peers.data_dir
        self._listeners = listeners
        self._announce = announce
        self._stack = ExitStack()
        self._is_published = False

    def __enter__(self) -> Announcement:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def publish(self) -> None:
        """Log, write and announce the addresses, unless that is done."""
        if self._is_published:
            return
        self._is_published = True
        addresses = {
            name.replace("-", "_"): listener.address for name, listener in self._listeners.items()
        }
        log.info(
            "listening", extra={"version": __version__, **addresses, "data_dir": self._data_dir}
        )
        api_url, metrics_url = self._listeners["api"].url, self._listeners["metrics"].url
        self._stack.enter_context(listening_file(self._data_dir, api_url, metrics_url))
        self._announce(api_url, metrics_url)


def load_ports() -> ModuleType:
    """Import the module of the ports. Raises StartupError if no BLS library can be used."""
    try:
        return load(PORTS)
    except ImportError as error:
        if error.name != "warpseal.bls":
            raise
        raise StartupError(str(error)) from None


class DaemonProcess:
    """Serves the ports, and starts what stands behind them.

    on_data_folder: function that is called when this daemon holds the folder of its network.
    """

    def __init__(
        self,
        ports: DaemonPorts,
        stopping: asyncio.Event,
        index_command: Sequence[str],
        on_loaded: Callable[[], None],
        on_data_folder: Callable[[], None],
    ) -> None:
        self._ports = ports
        self._config = ports.registries.config
        self._background = ports.registries.background
        self._stopping = stopping
        self._index_command = index_command
        self._on_loaded = on_loaded
        self._on_data_folder = on_data_folder
        self._failures: list[StartupError] = []

    async def run(self) -> None:
        """Run until `stopping` is set, or until the start fails. Raises StartupError."""
        servers = self._ports.servers
        api_servers = [server for name, server in servers.items() if name in _API_SERVERS]
        other_servers = [server for name, server in servers.items() if name not in _API_SERVERS]
        async with asyncio.TaskGroup() as tasks:
            serving_api = [tasks.create_task(server.run()) for server in api_servers]
            serving_others = [tasks.create_task(server.run()) for server in other_servers]
            background = [
                *self._ports.registries.start(tasks),
                tasks.create_task(self._start(tasks)),
            ]
            await self._stopping.wait()
            if not self._failures:
                log.info("stopping", extra={"grace_period_s": self._config.api.grace_period_s})
            # Requests that wait for the start are answered, and do not wait any more.
            grace_s = 0.0 if self._failures else None
            for server in api_servers:
                server.stop(grace_s=grace_s)
            await asyncio.gather(*serving_api)
            for server in other_servers:
                server.stop(grace_s=grace_s)
            await asyncio.gather(*serving_others)
            for task in background:
                task.cancel()
            if self._failures:
                raise self._failures[0]

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """Open the subsystems behind the ports."""

        def start_indexer() -> None:
            self._on_data_folder()
            has_index = bool(self._config.indexer.chains) or self._config.node.has_evm_index
            if has_index and self._index_command:
                tasks.create_task(self._run_indexer())

        start_subsystems = load(START).start_subsystems
        # Before a node is asked: an import would hold up what its reply lets begin, a tenth of the
        # start.
        load_stage(Stage.SIGNING, self._config)
        self._on_loaded()
        try:
            await start_subsystems(self._ports, start_indexer)
        except* StartupError as errors:
            self._failures.append(first_error(errors))
            self._stopping.set()

    async def _run_indexer(self) -> None:
        """Run the index process until the daemon stops; it ends while requests in flight finish."""
        index_process = IndexSubprocess(self._index_command, self._config.indexer)
        async with running(self._background.keep_running("index process", index_process.run)):
            await self._stopping.wait()


def build_tracing(environ: Mapping[str, str], grace_s: float) -> AbstractAsyncContextManager[None]:
    """Return the block in which requests are traced, if the environment names a collector.

    Raises StartupError.
    """
    is_off = (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
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
