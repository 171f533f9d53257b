"""A daemon of a world, and its machine: its folder, its disk, its clock, and its links."""

from __future__ import annotations

import asyncio
import errno
import math
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from tests.disks.disk import Operation, SimulatedDisk
from tests.integration.daemon import build_config
from tests.world import install
from tests.world.index_process import IndexProcess
from tests.world.network import Link
from tests.world.network_process import NetworkProcess
from tests.world.periods import Delays, Disturbances
from tests.world.scenario import Setup
from tests.world.server import ADDRESS, CONNECTION_LIFE_S, URL, Loss
from tests.world.simulation import Process, Simulation
from warpseal.config.keys import Config
from warpseal.daemon.app import serve

TOKEN: Final = "the-token-of-the-operator"
_LETTERS: Final = "ab"
_RETRY_S: Final = 1.0
_START_S: Final = 1.0
_CLOCK_TOLERANCE_S: Final = 50.0


class SimulatedDaemon:
    """A daemon that starts, ends and starts again; a method `do_x` is the action `x` of a scenario.

    process: the one that runs, or ran last.
    ready: whether it can be asked at `api_url`.
    letter: its name.
    is_stopping: whether it has had a signal to stop.
    thread_delays: mean time for which a job waits for its thread.
    power_cuts: times of power cuts.
    store_failures: times at which the disk or the server of the store failed.
    wrong_clocks: when its clock was so wrong that peers refuse it, until they are connected again.
    clock_offset_s: by how much its clock is ahead.
    clock_ahead_s: by how much its clock was ahead at most.
    """

    def __init__(
        self,
        simulation: Simulation,
        setup: Setup,
        network: NetworkProcess,
        folder: Path,
        place: int,
    ) -> None:
        self._simulation = simulation
        self._setup = setup
        self._network = network
        self._folder = folder / _LETTERS[place]
        self.letter = _LETTERS[place]
        self._machine = f"machine {self.letter}"
        self.process: Process | None = None
        self.ready = asyncio.Event()
        self.api_url = ""
        self._changed_at = [simulation.now]
        self.is_stopping = False
        self.thread_delays = Delays(setup.thread_ms / 1000)
        self.power_cuts: list[float] = []
        self.store_failures: list[tuple[float, float]] = []
        self.wrong_clocks = Disturbances()
        self.clock_ahead_s = 0.0
        self._starts = 0
        self._started_at = simulation.now
        self._is_wanted = True
        self.clock_offset_s = 0.0
        self._index: IndexProcess | None = None
        if setup.set_source:
            self._index = IndexProcess(simulation, self._machine, self._build_config)
        self._disk = SimulatedDisk(self._folder) if setup.has_disk else None
        if self._disk is not None:
            self._disk.__enter__()
        # The kind of operations that fail, and the number of those that did.
        self._disk_failure = ""
        self._disk_failures = 0

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_alive

    def close(self) -> None:
        """End its disk."""
        if self._disk is not None and self._disk in SimulatedDisk.installed:
            self._disk.__exit__(None)

    async def supervise(self) -> None:
        """Start it again for ever when it ended by itself, as its supervisor does."""
        while True:
            if self._index is not None:
                self._index.start()
            await asyncio.sleep(_RETRY_S)
            if self._is_wanted and self.process is not None and not self.is_alive:
                self._simulation.reach("started again by the supervisor")
                self.ready.clear()
                self.do_start()

    def mend_links(self) -> None:
        """End all faults of its links."""
        for index in range(len(self._network.simulated.validators)):
            self._mend(self._validator_links(index))
        for place in range(len(self._network.simulated.nodes)):
            self._mend(self._links_to(self._network.node_port(place)))
        self._mend(self._links_to(ADDRESS[1]))

    def recover(self) -> None:
        """End all faults of its machine, and let it run."""
        self.do_mend_disk()
        self.do_set_clock(0.0)
        self.do_slow_threads(0.2)
        self.do_start()

    def stored_signatures(self) -> set[bytes]:
        """Return the signatures in the file of its store."""
        stored: set[bytes] = set()
        for file in self._folder.rglob("store.db"):
            with closing(sqlite3.connect(file)) as connection:
                rows = connection.execute("SELECT signature FROM signatures")
                stored.update(signature for (signature,) in rows)
        return stored

    # Its process.

    def do_start(self) -> None:
        if self.is_alive:
            # One that is stopping is started by its supervisor when it has ended.
            self._is_wanted = True
            return
        setup, simulation = self._setup, self._simulation
        self._starts += 1
        self._started_at = simulation.now
        self._is_wanted = True
        if self._disk is not None:
            self._disk.restart()
        self.is_stopping = False
        self.ready.clear()
        self._on_change()
        self._network.note_start_of_daemon(self.letter)
        self.process = process = simulation.process(
            f"daemon {self.letter}{self._starts}", self._machine
        )
        process.clock_offset_s = self.clock_offset_s
        process.thread_delay_s = setup.thread_ms / 1000
        self.thread_delays.change(process.thread_delay_s, simulation.now)

        def announce(api_url: str, metrics_url: str) -> None:
            simulation.on_driver(lambda: self._on_ready(process, api_url))

        process.start(serve(self._build_config(), announce))

    def _build_config(self) -> Config:
        """Return the configuration of the daemon and of its index process."""
        nodes = [
            {"base-url": f"http://127.0.0.1:{self._network.node_port(place)}"}
            for place in range(len(self._network.simulated.nodes))
        ]
        keys: dict[str, Any] = {
            "p-chain-api": nodes,
            "info-api": nodes,
            "p-chain-quorum": self._setup.node_quorum,
            "admin-token": TOKEN,
        }
        if self._setup.has_server:
            keys["store-url"] = URL
            if self._setup.has_usage:
                keys |= {"metrics-db-url": URL, "usage-enabled": True}
        elif not self._setup.has_store:
            keys["store-url"] = "off"
        if self._network.receiver is not None:
            keys["webhook-allowed-hosts"] = [self._network.receiver.host]
        if self._setup.set_source:
            self._folder.mkdir(exist_ok=True)
            genesis_file = self._folder / "genesis"
            genesis_file.write_bytes(self._network.simulated.state.ledger.genesis)
            keys |= {
                "index-chains": ["p"],
                "genesis-file": str(genesis_file),
            }
            if self._setup.set_source != "default":
                keys["validator-sets"] = self._setup.set_source
        config = build_config(self._network.simulated, self._folder, keys)
        return replace(config, api=replace(config.api, grace_period_s=2.0))

    @property
    def index_age_s(self) -> float:
        """Return for how long the index process has run."""
        started_at = self._index.started_at if self._index is not None else 0.0
        return self._simulation.now - started_at

    def do_kill_index(self) -> None:
        if self._index is not None:
            self._index.kill()

    def _on_ready(self, process: Process, api_url: str) -> None:
        if process is self.process:
            self.api_url = api_url
            self.ready.set()

    def do_kill(self) -> None:
        if self.process is not None and self.process.is_alive:
            self._reach("killed")
            self._on_change()
            self._is_wanted = False
            self.ready.clear()
            if self._disk is not None:
                self._disk.kill()
            self.process.kill()

    def do_terminate(self) -> None:
        if self.process is not None and self.process.is_alive:
            self._reach("stopped")
            self._on_change()
            self.is_stopping = True
            self._is_wanted = False
            self.process.signal(signal.SIGTERM)

    def _reach(self, ending: str) -> None:
        """Count an end of the process, which may have started a moment before."""
        is_new = self._simulation.now - self._started_at < _START_S
        self._simulation.reach(f"{ending} in the first second of a start" if is_new else ending)

    def _on_change(self) -> None:
        self._changed_at.append(self._simulation.now)

    @property
    def changes(self) -> int:
        """How often it was started, killed or stopped."""
        return len(self._changed_at) - 1

    @property
    def changed_at(self) -> float:
        """When it was started, killed or stopped for the last time."""
        return self._changed_at[-1]

    def changes_at(self, time: float) -> int:
        """Return how often it had been started, killed or stopped at a time."""
        return sum(changed_at <= time for changed_at in self._changed_at) - 1

    # Its machine.

    def do_cut_power(self, seed: int, is_torn: int) -> None:
        """Cut the power of the machine."""
        if self._disk is None or not self.is_alive:
            return
        self.power_cuts.append(self._simulation.now)
        self._disk.lose_power(Random(seed), is_torn=bool(is_torn))
        self.do_kill()
        self._simulation.reach("power cut")
        # The machine starts again.
        install.set_boot_id(f"boot {len(self.power_cuts)}".encode())

    def do_fail_disk(self, kind: str, at: int, times: int) -> None:
        if self._disk is None or not self.is_alive:
            return
        error = errno.ENOSPC if kind == "full" else errno.EIO
        operation = Operation.WRITE if kind == "full" else Operation(kind)
        self._count_disk_failures()
        self._disk_failure = kind
        self._disk.fail(operation, at, error, times)
        self.store_failures.append((self._simulation.now, math.inf))

    def do_mend_disk(self) -> None:
        self._count_disk_failures()
        if self._disk is not None and self.is_alive:
            self._disk.restart()
        self.store_failures = [
            (start, min(end, self._simulation.now)) for start, end in self.store_failures
        ]

    def _count_disk_failures(self) -> None:
        """Count the operations that have failed since the last time."""
        if self._disk is not None and self._disk.failures > self._disk_failures:
            count = self._disk.failures - self._disk_failures
            self._simulation.reach(f"disk: {self._disk_failure} failed", count)
            self._disk_failures = self._disk.failures

    def do_set_clock(self, offset_s: float) -> None:
        self.clock_offset_s = offset_s
        if self.process is not None:
            self.process.clock_offset_s = offset_s
            if abs(offset_s) > _CLOCK_TOLERANCE_S:
                self.wrong_clocks.begin("clock", self._simulation.now)
            else:
                self.wrong_clocks.end("clock", self._simulation.now)
            self.clock_ahead_s = max(self.clock_ahead_s, offset_s)

    def do_slow_threads(self, mean_ms: float) -> None:
        if self.process is not None:
            self.process.thread_delay_s = mean_ms / 1000
            self.thread_delays.change(mean_ms / 1000, self._simulation.now)

    # Its links.

    async def do_cut_validator(self, index: int, seconds: float) -> None:
        changes, cause = self.changes, f"cut {self.letter} {self._simulation.now}"
        self._network.begin_disturbance(index, cause)
        await self._cut(self._validator_links(index), seconds)
        # A validator refuses a second connection while it does not know that the first one ended.
        self._network.end_disturbance(index, cause, is_noticed=changes == self.changes)

    async def do_cut_node(self, place: int, seconds: float) -> None:
        cause = f"cut {self.letter} {self._simulation.now}"
        self._network.begin_node_failure(place, cause)
        await self._cut(self._links_to(self._network.simulated.nodes[place].port), seconds)
        self._network.end_node_failure(place, cause)

    async def do_half_open(self, index: int, seconds: float) -> None:
        cause = f"half-open {self.letter} {self._simulation.now}"
        self._network.begin_disturbance(index, cause)
        links = self._validator_links(index)
        for link in links:
            link.is_half_open = True
        await asyncio.sleep(seconds)
        for link in links:
            link.is_half_open = False
        self._network.end_disturbance(index, cause, is_noticed=False)
        self._simulation.note_failure()

    async def do_cut_server(self, seconds: float) -> None:
        """Cut the link to the server of the store; its connections end after some seconds."""
        links = self._links_to(ADDRESS[1])
        for link in links:
            link.is_cut = True
        began_at = self._simulation.now
        self.store_failures.append((began_at, began_at + seconds))
        await asyncio.sleep(min(seconds, CONNECTION_LIFE_S))
        if seconds > CONNECTION_LIFE_S:
            assert self._simulation.server is not None
            for process in self._simulation.processes:
                if process.machine == self._machine:
                    self._simulation.server.break_connections(process)
            await asyncio.sleep(seconds - CONNECTION_LIFE_S)
        self._mend(links)
        self._simulation.note_failure()

    def do_lose_message(self, loss: str, at: int) -> None:
        """Lose a request to the server of the store, or a reply."""
        if self.process is not None and self._simulation.server is not None:
            self._simulation.server.lose(self.process, Loss(loss), at)

    async def _cut(self, links: list[Link], seconds: float) -> None:
        for link in links:
            link.is_cut = True
        await asyncio.sleep(seconds)
        for link in links:
            link.is_cut = False
        self._simulation.note_failure()

    def _mend(self, links: list[Link]) -> None:
        for link in links:
            link.is_cut = link.is_half_open = False

    def _validator_links(self, index: int) -> list[Link]:
        port = self._network.validator_port(index)
        return [] if port is None else self._links_to(port)

    def _links_to(self, port: int) -> list[Link]:
        if self.process is None:
            return []
        return [self._simulation.network.link(self.process, ("127.0.0.1", port))]
