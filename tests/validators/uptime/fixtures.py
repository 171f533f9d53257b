"""Fixtures of observed uptime: fake peers, storage in memory, and a clock of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.network import PeerNetwork
from warpseal.peers.statistics import PeerStatistics
from warpseal.store.errors import StoreDown
from warpseal.store.uptime_rows import UptimeRows
from warpseal.store.values import HourRow, StoredUptime, ValidationRow
from warpseal.validators.settings import UptimeSettings
from warpseal.validators.uptime.recorder import UptimeRecorder
from warpseal.warp.ids import NodeID

OURS = NodeID(b"\xee" * 20)
NODE, OTHER = NodeID(b"\x01" * 20), NodeID(b"\x02" * 20)
SETTINGS = UptimeSettings()
HASTY = UptimeSettings(heartbeat_s=0.005, refresh_s=0.01, write_s=0.02, retry_s=0.02)
START_UNIX_S = 1_800_000_000 - 1_800_000_000 % 3_600


def validation(
    number: int = 7, node_id: NodeID = NODE, start_unix_s: int = 0, *, is_active: bool = True
) -> CurrentValidation:
    """A validation by number."""
    return CurrentValidation(
        number.to_bytes(32, "big"), node_id, 1, start_unix_s, None if is_active else 0
    )


@dataclass
class FakePeers(PeerNetwork):
    """Peers that a test moves.

    last_heard: time by connected node; the others are targets and were tried.
    """

    last_heard: dict[NodeID, float] = field(default_factory=dict)
    targets: set[NodeID] = field(default_factory=set)
    dialed: set[NodeID] = field(default_factory=set)
    listeners: list[Callable[[NodeID, bool], None]] = field(default_factory=list)

    def heard_at(self, node_id: NodeID) -> float | None:
        return self.last_heard.get(node_id)

    def is_tracked(self, node_id: NodeID) -> bool:
        return node_id in self.targets

    @property
    def statistics(self) -> Mapping[NodeID, PeerStatistics]:
        return {node_id: PeerStatistics() for node_id in self.dialed}

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def connect(self, node_id: NodeID, now_s: float) -> None:
        """A node that is wanted is dialed, and connected."""
        self.targets.add(node_id)
        self.dialed.add(node_id)
        self.last_heard[node_id] = now_s
        self._notify(node_id, True)

    def drop(self, node_id: NodeID) -> None:
        """The connection ends."""
        del self.last_heard[node_id]
        self._notify(node_id, False)

    def _notify(self, node_id: NodeID, connected: bool) -> None:
        for listener in tuple(self.listeners):
            listener(node_id, connected)


@dataclass
class MemoryUptimeStorage(UptimeRows):
    """What a store keeps, in dictionaries; is_down: every call is refused."""

    validations: dict[bytes, ValidationRow] = field(default_factory=dict)
    hour_rows: dict[tuple[int, NodeID], HourRow] = field(default_factory=dict)
    is_down: bool = False
    pruned: tuple[int, float] | None = None

    async def load(self, observer: NodeID, first_hour: int, recent_since_hour: int) -> StoredUptime:
        self._check()
        return self.content(first_hour, recent_since_hour)

    def content(self, first_hour: int = 0, recent_since_hour: int = 0) -> StoredUptime:
        """What a process begins with."""
        rows = self.hour_rows.values()
        return StoredUptime(
            tuple(self.validations.values()),
            tuple(row for row in rows if row.hour >= first_hour),
            frozenset(row.node_id for row in rows if row.hour >= recent_since_hour),
        )

    async def write(
        self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]
    ) -> None:
        self._check()
        self.put(validations, hours)

    def write_later(
        self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]
    ) -> None:
        if not self.is_down:
            self.put(validations, hours)

    def put(self, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Write rows that never become less."""
        for row in validations:
            stored = self.validations.get(row.validation_id)
            if stored is None or row.observed_ms >= stored.observed_ms:
                self.validations[row.validation_id] = row
        for hour in hours:
            stored_row = self.hour_rows.get((hour.hour, hour.node_id))
            if stored_row is None or hour.observed_ms >= stored_row.observed_ms:
                self.hour_rows[hour.hour, hour.node_id] = hour

    async def hours(
        self, observer: NodeID, node_id: NodeID, first_hour: int, last_hour: int
    ) -> Sequence[HourRow]:
        self._check()
        rows = (row for row in self.hour_rows.values() if row.node_id == node_id)
        return sorted(
            (row for row in rows if first_hour <= row.hour <= last_hour), key=lambda row: row.hour
        )

    async def connected_nodes(self, observer: NodeID, first_hour: int) -> Mapping[NodeID, bool]:
        self._check()
        recent = [row for row in self.hour_rows.values() if row.hour >= first_hour]
        return {
            row.node_id: any(same.connected_ms for same in recent if same.node_id == row.node_id)
            for row in recent
        }

    async def prune(self, before_hour: int, unseen_since_unix_s: float) -> bool:
        self._check()
        self.pruned = before_hour, unseen_since_unix_s
        return False

    def _check(self) -> None:
        if self.is_down:
            raise StoreDown("a test wants it")


@dataclass
class Clock:
    """A clock that a test winds, in milliseconds; the wall shows the same.

    readings: number of times that the clock was read.
    """

    now_ms: int = 1_000_000
    readings: int = 0

    def now(self) -> float:
        self.readings += 1
        return self.now_ms / 1_000

    def unix(self) -> float:
        return START_UNIX_S + (self.now_ms - 1_000_000) / 1_000


def observing(
    peers: FakePeers, storage: MemoryUptimeStorage, clock: Clock, settings: UptimeSettings = HASTY
) -> UptimeRecorder:
    """Observations that hurry, on the clock of a test."""
    return UptimeRecorder(peers, storage, OURS, settings, now=clock.now, unix_clock=clock.unix)
