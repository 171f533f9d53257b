"""The world of a scenario while it runs: network, daemon and callers, and what they saw."""

from __future__ import annotations

import asyncio
import errno
import math
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from tests.disks.disk import Operation, SimulatedDisk
from tests.integration.daemon import build_config
from tests.world import install
from tests.world.http_client import HttpReply, listen, request
from tests.world.network import Address, Link
from tests.world.receiver import Receiver
from tests.world.records import Ask, Block, Ending, Reader
from tests.world.scenario import Action, Scenario
from tests.world.simulation import Process, Simulation
from warpseal.daemon.app import serve
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.node_behaviours import NodeBehaviour, parse_node_behaviour
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.values import SimMessage

TOKEN: Final = "the-token-of-the-operator"
AGGREGATE_PATH: Final = "/v1/signatureAggregator/fuji/aggregateSignatures"
_HONEST: Final = NodeBehaviour()
_NODE_FAILURES: Final = ("node_down", "node_outage", "node_lag", "cut_node", "slow_threads")
_ONE_WORD: Final = ("foreign-version", "foreign-upgrade")
_OWN_DELAY: Final = 0.0001, 0.0001
_AFTER_LAST_S: Final = 1.0
_RECOVERY_S: Final = 900.0
_REST_S: Final = 8.0
_RETRY_S: Final = 1.0


class Stage:
    """The processes of a world, and the records of what its callers saw.

    asks: each request of a caller with its answer.
    blocks: signing blocks with the times at which they were in force for sure.
    reader: what a reader of events saw, who keeps its cursor.
    """

    def __init__(self, simulation: Simulation, scenario: Scenario) -> None:
        self.simulation = simulation
        self.scenario = scenario
        self.folder = Path(tempfile.mkdtemp(prefix="world-", dir=_memory_folder()))
        self.disk = SimulatedDisk(self.folder) if scenario.setup.has_disk else None
        # Times of power cuts, and times at which the disk began to fail and was mended.
        self.power_cuts: list[float] = []
        self.disk_failures: list[tuple[float, float]] = []
        self.network: SimulatedNetwork
        self.daemon: Process | None = None
        self.daemons = 0
        self.api_url = ""
        self.asks: list[Ask] = []
        self.blocks: dict[int, list[Block]] = {}
        self.reader = Reader()
        self.receiver: Receiver | None = None
        self.last_failure_at = simulation.now
        # When the daemon that runs was started, killed or stopped for the last time.
        self.daemon_changed_at = simulation.now
        # Starts, kills and stops of daemons so far.
        self.daemon_changes = 0
        self.slowest_threads_s = scenario.setup.thread_ms / 1000
        # The words of validators that were not honest at some time.
        self.lied: dict[int, list[str]] = {}
        self.tasks_at_rest: list[str] = []
        # Whether too few honest nodes have answered at some time.
        self.has_node_failures = False
        # Signatures in the file of the store when the failures had ended.
        self.stored: set[bytes] = set()
        self.stored_at = math.inf
        self._is_stopping = False
        self._is_wanted = True
        self._ready = asyncio.Event()
        self._node_ports: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._unblocked_at: dict[int, float] = {}
        # Messages that the operator wanted to block at some time.
        self.blocked_places: set[int] = set()
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        """Let the scenario happen, then everything recover."""
        if self.disk is not None:
            self.disk.__enter__()
        await self._start_network()
        self._draw_links()
        self.do_start()
        supervising = asyncio.create_task(self._supervise())
        reading = asyncio.create_task(self._read_events())
        if self.receiver is not None:
            self._spawn(self._add_webhook(self.receiver))
        begin = self.simulation.now
        for action in self.scenario.actions:
            await asyncio.sleep(max(0.0, begin + action.at_s - self.simulation.now))
            self._act(action)
        await asyncio.sleep(_AFTER_LAST_S)
        await self._recover()
        await asyncio.gather(*self._tasks)
        # Before the messages are signed again, which would give the same signatures.
        self.stored_at, self.stored = self.simulation.now, self._stored_signatures()
        await self._until_rest()
        self.simulation.note("rest")
        for task in (reading, supervising):
            task.cancel()
        await asyncio.gather(reading, supervising, return_exceptions=True)

    def close(self) -> None:
        """End the disk, and remove the files of the world."""
        if self.disk is not None and self.disk in SimulatedDisk.installed:
            self.disk.__exit__(None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _act(self, action: Action) -> None:
        self.simulation.note(" ".join(str(action).split()[1:]))
        result = getattr(self, f"do_{action.name}")(*action.arguments)
        self.has_node_failures |= action.name in _NODE_FAILURES
        if action.name not in ("ask", "advance"):
            self.last_failure_at = self.simulation.now
            self.simulation.reach(f"action {action.name}")
        if isinstance(result, Coroutine):
            self._spawn(result)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.append(asyncio.create_task(work))

    # The network.

    async def _start_network(self) -> None:
        setup, simulation = self.scenario.setup, self.simulation
        l1s = []
        if setup.l1:
            weights = setup.l1.split("/")
            l1s.append(L1Plan(validators=len(weights), weights=setup.l1, spare=3))
        plan = Plan(
            validators=setup.validators,
            weights=setup.weights,
            l1s=tuple(l1s),
            seed=self.scenario.seed % 5,
            messages=setup.messages,
            nodes=setup.nodes,
        )
        started = asyncio.Event()

        async def run() -> None:
            async with SimulatedNetwork(plan) as self.network:
                simulation.on_driver(started.set)
                await asyncio.Event().wait()

        simulation.process("network").start(run())
        await started.wait()
        if setup.has_webhook and setup.has_store:
            self.receiver = Receiver(simulation)
            self.receiver.start()
        self._messages = [
            message
            for message in self.network.messages
            if not message.justification and any(message.unsigned.source_chain_id)
        ]

    def _draw_links(self) -> None:
        setup, rng = self.scenario.setup, self.simulation.rng
        validators = {
            validator.address.port for validator in self.network.validators if validator.address
        }

        def draw(process: Process, address: Address) -> Link:
            if process.name.startswith("daemon") and address[1] in validators:
                share = rng.uniform(0.2, 2.0)
                return Link(setup.delay_ms / 1000 * share, setup.jitter_ms / 1000)
            return Link(*_OWN_DELAY)

        self.simulation.network.draw_link = draw

    def message(self, place: int) -> SimMessage:
        """Return a message that validators sign without a justification."""
        return self._messages[place % len(self._messages)]

    def _links_to(self, port: int) -> list[Link]:
        network = self.simulation.network
        assert self.daemon is not None
        return [network.link(self.daemon, ("127.0.0.1", port))]

    def _validator_links(self, index: int) -> list[Link]:
        address = self.network.validators[index % len(self.network.validators)].address
        if address is None or self.daemon is None:
            return []
        return self._links_to(address.port)

    def do_behave(self, index: int, words: str) -> None:
        index %= len(self.network.validators)
        self.lied.setdefault(index, []).append(words)
        self.network.set_behaviour(index, words)

    def do_stop_validator(self, index: int) -> None:
        index %= len(self.network.validators)
        if index not in self._stopped:
            self._stopped.add(index)
            self._in_network(lambda: self.network.stop_validator(index))

    async def do_start_validator(self, index: int, moved: int) -> None:
        index %= len(self.network.validators)
        if index in self._stopped:
            self._stopped.discard(index)
            await self._network_call(self.network.start_validator(index, moved=bool(moved)))

    def do_disconnect(self, index: int) -> None:
        self._in_network(lambda: self.network.disconnect(index % len(self.network.validators)))

    async def do_cut_validator(self, index: int, seconds: float) -> None:
        await self._cut(self._validator_links(index), seconds)

    async def do_cut_node(self, place: int, seconds: float) -> None:
        await self._cut(self._links_to(self.network.nodes[place].port), seconds)

    async def _cut(self, links: list[Link], seconds: float) -> None:
        for link in links:
            link.is_cut = True
        await asyncio.sleep(seconds)
        for link in links:
            link.is_cut = False
        self.last_failure_at = self.simulation.now

    async def do_half_open(self, index: int, seconds: float) -> None:
        links = self._validator_links(index)
        for link in links:
            link.is_half_open = True
        await asyncio.sleep(seconds)
        for link in links:
            link.is_half_open = False
        self.last_failure_at = self.simulation.now

    async def do_node_down(self, place: int) -> None:
        node = self.network.nodes[place]
        if node.port and place not in self._node_ports:
            self._node_ports[place] = node.port
            await self._network_call(node.down())

    async def do_node_up(self, place: int) -> None:
        node = self.network.nodes[place]
        port = self._node_ports.pop(place, None)
        if port is not None:
            await self._network_call(node.start(port))
        self.last_failure_at = self.simulation.now

    def do_node_lie(self, place: int, words: str) -> None:
        """Let a node lie, unless the daemon has no way to know better."""
        nodes = self.network.nodes
        liars = {other for other, node in enumerate(nodes) if node.behaviour != _HONEST} | {place}
        if words.startswith(_ONE_WORD):
            # No one node's word stops signing, whatever `p-chain-quorum` is.
            is_outvoted = len(liars) == 1
        elif words.startswith("forged-proposal"):
            # A second node confirms a leap.
            is_outvoted = len(liars) == 1 and len(nodes) > 1
        else:
            is_outvoted = len(liars) < self.scenario.setup.node_quorum
        if not words or is_outvoted:
            nodes[place].behaviour = parse_node_behaviour(words)
            honest = len(nodes) - len(liars)
            self.has_node_failures |= bool(words) and honest < self.scenario.setup.node_quorum
        if words and is_outvoted:
            self.simulation.reach(f"node lies: {words}")

    def do_node_outage(self, place: int, kind: str, delay_s: float) -> None:
        outages = self.network.nodes[place].rpc.outages
        outages.clear()
        if kind:
            outages["*"] = Outage(OutageKind(kind), delay_s)

    def do_node_lag(self, place: int, blocks: int) -> None:
        self.network.nodes[place].lag = blocks

    def do_advance(self, blocks: int) -> None:
        self.network.advance(blocks)

    def _l1(self) -> Any:
        subnets = [s for s in self.network.subnets if s.subnet_id != PRIMARY_NETWORK]
        return subnets[0].subnet_id if subnets else None

    def _l1_member(self, place: int) -> int | None:
        l1 = self._l1()
        if l1 is None:
            return None
        validations = [v for v in self.network.state.validations[l1] if v.present]
        if len(validations) < 2:
            return None
        node_id = validations[place % len(validations)].node_id
        indices = {v.node_id: v.index for v in self.network.validators}
        return indices[node_id]

    def do_change_weight(self, place: int, weight: int) -> None:
        index = self._l1_member(place)
        if index is not None:
            self.network.change_weight(self._l1(), index, weight)

    def do_set_balance(self, place: int, balance: int) -> None:
        index = self._l1_member(place)
        if index is not None:
            self.network.set_balance(self._l1(), index, balance)

    def _in_network(self, call: Any) -> None:
        """Run a call of the simulated network in its own process."""
        process = next(p for p in self.simulation.processes if p.name == "network")
        process.loop.call_soon(call)

    async def _network_call(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the process of the network, and wait for it."""
        done = asyncio.Event()

        async def run() -> None:
            try:
                await work
            finally:
                self.simulation.on_driver(done.set)

        process = next(p for p in self.simulation.processes if p.name == "network")
        process.loop.call_soon(lambda: process.loop.create_task(run()))
        await done.wait()

    # The daemon.

    def do_start(self) -> None:
        if self.daemon is not None and self.daemon.is_alive:
            return
        setup, simulation = self.scenario.setup, self.simulation
        self.daemons += 1
        self._is_wanted = True
        if self.disk is not None:
            self.disk.restart()
        self._is_stopping = False
        self._ready.clear()
        self._on_daemon_change()
        self.daemon = daemon = simulation.process(f"daemon {self.daemons}")
        daemon.thread_delay_s = setup.thread_ms / 1000
        nodes = [
            {"base-url": f"http://127.0.0.1:{self._node_ports.get(place, node.port)}"}
            for place, node in enumerate(self.network.nodes)
        ]
        keys: dict[str, Any] = {
            "p-chain-api": nodes,
            "info-api": nodes,
            "p-chain-quorum": setup.node_quorum,
            "admin-token": TOKEN,
        }
        if not setup.has_store:
            keys["store-url"] = "off"
        if self.receiver is not None:
            keys["webhook-allowed-hosts"] = [self.receiver.host]
        config = build_config(self.network, self.folder, keys)
        config = replace(config, api=replace(config.api, grace_period_s=2.0))
        name = daemon.name

        def announce(api_url: str, metrics_url: str) -> None:
            def note() -> None:
                if self.daemon is not None and self.daemon.name == name:
                    self.api_url = api_url
                    self._ready.set()

            simulation.on_driver(note)

        daemon.start(serve(config, announce))

    def do_kill(self) -> None:
        if self.daemon is not None and self.daemon.is_alive:
            self._on_daemon_change()
            self._is_wanted = False
            self._ready.clear()
            if self.disk is not None:
                self.disk.kill()
            if any(ask.ending is Ending.NONE for ask in self.asks):
                self.simulation.reach("killed with a request in flight")
            self.daemon.kill()

    def do_terminate(self) -> None:
        if self.daemon is not None and self.daemon.is_alive:
            self._on_daemon_change()
            self._is_stopping = True
            self._is_wanted = False
            self.daemon.signal(signal.SIGTERM)

    def do_cut_power(self, seed: int, is_torn: int) -> None:
        """Cut the power of the daemon's machine."""
        if self.disk is None or self.daemon is None or not self.daemon.is_alive:
            return
        self.power_cuts.append(self.simulation.now)
        self.disk.lose_power(Random(seed), is_torn=bool(is_torn))
        self.do_kill()
        self.simulation.reach("power cut")
        # The machine starts again.
        boot = f"boot {len(self.power_cuts)}".encode()
        install.set_boot_id(boot)

    def do_fail_disk(self, kind: str, at: int, times: int) -> None:
        if self.disk is None or self.daemon is None or not self.daemon.is_alive:
            return
        error = errno.ENOSPC if kind == "full" else errno.EIO
        operation = Operation.WRITE if kind == "full" else Operation(kind)
        self.disk.fail(operation, at, error, times)
        self.disk_failures.append((self.simulation.now, math.inf))

    def do_mend_disk(self) -> None:
        if self.disk is not None and self.daemon is not None and self.daemon.is_alive:
            self.disk.restart()
        self.disk_failures = [
            (start, min(end, self.simulation.now)) for start, end in self.disk_failures
        ]

    async def _supervise(self) -> None:
        """Start a daemon that ended by itself again, as its supervisor does."""
        while True:
            await asyncio.sleep(_RETRY_S)
            if self._is_wanted and self.daemon is not None and not self.daemon.is_alive:
                self.simulation.reach("started again by the supervisor")
                self._ready.clear()
                self.do_start()

    def _on_daemon_change(self) -> None:
        self.daemon_changes += 1
        self.daemon_changed_at = self.simulation.now

    def do_set_clock(self, offset_s: float) -> None:
        if self.daemon is not None:
            self.daemon.clock_offset_s = offset_s

    def do_slow_threads(self, mean_ms: float) -> None:
        if self.daemon is not None:
            self.daemon.thread_delay_s = mean_ms / 1000
            self.slowest_threads_s = max(self.slowest_threads_s, mean_ms / 1000)

    # Callers.

    async def _add_webhook(self, receiver: Receiver) -> None:
        """Add the webhook as soon as a daemon answers."""
        while True:
            await self._ready.wait()
            reply = await self._administer("POST", "/v1/webhooks", {"url": receiver.url})
            if reply is not None and reply.status == 201:
                receiver.webhook_id = reply.body["id"]
                return
            await asyncio.sleep(_RETRY_S)

    def do_receive(self, kind: str) -> None:
        if self.receiver is not None:
            self.receiver.kind = kind

    def do_register(self, weight: int) -> None:
        l1 = self._l1()
        if l1 is None:
            return
        present = {v.node_id for v in self.network.state.validations[l1] if v.present}
        spare = [
            validator.index
            for validator in self.network.validators
            if l1 in validator.subnets and validator.node_id not in present
        ]
        if spare:
            self.network.p_chain.register(l1, spare[0], weight=weight)

    async def do_ask_tx(self, place: int, timeout_s: float) -> None:
        transactions = [t for t in self.network.p_chain.transactions if t.attested is not None]
        if not transactions:
            return
        transaction = transactions[-1 - place % len(transactions)]
        assert transaction.attested is not None
        ask = Ask(
            len(self.asks),
            -1,
            transaction.attested,
            0,
            timeout_s,
            self.simulation.now,
            is_of_tx=True,
        )
        path = f"{AGGREGATE_PATH}/{transaction.text}?timeoutSeconds={timeout_s}"
        await self._send_ask(ask, "GET", path, None, None)

    async def do_ask(
        self,
        place: int,
        quorum: int,
        quorum_buffer: int,
        timeout_s: float,
        leaves_after_s: float | None,
        form: str = "",
    ) -> None:
        place %= len(self._messages)
        message = self.message(place)
        ask = Ask(len(self.asks), place, message, quorum, timeout_s, self.simulation.now)
        body = {
            "message": message.unsigned.raw.hex(),
            "justification": message.justification.hex(),
            "quorumPercentage": quorum,
            "quorumPercentageBuffer": quorum_buffer,
            "timeoutSeconds": timeout_s,
        }
        if form == "pinned":
            ask.height = body["pChainHeight"] = self.network.state.heights.current
        elif form == "destination":
            body |= {"destinationBlockchainId": "C", "report": True}
        await self._send_ask(ask, "POST", AGGREGATE_PATH, body, leaves_after_s)

    async def _send_ask(
        self, ask: Ask, method: str, path: str, body: Any, leaves_after_s: float | None
    ) -> None:
        """Send a request, and record its answer."""
        self.asks.append(ask)
        ask.daemon_at_start = self.daemon_changes
        ask.had_daemon = self._ready.is_set() and not self._is_stopping
        try:
            async with asyncio.timeout(leaves_after_s):
                if not self._ready.is_set():
                    ask.ending = Ending.NO_CONNECTION
                    return
                reply = await request(method, self.api_url + path, body)
        except TimeoutError:
            ask.ending = Ending.LEFT
            self.simulation.reach("a caller left")
        except OSError as error:
            ask.ending, ask.detail = Ending.NO_CONNECTION, repr(error)
        else:
            ask.ending, ask.reply = Ending.REPLY, reply
            self.simulation.reach(f"answer {reply.status} {reply.code}")
        finally:
            ask.ended_at, ask.daemon_at_end = self.simulation.now, self.daemon_changes
            ask.last_height = self.network.state.heights.current
            self.simulation.note(f"ask {ask.number} of message {ask.place}: {ask.describe()}")

    async def do_block(self, place: int) -> None:
        place %= len(self._messages)
        message = self.message(place)
        fields = {
            "kind": "message-id",
            "value": "0x" + message.unsigned.id.hex(),
            "reason": "a bug of the bridge",
        }
        began_at = self.simulation.now
        self.blocked_places.add(place)
        reply = await self._administer("POST", "/v1/signing-blocks", fields)
        if reply is not None and reply.status == 201:
            # A removal that began in the meantime may have come first or last.
            if self._unblocked_at.get(place, 0.0) < began_at:
                self.blocks.setdefault(place, []).append(Block(self.simulation.now))
            self.simulation.reach("blocked")

    async def do_unblock(self, place: int) -> None:
        place %= len(self._messages)
        self._unblocked_at[place] = self.simulation.now
        for block in self.blocks.get(place, ()):
            block.until = min(block.until, self.simulation.now)
        message_id = "0x" + self.message(place).unsigned.id.hex()
        await self._administer("DELETE", f"/v1/signing-blocks/message-id/{message_id}")

    async def _administer(self, method: str, path: str, fields: Any = None) -> HttpReply | None:
        if not self._ready.is_set():
            return None
        headers = {"Authorization": f"Bearer {TOKEN}"}
        try:
            async with asyncio.timeout(60):
                return await request(method, self.api_url + path, fields, headers)
        except (OSError, TimeoutError):
            return None

    async def _read_events(self) -> None:
        """Read events for ever, and return with the cursor whenever the connection ends."""
        while self.scenario.setup.has_store:
            try:
                await self._ready.wait()
                after = f"?after={self.reader.cursor}" if self.reader.cursor else ""
                async for cursor, event in listen(self.api_url + "/v1/events" + after, {}):
                    if event is not None:
                        self.simulation.note(
                            f"event {cursor} {event['type']} {event.get('messageId')}"
                        )
                    self.reader.on_event(cursor, event, self.simulation.now)
            except OSError as error:
                self.simulation.note(f"reader of events: {error!r}")
            except ValueError as error:
                # The cursor expired, or the log cannot be read.
                self.simulation.note(f"reader of events: {error!r}")
                if "cursor_expired" in str(error):
                    self.reader.begin_again()
            await asyncio.sleep(_RETRY_S)

    # The end.

    async def _recover(self) -> None:
        """End all faults, and wait until the daemon is ready."""
        self.simulation.note("recovery begins")
        self.last_failure_at = self.simulation.now
        for index in range(len(self.network.validators)):
            self.network.set_behaviour(index, "")
            for link in self._validator_links(index):
                link.is_cut = link.is_half_open = False
        for place, node in enumerate(self.network.nodes):
            node.rpc.outages.clear()
            node.behaviour, node.lag = parse_node_behaviour(""), 0
            await self.do_node_up(place)
            for link in self._links_to(node.port):
                link.is_cut = link.is_half_open = False
        await asyncio.gather(*self._tasks)
        self._tasks.clear()
        self.do_receive("200")
        self.do_mend_disk()
        self._fund_validators()
        self.do_set_clock(0.0)
        self.do_slow_threads(0.2)
        self.do_start()
        for place in list(self.blocks):
            await self._ready.wait()
            await self.do_unblock(place)
        await self._until_ready()

    def _fund_validators(self) -> None:
        """Let the validators of the L1 that ran out of balance sign again."""
        l1 = self._l1()
        for validator in self.network.validators if l1 is not None else ():
            validations = self.network.state.validations[l1]
            if any(v.present and v.node_id == validator.node_id for v in validations):
                self.network.set_balance(l1, validator.index, 10**9)
        self.network.advance(1)

    async def _until_ready(self) -> None:
        give_up_at = self.simulation.now + _RECOVERY_S
        reply: HttpReply | None = None
        while self.simulation.now < give_up_at:
            self.do_start()
            if self._ready.is_set():
                try:
                    async with asyncio.timeout(30):
                        reply = await request("GET", self.api_url + "/ready")
                    if reply.status == 200:
                        return
                except (OSError, TimeoutError):
                    pass
            await asyncio.sleep(_RETRY_S)
        raise AssertionError(f"the daemon does not become ready again: {reply}")

    async def _until_rest(self) -> None:
        """Ask for each message again, and wait until the daemon has nothing to do."""
        places = {ask.place for ask in self.asks if not ask.is_of_tx} | set(self.blocks)
        for place in sorted(places):
            await self.do_ask(place, 0, 0, 30.0, None)
        if self.receiver is not None:
            # A receiver that failed is tried again at once after a test.
            await self._administer("POST", f"/v1/webhooks/{self.receiver.webhook_id}:test")
        await asyncio.sleep(_REST_S)
        assert self.daemon is not None
        loop = self.daemon.loop
        self.tasks_at_rest = [task.get_name() for task in loop.tasks if not task.done()]

    def _stored_signatures(self) -> set[bytes]:
        """Return the signatures in the file of the store."""
        stored: set[bytes] = set()
        for file in self.folder.rglob("store.db"):
            with closing(sqlite3.connect(file)) as connection:
                stored.update(
                    row[0] for row in connection.execute("SELECT signature FROM signatures")
                )
        return stored

    def signed_before_reading(self) -> set[int]:
        """Return the messages that may have been signed before the reader of events began."""
        began_at = self.reader.began_at
        return {ask.place for ask in self.asks if ask.started_at <= began_at}


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
