"""Turns of new rounds under overload of the validators, or of this machine.

The rounds of one signing subnet share a bounded queue: its validators have the connections on which
requests wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from warpseal.aggregation.errors import Overloaded
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.interfaces import PeerClient
from warpseal.aggregation.round import AggregationRound
from warpseal.warp.ids import SubnetID, id_text

log = logging.getLogger("warpseal.aggregation")

# Interval at which the first round in the queue looks whether the validators can take another one.
_TURN_POLL_S: Final = 0.01
# A peer may have this many requests outstanding: as few rounds fill no queue of requests, and never
# wait.
UNQUEUED_ROUNDS: Final = 16
# Rounds of one signing subnet that may wait. Two thirds of the default timeout serve them at 40
# rounds a second.
MAX_WAITING_ROUNDS: Final = 400
# A caller waits for the turn of its round during this part of its time at most; the rest is for the
# round itself.
_WAITING_PART: Final = 2 / 3
# Interval at which a round behind the first one looks whether its turn can still come in time.
_REVIEW_S: Final = 1.0
# Turns after which their rate is known: turns come in bursts, and the first ones say little.
_MIN_TURNS: Final = 16
_MAX_TURNS: Final = 64
# One thread verifies and one commits; a commit takes what waits together.
_MAX_FINISHING: Final = 32
_MIN_RETRY_S: Final = 1.0
_WARNING_INTERVAL_S: Final = 60.0


RefuseCaller = Callable[[QuorumGoal, Overloaded], None]
"""Gives a caller its error."""


class _SubnetQueue:
    """The rounds of one signing subnet.

    waiting: rounds that wait, first come, first served.
    running: number of rounds that have had their turn and are not over.
    turns: times of the last turns since the queue was empty.
    """

    def __init__(self) -> None:
        self.waiting: Final[dict[RoundTurn, None]] = {}
        self.running = 0
        self.turns: Final[deque[float]] = deque(maxlen=_MAX_TURNS)

    def is_first(self, turn: RoundTurn) -> bool:
        return next(iter(self.waiting), None) is turn

    def expect_turn(self, turn: RoundTurn, now: float) -> float:
        """Return when the turn of a round comes, at the rate of the last turns.

        Returns now if the rate is not known yet. A round that does not wait counts as the last.
        """
        if len(self.turns) < _MIN_TURNS:
            return now
        positions = (at for at, waiting in enumerate(self.waiting) if waiting is turn)
        position = next(positions, len(self.waiting))
        return now + position * (now - self.turns[0]) / len(self.turns)


class RoundAdmission:
    """The queues of all signing subnets, and the backlog of this machine.

    callers: number of requests without a result yet, except those that are made ahead.
    """

    def __init__(self) -> None:
        self.queues: Final[dict[SubnetID, _SubnetQueue]] = {}
        self.callers = 0
        self._finishing = 0
        self._warned_at = -inf
        self._refused = 0

    @property
    def is_backed_up(self) -> bool:
        """Whether this machine is behind with verifications and commits."""
        return self._finishing >= _MAX_FINISHING

    @property
    def is_idle(self) -> bool:
        """Whether no caller waits."""
        return not self.callers

    @property
    def is_quiet(self) -> bool:
        """Whether at most one round has had its turn and is not over."""
        return sum(queue.running for queue in self.queues.values()) <= 1

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Count a verification or a commit of a round while the block runs."""
        self._finishing += 1
        try:
            yield
        finally:
            self._finishing -= 1

    def refuse(
        self, subnet_id: SubnetID, expected_s: float, waiting: int, now: float
    ) -> Overloaded:
        """Return the error of a refused caller; log a warning, at most once a minute."""
        self._refused += 1
        if now - self._warned_at >= _WARNING_INTERVAL_S:
            fields = {
                "signing_subnet_id": id_text(subnet_id),
                "refused": self._refused,
                "waiting": waiting,
                "expected_s": round(expected_s, 1),
            }
            log.warning(
                "refused new messages: they arrive faster than this daemon gets them signed; use a"
                " faster machine, or more daemons on one store",
                extra=fields,
            )
            self._warned_at, self._refused = now, 0
        return Overloaded(expected_s, waiting)


class RoundTurn:
    """The turn of one round.

    wake: event that is set when the callers of the round or its shares change.
    """

    def __init__(
        self,
        admission: RoundAdmission,
        subnet_id: SubnetID,
        round_: AggregationRound,
        peers: PeerClient,
        wake: asyncio.Event,
    ) -> None:
        self._admission = admission
        self._subnet_id = subnet_id
        self._round = round_
        self._peers = peers
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        # The queue of the subnet while the round has its turn.
        self._queue: _SubnetQueue | None = None
        # Until when each caller waits for the turn, set when the round first sees the caller in the
        # queue.
        self._waits_until: dict[QuorumGoal, float] = {}

    async def wait(self, refuse: RefuseCaller, *, has_stored: bool) -> None:
        """Wait until the validators can take another round.

        refuse: takes a caller that cannot be served in time, and its error.
        has_stored: whether shares are stored, so that the round does not wait.
        """
        if has_stored or self._must_not_wait:
            return
        queue = self._admission.queues.setdefault(self._subnet_id, _SubnetQueue())
        if queue.waiting or (queue.running >= UNQUEUED_ROUNDS and self._is_congested()):
            await self._wait_in(queue, refuse)
        if not self._round.is_idle:
            self._queue = queue
            queue.running += 1

    def end(self) -> None:
        """Make way for other rounds."""
        if self._queue is not None:
            self._queue.running -= 1
        # A round that left the queue without a turn may have been the last one as well.
        queue = self._admission.queues.get(self._subnet_id)
        if queue is not None and not queue.waiting and not queue.running:
            del self._admission.queues[self._subnet_id]

    async def _wait_in(self, queue: _SubnetQueue, refuse: RefuseCaller) -> None:
        """Wait in the queue until it is the round's turn, or until no caller is left."""
        # A full queue refuses at once, because its rounds already need most of a usual timeout.
        if len(queue.waiting) >= MAX_WAITING_ROUNDS:
            self._refuse_late(queue, tuple(self._round.goals.waiting), refuse)
            return
        queue.waiting[self] = None
        try:
            while True:
                now = self._loop.time()
                # Callers that will have waited too long when the turn comes are refused before the
                # round looks for its turn: a round that began then would end too late for them, and
                # would take the validators' time from the rounds behind it.
                turn_at = now if self._must_not_wait else queue.expect_turn(self, now)
                goals = self._round.goals.waiting
                late_goals = [goal for goal in goals if self._wait_until(goal, now) <= turn_at]
                self._refuse_late(queue, late_goals, refuse)
                if self._round.is_idle or self._must_not_wait:
                    return
                is_first = queue.is_first(self)
                if is_first and not self._is_congested():
                    queue.turns.append(now)
                    return
                await self._sleep(self._next_look_at(now, is_first=is_first))
        finally:
            was_first = queue.is_first(self)
            del queue.waiting[self]
            # The round behind has slept until its review: now it is the one that polls.
            if was_first and queue.waiting:
                next(iter(queue.waiting))._wake.set()
            if not queue.waiting:
                queue.turns.clear()

    def _next_look_at(self, now: float, *, is_first: bool) -> float:
        """Return when the round looks at the queue again: only the first one polls, for all."""
        poll_at = now + _TURN_POLL_S
        if is_first:
            return poll_at
        refuse_at = min(self._waits_until[goal] for goal in self._round.goals.waiting)
        return min(max(refuse_at, poll_at), now + _REVIEW_S)

    def _wait_until(self, goal: QuorumGoal, now: float) -> float:
        """Return until when a caller waits for the turn."""
        return self._waits_until.setdefault(goal, now + _WAITING_PART * (goal.deadline - now))

    async def _sleep(self, until: float) -> None:
        """Wait until a time, or until `wake` is set."""
        self._wake.clear()
        alarm = self._loop.call_at(until, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()

    def _refuse_late(
        self, queue: _SubnetQueue, goals: Iterable[QuorumGoal], refuse: RefuseCaller
    ) -> None:
        """Refuse callers; each may come back when its turn would come in time.

        If the rate of turns is not known, that is when its time would have been over.
        """
        now, waiting = self._loop.time(), len(queue.waiting)
        turn_at = queue.expect_turn(self, now)
        for goal in goals:
            expected_s = goal.deadline - now
            if turn_at > now:
                expected_s = min(expected_s, turn_at - self._wait_until(goal, now))
            expected_s = max(_MIN_RETRY_S, expected_s)
            refuse(goal, self._admission.refuse(self._subnet_id, expected_s, waiting, now))

    @property
    def _must_not_wait(self) -> bool:
        """Whether shares are in memory, or a caller wants only stored shares."""
        if self._round.table.share_weight > 0:
            return True
        return any(goal.stored_only for goal in self._round.goals.waiting)

    def _is_congested(self) -> bool:
        """Return whether this machine, or validators that the quorum needs, are overloaded."""
        if self._admission.is_backed_up:
            return True
        # The caller with the lowest quorum decides. If that quorum is not connected either way, the
        # round fails for that reason.
        goals = self._round.goals.waiting
        missing_weight = min((goal.required_weight for goal in goals), default=0)
        congested_weight = 0
        is_congested = self._peers.is_congested
        for member in self._round.table.members:
            connected = [node for node in member.node_ids if self._peers.is_connected(node)]
            if not connected:
                continue
            if all(is_congested(node) for node in connected):
                congested_weight += member.weight
                continue
            missing_weight -= member.weight
            if missing_weight <= 0:
                return False
        return congested_weight >= missing_weight
