"""The world of a scenario while it runs: network, daemons and callers."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.world.announcements import STOP_S, Announcements
from tests.world.callers import Callers
from tests.world.cluster import running_cluster
from tests.world.containers import measure
from tests.world.daemon import SimulatedDaemon
from tests.world.http_client import HttpReply, request
from tests.world.network import Address, Link
from tests.world.network_process import NetworkProcess
from tests.world.periods import INDEX_RETRY_S, SLOW_JOBS
from tests.world.records import Ask, Ending
from tests.world.scenario import Action, Scenario
from tests.world.server import ADDRESS, DatabaseServer
from tests.world.simulation import Process, Simulation

_OWN_DELAY: Final = 0.0001, 0.0001
_AFTER_LAST_S: Final = 1.0
_RECOVERY_S: Final = 900.0
_REST_S: Final = 8.0
_RETRY_S: Final = 1.0
_HEIGHT_S: Final = 5.0
_NEW_MESSAGE: Final = 28
_LAST_TRANSACTIONS: Final = 3
_BLOCKS_READ_S: Final = 2.0


class Stage:
    """The processes of a world.

    tasks_at_rest: names of the tasks of each daemon when its callers had left; sizes_at_rest: sizes
        of its containers then.
    stored: signatures in the store when the failures had ended, at `stored_at`.
    """

    def __init__(self, simulation: Simulation, scenario: Scenario) -> None:
        self.simulation = simulation
        self.scenario = scenario
        self.folder = Path(tempfile.mkdtemp(prefix="world-", dir=_memory_folder()))
        self.network = NetworkProcess(simulation, scenario)
        self.callers = Callers(simulation, self.network)
        self.announcements = Announcements(simulation, self.network, scenario.setup)
        self.daemons = [
            SimulatedDaemon(simulation, scenario.setup, self.network, self.folder, place)
            for place in range(scenario.setup.daemons)
        ]
        self.tasks_at_rest: list[list[str]] = []
        self.connections_at_rest: list[int] = []
        self.sizes_at_rest: list[dict[str, int]] = []
        self.stored: set[bytes] = set()
        self.stored_at = math.inf
        self._tasks: list[asyncio.Task[Any]] = []
        # Times at which the server of the store was away.
        self._server_failures: list[tuple[float, float]] = []
        if scenario.setup.has_server:
            simulation.server = DatabaseServer(simulation, running_cluster())

    def daemon_of(self, ask: Ask) -> SimulatedDaemon:
        """Return the daemon that a caller has asked."""
        return next(daemon for daemon in self.daemons if daemon.letter == ask.daemon)

    @property
    def power_cuts(self) -> list[float]:
        """Times of power cuts."""
        return [cut for daemon in self.daemons for cut in daemon.power_cuts]

    @property
    def store_failures(self) -> list[tuple[float, float]]:
        """Times at which the store began to fail, and was well again."""
        failures = [failure for daemon in self.daemons for failure in daemon.store_failures]
        if self.simulation.server is not None:
            failures += [(lost_at, lost_at) for lost_at in self.simulation.server.lost_at]
        return failures + self._server_failures

    async def run(self) -> None:
        """Let the scenario happen, then everything recover."""
        await self.network.start()
        self._draw_links()
        for daemon in self.daemons:
            daemon.do_start()
        endless = [asyncio.create_task(daemon.supervise()) for daemon in self.daemons]
        if self.scenario.setup.has_store:
            endless.append(asyncio.create_task(self.callers.read_events(self.daemons)))
        adding = []
        if self.network.receiver is not None:
            # It may end only when the daemon runs again.
            adding.append(asyncio.create_task(self.callers.add_webhook(self.daemons[0])))
        begin = self.simulation.now
        for action in self.scenario.actions:
            await asyncio.sleep(max(0.0, begin + action.at_s - self.simulation.now))
            self._act(action)
        await asyncio.sleep(_AFTER_LAST_S)
        await self._recover()
        await asyncio.gather(*self._tasks, *adding)
        self.network.count_effects()
        # What waited in memory is written, also by slow threads.
        now = self.simulation.now
        slow_s = max(daemon.thread_delays.longest(now - 60, now) for daemon in self.daemons)
        await asyncio.sleep(_AFTER_LAST_S + SLOW_JOBS * slow_s)
        # Before the messages are signed again, which would give the same signatures.
        self.stored_at, self.stored = self.simulation.now, self._stored_signatures()
        await self._until_rest()
        if self.network.fork_unix_s is not None or self.network.has_stopped_index:
            await self.announcements.read_at_rest(self.daemons)
            self.network.count_effects_of_upgrade()
        self.simulation.note("rest")
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

    def close(self) -> None:
        """End the disks, and remove the files of the world."""
        if self.simulation.server is not None:
            self.simulation.server.close()
        for daemon in self.daemons:
            daemon.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _draw_links(self) -> None:
        setup, rng = self.scenario.setup, self.simulation.rng
        validators = self.network.validator_ports()

        def draw(process: Process, address: Address) -> Link:
            if address == ADDRESS:
                return Link(setup.server_ms / 2000, setup.server_ms / 2000)
            if process.name.startswith("daemon") and address[1] in validators:
                share = rng.uniform(0.2, 2.0)
                return Link(setup.delay_ms / 1000 * share, setup.jitter_ms / 1000)
            return Link(*_OWN_DELAY)

        self.simulation.network.draw_link = draw

    def _act(self, action: Action) -> None:
        self.simulation.note(" ".join(str(action).split()[1:]))
        if action.name in ("kill", "cut_power"):
            self._note_kill(self.daemons[action.daemon])
        result = self._method(action)(*action.arguments)
        if action.name not in ("ask", "advance", "read_announcements"):
            self.simulation.note_failure()
        if isinstance(result, Coroutine):
            self._spawn(result)

    def _method(self, action: Action) -> Callable[..., Any]:
        """Return the method that does an action."""
        name, daemon = f"do_{action.name}", self.daemons[action.daemon]
        if hasattr(self.callers, name):
            return partial(getattr(self.callers, name), daemon)
        owner = next(part for part in (daemon, self.network, self) if hasattr(part, name))
        method: Callable[..., Any] = getattr(owner, name)
        return method

    async def do_read_announcements(self) -> None:
        """Read what the daemons say of an upgrade."""
        if not self.network.has_stopped_index:
            await self.announcements.read_before(self.daemons)

    async def do_future_transaction(self) -> None:
        """Accept a transaction of a new type, and read before and after what the daemons say."""
        if not self.network.may_have_future_transactions:
            return
        await self.do_read_announcements()
        self.network.accept_future_transaction()
        await asyncio.sleep(STOP_S)
        await self.announcements.read_after(self.daemons)

    async def do_server_away(self, seconds: float) -> None:
        """Let the server of the store end all connections and take none for a while."""
        server = self.simulation.server
        assert server is not None
        self._server_failures.append((self.simulation.now, self.simulation.now + seconds))
        server.go_away()
        await asyncio.sleep(seconds)
        server.come_back()
        self.simulation.note_failure()

    async def do_kill_leader(self, seconds: float) -> None:
        """Kill the daemon that leads, and start it again later."""
        leader = self._leader()
        if leader is not None:
            self.simulation.reach("server: leader killed")
            self._note_kill(leader)
            leader.do_kill()
            await asyncio.sleep(seconds)
            leader.do_start()

    async def do_cut_leader(self, seconds: float) -> None:
        """Cut the link between the daemon that leads and the server."""
        leader = self._leader()
        if leader is not None:
            self.simulation.reach("server: leader cut off")
            await leader.do_cut_server(seconds)

    def _leader(self) -> SimulatedDaemon | None:
        process = self.simulation.leases.holder("p-chain")
        leaders = [daemon for daemon in self.daemons if daemon.process is process]
        return leaders[0] if process is not None else None

    def _note_kill(self, daemon: SimulatedDaemon) -> None:
        asks = [ask for ask in self.callers.asks if ask.daemon == daemon.letter]
        if daemon.is_alive and any(ask.ending is Ending.NONE for ask in asks):
            self.simulation.reach("killed with a request in flight")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.append(asyncio.create_task(work))

    # The end.

    async def _recover(self) -> None:
        """End all faults, and wait until the daemons are ready."""
        self.simulation.note("recovery begins")
        self.simulation.note_failure()
        await self.network.recover()
        for daemon in self.daemons:
            daemon.mend_links()
        await asyncio.gather(*self._tasks)
        self._tasks.clear()
        self.network.do_receive("200")
        self.network.fund_validators()
        # The daemons read the height at which they can sign.
        await asyncio.sleep(_HEIGHT_S)
        for daemon in self.daemons:
            daemon.recover()
        for daemon in self.daemons:
            await self._until_ready(daemon)
        await self._until_indexed()
        if self.scenario.setup.has_store:
            await self.callers.unblock_all(self.daemons[0])
        if len(self.daemons) > 1:
            # The other one reads the blocks once a second.
            await asyncio.sleep(_BLOCKS_READ_S)

    async def _until_indexed(self) -> None:
        """Wait for the process that indexes if a reply that it awaits may not come."""
        now = self.simulation.now
        has_awaited = self.network.has_node_failure(now - INDEX_RETRY_S, now)
        if has_awaited and self.scenario.setup.set_source == "index" and not self.has_old_sets:
            await asyncio.sleep(INDEX_RETRY_S)

    @property
    def has_old_sets(self) -> bool:
        """Whether sets come from an index alone, which has stopped."""
        return self.network.has_stopped_index and self.scenario.setup.set_source == "index"

    async def _until_ready(self, daemon: SimulatedDaemon) -> None:
        give_up_at = self.simulation.now + _RECOVERY_S
        reply: HttpReply | None = None
        while self.simulation.now < give_up_at:
            daemon.do_start()
            if daemon.ready.is_set():
                try:
                    async with asyncio.timeout(30):
                        reply = await request("GET", daemon.api_url + "/ready")
                    # An L1 may lack its quorum in the last set that the index has.
                    reasons = reply.body.get("faults", [])
                    has_old_l1 = reasons and all(text.startswith("subnet ") for text in reasons)
                    is_ready = reply.status == 200 or (self.has_old_sets and has_old_l1)
                    if is_ready and reply.body.get("store", {}).get("up", True):
                        return
                except (OSError, TimeoutError):
                    pass
            await asyncio.sleep(_RETRY_S)
        raise AssertionError(f"the daemon does not become ready again: {reply}")

    async def _until_rest(self) -> None:
        """Ask for each message again, and for some of the L1; wait until the daemons are idle."""
        asks = self.callers.asks
        places = {ask.place for ask in asks if not ask.is_of_tx} | set(self.callers.blocks)
        if self.simulation.server is not None:
            # A new signature, and so an event that the leader of now sends to the receiver.
            places.add(self.network.message_place(_NEW_MESSAGE))
        places |= self.network.l1_places()
        for place in sorted(places):
            daemon = self.daemons[place % len(self.daemons)]
            await self.callers.do_ask(daemon, place, 0, 0, 30.0, None)
        for place in range(_LAST_TRANSACTIONS):
            await self.callers.do_ask_tx(self.daemons[place % len(self.daemons)], place, 30.0)
        await self.callers.test_webhook(self.daemons[0])
        await asyncio.sleep(_REST_S)
        for daemon in self.daemons:
            assert daemon.process is not None
            tasks = daemon.process.loop.tasks
            self.tasks_at_rest.append([task.get_name() for task in tasks if not task.done()])
            transports = self.simulation.network.transports
            connections = sum(transport.process is daemon.process for transport in transports)
            self.connections_at_rest.append(connections)
            self.sizes_at_rest.append(measure(daemon.process))

    def _stored_signatures(self) -> set[bytes]:
        server = self.simulation.server
        if server is not None:
            return server.stored_signatures()
        return self.daemons[0].stored_signatures()


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
