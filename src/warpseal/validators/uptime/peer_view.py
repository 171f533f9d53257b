"""The peer network, as the uptime recorder observes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from warpseal.peers.network import PeerNetwork
from warpseal.warp.ids import NodeID


class PeerView:
    """Which nodes of a peer network are connected, wanted and dialed."""

    def __init__(self, network: PeerNetwork) -> None:
        self._network = network

    def heard_at(self, node_id: NodeID) -> float | None:
        """Return when a connected node last sent a byte; None if it is not connected."""
        connection = self._network.connected.get(node_id)
        return None if connection is None else connection.received_at

    def is_wanted(self, node_id: NodeID) -> bool:
        """Return whether a connection to the node is wanted."""
        return self._network.dial_state(node_id) is not None

    def tried(self) -> Iterable[NodeID]:
        """Return the nodes that were dialed since they are wanted: only those have statistics."""
        return self._network.statistics.keys()

    def was_tried(self, node_id: NodeID) -> bool:
        """Return whether a node is among them."""
        return node_id in self._network.statistics

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        """Call `listener` at each connect, disconnect and failed dial; return a function to stop."""
        return self._network.subscribe(listener)
