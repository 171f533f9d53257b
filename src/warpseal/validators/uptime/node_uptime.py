"""The tallies of all nodes that are looked at, and the beats without which nothing is credited. Pure: moments come in.

A node is observed while it is connected, and while it is wanted and was tried: from its first dial on, or, after a
restart, as soon as it is wanted. Who was never tried, for want of an address, is not observed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from warpseal.validators.uptime.counter import Observation, UptimeCounter
from warpseal.validators.uptime.ports import Peers
from warpseal.validators.uptime.settings import UptimeSettings
from warpseal.warp.ids import NodeID


class NodeUptimes:
    """Tallies by node. A moment is in milliseconds of a monotonic clock, which `peers` uses, too (in seconds)."""

    def __init__(self, peers: Peers, settings: UptimeSettings) -> None:
        self._peers = peers
        self._max_gap_ms = round(settings.max_gap_s * 1_000)
        self._max_nodes = settings.max_nodes
        self._tallies: dict[NodeID, UptimeCounter] = {}
        self._met: set[NodeID] = set()
        self._beat_ms: int | None = None

    @property
    def tallies(self) -> Mapping[NodeID, UptimeCounter]:
        """All tallies, live."""
        return MappingProxyType(self._tallies)

    def beat(self, now_ms: int) -> None:
        """Note that we are awake; where the last time is too long ago, what lies between counts for nobody."""
        last_ms = self._beat_ms
        if last_ms is not None and now_ms - last_ms > self._max_gap_ms:
            for node_id, tally in self._tallies.items():
                tally.settle(last_ms, self._heard_ms(node_id))
                tally.skip(last_ms, now_ms)
        self._beat_ms = now_ms if last_ms is None else max(last_ms, now_ms)

    def look(self, now_ms: int) -> None:
        """Settle all tallies, and begin those of nodes that were not looked at yet."""
        self.beat(now_ms)
        for node_id in (*self._peers.tried(), *self._met):
            if node_id not in self._tallies and self._peers.is_wanted(node_id):
                self._begin(node_id)
        for node_id, tally in self._tallies.items():
            self._settle(node_id, tally, now_ms)

    def settle(self, node_id: NodeID, now_ms: int) -> UptimeCounter | None:
        """Return a node's tally, counted up to now; None where there are too many."""
        self.beat(now_ms)
        tally = self._tallies.get(node_id) or self._begin(node_id)
        if tally is not None:
            self._settle(node_id, tally, now_ms)
        return tally

    def meet(self, node_ids: Iterable[NodeID]) -> None:
        """Take it that these were tried before."""
        self._met.update(node_ids)

    def forget(self, kept: Collection[NodeID]) -> list[NodeID]:
        """Drop the tallies of nodes that are not seen any more, except these; return whose."""
        gone = [one for one, tally in self._tallies.items() if tally.sight is Observation.UNSEEN and one not in kept]
        self._met.update(one for one in gone if self._tallies[one].observed_ms)
        for node_id in gone:
            del self._tallies[node_id]
        if len(self._met) > self._max_nodes:
            self._met = set()
        return gone

    def _begin(self, node_id: NodeID) -> UptimeCounter | None:
        if len(self._tallies) >= self._max_nodes or self._beat_ms is None:
            return None
        tally = self._tallies[node_id] = UptimeCounter(self._beat_ms)
        return tally

    def _settle(self, node_id: NodeID, tally: UptimeCounter, now_ms: int) -> None:
        heard_ms = self._heard_ms(node_id)
        tally.settle(now_ms, heard_ms)
        tally.see(Observation.CONNECTED if heard_ms is not None else self._sight_of(node_id, tally), now_ms)

    def _sight_of(self, node_id: NodeID, tally: UptimeCounter) -> Observation:
        if not self._peers.is_wanted(node_id):
            return Observation.UNSEEN
        was_tried = self._peers.was_tried(node_id) or tally.observed_ms or node_id in self._met
        return Observation.SOUGHT if was_tried else Observation.UNSEEN

    def _heard_ms(self, node_id: NodeID) -> int | None:
        heard_at = self._peers.heard_at(node_id)
        return None if heard_at is None else round(heard_at * 1_000)
