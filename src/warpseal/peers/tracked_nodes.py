"""Which nodes are wanted, for which subnets, and since when each subnet is followed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID


@dataclass(frozen=True, slots=True)
class _Followed:
    node_ids: frozenset[NodeID]
    since: float
    is_old: bool = False


class WantedNodes:
    """The union of the followed subnets' nodes and of the manual ones. own: our node id, which nobody dials."""

    def __init__(self, own: NodeID, manual: Iterable[NodeID]) -> None:
        self._unwanted = frozenset((own, EMPTY_NODE_ID))
        self._subnets: dict[SubnetID, _Followed] = {}
        self._claims: Counter[NodeID] = Counter(set(manual) - self._unwanted)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._claims

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def primary(self) -> Collection[NodeID]:
        """The wanted validators of the Primary Network."""
        followed = self._subnets.get(PRIMARY_NETWORK)
        return followed.node_ids if followed is not None else ()

    def followed_since(self, subnet_id: SubnetID) -> float | None:
        """Return when a subnet was first followed; None when it is not."""
        followed = self._subnets.get(subnet_id)
        return followed.since if followed is not None else None

    def track(self, subnet_id: SubnetID, node_ids: Iterable[NodeID], now: float) -> tuple[list[NodeID], list[NodeID]]:
        """Want exactly these nodes for a subnet. Returns (newly wanted, in the given order; no longer wanted)."""
        before = self._subnets.get(subnet_id) or _Followed(frozenset(), now)
        wanted = dict.fromkeys(node_id for node_id in node_ids if node_id not in self._unwanted)
        self._subnets[subnet_id] = replace(before, node_ids=frozenset(wanted))
        added = [n for n in wanted if n not in before.node_ids and self._claim(n)]
        return added, [n for n in before.node_ids if n not in wanted and self._release(n)]

    def untrack(self, subnet_id: SubnetID) -> list[NodeID]:
        """Want nobody for a subnet any more. Returns who is no longer wanted at all."""
        followed = self._subnets.pop(subnet_id, None)
        return [n for n in followed.node_ids if self._release(n)] if followed is not None else []

    def grown_old(self, moment: float) -> list[NodeID]:
        """Return the nodes of the subnets that were first followed before `moment`, each subnet's once."""
        grown = [(s, f) for s, f in self._subnets.items() if not f.is_old and f.since <= moment]
        self._subnets.update((subnet_id, replace(followed, is_old=True)) for subnet_id, followed in grown)
        return [node_id for _, followed in grown for node_id in followed.node_ids]

    def _claim(self, node_id: NodeID) -> bool:
        self._claims[node_id] += 1
        return self._claims[node_id] == 1

    def _release(self, node_id: NodeID) -> bool:
        self._claims[node_id] -= 1
        if self._claims[node_id]:
            return False
        del self._claims[node_id]
        return True
