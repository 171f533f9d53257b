"""The process that fills the index of the P-Chain, beside the daemon that reads it."""

from __future__ import annotations

from collections.abc import Callable

from tests.world.simulation import Process, Simulation
from tests.world.threads import SimulatedExecutor
from warpseal.config.keys import Config
from warpseal.daemon.index_process import run_index
from warpseal.ops.logs.loggers import DaemonLoggers


class IndexProcess:
    """The index process, which its supervisor starts again.

    machine: name of the machine, whose links it shares with the daemon.
    build_config: returns the configuration that it shares with the daemon.
    started_at: when it started for the last time.
    """

    def __init__(
        self, simulation: Simulation, machine: str, build_config: Callable[[], Config]
    ) -> None:
        self._simulation = simulation
        self._machine = machine
        self._build_config = build_config
        self._process: Process | None = None
        self._starts = 0
        self.started_at = simulation.now

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start the process unless it runs."""
        if self.is_alive:
            return
        self._starts += 1
        self.started_at = self._simulation.now
        self._process = process = self._simulation.process(f"index {self._starts}", self._machine)
        process.start(self._run())

    def kill(self) -> None:
        """Kill the process, and the one that writes."""
        if self._process is not None and self._process.is_alive:
            self._simulation.reach("killed the index process")
            self._process.kill()

    async def _run(self) -> None:
        # A thread stands in for the process that writes.
        writer = SimulatedExecutor(1, "index")
        await run_index(self._build_config(), DaemonLoggers(), lambda _: None, writer)
