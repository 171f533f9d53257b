"""The validators of one set in one round: a record for each, and running sums of weight. Pure.

A validator is one BLS key. Any of its nodes may answer for it, so replies and connections are kept
for each node.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from operator import attrgetter
from typing import Final

from msgspec import Struct

from warpseal.aggregation.share_cache import CachedShare
from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.statistics import Unreachable
from warpseal.warp.ids import NodeID
from warpseal.warp.validator_set import CanonicalValidatorSet


class ShareStatus(IntEnum):
    """State of a validator's share, from the mildest to the worst.

    PENDING: the share may still come.
    SIGNED: the share may enter a sum.
    SUSPECT: the share has come, but enters no sum before it is verified.
    UNAVAILABLE: the share is lost in this round.
    IMPOSSIBLE: the share is lost for good.
    """

    PENDING = 0
    SIGNED = 1
    SUSPECT = 2
    UNAVAILABLE = 3
    IMPOSSIBLE = 4


# Python 3.11 needs ten times as long to look a member up in its Enum class; these names are used
# for every share.
PENDING: Final = ShareStatus.PENDING
SIGNED: Final = ShareStatus.SIGNED
SUSPECT: Final = ShareStatus.SUSPECT
UNAVAILABLE: Final = ShareStatus.UNAVAILABLE
IMPOSSIBLE: Final = ShareStatus.IMPOSSIBLE


class LastReply(Struct, frozen=True):
    """The last reply of a node without a usable share.

    status: state of the share that follows from the reply.
    code: error code of a refusal.
    text: error text of a refusal.
    """

    status: ShareStatus
    reason: str
    code: int | None = None
    text: str | None = None


class NodeRecord(Struct, eq=False):
    """One node of a validator.

    wave: number of the last request to the node, 0 before the first.
    """

    node_id: NodeID
    member: MemberRecord
    is_connected: bool = False
    wave: int = 0
    last_reply: LastReply | None = None
    unreachable: Unreachable | None = None

    @property
    def can_respond(self) -> bool:
        """Whether the node has not refused yet for the rest of the round."""
        return self.last_reply is None or self.last_reply.status is PENDING


class MemberRecord(Struct, eq=False):
    """One validator.

    index: canonical index in the set.
    share: decoded share; None also for a signer of the round's partial aggregate.
    sender: node that sent the share in this round.
    is_checked: the share was part of a right sum, or was verified when it was stored.
    is_in_partial: the validator is a signer of the partial aggregate.
    connections: number of connected nodes.
    is_selected: the schedule has selected the validator to be asked.
    """

    index: int
    weight: int
    public_key: bytes
    node_ids: tuple[NodeID, ...]
    status: ShareStatus = PENDING
    share: CachedShare | None = None
    sender: NodeID | None = None
    is_checked: bool = False
    is_in_partial: bool = False
    connections: int = 0
    is_selected: bool = False

    @property
    def is_unchecked(self) -> bool:
        """Whether the share has been part of no right sum yet."""
        return self.share is not None and not self.is_checked and not self.share.is_verified


class MemberTable:
    """Records by canonical index and by node, with weight by status. Every change is constant work.

    Weight without a key is IMPOSSIBLE from the start. Weight that is only out of reach is PENDING,
    see `unreachable_weight`.

    weight: sums of weight, by status.
    order: members in the order in which signers are preferred: active before inactive, then by
        falling weight, then by index.
    inactive: members that have only inactive nodes, by index.
    underfunded: validations without enough balance; None while they are not known.
    inactive_without_key: L1 validators without a balance whose keys the set lacks.
    inactive_keyless_weight: weight without a key of L1 validators that were inactive at the height
        of the set, whether or not they have been funded or have left since.
    has_inactive_changed: some of that weight belongs to validators that are not inactive any more.
    """

    def __init__(self, validators: CanonicalValidatorSet) -> None:
        self.validators: Final = validators
        self.total_weight: Final = validators.total_weight
        self.members: Final[list[MemberRecord]] = []
        self.nodes: Final[dict[NodeID, NodeRecord]] = {}
        for index, validator in enumerate(validators.validators):
            # No record refers back to its table or to its nodes: a round leaves no garbage for the
            # cycle collector.
            member = MemberRecord(index, validator.weight, validator.public_key, validator.node_ids)
            for node_id in validator.node_ids:
                self.nodes[node_id] = NodeRecord(node_id, member)
            self.members.append(member)
        self.keyless_weight: Final = validators.keyless_weight
        self.weight = [self.total_weight - self.keyless_weight, 0, 0, 0, self.keyless_weight]
        self.connected_weight = 0
        self.inactive: tuple[MemberRecord, ...] = ()
        self.underfunded: tuple[CurrentValidation, ...] | None = ()
        self.inactive_without_key: tuple[CurrentValidation, ...] = ()
        self.inactive_keyless_weight = 0
        self.has_inactive_changed = False
        self._current: tuple[CurrentValidation, ...] = ()
        self.order = self._sorted()
        self._inactive_nodes: frozenset[NodeID] = frozenset()
        self._retry_at: dict[MemberRecord, float] = {}

    @property
    def signed_weight(self) -> int:
        """Weight whose shares may enter a sum."""
        return self.weight[SIGNED]

    @property
    def share_weight(self) -> int:
        """Weight whose shares have come, suspect ones included."""
        return self.weight[SIGNED] + self.weight[SUSPECT]

    @property
    def available_weight(self) -> int:
        """Weight that has signed or still may, out of reach or not."""
        return self.total_weight - self.weight[IMPOSSIBLE] - self.weight[UNAVAILABLE]

    def member_of_key(self, public_key: bytes) -> MemberRecord | None:
        """Return the member with a compressed key (48 bytes)."""
        index = self.validators.index_of_key(public_key)
        return None if index is None else self.members[index]

    def nodes_of(self, member: MemberRecord) -> list[NodeRecord]:
        """Return the nodes of a member."""
        return [self.nodes[node_id] for node_id in member.node_ids]

    def set_status(self, member: MemberRecord, status: ShareStatus) -> None:
        """Move a member's weight to another status."""
        before = member.status
        if before is status:
            return
        self.weight[before] -= member.weight
        self.weight[status] += member.weight
        member.status = status
        if self._retry_at:
            self._retry_at.pop(member, None)

    def record_reply(self, node: NodeRecord, reply: LastReply) -> bool:
        """Record a reply that is no share; return whether the validator's weight was lost by it.

        A node that refused for good, or that sent a bad share, cannot take that back without a
        share.
        """
        before = node.last_reply
        if before is None or before.status <= reply.status:
            node.last_reply = reply
        member = node.member
        if member.status is SIGNED or member.status is SUSPECT:
            return False
        was_pending = member.status is PENDING
        self.settle(member)
        return was_pending and member.status is not PENDING

    def settle(self, member: MemberRecord) -> None:
        """Derive the status of a member without a share from the mildest of its nodes' replies."""
        replies = [node.last_reply for node in self.nodes_of(member)]
        statuses = [PENDING if reply is None else reply.status for reply in replies]
        self.set_status(member, min(statuses))
        self._update_reachability(member)

    def connect(self, node: NodeRecord) -> bool:
        """Record a connection; return whether it is new."""
        if node.unreachable is not None:
            self.set_unreachable(node, None)
        if node.is_connected:
            return False
        member = node.member
        node.is_connected = True
        member.connections += 1
        if member.connections == 1:
            self.connected_weight += member.weight
        return True

    def disconnect(self, node: NodeRecord) -> bool:
        """Record a lost connection; return whether the node was connected.

        The node has to be asked again, since a response to an earlier request is lost.
        """
        if not node.is_connected:
            return False
        member = node.member
        node.is_connected = False
        node.wave = 0
        member.connections -= 1
        if not member.connections:
            self.connected_weight -= member.weight
        return True

    def set_unreachable(self, node: NodeRecord, unreachable: Unreachable | None) -> None:
        """Record why a node cannot be reached.

        None means that the node is connected, or that its connection is under way.
        """
        node.unreachable = unreachable
        self._update_reachability(node.member)

    def unreachable_weight(self, deadline: float) -> int:
        """Return the pending weight that has no node which can be connected before `deadline`."""
        if not self._retry_at:
            return 0
        retries = self._retry_at.items()
        return sum(member.weight for member, retry_at in retries if retry_at >= deadline)

    def set_inactive(self, nodes: frozenset[NodeID]) -> bool:
        """Order the inactive members behind the others; return whether the nodes have changed."""
        if nodes == self._inactive_nodes:
            return False
        self._inactive_nodes = nodes
        members = {self.nodes[node_id].member for node_id in nodes if node_id in self.nodes}
        # A member with an active node can still sign.
        inactive = [member for member in members if nodes.issuperset(member.node_ids)]
        self.inactive = tuple(sorted(inactive, key=attrgetter("index")))
        self.order = self._sorted()
        return True

    def set_balances(
        self,
        underfunded: tuple[CurrentValidation, ...] | None,
        current: tuple[CurrentValidation, ...],
    ) -> None:
        """Take the validations of an L1 without enough balance, and all that it has.

        None means that they are not known: any weight without a key may be theirs. The set has the
        weight of inactive validators without their key and node. If they weigh more than the set
        has without a key, activity has changed since its height, and none of them is named.
        """
        if underfunded is self.underfunded and current is self._current:
            return
        self.underfunded, self._current = underfunded, current
        inactive = [
            validation
            for validation in underfunded or ()
            if validation.balance == 0 and validation.node_id not in self.nodes
        ]
        weight = sum(validation.weight for validation in inactive)
        self.inactive_without_key = tuple(inactive) if weight <= self.keyless_weight else ()
        self.inactive_keyless_weight = self.keyless_weight
        self.has_inactive_changed = False
        if underfunded is not None:
            self.inactive_keyless_weight -= self._find_permanent_keyless_weight()
            self.has_inactive_changed = weight < self.inactive_keyless_weight

    def _find_permanent_keyless_weight(self) -> int:
        """Return the weight without a key that no balance and no later height brings back.

        Each validator of an L1 has a key. A permissioned validator from before the conversion has
        the key of its node on the Primary Network, or none.
        """
        if not any(validation.is_l1 for validation in self._current):
            return self.keyless_weight
        permissioned_weight = sum(
            validation.weight
            for validation in self._current
            if not validation.is_l1 and validation.node_id not in self.nodes
        )
        return min(permissioned_weight, self.keyless_weight)

    def inactive_weight(self, status: ShareStatus) -> int:
        """Return the weight of the inactive members with this status."""
        return sum(member.weight for member in self.inactive if member.status is status)

    def choose_signers(self, target_weight: int) -> list[MemberRecord]:
        """Return the first signed members in `order` that reach `target_weight` together.

        Returns all signed members if they do not reach it.
        """
        signers: list[MemberRecord] = []
        weight = 0
        for member in self.order:
            if weight >= target_weight:
                break
            if member.status is SIGNED:
                signers.append(member)
                weight += member.weight
        return signers

    def _sorted(self) -> list[MemberRecord]:
        order = sorted(self.members, key=attrgetter("weight"), reverse=True)
        return sorted(order, key=set(self.inactive).__contains__) if self.inactive else order

    def _update_reachability(self, member: MemberRecord) -> None:
        """Keep the earliest time at which a pending member may be reached, if it cannot be now."""
        self._retry_at.pop(member, None)
        if member.status is not PENDING:
            return
        retry_at = inf
        for node in self.nodes_of(member):
            if node.can_respond:
                if node.unreachable is None:
                    return
                retry_at = min(retry_at, node.unreachable.retry_at)
        self._retry_at[member] = retry_at
