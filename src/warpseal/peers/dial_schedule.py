"""When each wanted node is dialled: at once at first, then with exponential backoff, never too often. Pure.

Source of truth: avalanchego `network/tracked_ip.go` for the delays, and its inbound throttle for the gap between
two attempts at one node (one upgrade in 10 s per source address, loopback exempt). `now`: the event loop's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from random import Random

from warpseal.runtime.backoff import Backoff
from warpseal.warp.ids import NodeID


class Stage(Enum):
    """Where a wanted node stands."""

    WAITING = "waiting"  # A dial is due at a known time.
    PARKED = "parked"  # No address that may be dialled is known.
    DIALLING = "dialling"
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often may be dialled. gap_s: least time between two attempts at one node; burst: dials at once."""

    dials_per_s: float = 500.0
    burst: int = 50
    gap_s: float = 10.0
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(slots=True, eq=False)
class Prospect:
    """One wanted node. due_at: when the next dial may start (WAITING only); failures: in a row.

    reason: of the last failure. reached: attempts in a row in which somebody took the TCP connection in vain.
    """

    stage: Stage = Stage.WAITING
    due_at: float = 0.0
    started_at: float = float("-inf")
    connected_at: float = float("-inf")
    delay_s: float = 0.0
    failures: int = 0
    reached: int = 0
    reason: str = ""
    gap_s: float = 0.0
    ticket: int = -1  # Of its valid entry in the queue.


class DialPlan:
    """Tells whom to dial when; is told how it went."""

    def __init__(self, pace: Pace, random: Random) -> None:
        self._pace = pace
        self._random = random
        self._prospects: dict[NodeID, Prospect] = {}
        # When nodes that are not wanted any more were dialled: the gap holds for them too.
        self._forgotten: dict[NodeID, tuple[float, float]] = {}
        self._queue: list[tuple[float, int, NodeID]] = []
        self._tickets = count()
        self._tokens = float(pace.burst)
        self._refilled_at = 0.0

    def get(self, node_id: NodeID) -> Prospect | None:
        """Return where a node stands; None when it is not wanted. Not to be changed by the caller."""
        return self._prospects.get(node_id)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._prospects

    def __len__(self) -> int:
        return len(self._prospects)

    def parked(self) -> list[NodeID]:
        """Return the wanted nodes of which no usable address is known."""
        return [node_id for node_id, p in self._prospects.items() if p.stage is Stage.PARKED]

    # What is wanted.

    def want(self, node_ids: Iterable[NodeID], now: float) -> None:
        """Plan a dial of each node that is not wanted yet, at once and in this order."""
        for node_id in node_ids:
            if node_id not in self._prospects:
                started_at, gap_s = self._forgotten.pop(node_id, (float("-inf"), 0.0))
                self._prospects[node_id] = Prospect(started_at=started_at, gap_s=gap_s)
                self._enqueue(node_id, max(now, started_at + gap_s))

    def unwant(self, node_ids: Iterable[NodeID], now: float) -> None:
        """Forget nodes, except how long the gap behind their last attempt still lasts."""
        self._forgotten = {n: (at, gap) for n, (at, gap) in self._forgotten.items() if at + gap > now}
        for node_id in node_ids:
            prospect = self._prospects.pop(node_id, None)
            if prospect is not None and prospect.started_at + self._pace.gap_s > now:
                exempt = prospect.stage is Stage.CONNECTED and not prospect.gap_s
                self._forgotten[node_id] = prospect.started_at, 0.0 if exempt else self._pace.gap_s

    def ready(self, node_id: NodeID, now: float) -> None:
        """Note a new address: a node that waits or had none is dialled as soon as the gap allows."""
        prospect = self._prospects.get(node_id)
        if prospect is not None and prospect.stage in (Stage.WAITING, Stage.PARKED):
            self._pull_forward(node_id, prospect, now)

    def hurry(self, node_ids: Iterable[NodeID], now: float) -> float | None:
        """Pull redials forward as far as the gap allows. Returns the earliest dial's moment, if any."""
        moments = []
        for node_id in node_ids:
            prospect = self._prospects.get(node_id)
            if prospect is None:
                continue
            if prospect.stage is Stage.WAITING:
                self._pull_forward(node_id, prospect, now)
                moments.append(prospect.due_at)
            elif prospect.stage is Stage.DIALLING:
                moments.append(now)
        return min(moments, default=None)

    # Whom to dial.

    def take(self, now: float, slots: int) -> list[NodeID]:
        """Return at most `slots` nodes to dial now, longest due first; they count as DIALLING."""
        self._refill(now)
        taken: list[NodeID] = []
        while len(taken) < slots and self._tokens >= 1 and self._due(now):
            _, _, node_id = heappop(self._queue)
            prospect = self._prospects[node_id]
            prospect.stage, prospect.started_at = Stage.DIALLING, now
            self._tokens -= 1
            taken.append(node_id)
        return taken

    def next_at(self, now: float) -> float | None:
        """Return when `take` has something to give, at the earliest; None when nothing is planned."""
        self._drop_stale()
        if not self._queue:
            return None
        self._refill(now)
        lacking = max(0.0, 1 - self._tokens)
        return max(self._queue[0][0], now + lacking / self._pace.dials_per_s)

    # How it went.

    def park(self, node_id: NodeID) -> None:
        """Note that no address could be dialled: the attempt counts neither as made nor as failed."""
        prospect = self._prospects.get(node_id)
        if prospect is not None and prospect.stage is Stage.DIALLING:
            prospect.stage, prospect.started_at = Stage.PARKED, float("-inf")

    def touched(self, node_id: NodeID, now: float, *, exempt: bool) -> None:
        """Note that a node saw an attempt that was meant for another: the gap counts from now.

        Where no gap applies, the node still has to notice first that we hung up.
        """
        prospect = self._prospects.get(node_id)
        if prospect is not None and prospect.stage in (Stage.WAITING, Stage.PARKED):
            prospect.started_at = now
            prospect.gap_s = self._pace.backoff.first_s if exempt else self._pace.gap_s

    def failed(self, node_id: NodeID, reason: str, now: float, *, reached: bool, exempt: bool) -> None:
        """Note a failed attempt. reached: somebody took the TCP connection; exempt: on a loopback address."""
        prospect = self._prospects.get(node_id)
        if prospect is None or prospect.stage is not Stage.DIALLING:
            return
        prospect.failures += 1
        prospect.reached += reached
        prospect.reason = reason
        prospect.gap_s = 0.0 if exempt else self._pace.gap_s
        self._back_off(prospect)
        self._enqueue(node_id, max(now + prospect.delay_s, prospect.started_at + prospect.gap_s))

    def connected(self, node_id: NodeID, now: float, *, exempt: bool) -> None:
        """Note a completed handshake."""
        prospect = self._prospects.get(node_id)
        if prospect is None:
            return
        prospect.stage, prospect.connected_at = Stage.CONNECTED, now
        prospect.failures = prospect.reached = 0
        prospect.reason = ""
        prospect.gap_s = 0.0 if exempt else self._pace.gap_s

    def lost(self, node_id: NodeID, now: float) -> None:
        """Note the end of a connection whose handshake was completed: its delay starts at 0 again.

        Where no gap applies, one that did not last as long as the gap keeps its delay, against a tight loop.
        """
        prospect = self._prospects.get(node_id)
        if prospect is None or prospect.stage is not Stage.CONNECTED:
            return
        if prospect.gap_s or now - prospect.connected_at >= self._pace.gap_s:
            prospect.delay_s = 0.0
        due_at = max(now + prospect.delay_s, prospect.started_at + prospect.gap_s)
        if not prospect.gap_s:
            self._back_off(prospect)
        self._enqueue(node_id, due_at)

    def _back_off(self, prospect: Prospect) -> None:
        prospect.delay_s = self._pace.backoff.next_delay(prospect.delay_s, self._random)

    def _pull_forward(self, node_id: NodeID, prospect: Prospect, now: float) -> None:
        gap_ends_at = prospect.started_at + prospect.gap_s
        if prospect.stage is Stage.PARKED:
            # It was taken before its turn could be used: others that were wanted later do not go first.
            self._enqueue(node_id, max(prospect.due_at, gap_ends_at), prospect.ticket)
        elif max(now, gap_ends_at) < prospect.due_at:
            self._enqueue(node_id, max(now, gap_ends_at))

    def _enqueue(self, node_id: NodeID, due_at: float, ticket: int | None = None) -> None:
        prospect = self._prospects[node_id]
        prospect.ticket = next(self._tickets) if ticket is None else ticket
        prospect.stage, prospect.due_at = Stage.WAITING, due_at
        heappush(self._queue, (due_at, prospect.ticket, node_id))

    def _due(self, now: float) -> bool:
        self._drop_stale()
        return bool(self._queue) and self._queue[0][0] <= now

    def _drop_stale(self) -> None:
        while self._queue:
            _, ticket, node_id = self._queue[0]
            prospect = self._prospects.get(node_id)
            if prospect is not None and prospect.stage is Stage.WAITING and prospect.ticket == ticket:
                return
            heappop(self._queue)

    def _refill(self, now: float) -> None:
        gained = max(0.0, now - self._refilled_at) * self._pace.dials_per_s
        self._tokens = min(float(self._pace.burst), self._tokens + gained)
        self._refilled_at = now
