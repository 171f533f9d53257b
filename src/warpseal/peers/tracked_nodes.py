"""The nodes to connect to, for which subnets, and since when each subnet is tracked. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID


@dataclass(frozen=True, slots=True)
class _TrackedSubnet:
    node_ids: frozenset[NodeID]
    since: float
    is_reported: bool = False


class TrackedNodes:
    """The nodes of all tracked subnets and the manual peers. own: the daemon's node ID, which is never dialed."""

    def __init__(self, own: NodeID, manual: Iterable[NodeID]) -> None:
        self._excluded = frozenset((own, EMPTY_NODE_ID))
        self._subnets: dict[SubnetID, _TrackedSubnet] = {}
        self._reference_counts: Counter[NodeID] = Counter(set(manual) - self._excluded)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._reference_counts

    def __len__(self) -> int:
        return len(self._reference_counts)

    @property
    def primary(self) -> Collection[NodeID]:
        """The tracked validators of the Primary Network."""
        subnet = self._subnets.get(PRIMARY_NETWORK)
        return subnet.node_ids if subnet is not None else ()

    def tracked_since(self, subnet_id: SubnetID) -> float | None:
        """Return since when a subnet is tracked; None if it is not."""
        subnet = self._subnets.get(subnet_id)
        return subnet.since if subnet is not None else None

    def track(self, subnet_id: SubnetID, node_ids: Iterable[NodeID], now: float) -> tuple[list[NodeID], list[NodeID]]:
        """Replace the nodes of a subnet. Returns (newly tracked nodes in the given order, no longer tracked nodes)."""
        before = self._subnets.get(subnet_id) or _TrackedSubnet(frozenset(), now)
        after = dict.fromkeys(node_id for node_id in node_ids if node_id not in self._excluded)
        self._subnets[subnet_id] = replace(before, node_ids=frozenset(after))
        added = [node_id for node_id in after if node_id not in before.node_ids and self._add_reference(node_id)]
        return added, [n for n in before.node_ids if n not in after and self._remove_reference(n)]

    def untrack(self, subnet_id: SubnetID) -> list[NodeID]:
        """Remove a subnet. Returns the nodes that no subnet tracks any more."""
        subnet = self._subnets.pop(subnet_id, None)
        return [n for n in subnet.node_ids if self._remove_reference(n)] if subnet is not None else []

    def pop_tracked_since_before(self, time_s: float) -> list[NodeID]:
        """Return the nodes of the subnets that are tracked since before `time_s`; each subnet is returned once."""
        subnets = [
            (s, subnet) for s, subnet in self._subnets.items() if not subnet.is_reported and subnet.since <= time_s
        ]
        self._subnets.update((subnet_id, replace(subnet, is_reported=True)) for subnet_id, subnet in subnets)
        return [node_id for _, subnet in subnets for node_id in subnet.node_ids]

    def _add_reference(self, node_id: NodeID) -> bool:
        self._reference_counts[node_id] += 1
        return self._reference_counts[node_id] == 1

    def _remove_reference(self, node_id: NodeID) -> bool:
        self._reference_counts[node_id] -= 1
        if self._reference_counts[node_id]:
            return False
        del self._reference_counts[node_id]
        return True
