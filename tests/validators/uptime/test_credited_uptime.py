"""No node is credited more than its true uptime, however connections, stalls and crashes follow
each other.

A plain model counts the truth, millisecond by millisecond; the recorded uptimes never exceed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validators.uptime.fixtures import (
    NODE,
    OTHER,
    SETTINGS,
    START_UNIX_S,
    Clock,
    FakePeers,
    MemoryUptimeStorage,
    validation,
)
from warpseal.validators.uptime.hourly import HourlyUptime
from warpseal.validators.uptime.node_uptime import HOUR_MS, NodeUptimes, Uptime
from warpseal.validators.uptime.validation_uptime import ValidationUptime
from warpseal.warp.ids import NodeID

NOTHING = Uptime()
NODES = (NODE, OTHER)
GAP_MS = round(SETTINGS.max_gap_s * 1_000)
UNCONFIRMED_MS = round(SETTINGS.unconfirmed_s * 1_000)


@dataclass
class TrueUptime:
    """The highest uptime that may be credited to the validation of a node and to its hours."""

    is_alive: bool = False
    is_connected: bool = False
    start_ms: int = 0
    is_watched: bool = False
    is_active: bool = True
    confirmed_ms: int = 0
    validation: Uptime = NOTHING
    node: Uptime = NOTHING

    def pass_time(self, from_ms: int, took_ms: int) -> None:
        """Let time pass in which the daemon observes."""
        up_ms = took_ms if self.is_connected and self.is_alive else 0
        self.node = Uptime(self.node.observed_ms + took_ms, self.node.connected_ms + up_ms)
        after_start_ms = min(took_ms, max(0, from_ms + took_ms - self.start_ms))
        if not self.is_watched or from_ms - self.confirmed_ms > UNCONFIRMED_MS:
            return
        credit_ms = min(up_ms, after_start_ms) if self.is_active else 0
        whole = self.validation
        self.validation = Uptime(whole.observed_ms + after_start_ms, whole.connected_ms + credit_ms)


@dataclass
class CrashingDaemon:
    """A daemon that may crash, and the true uptimes."""

    clock: Clock = field(default_factory=Clock)
    storage: MemoryUptimeStorage = field(default_factory=MemoryUptimeStorage)
    peers: FakePeers = field(default_factory=FakePeers)
    truths: dict[NodeID, TrueUptime] = field(
        default_factory=lambda: {node_id: TrueUptime() for node_id in NODES}
    )

    def __post_init__(self) -> None:
        self.truths[OTHER].start_ms = round((START_UNIX_S + 40) * 1_000)
        self.start()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms

    @property
    def unix_ms(self) -> int:
        return round(self.clock.unix() * 1_000)

    def start(self) -> None:
        """A process begins, of which nothing is known but what was written."""
        self.peers = FakePeers(targets=set(NODES))
        self.uptimes = NodeUptimes(self.peers, SETTINGS)
        self.hours = HourlyUptime(1_000)
        self.validations = ValidationUptime(self.uptimes, SETTINGS)
        self.hours.start(self.clock.unix())
        content = self.storage.content(self.hours.first_hour)
        self.validations.load_rows(content.validations)
        self.hours.load_rows(content.hours)
        self.uptimes.mark_tried(content.recent_nodes)
        self.uptimes.update(self.now_ms)
        for truth in self.truths.values():
            truth.is_connected = truth.is_watched = False

    def look(self, took_ms: int) -> None:
        """Time passes as it should."""
        for truth in self.truths.values():
            truth.pass_time(self.unix_ms, took_ms)
        self.clock.now_ms += took_ms
        self.uptimes.update(self.now_ms)
        self.hours.roll_hour(self.uptimes.counters, self.clock.unix())

    def stall(self, took_ms: int) -> None:
        """Time passes without an observation."""
        self.clock.now_ms += took_ms

    def connect(self, node_id: NodeID) -> None:
        if not self.truths[node_id].is_connected:
            self.peers.connect(node_id, self.clock.now())
            self.truths[node_id].is_connected = self.truths[node_id].is_alive = True
            self.uptimes.advance(node_id, self.now_ms)

    def hear(self, node_id: NodeID) -> None:
        if self.truths[node_id].is_connected and self.truths[node_id].is_alive:
            self.peers.last_heard[node_id] = self.clock.now()

    def die(self, node_id: NodeID) -> None:
        """The machine of a node vanishes: its connection stays open for a while."""
        self.truths[node_id].is_alive = False

    def drop(self, node_id: NodeID) -> None:
        if self.truths[node_id].is_connected:
            self.truths[node_id].is_connected = False
            self.peers.drop(node_id)
            self.uptimes.advance(node_id, self.now_ms)

    def retarget(self, node_id: NodeID) -> None:
        self.peers.targets ^= {node_id}

    def watch(self, node_id: NodeID, is_active: bool = True) -> None:
        truth = self.truths[node_id]
        one = validation(node_id[0], node_id, truth.start_ms // 1_000, is_active=is_active)
        self.validations.watch([one], self.now_ms, self.clock.unix())
        truth.is_watched, truth.is_active, truth.confirmed_ms = True, is_active, self.unix_ms

    def rest(self, node_id: NodeID) -> None:
        """The validation is inactive now."""
        self.watch(node_id, is_active=False)

    def write(self) -> None:
        self.validations.count(self.now_ms, self.clock.unix())
        self.hours.count(self.uptimes.counters)
        validations, hours = self.validations.unwritten_rows(), self.hours.unwritten_rows()
        self.storage.put(validations, hours)
        self.validations.mark_written(validations)
        self.hours.mark_written(hours)

    def crash(self, took_ms: int) -> None:
        """The process is killed; it starts again later."""
        self.clock.now_ms += took_ms
        self.start()

    def check(self) -> None:
        for node_id, truth in self.truths.items():
            uptime = self.validations.uptime(
                validation(node_id[0], node_id), self.now_ms, self.clock.unix()
            )
            assert uptime.connected_ms <= uptime.observed_ms <= truth.validation.observed_ms
            assert uptime.connected_ms <= truth.validation.connected_ms
            rows = [row for row in self.storage.hour_rows.values() if row.node_id == node_id]
            assert all(0 <= row.connected_ms <= row.observed_ms <= HOUR_MS for row in rows)
            assert sum(row.connected_ms for row in rows) <= truth.node.connected_ms
            assert sum(row.observed_ms for row in rows) <= truth.node.observed_ms


OF_NODES = (
    "connect",
    "connect",
    "hear",
    "hear",
    "die",
    "drop",
    "retarget",
    "watch",
    "watch",
    "rest",
)
STEPS = st.one_of(
    st.tuples(st.sampled_from(OF_NODES), st.sampled_from(NODES)),
    st.tuples(st.just("look"), st.integers(0, GAP_MS)),
    st.tuples(st.just("look"), st.integers(GAP_MS - 1_000, GAP_MS)),
    st.tuples(
        st.just("stall"),
        st.one_of(st.integers(GAP_MS + 1, 60_000), st.just(UNCONFIRMED_MS + 5_000)),
    ),
    st.tuples(st.just("write")),
    st.tuples(st.just("crash"), st.one_of(st.integers(0, 100_000), st.just(HOUR_MS))),
)


def run_steps(daemon: CrashingDaemon, steps: list[tuple[object, ...]]) -> None:
    for name, *words in steps:
        getattr(daemon, str(name))(*words)
        if name == "stall":
            daemon.look(0)


@settings(max_examples=150)
@given(st.lists(STEPS, min_size=30, max_size=80))
def test_no_node_is_credited_more_than_its_true_uptime(steps: list[tuple[object, ...]]) -> None:
    daemon = CrashingDaemon()
    for step in steps:
        run_steps(daemon, [step])
        daemon.check()


# Nothing is lost here, neither by stalls and crashes nor by nodes that are unwanted or unconfirmed.
PEACEFUL = st.one_of(
    st.tuples(st.sampled_from(("connect", "hear", "die", "drop")), st.just(NODE)),
    st.tuples(st.just("look"), st.integers(0, GAP_MS)),
    st.tuples(st.just("write")),
)


@settings(max_examples=100)
@given(st.lists(PEACEFUL, min_size=10, max_size=60))
def test_every_second_of_an_absence_is_counted_if_nothing_is_lost(
    steps: list[tuple[object, ...]],
) -> None:
    daemon = CrashingDaemon()
    run_steps(daemon, [("connect", NODE), ("watch", NODE), *steps])
    daemon.watch(NODE)
    daemon.drop(NODE) if daemon.truths[NODE].is_connected else None
    truth = daemon.truths[NODE].validation
    uptime = daemon.validations.uptime(validation(NODE[0]), daemon.now_ms, daemon.clock.unix())
    assert uptime.observed_ms == truth.observed_ms
    assert uptime.observed_ms - uptime.connected_ms >= truth.observed_ms - truth.connected_ms


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, GAP_MS), st.booleans()), max_size=60))
def test_an_always_connected_node_has_full_uptime_until_its_last_message(
    passing: list[tuple[int, bool]],
) -> None:
    daemon = CrashingDaemon()
    run_steps(daemon, [("connect", NODE), ("watch", NODE)])
    began_ms = heard_ms = daemon.now_ms
    for took_ms, is_written in passing:
        daemon.look(took_ms)
        daemon.hear(NODE)
        daemon.watch(NODE)
        heard_ms = daemon.now_ms
        if is_written:
            daemon.write()
    uptime = daemon.validations.uptime(validation(NODE[0]), daemon.now_ms, daemon.clock.unix())
    assert uptime == Uptime(heard_ms - began_ms, heard_ms - began_ms)
    assert uptime.percentage == 100
