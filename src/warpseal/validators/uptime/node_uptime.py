"""The uptime counters of all nodes, and the heartbeats without which no time is credited. Pure.

A node is observed while it is connected, and while it is wanted and was dialed: from its first dial on, or, after a
restart, as soon as it is wanted. A node that was never dialed, because its address is unknown, is not observed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from warpseal.peers.network import PeerNetwork
from warpseal.validators.uptime.counter import Observation, UptimeCounter
from warpseal.validators.uptime.settings import UptimeSettings
from warpseal.warp.ids import NodeID


class NodeUptimes:
    """Counters by node. Times are milliseconds of the monotonic clock that `peers` uses (in seconds)."""

    def __init__(self, peers: PeerNetwork, settings: UptimeSettings) -> None:
        self._peers = peers
        self._max_gap_ms = round(settings.max_gap_s * 1_000)
        self._max_nodes = settings.max_nodes
        self.counters: dict[NodeID, UptimeCounter] = {}
        self._tried_before: set[NodeID] = set()
        self._beat_ms: int | None = None

    def heartbeat(self, now_ms: int) -> None:
        """Note that the daemon runs. If the last heartbeat is too long ago, the time between counts for no node."""
        last_ms = self._beat_ms
        if last_ms is not None and now_ms - last_ms > self._max_gap_ms:
            for node_id, counter in self.counters.items():
                counter.advance(last_ms, self._heard_ms(node_id))
                counter.skip_gap(last_ms, now_ms)
        self._beat_ms = now_ms if last_ms is None else max(last_ms, now_ms)

    def update(self, now_ms: int) -> None:
        """Advance all counters, and add those of new nodes."""
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

    def drop_unseen(self, kept: Collection[NodeID]) -> list[NodeID]:
        """Drop the counters of nodes that are not observed any more, except these; return the dropped node ids."""
        dropped = [
            node_id
            for node_id, counter in self.counters.items()
            if counter.observation is Observation.UNSEEN and node_id not in kept
        ]
        self._tried_before.update(node_id for node_id in dropped if self.counters[node_id].observed_ms)
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
        counter.observe(
            Observation.CONNECTED if heard_ms is not None else self._observation_of(node_id, counter), now_ms
        )

    def _observation_of(self, node_id: NodeID, counter: UptimeCounter) -> Observation:
        if not self._peers.is_tracked(node_id):
            return Observation.UNSEEN
        was_tried = node_id in self._peers.statistics or counter.observed_ms or node_id in self._tried_before
        return Observation.SOUGHT if was_tried else Observation.UNSEEN

    def _heard_ms(self, node_id: NodeID) -> int | None:
        heard_at = self._peers.heard_at(node_id)
        return None if heard_at is None else round(heard_at * 1_000)
