"""The time for which each node was observed and connected, between heartbeats. Pure.

No time is credited without a heartbeat. A node is observed while it is connected, and while it is
wanted and was dialed: from its first dial on, or, after a restart, as soon as it is wanted. A node
that was never dialed, because its address is unknown, is not observed.

A connection is credited up to the last byte that the node sent. The time after it is undecided
until the node is heard again (it was connected) or its connection ends (it was not). Times are
milliseconds of a monotonic clock. Source of truth: docs/node-interfaces.md, "What Warpseal
observes".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from msgspec import Struct

from warpseal.peers.network import PeerNetwork
from warpseal.validators.settings import UptimeSettings
from warpseal.warp.ids import NodeID

HOUR_S = 3_600
HOUR_MS = HOUR_S * 1_000


class Uptime(Struct, frozen=True):
    """The time that a node was observed, and the part of it that it was connected."""

    observed_ms: int = 0
    connected_ms: int = 0

    @property
    def connected_s(self) -> int:
        """Whole seconds."""
        return self.connected_ms // 1_000

    @property
    def percentage(self) -> float:
        """0..100; 100 if nothing was observed."""
        return 100.0 * self.connected_ms / self.observed_ms if self.observed_ms else 100.0


class Observation(Enum):
    """The state of a node as seen from this daemon."""

    UNSEEN = "unseen"  # Neither connected, nor wanted and tried.
    SOUGHT = "sought"
    CONNECTED = "connected"


class UptimeCounter(Struct):
    """The time that one node was observed since the process began.

    since_ms: everything before it is counted.

    undecided_ms: time before `since_ms` that is not decided nevertheless.
    """

    since_ms: int
    observation: Observation = Observation.UNSEEN
    observed_ms: int = 0
    connected_ms: int = 0
    undecided_ms: int = 0

    def observe(self, observation: Observation, now_ms: int) -> None:
        """Set the state of the node from now on.

        Undecided time of a connection that ended counts as not connected.
        """
        if self.observation is Observation.CONNECTED:
            if observation is Observation.CONNECTED:
                return
            self.observed_ms += self.undecided_ms
            self.undecided_ms = 0
        if self.observation is not Observation.UNSEEN:
            self.observed_ms += max(0, now_ms - self.since_ms)
        self.since_ms = max(self.since_ms, now_ms)
        self.observation = observation

    def advance(self, now_ms: int, heard_ms: int | None) -> None:
        """Count up to now.

        heard_ms: time at which the open connection last received a byte.
        """
        if self.observation is not Observation.CONNECTED:
            self.observe(self.observation, now_ms)
        elif heard_ms is not None and self.since_ms < (heard_ms := min(heard_ms, now_ms)):
            credit_ms = self.undecided_ms + heard_ms - self.since_ms
            self.observed_ms += credit_ms
            self.connected_ms += credit_ms
            self.undecided_ms, self.since_ms = 0, heard_ms

    def skip_gap(self, begin_ms: int, until_ms: int) -> None:
        """Leave out the time between these, in which the daemon did not run.

        The time before `begin_ms` is counted.
        """
        if self.observation is Observation.CONNECTED:
            self.undecided_ms += max(0, begin_ms - self.since_ms)
        self.since_ms = max(self.since_ms, until_ms)

    def total(self) -> Uptime:
        """Return the decided time."""
        return Uptime(self.observed_ms, self.connected_ms)

    def upper_bound(self, now_ms: int) -> Uptime:
        """Return the total if all undecided time up to now turns out to be connected."""
        if self.observation is not Observation.CONNECTED:
            return self.total()
        open_ms = self.undecided_ms + max(0, now_ms - self.since_ms)
        return Uptime(self.observed_ms + open_ms, self.connected_ms + open_ms)


class NodeUptimes:
    """Counters by node.

    Times are milliseconds of the monotonic clock that `peers` uses (in seconds).
    """

    def __init__(self, peers: PeerNetwork, settings: UptimeSettings) -> None:
        self._peers = peers
        self._max_gap_ms = round(settings.max_gap_s * 1_000)
        self._max_nodes = settings.max_nodes
        self.counters: dict[NodeID, UptimeCounter] = {}
        self._tried_before: set[NodeID] = set()
        self._beat_ms: int | None = None

    def heartbeat(self, now_ms: int) -> None:
        """Note that the daemon runs.

        If the last heartbeat is too long ago, the time between counts for no node.
        """
        last_ms = self._beat_ms
        if last_ms is not None and now_ms - last_ms > self._max_gap_ms:
            for node_id, counter in self.counters.items():
                counter.advance(last_ms, self._heard_ms(node_id))
                counter.skip_gap(last_ms, now_ms)
        self._beat_ms = now_ms if last_ms is None else max(last_ms, now_ms)

    def update(self, now_ms: int) -> None:
        """Advance all counters, and add counters of new nodes."""
        self.heartbeat(now_ms)
        for node_id in (*self._peers.statistics, *self._tried_before):
            if node_id not in self.counters and self._peers.is_tracked(node_id):
                self._add(node_id)
        for node_id, counter in self.counters.items():
            self._advance(node_id, counter, now_ms)

    def advance(self, node_id: NodeID, now_ms: int) -> UptimeCounter | None:
        """Return a node's counter, advanced to now; None if there are too many counters."""
        self.heartbeat(now_ms)
        counter = self.counters.get(node_id) or self._add(node_id)
        if counter is not None:
            self._advance(node_id, counter, now_ms)
        return counter

    def mark_tried(self, node_ids: Iterable[NodeID]) -> None:
        """Note that these nodes were dialed by an earlier process."""
        self._tried_before.update(node_ids)

    def drop_unseen(self, exceptions: Collection[NodeID]) -> list[NodeID]:
        """Drop the counters of nodes that are not observed any more; return these nodes.

        exceptions: nodes whose counters stay.
        """
        dropped = [
            node_id
            for node_id, counter in self.counters.items()
            if counter.observation is Observation.UNSEEN and node_id not in exceptions
        ]
        self._tried_before.update(
            node_id for node_id in dropped if self.counters[node_id].observed_ms
        )
        for node_id in dropped:
            del self.counters[node_id]
        if len(self._tried_before) > self._max_nodes:
            self._tried_before = set()
        return dropped

    def _add(self, node_id: NodeID) -> UptimeCounter | None:
        if len(self.counters) >= self._max_nodes or self._beat_ms is None:
            return None
        counter = self.counters[node_id] = UptimeCounter(self._beat_ms)
        return counter

    def _advance(self, node_id: NodeID, counter: UptimeCounter, now_ms: int) -> None:
        heard_ms = self._heard_ms(node_id)
        counter.advance(now_ms, heard_ms)
        observation = Observation.UNSEEN
        if heard_ms is not None:
            observation = Observation.CONNECTED
        elif self._peers.is_tracked(node_id):
            was_tried = (
                node_id in self._peers.statistics
                or counter.observed_ms
                or node_id in self._tried_before
            )
            observation = Observation.SOUGHT if was_tried else Observation.UNSEEN
        counter.observe(observation, now_ms)

    def _heard_ms(self, node_id: NodeID) -> int | None:
        heard_at = self._peers.heard_at(node_id)
        return None if heard_at is None else round(heard_at * 1_000)
