"""The composition root: calls every constructor once, holds the task group and the signals, decides nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

from warpseal.api.aggregator.endpoints import AggregatorEndpoints
from warpseal.api.aggregator.l1_messages import L1MessageEndpoint
from warpseal.api.data.routes import DataApi
from warpseal.api.data.services import DataOpening
from warpseal.api.metrics_page import MetricsPage
from warpseal.api.node.app import PathSwitch
from warpseal.api.probes import ProbeEndpoints
from warpseal.api.routes import ApiEndpoints, api_app, metrics_app
from warpseal.api.server import HttpServer
from warpseal.api.startup_gate import Opening
from warpseal.config.keys import Config
from warpseal.daemon.evm_api import EvmApi
from warpseal.daemon.node_api import NodeApi
from warpseal.errors import StartupError
from warpseal.indexer.subprocess import IndexSubprocess
from warpseal.metrics.registry import Metrics
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.runtime.backoff import Backoff

log = logging.getLogger(__name__)

_INTERRUPTED_EXIT_CODE: Final = 130
_NETWORK_ID_RETRY: Final = Backoff(first_s=0.25, cap_s=5.0)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the two ports are reached from this machine."""

    api_url: str
    metrics_url: str


async def serve(
    config: Config,
    announce: Callable[[Listening], None],
    loggers: DaemonLoggers | None = None,
    index_command: Sequence[str] = (),
) -> None:
    """Run the daemon until SIGTERM or SIGINT; `announce` is called once both ports listen. Raises StartupError.

    loggers: what the process logs through; None: its levels are nobody's. index_command: starts the process that
    fills the index, where index-chains names any; empty: somebody else starts it.
    """
    stopping = asyncio.Event()
    with _signals(stopping):
        try:
            await _serve(config, announce, loggers or DaemonLoggers(config.log_level), stopping, index_command)
        except* StartupError as failures:
            raise _first(failures) from None


async def _serve(
    config: Config,
    announce: Callable[[Listening], None],
    loggers: DaemonLoggers,
    stopping: asyncio.Event,
    index_command: Sequence[str],
) -> None:
    metrics = Metrics()
    opening, data = Opening(config.aggregation.default_timeout_s), DataOpening(config.aggregation.default_timeout_s)
    face = NodeApi(config, opening.readiness, loggers, metrics)
    face.mount()
    data_api = DataApi(data, config.api, config.data_api)
    evm = EvmApi(config, face.interfaces, data_api.access, metrics)
    api, page = _front_doors(config, opening, data_api, face, metrics)
    announce(Listening(api.url, page.url))
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(api.run())
        showing = tasks.create_task(page.run())
        checking = tasks.create_task(face.run())
        forwarding = tasks.create_task(evm.run(face.health, face.know_evm))
        working = tasks.create_task(_work(config, opening, data, (face, evm), metrics))
        if config.indexer.chains and index_command:
            tasks.create_task(_run_until(stopping, IndexSubprocess(index_command, config.indexer)))
        await stopping.wait()
        log.info("stopping", extra={"grace_period_s": config.api.grace_period_s})
        api.stop()
        await serving
        page.stop()
        await showing
        working.cancel()
        checking.cancel()
        forwarding.cancel()
    log.info("stopped")


def _front_doors(
    config: Config, opening: Opening, data_api: DataApi, face: NodeApi, metrics: Metrics
) -> tuple[HttpServer, HttpServer]:
    settings = config.api
    doors = AggregatorEndpoints(opening, settings, metrics)
    l1_door = L1MessageEndpoint(opening, settings, metrics, doors.in_flight)
    health = ProbeEndpoints(opening.readiness, opening.height_is_fresh, opening.background)
    mounted = ApiEndpoints(doors, l1_door, health, data_api)
    app = PathSwitch(face.interfaces, api_app(mounted, settings, metrics))
    api = HttpServer(app, settings.api_host, settings.api_port, settings)
    page = metrics_app(MetricsPage(metrics), settings, metrics)
    shown = HttpServer(page, settings.metrics_host, settings.metrics_port, settings)
    api.bind()
    shown.bind()
    return api, shown


async def _work(
    config: Config, opening: Opening, data: DataOpening, faces: tuple[NodeApi, EvmApi], metrics: Metrics
) -> None:
    # Loaded only now: the ports listen already, and whoever comes early waits.
    from warpseal.daemon.startup import start_services

    await start_services(config, opening, data, faces, metrics)


async def _run_until(stopping: asyncio.Event, child: IndexSubprocess) -> None:
    """Run a child process until the daemon stops: its end overlaps with that of the requests in flight."""
    running = asyncio.create_task(child.run())
    try:
        await stopping.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextmanager
def _signals(stopping: asyncio.Event) -> Iterator[None]:
    """Set `stopping` at the first SIGTERM or SIGINT; end the process at the second."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            _end_at_once()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _end_at_once() -> NoReturn:
    os._exit(_INTERRUPTED_EXIT_CODE)


def _first(failures: BaseExceptionGroup[StartupError]) -> StartupError:
    found = failures.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
