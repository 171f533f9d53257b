"""The peer network as it is observed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from warpseal.peers.network import PeerNetwork
from warpseal.warp.ids import NodeID


class PeerView:
    """Tells of a peer network who is connected, wanted and tried."""

    def __init__(self, network: PeerNetwork) -> None:
        self._network = network

    def heard_at(self, node_id: NodeID) -> float | None:
        """Return when a byte last came from a connected node; None while it is not connected."""
        connection = self._network.connected.get(node_id)
        return None if connection is None else connection.received_at

    def is_wanted(self, node_id: NodeID) -> bool:
        """Tell whether we stay or would be connected to a node."""
        return self._network.dial_state(node_id) is not None

    def tried(self) -> Iterable[NodeID]:
        """Return the nodes that were dialled since they are wanted: only those have statistics."""
        return self._network.statistics.keys()

    def was_tried(self, node_id: NodeID) -> bool:
        """Tell whether a node is among them."""
        return node_id in self._network.statistics

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        """Call `listener` at each connect, disconnect and failed dial; returns what ends that."""
        return self._network.subscribe(listener)
