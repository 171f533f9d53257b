"""The peer network and the store, as the uptime recorder uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from warpseal.store.values import HourRow, StoredUptime, ValidationRow
from warpseal.warp.ids import NodeID


class ObservedPeers(Protocol):
    """Which nodes are connected, wanted and dialed. Times are seconds of the event loop's clock."""

    def heard_at(self, node_id: NodeID) -> float | None:
        """Return when a connected node last sent a byte; None if it is not connected."""
        ...

    def is_tracked(self, node_id: NodeID) -> bool:
        """Return whether a connection to the node is wanted."""
        ...

    @property
    def statistics(self) -> Mapping[NodeID, object]:
        """Statistics of the tracked nodes that were dialed: only those have some."""
        ...

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        """Call `listener(node_id, connected)` at each connect, disconnect, failed dial; return its removal."""
        ...


class UptimeStorage(Protocol):
    """Storage of uptime rows by the node id of the observer; all methods but `keep_later` raise StoreDown.

    Rows are absolute, so that a repeated write changes nothing; the counts of a row never decrease.
    """

    async def load(self, observer: NodeID, first_hour: int, recent_since_hour: int) -> StoredUptime:
        """Return all validations, hours from `first_hour` on, and the nodes observed from `recent_since_hour` on."""
        ...

    async def keep(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Write rows; return when they are committed."""
        ...

    def keep_later(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Queue rows to be written before the store closes, if it is up then."""
        ...

    async def hours(self, observer: NodeID, node_id: NodeID, first_hour: int, last_hour: int) -> Sequence[HourRow]:
        """Return the hours of a node, both bounds included, oldest first."""
        ...

    async def prune(self, before_hour: int, unseen_since_unix_s: float) -> bool:
        """Delete some older rows of all observers; return whether there are more."""
        ...
