"""One shared round as pure state: events go in, actions come out.

The state diagram is in docs/aggregation.md. A message, a validator set and a justification make a
round; the goals of its callers come and go. The round does nothing itself: `round_runner` executes
its actions. Times come from the event loop's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from random import Random
from typing import Final

from msgspec import Struct

from warpseal.aggregation.ask_schedule import Ask, AskSchedule
from warpseal.aggregation.bad_shares import SearchResult
from warpseal.aggregation.goals import GoalStatus, QuorumGoal, QuorumGoals
from warpseal.aggregation.members import (
    PENDING,
    UNAVAILABLE,
    LastReply,
    MemberRecord,
    MemberTable,
    NodeRecord,
)
from warpseal.aggregation.refusals import RefusalRules
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.round_shares import (
    Check,
    CheckOutcome,
    PartialAggregate,
    RoundShares,
    StoredSignatureCheck,
    SumCheck,
)
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import CachedShare
from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.messages import NoSignature
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import NodeID
from warpseal.warp.validator_set import CanonicalValidatorSet, required_weight

# No result leaves before it is known which validators are inactive; a node that hangs delays
# nothing for longer.
_INACTIVE_TIMEOUT_S: Final = 1.0
# The shares that have come are summed ahead at these parts of the weight that a goal waits for: at
# the last of them few shares are missing, and the sum has to be ready when the quorum is. The sum
# of fewer validators takes a tenth of a millisecond.
_SUM_AHEAD_AT: Final = (0.75, 0.94)
_MIN_SUMMED_AHEAD: Final = 64
# Decoding this many shares takes two milliseconds.
_DECODED_AT_ONCE: Final = 64
_EMPTY_RESPONSE: Final = LastReply(PENDING, "empty_answer")
_MALFORMED_RESPONSE: Final = LastReply(UNAVAILABLE, "malformed_answer")


# Actions.


class Load(Struct, frozen=True):
    """Load the entry of the message from the archive; give up at `until`. Event: `loaded`."""

    until: float | None


class Decode(Struct, frozen=True):
    """Decode stored shares. Event: `decoded`."""

    shares: Sequence[StoredShare]


class Connect(Struct, frozen=True):
    """Track the subnet's validators; report connections, reachability and inactive validators."""


class Verify(Struct, frozen=True):
    """Check shares on a worker thread. Event: `verified`; no other check is requested before it."""

    check: Check


class SumAhead(Struct, frozen=True):
    """Sum shares that will be in the next check, while others are awaited. It has no event."""

    check: SumCheck


class StoreShares(Struct, frozen=True):
    """Store shares, in one list: a call for each would cost as much as the shares."""

    shares: Sequence[StoredShare]


class StoreResult(Struct, frozen=True):
    """Store a signed message before it leaves. Event: `stored`."""

    result: SignedResult


class Reject(Struct, frozen=True):
    """Delete shares that were found bad everywhere, and remember their validators."""

    shares: Sequence[tuple[MemberRecord, CachedShare]]


class Complete(Struct, frozen=True, eq=False):
    """Give callers their result.

    made_for: goal whose quorum and buffer the result was made for.
    is_stored: the archive had the result as it is.
    """

    goals: dict[QuorumGoal, None]
    result: SignedResult
    made_for: QuorumGoal
    is_stored: bool = False


class Fail(Struct, frozen=True):
    """Report to a caller why there is no result.

    is_late: the deadline has passed.
    """

    goal: QuorumGoal
    is_late: bool


Action = (
    Load
    | Decode
    | Connect
    | Ask
    | Verify
    | SumAhead
    | StoreShares
    | StoreResult
    | Reject
    | Complete
    | Fail
)


class AggregationRound:
    """Takes the events of the shell and returns its actions; constant work per response.

    rules: meaning of the refusals of this message.
    offenders: public keys whose share was bad lately.
    wake: called when an event may need an action at once.
    """

    def __init__(
        self,
        validators: CanonicalValidatorSet,
        rules: RefusalRules,
        settings: AggregationSettings,
        random: Random,
        offenders: Container[bytes],
        wake: Callable[[], None],
    ) -> None:
        self.table: Final = MemberTable(validators)
        self.rules: Final = rules
        self.goals: Final = QuorumGoals(self.table, settings.buffer_wait_s)
        self._wake = wake
        self._schedule = AskSchedule(self.table, settings, random)
        self.shares: Final = RoundShares(self.table, self._schedule, offenders)
        self._first_wave_weight = required_weight(
            self.table.total_weight, settings.first_wave_percent
        )
        self._is_collecting = False
        self._is_loading = False
        self._has_loaded = False
        self._outbox: list[Action] = []
        self._check: Check | None = None
        # Completions are due as soon as their result is stored.
        self._completions: list[Complete] = []
        self._signatures: Sequence[StoredSignature] = ()
        self._undecoded: deque[StoredShare] = deque()
        self._is_connecting = False
        self._sums_ahead = 0

    # Callers.

    @property
    def is_idle(self) -> bool:
        """Whether no caller waits."""
        if self.goals.waiting:
            return False
        return not any(completion.goals for completion in self._completions)

    def join(self, goal: QuorumGoal) -> None:
        """Take a caller's goal into account."""
        self.goals.waiting[goal] = None
        self._wake()

    def leave(self, goal: QuorumGoal) -> None:
        """Forget a caller's goal."""
        self.goals.waiting.pop(goal, None)
        for completion in self._completions:
            completion.goals.pop(goal, None)
        self._wake()

    # Peers.

    def connected(self, node_ids: Iterable[NodeID]) -> None:
        """Take nodes that are connected."""
        nodes, table, schedule = self.table.nodes, self.table, self._schedule
        for node_id in node_ids:
            node = nodes.get(node_id)
            if node is not None:
                self._wake()
                if table.connect(node):
                    schedule.add_connected(node)

    def disconnected(self, node_id: NodeID) -> None:
        """Take a node that lost its connection."""
        node = self.table.nodes.get(node_id)
        if node is not None and self.table.disconnect(node):
            self._wake()

    def unreachable(self, node_id: NodeID, reason: Unreachable | None) -> None:
        """Take why a node that is not connected is out of reach.

        None means that its connection is under way.
        """
        node = self.table.nodes.get(node_id)
        if node is not None and node.unreachable != reason:
            self.table.set_unreachable(node, reason)
            self._wake()

    def set_inactive(
        self,
        node_ids: frozenset[NodeID],
        final_at: float,
        underfunded: tuple[CurrentValidation, ...] | None = (),
        current: tuple[CurrentValidation, ...] = (),
    ) -> None:
        """Take the inactive nodes.

        final_at: loop time since which they are final; inf while they may still change.
        underfunded: validations without enough balance; None if they are not known.
        current: all validations of an L1.
        """
        self.table.set_balances(underfunded, current)
        if self.table.set_inactive(node_ids):
            self._schedule.restart()
            self._wake()
        if final_at < self.goals.activity_final_at:
            self.goals.activity_final_at = final_at
            self._wake()

    # Shares.

    def response(self, node: NodeRecord, reply: CachedShare | NoSignature) -> None:
        """Take a node's response, whichever of its requests it answers."""
        if isinstance(reply, CachedShare):
            if self.shares.add(node.member, reply, node.node_id):
                self._wake()
            return
        last_reply = _EMPTY_RESPONSE if reply is NoSignature.EMPTY else _MALFORMED_RESPONSE
        if self.table.record_reply(node, last_reply):
            self._wake()

    def refused(self, node: NodeRecord, code: int, text: str) -> None:
        """Take a node's refusal; code: any int32."""
        refusal = self.rules.refusal(code)
        last_reply = LastReply(refusal.status, refusal.reason, code, text)
        if self.table.record_reply(node, last_reply):
            self._wake()

    def on_share_added(self, public_key: bytes, share: CachedShare) -> None:
        """Take a share that was cached, or that came to another round of the message."""
        member = self.table.member_of_key(public_key)
        if member is not None and self.shares.add(member, share, None):
            self._wake()

    def on_share_rejected(self, public_key: bytes, share: CachedShare) -> None:
        """Drop a share that another round found bad."""
        member = self.table.member_of_key(public_key)
        if member is not None and member.share is share:
            self.shares.remove(member)
            self._wake()

    def loaded(self, stored: ArchiveEntry) -> None:
        """Add the shares and signatures that the archive holds of the message."""
        self._signatures = stored.signatures
        self.shares.stored = {share.public_key: share.signature for share in stored.shares}
        self._undecoded.extend(stored.shares)
        self._has_loaded, self._is_loading = True, False
        self._wake()

    def decoded(self, shares: Iterable[tuple[StoredShare, CachedShare]]) -> None:
        """Take stored shares, each with the share that stands for its key now."""
        for stored, share in shares:
            member = self.table.member_of_key(stored.public_key)
            if member is not None:
                self.shares.add_stored(member, stored, share)
        self._is_loading = False
        self._wake()

    def verified(self, outcome: CheckOutcome) -> None:
        """Take the outcome of the check that was requested."""
        check, self._check = self._check, None
        self._wake()
        if isinstance(outcome, SearchResult):
            bad_shares = self.shares.apply(outcome)
            if bad_shares:
                self._outbox.append(Reject(bad_shares))
        elif isinstance(outcome, PartialAggregate):
            self._restore(outcome)
        elif isinstance(check, SumCheck):
            if outcome is None:
                self.shares.refute(check)
            else:
                self._accept(check, outcome)

    def _restore(self, partial: PartialAggregate) -> None:
        """Take a stored signature: it completes the goals whose target it meets."""
        self.shares.add_partial(partial)
        result, waiting = partial.result, self.goals.waiting
        goals = [goal for goal in waiting if goal.target_weight <= result.weight]
        for goal in goals:
            del waiting[goal]
        if goals:
            completion = Complete(dict.fromkeys(goals), result, goals[0], is_stored=True)
            self._outbox.append(completion)

    def _accept(self, check: SumCheck, result: SignedResult) -> None:
        """Take a right sum: its caller gets the result when that is stored."""
        self.shares.accept(check)
        goals: dict[QuorumGoal, None] = {}
        # The caller may have left while its sum was checked; the result is stored all the same.
        if check.goal in self.goals.waiting:
            del self.goals.waiting[check.goal]
            goals[check.goal] = None
        self._completions.append(Complete(goals, result, check.goal))
        self._outbox.append(StoreResult(result))

    def stored(self, result: SignedResult) -> Complete:
        """Record that a result is stored; return the action that gives it to its callers."""
        completions = self._completions
        completion = next(item for item in completions if item.result is result)
        completions.remove(completion)
        return completion

    # Actions.

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due, in their order.

        The order of the steps matters:
        1. The archive comes before any connection: a stored signature may spare all validators.
        2. New shares are handed to the archive first of all actions: a share is stored no later
           than its result.
        3. Validators are tracked before goals are judged, because a status depends on the reports
           of `Connect`: the reachability of nodes, and which validators are inactive.
        4. Goals are judged before a check begins: a goal that another result already serves needs
           no sum of its own.
        5. A check goes alone. While one is on the worker thread, its shares could change under a
           second one.
        6. Requests come last, since the steps before may have ended the goals that need them.
        """
        actions, self._outbox = self._outbox, []
        if not self._is_collecting:
            actions += self._start(now)
        if not self._is_collecting:
            return actions
        goals, shares = self.goals, self.shares
        unstored = shares.take_unstored()
        if unstored:
            actions.insert(0, StoreShares(unstored))
        if goals.deadlines and not self._is_connecting:
            self._is_connecting = True
            self._schedule.begin(now)
            self._wake()
            goals.activity_final_at = now + _INACTIVE_TIMEOUT_S
            return [*actions, Connect()]
        if goals.waiting and self._check is None:
            self._check = self._next_check(now, actions)
            if self._check is not None:
                return [*actions, Verify(self._check)]
        if goals.wants_more_shares(now):
            target_weight = goals.target_weight
            cover_weight = max(self._first_wave_weight, target_weight)
            missing_weight = target_weight - self.table.signed_weight
            actions += self._schedule.due_asks(now, cover_weight, missing_weight)
        shares.wake_weight = goals.wake_weight
        if self._may_sum_ahead:
            actions += self._sum_ahead()
        return actions

    @property
    def _may_sum_ahead(self) -> bool:
        if len(self.table.members) < _MIN_SUMMED_AHEAD or self._check is not None:
            return False
        return self._sums_ahead < len(_SUM_AHEAD_AT) and bool(self.goals.waiting)

    def _sum_ahead(self) -> Iterator[SumAhead]:
        """Yield a sum if enough shares have come, and wake the round for the next one."""
        awaited_weight = self.goals.wake_weight
        signed_weight = self.table.signed_weight
        reached = sum(signed_weight >= part * awaited_weight for part in _SUM_AHEAD_AT)
        if self._sums_ahead < reached:
            self._sums_ahead = reached
            check = self.shares.sum_check(next(iter(self.goals.waiting)))
            if len(check.shares) == len(check.indices):
                yield SumAhead(check)
        if reached < len(_SUM_AHEAD_AT):
            self.shares.wake_weight = _SUM_AHEAD_AT[reached] * awaited_weight

    def next_wakeup(self, now: float) -> float:
        """Return when `tick` will return something though nothing happens; inf: never."""
        next_at = self.goals.next_at(now)
        if self.goals.wants_more_shares(now):
            next_at = min(next_at, self._schedule.next_at())
        return next_at

    def _start(self, now: float) -> list[Action]:
        """Return the next action until the entry of the archive is loaded, verified and decoded."""
        if self._is_loading or self._check is not None:
            return []
        if not self._has_loaded:
            self._is_loading = True
            # Half of a caller's time at least is left to ask validators.
            deadlines = self.goals.deadlines
            until = min(deadlines) / 2 + now / 2 if deadlines else None
            return [Load(until)]
        if self._signatures:
            self._check = StoredSignatureCheck(self._signatures)
            self._signatures = ()
            return [Verify(self._check)]
        batch: list[StoredShare] = []
        while self._undecoded and self.goals.waiting and len(batch) < _DECODED_AT_ONCE:
            share = self._undecoded.popleft()
            member = self.table.member_of_key(share.public_key)
            if member is not None and not member.is_in_partial:
                batch.append(share)
        self._is_loading, self._is_collecting = bool(batch), not batch
        return [Decode(batch)] if batch else []

    def _next_check(self, now: float, actions: list[Action]) -> Check | None:
        """Judge the goals; return a sum for the first ready goal, or a step of the search."""
        shares = self.shares
        if shares.is_flooded:
            shares.suspect_unchecked()
        # After a wrong sum its shares are suspect and count for no quorum. The first step of the
        # search clears most of them, so no goal is judged before it.
        ready = [] if shares.must_begin else self._judge(now, actions)
        if shares.must_go_on:
            return shares.next_step()
        if ready:
            return shares.sum_check(ready[0])
        # Without a wrong sum a search goes on only if suspect shares would complete a goal.
        if shares.can_go_on and self.goals.need_suspects:
            return shares.next_step()
        return None

    def _judge(self, now: float, actions: list[Action]) -> list[QuorumGoal]:
        """Add a failure for each goal that is lost or late; return the goals that are ready.

        A goal that fits a result which is being stored waits for that commit, whatever its status:
        the result is verified, and its caller must not fail or sum the same shares again. Only then
        does its own status count. A status is asked for at every tick, also of a goal that waits,
        because that records when its quorum was met, from which the time of the buffer is counted.
        A goal that is ready stays in `waiting` until its sum has proved right; a goal that is lost
        leaves at once, so that it is explained by the weights of this moment.
        """
        ready: list[QuorumGoal] = []
        connected_weight = max(self.table.connected_weight, self.table.signed_weight)
        waiting = self.goals.waiting
        for goal in tuple(waiting):
            completion = self._completion_for(goal)
            if completion is not None:
                del waiting[goal]
                completion.goals[goal] = None
                continue
            status = self.goals.status(goal, now)
            goal.was_connected |= connected_weight >= goal.required_weight
            if status is GoalStatus.READY:
                goal.was_ready = True
                ready.append(goal)
            elif status is not GoalStatus.WAITING:
                del waiting[goal]
                actions.append(Fail(goal, status is GoalStatus.LATE))
        return ready

    def _completion_for(self, goal: QuorumGoal) -> Complete | None:
        """Return the completion, not stored yet, whose result meets a goal's target."""
        for completion in self._completions:
            if goal.target_weight <= completion.result.weight:
                return completion
        return None
