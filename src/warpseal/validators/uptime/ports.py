"""What is asked of the peer network and of the store, and both as they are where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from warpseal.store.values import HourRow, StoredUptime, ValidationRow
from warpseal.warp.ids import NodeID


class Peers(Protocol):
    """Who is connected, and who would be if it could. Moments: seconds of the event loop's clock."""

    def heard_at(self, node_id: NodeID) -> float | None:
        """Return when a byte last came from a connected node; None while it is not connected."""
        ...

    def is_wanted(self, node_id: NodeID) -> bool:
        """Tell whether we stay or would be connected to a node."""
        ...

    def tried(self) -> Iterable[NodeID]:
        """Return the wanted nodes that were dialled, and the connected ones."""
        ...

    def was_tried(self, node_id: NodeID) -> bool:
        """Tell whether a node is among them."""
        ...

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        """Call `listener(node_id, connected)` at each connect, disconnect and failed dial; returns what ends that."""
        ...


class Shelf(Protocol):
    """Where observations outlive the process, under the node id of who observed; all but `keep_later` raise StoreDown.

    Rows are absolute, so that to write them twice is to write them once; a row never becomes less.
    """

    async def load(self, observer: NodeID, first_hour: int, met_since_hour: int) -> StoredUptime:
        """Return all validations, the hours from `first_hour` on, and who was observed from `met_since_hour` on."""
        ...

    async def keep(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Write rows; returns when they are committed."""
        ...

    def keep_later(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Have rows written before the store is closed, if it works then."""
        ...

    async def hours(self, observer: NodeID, node_id: NodeID, first_hour: int, last_hour: int) -> Sequence[HourRow]:
        """Return the hours of a node, both bounds included, oldest first."""
        ...

    async def prune(self, before_hour: int, unseen_since_unix_s: float) -> bool:
        """Delete some of what is older, whoever observed it; tell whether there is more."""
        ...
