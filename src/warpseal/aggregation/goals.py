"""The quorums that the callers of one round need: each is met, lost or late. Pure.

Weights are integers; times come from the event loop's clock.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Final

from msgspec import Struct

from warpseal.aggregation.members import IMPOSSIBLE, PENDING, SIGNED, SUSPECT, MemberTable
from warpseal.warp.ids import NodeID
from warpseal.warp.quorum_shortfall import Verdict
from warpseal.warp.validator_set import required_weight

# A result takes a moment to be summed and verified, so the buffer is not awaited up to the very
# deadline.
_BUFFER_MARGIN_S: Final = 0.05


class GoalStatus(Enum):
    """State of a goal.

    LOST: the quorum cannot be reached.
    LATE: the deadline has passed.
    """

    WAITING = "waiting"
    READY = "ready"
    LOST = "lost"
    LATE = "late"


class QuorumGoal(Struct, eq=False):
    """The quorum of one caller; `quorum` and `buffer` are percent of `total_weight`.

    deadline: time at which the caller gives up.
    required_weight: least weight of a result.
    target_weight: weight at which the result leaves without waiting for more.
    stored_only: stored shares must suffice; no validator is asked and nothing is awaited
        for this caller.
    is_height_fixed: the caller named the height, so that the set can never change.
    met_at: time since which the required weight has signed; None while it has not.
    was_connected: the required weight has been connected.
    was_ready: the result was being made.
    """

    quorum: int
    buffer: int
    deadline: float
    total_weight: int
    stored_only: bool = False
    is_height_fixed: bool = False
    required_weight: int = 0
    target_weight: int = 0
    met_at: float | None = None
    was_connected: bool = False
    was_ready: bool = False

    def __post_init__(self) -> None:
        # A message without a signer is no result, whatever the quorum.
        self.required_weight = max(1, required_weight(self.total_weight, self.quorum))
        self.target_weight = max(
            self.required_weight, required_weight(self.total_weight, self.quorum + self.buffer)
        )


class QuorumGoals:
    """The goals of the callers that wait.

    buffer_wait_s: time for which a goal with its quorum waits for its buffer.
    waiting: goals in the order of their callers.
    activity_final_at: loop time from which the set of inactive validators is final; inf: unknown.
    """

    def __init__(self, table: MemberTable, buffer_wait_s: float) -> None:
        self.waiting: Final[dict[QuorumGoal, None]] = {}
        self.activity_final_at = inf
        self._table = table
        self._buffer_wait_s = buffer_wait_s

    @property
    def deadlines(self) -> list[float]:
        """The deadlines of the goals that validators may be asked for."""
        return [goal.deadline for goal in self.waiting if not goal.stored_only]

    @property
    def target_weight(self) -> int:
        """The target of the most demanding goal that validators may be asked for."""
        return max((goal.target_weight for goal in self.waiting if not goal.stored_only), default=0)

    @property
    def need_suspects(self) -> bool:
        """Whether suspect shares, once cleared, would bring a goal to its quorum or its buffer."""
        signed_weight, share_weight = self._table.signed_weight, self._table.share_weight
        for goal in self.waiting:
            next_weight = goal.required_weight
            if signed_weight >= next_weight:
                next_weight = goal.target_weight
            if signed_weight < next_weight <= share_weight:
                return True
        return False

    def wants_more_shares(self, now: float) -> bool:
        """Return whether the round should ask validators.

        While it only waits for the list of inactive validators it asks none.
        """
        target_weight = self.target_weight
        if not target_weight:
            return False
        goals = (goal for goal in self.waiting if not goal.stored_only)
        if self._table.keyless_weight and all(
            self._awaits_inactive(goal, now) and self._is_lost(goal) for goal in goals
        ):
            return False
        return now >= self.activity_final_at or self._table.signed_weight < target_weight

    @property
    def wake_weight(self) -> float:
        """The least weight of shares at which the status of a goal may change."""
        weights = [
            goal.required_weight if goal.met_at is None else goal.target_weight
            for goal in self.waiting
        ]
        return min(weights, default=inf)

    def status(self, goal: QuorumGoal, now: float) -> GoalStatus:
        """Return the status of a goal, and record when its quorum was met."""
        signed_weight = self._table.signed_weight
        if signed_weight >= goal.required_weight:
            goal.met_at = now if goal.met_at is None else goal.met_at
            if goal.stored_only:
                return GoalStatus.READY
            # An inactive signer may be replaced, so no result leaves before they are known.
            if now < min(self.activity_final_at, goal.deadline):
                return GoalStatus.WAITING
            can_wait = now < self._buffer_end(goal) and self._can_improve(goal)
            return GoalStatus.WAITING if can_wait else GoalStatus.READY
        goal.met_at = None
        # Lost comes before late: the caller learns that more time would not have helped.
        if self._is_lost(goal):
            return GoalStatus.WAITING if self._awaits_inactive(goal, now) else GoalStatus.LOST
        return GoalStatus.LATE if now >= goal.deadline else GoalStatus.WAITING

    def verdict(self, goal: QuorumGoal) -> Verdict:
        """Return whether waiting can help a goal.

        It cannot if the weight that is lost for good makes the quorum impossible. Weight without a
        key that belongs to inactive L1 validators has its key at a later height once they are
        funded, and does not count there once they have left.
        """
        lost_weight = self._table.weight[IMPOSSIBLE]
        if not goal.is_height_fixed:
            lost_weight -= self._table.inactive_keyless_weight
        is_impossible = self._table.total_weight - lost_weight < goal.required_weight
        return Verdict.NEVER if is_impossible else Verdict.WAIT

    def next_at(self, now: float) -> float:
        """Return when the status of a goal may change though nothing happens."""
        next_at = inf
        for goal in self.waiting:
            if goal.met_at is None:
                next_at = min(next_at, goal.deadline)
                if self._awaits_inactive(goal, now):
                    next_at = min(next_at, self.activity_final_at)
                continue
            for moment in (self._buffer_end(goal), min(self.activity_final_at, goal.deadline)):
                if now < moment < next_at:
                    next_at = moment
        return next_at

    def disconnected_blockers(self, goal: QuorumGoal) -> list[NodeID]:
        """Return the nodes that are not connected, if the goal fails for want of their weight."""
        if goal.stored_only:
            return []
        table = self._table
        blockers = [
            member
            for member in table.members
            if member.status is PENDING and not member.connections
        ]
        other_weight = table.available_weight - sum(member.weight for member in blockers)
        if other_weight >= goal.required_weight or self.verdict(goal) is Verdict.NEVER:
            return []
        return [node_id for member in blockers for node_id in member.node_ids]

    def _is_lost(self, goal: QuorumGoal) -> bool:
        if goal.stored_only:
            return self._table.share_weight < goal.required_weight
        return self._attainable_weight(goal) < goal.required_weight

    def _attainable_weight(self, goal: QuorumGoal) -> int:
        """Return the weight that has signed or may still sign before the goal's deadline."""
        return self._table.available_weight - self._table.unreachable_weight(goal.deadline)

    def _awaits_inactive(self, goal: QuorumGoal, now: float) -> bool:
        """Return whether a lost goal waits for the list of inactive validators.

        Its failure then names those to which the weight without a key belongs.
        """
        if goal.stored_only or not self._table.keyless_weight:
            return False
        return now < min(self.activity_final_at, goal.deadline)

    def _buffer_end(self, goal: QuorumGoal) -> float:
        assert goal.met_at is not None
        return min(goal.met_at + self._buffer_wait_s, goal.deadline - _BUFFER_MARGIN_S)

    def _can_improve(self, goal: QuorumGoal) -> bool:
        """Return whether to wait for the buffer, or for a quorum without inactive validators."""
        table = self._table
        if table.signed_weight < goal.target_weight <= self._attainable_weight(goal):
            return True
        if not table.inactive:
            return False
        active_weight = table.signed_weight - table.inactive_weight(SIGNED)
        coming_weight = table.weight[PENDING] - table.inactive_weight(PENDING)
        suspect_weight = table.weight[SUSPECT] - table.inactive_weight(SUSPECT)
        coming_weight += suspect_weight - table.unreachable_weight(goal.deadline)
        return active_weight < goal.required_weight <= active_weight + coming_weight
