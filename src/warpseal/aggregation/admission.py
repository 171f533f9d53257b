"""Turns of new rounds while validators are asked for more than they can answer, or this machine can process, in time.

The rounds of one signing subnet share a queue: its validators have the connections on which requests wait. The queue
is pure; times are those of the event loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from warpseal.aggregation.errors import Overloaded
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.ports import PeerClient
from warpseal.aggregation.round import AggregationRound
from warpseal.warp.ids import SubnetID, id_text

log = logging.getLogger("warpseal.aggregation")

# How often the first of the rounds that wait looks whether the validators can take another one.
_TURN_POLL_S: Final = 0.01
# A peer may have as many requests outstanding: so few rounds fill no queue of requests, and never wait.
UNQUEUED_ROUNDS: Final = 16
# The pace is known once so many rounds had their turn and the first second is over, or after the longer time. Before,
# a caller is refused only if its deadline has passed.
_MIN_TURNS: Final = 16
_MIN_MEASURED_S: Final = 1.0
_MAX_MEASURED_S: Final = 5.0
_REVIEW_INTERVAL_S: Final = 0.25
_MEASURED_TURNS: Final = 64
# While fewer turns are measured, much else may go on: reading a burst of requests takes time of its own.
_FEW_TURNS_ERROR: Final = 2.0
_MEASURED_ROUNDS: Final = 32
# One thread verifies and one commits; a commit takes what waits together.
_MAX_FINISHING: Final = 32
_WARNING_INTERVAL_S: Final = 60.0


class WaitingRound(Protocol):
    """A round that waits for its turn."""

    def on_turn(self) -> None:
        """Wake the round, which is now the first of its queue."""

    def refuse_late(self, until: float, expected_s: float, waiting: int) -> bool:
        """Refuse the callers whose deadline is `until` or earlier; return whether a caller is left.

        expected_s: seconds until a result may be expected. waiting: number of rounds in the queue.
        """


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds from turn to turn, and from the turn of a round to its result.

    error: by what factor the pace may really be faster; None: it is not known.
    """

    turn_s: float
    duration_s: float
    error: float | None

    def expected_s(self, place: int) -> float:
        """Return the seconds until the round at a place of the queue (from 1) may have a result."""
        return place * self.turn_s + self.duration_s


class RoundQueue:
    """The waiting rounds of one signing subnet, first come first served, and the pace of their turns.

    running: the rounds that had their turn and are not over.
    """

    def __init__(self) -> None:
        self.running = 0
        self._waiting: dict[WaitingRound, None] = {}
        # The times of the last turns, after the time from which they are counted.
        self._turns: deque[float] = deque(maxlen=_MEASURED_TURNS + 1)
        self._durations: deque[float] = deque(maxlen=_MEASURED_ROUNDS)
        self._measured_from = 0.0
        self._next_review_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def is_first(self, waiting: WaitingRound) -> bool:
        """Return whether a round is the next to have its turn."""
        return next(iter(self._waiting), None) is waiting

    def add(self, waiting: WaitingRound, now: float) -> None:
        """Add a round; its callers are refused at once if they would wait in vain."""
        if not self._waiting:
            self._turns.clear()
            self._turns.append(now)
            self._measured_from = now
        self._waiting[waiting] = None
        pace, place = self.pace(now), len(self._waiting)
        waiting.refuse_late(self._refused_until(place, pace, now), pace.expected_s(place), place)

    def remove(self, waiting: WaitingRound, now: float, *, has_turn: bool) -> None:
        """Remove a round, because it has its turn or because no caller waits."""
        was_first = self.is_first(waiting)
        del self._waiting[waiting]
        if has_turn:
            self._turns.append(now)
        if was_first and self._waiting:
            next(iter(self._waiting)).on_turn()

    def review(self, now: float) -> None:
        """Refuse the callers that would wait in vain; to be called repeatedly while rounds wait."""
        if now < self._next_review_at:
            return
        self._next_review_at = now + _REVIEW_INTERVAL_S
        pace, waiting, ahead = self.pace(now), tuple(self._waiting), 0
        for place, round_ in enumerate(waiting, 1):
            # Only the rounds that stay delay it. Retry-After counts all: if they come back, it is in this order.
            until = self._refused_until(ahead + 1, pace, now)
            ahead += round_.refuse_late(until, pace.expected_s(place), len(waiting))

    def record_duration(self, duration_s: float) -> None:
        """Record how long a round took from its turn to its first result."""
        self._durations.append(duration_s)

    def pace(self, now: float) -> Pace:
        """Return the pace as measured now."""
        turn_s = (now - self._turns[0]) / max(1, len(self._turns) - 1)
        measured_s = _MIN_MEASURED_S if len(self._turns) > _MIN_TURNS else _MAX_MEASURED_S
        # Nine of ten rounds take no longer.
        duration_s = sorted(self._durations)[len(self._durations) * 9 // 10] if self._durations else 0.0
        error = _FEW_TURNS_ERROR if len(self._turns) <= _MEASURED_TURNS else 1.0
        return Pace(turn_s, duration_s, error if now - self._measured_from >= measured_s else None)

    def _refused_until(self, place: int, pace: Pace, now: float) -> float:
        """Return the deadline up to which the callers of a round at a place of the queue would wait in vain."""
        return now if pace.error is None else now + pace.expected_s(place) / pace.error


class RoundAdmission:
    """The queues of all signing subnets, the backlog of this machine, and the warning to the operator."""

    def __init__(self) -> None:
        self._finishing = 0
        self._queues: dict[SubnetID, RoundQueue] = {}
        self._warned_at = float("-inf")
        self._refused = 0

    @property
    def is_backed_up(self) -> bool:
        """Whether so many rounds are verified or committed that this machine is behind with it."""
        return self._finishing >= _MAX_FINISHING

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Count a verification or a commit of a round while the block runs."""
        self._finishing += 1
        try:
            yield
        finally:
            self._finishing -= 1

    def queue(self, subnet_id: SubnetID) -> RoundQueue:
        """Return the queue of a signing subnet."""
        return self._queues.setdefault(subnet_id, RoundQueue())

    def forget_idle(self, subnet_id: SubnetID) -> None:
        """Drop the queue of a signing subnet if no round is in it or had its turn there."""
        queue = self._queues.get(subnet_id)
        if queue is not None and not queue and not queue.running:
            del self._queues[subnet_id]

    def refuse(self, subnet_id: SubnetID, expected_s: float, waiting: int, now: float) -> Overloaded:
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
                "refused new messages: they arrive faster than this daemon gets them signed; use a faster machine, "
                "or more daemons on one store",
                extra=fields,
            )
            self._warned_at, self._refused = now, 0
        return Overloaded(expected_s, waiting)


class RoundTurn:
    """The turn of one round. wake: set if its callers or its shares change. refuse: gives a caller its error."""

    def __init__(
        self,
        admission: RoundAdmission,
        subnet_id: SubnetID,
        round_: AggregationRound,
        peers: PeerClient,
        wake: asyncio.Event,
        refuse: Callable[[QuorumGoal, Overloaded], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._admission = admission
        self._subnet_id = subnet_id
        self._round = round_
        self._peers = peers
        self._wake = wake
        self._refuse = refuse
        self._queue: RoundQueue | None = None
        self._turn_at: float | None = None

    async def wait(self, *, has_stored: bool) -> None:
        """Wait until the validators can take another round; has_stored: shares are stored, so it does not wait."""
        if has_stored or self._must_not_wait:
            return
        queue = self._admission.queue(self._subnet_id)
        if len(queue) or (queue.running >= UNQUEUED_ROUNDS and self._is_congested()):
            queue.add(self, self._loop.time())
            try:
                while not self._has_turn(queue):
                    await self._poll(queue)
            finally:
                queue.remove(self, self._loop.time(), has_turn=not self._round.is_idle)
        if not self._round.is_idle:
            self._queue, self._turn_at = queue, self._loop.time()
            queue.running += 1

    def record_result(self) -> None:
        """Record how long the first result took."""
        if self._queue is not None and self._turn_at is not None:
            self._queue.record_duration(self._loop.time() - self._turn_at)
            self._turn_at = None

    def end(self) -> None:
        """Make way for other rounds."""
        if self._queue is not None:
            self._queue.running -= 1
            self._admission.forget_idle(self._subnet_id)

    def on_turn(self) -> None:
        """Wake the round, which is now the first of its queue."""
        self._wake.set()

    def refuse_late(self, until: float, expected_s: float, waiting: int) -> bool:
        """Refuse the callers whose deadline is `until` or earlier; return whether a caller is left."""
        for goal in [goal for goal in self._round.goals.waiting if goal.deadline <= until]:
            error = self._admission.refuse(self._subnet_id, expected_s, waiting, self._loop.time())
            self._refuse(goal, error)
        return not self._round.is_idle

    def _has_turn(self, queue: RoundQueue) -> bool:
        if self._round.is_idle or self._must_not_wait:
            return True
        return queue.is_first(self) and not self._is_congested()

    async def _poll(self, queue: RoundQueue) -> None:
        """Wait until the round is the first of its queue; the first one waits a moment, for all of them."""
        self._wake.clear()
        if not queue.is_first(self):
            await self._wake.wait()
            return
        alarm = self._loop.call_later(_TURN_POLL_S, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()
        queue.review(self._loop.time())

    @property
    def _must_not_wait(self) -> bool:
        """Whether shares are at hand, or a caller wants only what is stored."""
        return self._round.table.share_weight > 0 or any(goal.stored_only for goal in self._round.goals.waiting)

    def _is_congested(self) -> bool:
        """Return whether this machine, or validators that the quorum needs, have more to do than they can do soon."""
        if self._admission.is_backed_up:
            return True
        missing_weight = min((goal.required_weight for goal in self._round.goals.waiting), default=0)
        congested_weight = 0
        for member in self._round.table.members:
            connected = [node_id for node_id in member.node_ids if self._peers.is_connected(node_id)]
            if connected and all(self._peers.is_congested(node_id) for node_id in connected):
                congested_weight += member.weight
            elif connected:
                missing_weight -= member.weight
                if missing_weight <= 0:
                    return False
        # If the quorum is not connected either way, the round fails for that reason.
        return congested_weight >= missing_weight
