"""The process of the simulated network: validators, nodes, their chain, a receiver of webhooks."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final

from tests.world.periods import Disturbances, Periods
from tests.world.receiver import Receiver
from tests.world.scenario import Scenario
from tests.world.simulation import Process, Simulation
from warpseal.protocol.limits import SILENCE_TIMEOUT_S
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.behaviours import ListenMode
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.node_behaviours import NodeBehaviour, parse_node_behaviour
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.validator_sets import SetEntry
from warpseal_simnet.values import ChainKind, SimMessage, SimValidator
from warpseal_simnet.versions import DEPRECATED_METHODS, Release
from warpseal_simnet.violations import ViolationKind

_HONEST: Final = NodeBehaviour()
_NEXT: Final = Release((1, 16, 0), (1, 15, 0), "igloo", (1, 16, 0))
_MIN_BLOCK_S: Final = 1.0
# A validator hangs up at its next ping, and permits no second dial for 10 s after a refused one.
_REFUSED_START_S: Final = 15.0
_REFUSED_S: Final = 22.5 + _REFUSED_START_S
_SET_LIES: Final = ("old-sets=2", "foreign-sets")
_INDEXED: Final = ("index", "default")
_FAR_S: Final = 0.1
_LISTENING: Final = (ListenMode.OPEN, ListenMode.MUTE)
_ONE_WORD: Final = ("foreign-version", "foreign-upgrade")
# The daemon reads the set with a new validator, and peers send the address of it.
_DISCOVERY_S: Final = 10.0
_RETRY_S: Final = 1.0
# A side that does not know that its connection is lost misses a pong.
_UNNOTICED_S: Final = SILENCE_TIMEOUT_S


class NetworkProcess:
    """The network while it runs; a method `do_x` is the action `x` of a scenario.

    simulated: the network itself.
    lies: when each validator was not honest.
    disturbances: when each validator could not sign, or not be reached.
    last_block_at: when the P-Chain got its last block.
    set_lies_since: when nodes began to give other sets than those of the index.
    has_stopped_index: whether the index has stopped at a transaction that it does not know.
    fork_at: when the time of the upgrade has come.
    third_upgraded_at: when more than a third of the stake ran the next release.
    nodes_upgraded_at: when all nodes ran it.
    first_future_height: height of the first transaction that the daemon does not know, 0 without
        any.
    keyless_since: when some weight of a set began to have no key.
    """

    def __init__(self, simulation: Simulation, scenario: Scenario) -> None:
        self._simulation = simulation
        self._scenario = scenario
        self._process: Process
        self.simulated: SimulatedNetwork
        self.receiver: Receiver | None = None
        self.lies: defaultdict[int, Periods] = defaultdict(Periods)
        self.disturbances: defaultdict[int, Disturbances] = defaultdict(Disturbances)
        self.last_block_at = simulation.now
        self.set_lies_since = math.inf
        self.has_stopped_index = False
        self.fork_at = math.inf
        self.third_upgraded_at = math.inf
        self.nodes_upgraded_at = math.inf
        self.first_future_height = 0
        self.keyless_since = math.inf
        # Words of what nodes have said.
        self._node_words: dict[NodeBehaviour, str] = {}
        # When each node did not answer, or not with what it should know; and when it lied.
        self._node_failures = [Periods() for _ in range(scenario.setup.nodes)]
        self._node_lies = [Periods() for _ in range(scenario.setup.nodes)]
        self._messages: list[SimMessage]
        self._stopped: set[int] = set()
        # Ports of the nodes that are down.
        self._node_ports: dict[int, int] = {}
        # A node that is still closing its connections does not start again yet.
        self._node_locks = [asyncio.Lock() for _ in range(scenario.setup.nodes)]

    async def start(self) -> None:
        """Start the network and the receiver."""
        setup, simulation = self._scenario.setup, self._simulation
        l1s = []
        if setup.l1:
            weights = setup.l1.split("/")
            l1s.append(L1Plan(validators=len(weights), weights=setup.l1, spare=3))
        plan = Plan(
            validators=setup.validators,
            weights=setup.weights,
            l1s=tuple(l1s),
            seed=self._scenario.seed % 5,
            messages=setup.messages,
            nodes=setup.nodes,
            epoch_blocks=setup.epoch_blocks,
            epoch_s=setup.epoch_s,
            rules=tuple(map(parse_rule, setup.fixed.split())),
        )
        started = asyncio.Event()

        async def run() -> None:
            async with SimulatedNetwork(plan) as self.simulated:
                simulation.on_driver(started.set)
                await asyncio.Event().wait()

        self._process = simulation.process("network")
        self._process.start(run())
        await started.wait()
        for validator in self.simulated.validators:
            behaviour = validator.behaviour
            if behaviour.has_fixed_fields and behaviour.leaves_at is None:
                self.begin_disturbance(validator.index, "fixed")
                if behaviour.keyless or behaviour.balance_navax is not None:
                    self.keyless_since = simulation.now
        if setup.has_webhook and setup.has_store:
            self.receiver = Receiver(simulation)
            self.receiver.start()
        self._messages = [
            message
            for message in self.simulated.messages
            if not message.justification and any(message.unsigned.source_chain_id)
        ]

    def message(self, place: int) -> SimMessage:
        """Return a message that validators sign without a justification."""
        return self._messages[self.message_place(place)]

    def message_place(self, place: int) -> int:
        """Return the place of a message among those that there are."""
        return place % len(self._messages)

    def l1_places(self) -> set[int]:
        """Return the place of the last message that the L1 signs, if there is an L1."""
        l1 = self._l1()
        places = [
            place
            for place, message in enumerate(self._messages)
            if l1 is not None and message.signing_subnet_id == l1
        ]
        return set(places[-1:])

    def validator_ports(self) -> set[int]:
        """Return the ports of all validators that listen."""
        validators = self.simulated.validators
        return {validator.address.port for validator in validators if validator.address}

    def validator_port(self, index: int) -> int | None:
        """Return the port of a validator; None if it does not listen."""
        address = self.simulated.validators[index % len(self.simulated.validators)].address
        return address.port if address is not None else None

    def node_port(self, place: int) -> int:
        """Return the port of a node, also of one that is down."""
        return self._node_ports.get(place, self.simulated.nodes[place].port)

    async def recover(self) -> None:
        """End all faults of validators and nodes."""
        for index in range(len(self.simulated.validators)):
            self.do_behave(index, "")
        for place in range(len(self.simulated.nodes)):
            self.do_node_outage(place, "", 0.0)
            self.do_node_lag(place, 0)
            self.do_node_lie(place, "")
            await self.do_node_up(place)
        await self._open_validators()
        await self._end_upgrade()

    async def _open_validators(self) -> None:
        """Let the validators that cannot be reached listen, each at a new address."""
        for validator in self.simulated.validators:
            if validator.behaviour.reach is not ListenMode.OPEN:
                self.simulated.stop_validator(validator.index)
                validator.behaviour = replace(validator.behaviour, reach=ListenMode.OPEN)
                await self._call(self.simulated.start_validator(validator.index, moved=True))

    def fund_validators(self) -> None:
        """Let the validators of the L1 that ran out of balance sign again."""
        l1 = self._l1()
        for validator in self.simulated.validators if l1 is not None else ():
            validations = self.simulated.state.validations[l1]
            if any(v.present and v.node_id == validator.node_id for v in validations):
                self.simulated.set_balance(l1, validator.index, 10**9)
        self.simulated.advance(1)

    def count_effects(self) -> None:
        """Count the replies that were false, late or none, and who joined or left at a height."""
        for word, count in self.simulated.context.responder.lies.items():
            self._simulation.reach(f"validator: {word}", count)
        height = self.simulated.state.heights.current
        for validator in self.simulated.validators:
            joins_at, leaves_at = validator.behaviour.joins_at, validator.behaviour.leaves_at
            if joins_at is not None and joins_at <= height:
                self._simulation.reach("validator of the Primary Network joined")
            if leaves_at is not None and leaves_at <= height:
                self._simulation.reach("validator of the Primary Network left")
        for node in self.simulated.nodes:
            for behaviour, count in node.lies.items():
                self._simulation.reach(f"node: {self._node_words[behaviour]}", count)
            for kind, count in node.rpc.failures.items():
                self._simulation.reach(f"node: {kind}", count)
            if node.late_replies:
                self._simulation.reach("node: read of an earlier block", node.late_replies)

    def begin_disturbance(self, index: int, cause: str) -> None:
        """Note that a validator cannot be reached from now on."""
        index %= len(self.simulated.validators)
        self.disturbances[index].begin(cause, self._simulation.now)

    def end_disturbance(self, index: int, cause: str, *, is_noticed: bool = True) -> None:
        """Note that a validator can be reached again.

        is_noticed: whether both sides know of connections that have ended.
        """
        index %= len(self.simulated.validators)
        unnoticed_s = 0.0 if is_noticed else _UNNOTICED_S
        self.disturbances[index].end(cause, self._simulation.now, unnoticed_s)

    # Validators.

    def do_behave(self, index: int, words: str) -> None:
        index %= len(self.simulated.validators)
        if words:
            self.begin_disturbance(index, "lie")
            self.lies[index].begin("lie", self._simulation.now)
        else:
            self.end_disturbance(index, "lie")
            self.lies[index].end("lie", self._simulation.now)
        self.simulated.set_behaviour(index, words)

    def _has_address(self, index: int) -> bool:
        """Return whether a validator listens where it says, unless it is stopped."""
        return self.simulated.validators[index].behaviour.reach in _LISTENING

    def do_stop_validator(self, index: int) -> None:
        index %= len(self.simulated.validators)
        if index not in self._stopped and self._has_address(index):
            self.begin_disturbance(index, "stop")
            self._stopped.add(index)
            self._simulation.reach("validator stopped")
            self._call_soon(lambda: self.simulated.stop_validator(index))

    async def do_start_validator(self, index: int, moved: int) -> None:
        index %= len(self.simulated.validators)
        if index in self._stopped:
            self._stopped.discard(index)
            self._simulation.reach(
                "validator started at a new address" if moved else "validator started"
            )
            if moved:
                self._begin_discovery(index)
            await self._call(self.simulated.start_validator(index, moved=bool(moved)))
            self.end_disturbance(index, "stop")

    def do_disconnect(self, index: int) -> None:
        index %= len(self.simulated.validators)
        self.begin_disturbance(index, "disconnect")
        self._simulation.reach("validator ended its connections")
        self._call_soon(lambda: self.simulated.disconnect(index))
        self.end_disturbance(index, "disconnect")

    # The upgrade to the next release.

    @property
    def fork_unix_s(self) -> float | None:
        """The time of the upgrade; None if none is scheduled."""
        return self.simulated.state.fork_times.get(_NEXT.upgrade)

    def do_schedule_fork(self, seconds: float) -> None:
        """Let the next release refuse older ones from a time on, which does not change again."""
        if self.fork_unix_s is not None:
            return
        self.simulated.state.fork_times[_NEXT.upgrade] = self._process.unix_time() + seconds
        self._simulation.after(seconds, self._pass_fork)

    def _pass_fork(self) -> None:
        self.fork_at = self._simulation.now
        self._simulation.reach("upgrade: its time passed")
        self._note_refusals()

    def _note_refusals(self) -> None:
        """Note which validators refuse the tested release until daemons advertise the next one.

        They do so once more than a third of the stake refuses.
        """
        end_at = max(self.fork_at, self.third_upgraded_at) + _REFUSED_S
        if self.fork_at <= self._simulation.now < end_at:
            self._begin_refusals("fork", end_at)

    def note_start_of_daemon(self, letter: str) -> None:
        """Note that a daemon which starts after the fork advertises the tested release at first."""
        if self.fork_at <= self._simulation.now:
            self._begin_refusals(f"start {letter}", self._simulation.now + _REFUSED_START_S)

    def _begin_refusals(self, cause: str, end_at: float) -> None:
        refusing = [node.index for node in self.simulated.validators if node.release == _NEXT]
        for index in refusing:
            self.begin_disturbance(index, cause)

        def end() -> None:
            for index in refusing:
                self.disturbances[index].end_at_once(cause, self._simulation.now)

        if end_at < math.inf:
            self._simulation.at(end_at, end)

    async def do_upgrade_validator(self, index: int) -> None:
        index %= len(self.simulated.validators)
        if index not in self._stopped and self.simulated.validators[index].release != _NEXT:
            self._simulation.reach("validator upgraded")
            if not self._has_address(index):
                self.simulated.validators[index].release = _NEXT
                return
            self.begin_disturbance(index, "upgrade")
            await self._call(self.simulated.upgrade_validator(index, _NEXT))
            self.end_disturbance(index, "upgrade")
            if 3 * self._upgraded_stake() > self._stake(self.simulated.validators):
                self.third_upgraded_at = min(self.third_upgraded_at, self._simulation.now)
            self._note_refusals()

    def _upgraded_stake(self) -> int:
        return self._stake(node for node in self.simulated.validators if node.release == _NEXT)

    def is_upgrade_known(self, start: float, end: float) -> bool:
        """Return whether a daemon was connected from a start to an end to validators with more than
        a third of the stake that run the next release.
        """
        validators = self.simulated.validators
        connected = (
            node
            for node in validators
            if node.release == _NEXT and not self.disturbances[node.index].meet(start, end)
        )
        return 3 * self._stake(connected) > self._stake(validators)

    def _stake(self, validators: Iterable[SimValidator]) -> int:
        node_ids = {validator.node_id for validator in validators}
        validations = self.simulated.state.validations[PRIMARY_NETWORK]
        return sum(stake.weight for stake in validations if stake.node_id in node_ids)

    async def do_upgrade_node(self, place: int) -> None:
        async with self._node_locks[place]:
            if place not in self._node_ports and self.simulated.nodes[place].release != _NEXT:
                self._simulation.reach("node upgraded")
                self.begin_node_failure(place, "upgrade")
                await self._call(self.simulated.upgrade_node(place, _NEXT))
                self.end_node_failure(place, "upgrade")
                if all(node.release == _NEXT for node in self.simulated.nodes):
                    self.nodes_upgraded_at = self._simulation.now

    @property
    def may_have_future_transactions(self) -> bool:
        """Whether the time of the upgrade has come, if one is scheduled."""
        return self.fork_unix_s is None or self.fork_at <= self._simulation.now

    def accept_future_transaction(self) -> None:
        """Accept a transaction of a type that the daemon does not know."""
        future = self.simulated.p_chain.future()
        self.first_future_height = self.first_future_height or future.height or 0
        self._simulation.reach("transaction of a new type")
        self.has_stopped_index = True
        self._note_block()

    async def _end_upgrade(self) -> None:
        """Let everyone run the next release once it may refuse older ones."""
        if not self.simulated.state.fork_times:
            return
        for index in range(len(self.simulated.validators)):
            await self.do_upgrade_validator(index)
        for place in range(len(self.simulated.nodes)):
            await self.do_upgrade_node(place)
        self._simulation.reach("upgrade: the network runs the next release")

    def count_effects_of_upgrade(self) -> None:
        """Count what validators and nodes refused to an older version."""
        counts = {
            "version refused": self.simulated.violations.by_kind().get(ViolationKind.VERSION, 0),
            "deprecated method called": sum(
                self.simulated.calls[method] for method in DEPRECATED_METHODS
            ),
            "lost method refused": sum(node.rpc.refused.total() for node in self.simulated.nodes),
        }
        for effect, count in counts.items():
            self._simulation.reached[f"upgrade: {effect}"] += count

    # Nodes.

    def has_node_failure(self, start: float, end: float) -> bool:
        """Return whether a node failed, or too few of them were honest, from a start to an end."""
        liars = sum(lies.meet(start, end) for lies in self._node_lies)
        is_outvoted = len(self._node_lies) - liars >= self._scenario.setup.node_quorum
        return not is_outvoted or any(failure.meet(start, end) for failure in self._node_failures)

    def begin_node_failure(self, place: int, cause: str) -> None:
        """Note that a node does not answer from now on, or not with what it should know."""
        self._node_failures[place].begin(cause, self._simulation.now)

    def end_node_failure(self, place: int, cause: str) -> None:
        """Note that a node answers again."""
        self._node_failures[place].end(cause, self._simulation.now)

    async def do_node_down(self, place: int) -> None:
        node = self.simulated.nodes[place]
        if node.port and place not in self._node_ports:
            self._node_ports[place] = node.port
            self._simulation.reach("node went down")
            self.begin_node_failure(place, "down")
            async with self._node_locks[place]:
                await self._call(node.down())

    async def do_node_up(self, place: int) -> None:
        node = self.simulated.nodes[place]
        port = self._node_ports.pop(place, None)
        if port is not None:
            async with self._node_locks[place]:
                await self._call(node.start(port))
            self.end_node_failure(place, "down")
        self._simulation.note_failure()

    def do_node_lie(self, place: int, words: str) -> None:
        """Let a node lie, unless the daemon has no way to know better."""
        nodes, quorum = self.simulated.nodes, self._scenario.setup.node_quorum
        liars = {other for other, node in enumerate(nodes) if node.behaviour != _HONEST} | {place}
        if words.startswith(_ONE_WORD):
            # No one node's word stops signing, whatever `p-chain-quorum` is.
            is_outvoted = len(liars) == 1
        elif words in _SET_LIES and self._has_index:
            # The index has the sets of all heights but the newest.
            is_outvoted = True
            if words:
                self.set_lies_since = min(self.set_lies_since, self._simulation.now)
        elif words.startswith("forged-proposal"):
            # A second node confirms a leap.
            is_outvoted = len(liars) == 1 and len(nodes) > 1
        elif words.startswith("forged-epoch") and quorum == 1:
            # A lower height of another node counts.
            is_outvoted = len(liars) == 1 and len(nodes) > 1
        else:
            is_outvoted = len(liars) < quorum
        if not words or is_outvoted:
            nodes[place].behaviour = parse_node_behaviour(words)
            if words:
                self._node_lies[place].begin("lie", self._simulation.now)
            else:
                self._node_lies[place].end("lie", self._simulation.now)
        self._node_words[nodes[place].behaviour] = words

    @property
    def _has_index(self) -> bool:
        return self._scenario.setup.set_source in _INDEXED and not self.has_stopped_index

    def do_node_outage(self, place: int, kind: str, delay_s: float) -> None:
        outages = self.simulated.nodes[place].rpc.outages
        outages.clear()
        if kind:
            outages["*"] = Outage(OutageKind(kind), delay_s)
            self.end_node_failure(place, "late")
            self.begin_node_failure(place, "outage")
        else:
            self.end_node_failure(place, "outage")
            self.end_node_failure(place, "late")

    def do_node_late(self, place: int, delay_s: float, tail_s: float) -> None:
        """Let a node answer late; in time, if both are 0."""
        outages = self.simulated.nodes[place].rpc.outages
        outages.clear()
        if delay_s or tail_s:
            outages["*"] = Outage(None, delay_s, tail_s)
        self.end_node_failure(place, "outage")
        # A node that is a little late is one that is far away.
        if delay_s + tail_s > _FAR_S:
            self.begin_node_failure(place, "late")
        else:
            self.end_node_failure(place, "late")

    def do_node_lag(self, place: int, blocks: int) -> None:
        self.simulated.nodes[place].lag = blocks
        if blocks:
            self.begin_node_failure(place, "lag")
        else:
            self.end_node_failure(place, "lag")

    # The chain.

    def do_advance(self, blocks: int) -> None:
        # A proposer waits a second after the block before.
        if self._simulation.now - self.last_block_at >= _MIN_BLOCK_S:
            self.simulated.advance(blocks)
            self._note_block()

    def do_change_weight(self, place: int, weight: int) -> None:
        index = self._l1_member(place)
        if index is not None:
            self.simulated.change_weight(self._l1(), index, weight)
            self._simulation.reach(
                "set of the L1 changed" if weight else "validator of the L1 left"
            )
            self._note_block()

    def do_delegate(self, place: int, weight: int) -> None:
        """Stake with a validator of the Primary Network."""
        validator = self.simulated.validators[place]
        validation = self.simulated.state.validation_of(PRIMARY_NETWORK, validator.node_id)
        # Weight without keys stays below what a quorum can miss.
        if validation.present and not validator.behaviour.keyless:
            self.simulated.p_chain.delegate(validator.node_id, weight)
            self._simulation.reach("set of the Primary Network changed")
            self._note_block()

    def do_set_balance(self, place: int, balance: int) -> None:
        index = self._l1_member(place)
        if index is not None:
            if balance:
                self.end_disturbance(index, "balance")
            else:
                self.begin_disturbance(index, "balance")
                self.keyless_since = min(self.keyless_since, self._simulation.now)
            self._simulation.reach(
                "validator was funded" if balance else "validator became inactive"
            )
            self.simulated.set_balance(self._l1(), index, balance)
            self._note_block()

    def do_register(self, weight: int) -> None:
        l1 = self._l1()
        if l1 is None:
            return
        present = {v.node_id for v in self.simulated.state.validations[l1] if v.present}
        spare = [
            validator.index
            for validator in self.simulated.validators
            if l1 in validator.subnets and validator.node_id not in present
        ]
        if spare:
            # No daemon is connected to it yet.
            self._begin_discovery(spare[0])
            self.simulated.p_chain.register(l1, spare[0], weight=weight)
            self._simulation.reach("validator of the L1 joined")
            self._note_block()

    def members(self, message: SimMessage, height: int | None = None) -> tuple[SetEntry, ...]:
        """Return the set of a message after the block at a height, or of now."""
        state = self.simulated.state
        at = state.heights.current if height is None else height
        return state.set_at(message.signing_subnet_id, at)

    def is_validator(self, index: int) -> bool:
        """Return whether a node is a validator of the Primary Network or of the L1 now."""
        node_id = self.simulated.validators[index].node_id
        return any(
            validation.present and validation.node_id == node_id
            for validations in self.simulated.state.validations.values()
            for validation in validations
        )

    def _begin_discovery(self, index: int) -> None:
        self.begin_disturbance(index, "discovery")
        self._simulation.after(_DISCOVERY_S, lambda: self._end_discovery(index))

    def _end_discovery(self, index: int) -> None:
        """Note that daemons know a validator: nodes have named it, and a peer its address.

        Peers have no addresses of those that have left.
        """
        now = self._simulation.now
        has_peer = any(
            other != index and not self.disturbances[other].meet(now - _DISCOVERY_S, now)
            for other in range(len(self.simulated.validators))
        )
        is_named = self.is_validator(index) and has_peer
        if is_named and not self.has_node_failure(now - _DISCOVERY_S, now):
            self.end_disturbance(index, "discovery")
        else:
            self._simulation.after(_RETRY_S, lambda: self._end_discovery(index))

    def c_chain_height(self) -> int:
        """Return the height at which the next block of the C-Chain verifies messages."""
        state = self.simulated.state
        chain_id = next(
            chain.chain_id
            for chain in state.chains.values()
            if chain.kind is ChainKind.EVM and chain.subnet_id == PRIMARY_NETWORK
        )
        return state.proposervm[chain_id].verifying_height

    def _note_block(self) -> None:
        self.last_block_at = self._simulation.now

    def _l1(self) -> Any:
        subnets = [s for s in self.simulated.subnets if s.subnet_id != PRIMARY_NETWORK]
        return subnets[0].subnet_id if subnets else None

    def _l1_member(self, place: int) -> int | None:
        l1 = self._l1()
        if l1 is None:
            return None
        validations = [v for v in self.simulated.state.validations[l1] if v.present]
        if len(validations) < 2:
            return None
        node_id = validations[place % len(validations)].node_id
        indices = {v.node_id: v.index for v in self.simulated.validators}
        return indices[node_id]

    # The receiver of webhooks.

    def do_receive(self, kind: str) -> None:
        if self.receiver is not None:
            self.receiver.behave(kind)

    # Calls in its process.

    def _call_soon(self, call: Any) -> None:
        self._process.loop.call_soon(call)

    async def _call(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the process of the network, and wait for it."""
        done = asyncio.Event()

        async def run() -> None:
            try:
                await work
            finally:
                self._simulation.on_driver(done.set)

        self._call_soon(lambda: self._process.loop.create_task(run()))
        await done.wait()
