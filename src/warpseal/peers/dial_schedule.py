"""The tracked nodes, and the times of their dials: at once, then with backoff and a least gap.

Pure.

Source of truth: avalanchego `network/tracked_ip.go` for the delays, and its inbound throttle for
the gap between two attempts at one node (one upgrade in 10 s per source address, loopback exempt).
`now`: the event loop's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from warpseal.peers.statistics import ConnectionFailure, Unreachable, UnreachableReason
from warpseal.runtime.retry import Backoff
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID

_ROUNDING_ERROR: Final = 1e-6


class DialStage(Enum):
    """The stage of a tracked node."""

    WAITING = "waiting"  # A dial is due at a known time.
    NO_ADDRESS = "no_address"  # No address that may be dialed is known.
    DIALING = "dialing"
    CONNECTED = "connected"


class DialLimits(Struct, frozen=True):
    """Limits of dialing.

    burst: number of dials that may start at the same moment.
    gap_s: least time between two attempts at one node.
    """

    dials_per_s: float = 500.0
    burst: int = 50
    gap_s: float = 10.0
    backoff: Backoff = field(default_factory=Backoff)


class DialState(Struct, eq=False):
    """The dial state of one tracked node.

    due_at: time from which the next dial may start; valid while WAITING.
    started_at: start of the last attempt.
    delay_s: current delay of the backoff.
    failures: number of failures in a row.
    failed_handshakes: number of attempts in a row that failed after TCP was accepted.
    reason: stable reason why the last dial or connection failed, "" after a success.
    detail: the same in words of the system or the library.
    address: address of that dial or connection.
    disconnected_at: start of the disconnection.
    gap_s: least time between two attempts, 0 for a loopback address.
    ticket: number of the valid entry in the queue.
    """

    stage: DialStage = DialStage.WAITING
    due_at: float = 0.0
    started_at: float = float("-inf")
    connected_at: float = float("-inf")
    delay_s: float = 0.0
    failures: int = 0
    failed_handshakes: int = 0
    reason: str = ""
    detail: str = ""
    address: str = ""
    disconnected_at: float = float("-inf")
    gap_s: float = 0.0
    ticket: int = -1


class DialSchedule:
    """Decides which nodes are dialed when, from the recorded outcomes of earlier dials."""

    def __init__(self, limits: DialLimits, random: Random) -> None:
        self._limits = limits
        self._random = random
        self._states: dict[NodeID, DialState] = {}
        # Start of the last attempt at nodes that are no longer tracked: the gap still applies to
        # them.
        self._recent_attempts: dict[NodeID, float] = {}
        self._queue: list[tuple[float, int, NodeID]] = []
        self._tickets = count()
        self._tokens = float(limits.burst)
        self._refilled_at = 0.0

    def get(self, node_id: NodeID) -> DialState | None:
        """Return the state of a node, None if it is not tracked. The caller must not change it."""
        return self._states.get(node_id)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[NodeID]:
        return iter(self._states)

    def is_promising(self, node_id: NodeID) -> bool:
        """Return whether a node is being dialed, or will be after no failure."""
        state = self._states.get(node_id)
        return state is not None and (state.stage is DialStage.DIALING or not state.failures)

    # Tracked nodes.

    def track(self, node_ids: Iterable[NodeID], now: float) -> None:
        """Schedule an immediate dial of each node that is not tracked yet, in this order."""
        gap_s = self._limits.gap_s
        for node_id in node_ids:
            if node_id in self._states:
                continue
            started_at = self._recent_attempts.pop(node_id, float("-inf"))
            self._states[node_id] = DialState(
                started_at=started_at, disconnected_at=now, gap_s=gap_s
            )
            self._enqueue(node_id, max(now, started_at + gap_s))

    def untrack(self, node_ids: Iterable[NodeID], now: float) -> None:
        """Forget nodes, except for the gap after their last attempt."""
        gap_s = self._limits.gap_s
        attempts = self._recent_attempts.items()
        self._recent_attempts = {node_id: at for node_id, at in attempts if at + gap_s > now}
        for node_id in node_ids:
            state = self._states.pop(node_id, None)
            if state is None or state.started_at + gap_s <= now:
                continue
            is_exempt = state.stage is DialStage.CONNECTED and not state.gap_s
            if not is_exempt:
                self._recent_attempts[node_id] = state.started_at

    def record_new_address(self, node_id: NodeID, now: float) -> None:
        """Dial a node as soon as the gap allows, because a new address is known.

        The node must wait for its dial, or for an address.
        """
        state = self._states.get(node_id)
        if state is not None and state.stage in (DialStage.WAITING, DialStage.NO_ADDRESS):
            self._pull_forward(node_id, state, now)

    def redial_soon(self, node_ids: Iterable[NodeID], now: float) -> float | None:
        """Move redials forward as far as the gap allows.

        Returns the time of the earliest dial, if any.
        """
        dial_times = []
        for node_id in node_ids:
            state = self._states.get(node_id)
            if state is None:
                continue
            if state.stage is DialStage.WAITING:
                self._pull_forward(node_id, state, now)
                dial_times.append(state.due_at)
            elif state.stage is DialStage.DIALING:
                dial_times.append(now)
        return min(dial_times, default=None)

    # Due dials.

    def take_due(self, now: float, slots: int) -> list[NodeID]:
        """Return at most `slots` nodes to dial now, longest due first, and mark them as DIALING."""
        self._refill(now)
        due: list[NodeID] = []
        # At the time that `next_dial_at` returned, a rounding error may be missing from the token:
        # the dialer would call again without end, until its clock moves on.
        while len(due) < slots and self._tokens >= 1 - _ROUNDING_ERROR:
            self._drop_stale()
            if not self._queue or self._queue[0][0] > now:
                break
            _, _, node_id = heappop(self._queue)
            state = self._states[node_id]
            state.stage, state.started_at = DialStage.DIALING, now
            self._tokens -= 1
            due.append(node_id)
        return due

    def next_dial_at(self, now: float) -> float | None:
        """Return the earliest time at which `take_due` returns a node, if any."""
        self._drop_stale()
        if not self._queue:
            return None
        self._refill(now)
        missing = max(0.0, 1 - self._tokens)
        return max(self._queue[0][0], now + missing / self._limits.dials_per_s)

    # Outcomes.

    def wait_for_address(self, node_id: NodeID) -> None:
        """Record that a node had no address to dial; this is neither an attempt nor a failure."""
        state = self._states.get(node_id)
        if state is not None and state.stage is DialStage.DIALING:
            state.stage, state.started_at = DialStage.NO_ADDRESS, float("-inf")

    def record_attempt(self, node_id: NodeID, now: float, *, is_loopback: bool) -> None:
        """Record that a dial of another node reached this one: the gap counts from now.

        A loopback node has no gap, but it needs a moment to notice that this side disconnected.
        """
        state = self._states.get(node_id)
        if state is not None and state.stage in (DialStage.WAITING, DialStage.NO_ADDRESS):
            state.started_at = now
            state.gap_s = self._limits.backoff.first_s if is_loopback else self._limits.gap_s

    def record_failure(
        self,
        node_id: NodeID,
        reason: str,
        now: float,
        *,
        tcp_accepted: bool,
        is_loopback: bool,
        address: str = "",
        detail: str = "",
    ) -> None:
        """Record a failed attempt.

        reason: stable reason, for logs and metrics.
        tcp_accepted: the TCP connection was accepted before.
        address: last address that was dialed.
        detail: reason in words, for people.
        """
        state = self._states.get(node_id)
        if state is None or state.stage is not DialStage.DIALING:
            return
        state.failures += 1
        state.failed_handshakes += tcp_accepted
        state.reason, state.detail, state.address = reason, detail, address or state.address
        state.gap_s = 0.0 if is_loopback else self._limits.gap_s
        self._back_off(state)
        self._enqueue(node_id, max(now + state.delay_s, state.started_at + state.gap_s))

    def record_connected(self, node_id: NodeID, now: float, *, is_loopback: bool) -> None:
        """Record a completed handshake."""
        state = self._states.get(node_id)
        if state is None:
            return
        state.stage, state.connected_at = DialStage.CONNECTED, now
        state.failures = state.failed_handshakes = 0
        state.reason = state.detail = ""
        state.gap_s = 0.0 if is_loopback else self._limits.gap_s

    def record_disconnect(
        self, node_id: NodeID, now: float, *, reason: str = "", address: str = "", detail: str = ""
    ) -> None:
        """Record the end of a connection with a completed handshake, which resets the delay to 0.

        A loopback connection shorter than the gap keeps its delay, to prevent a tight loop.
        """
        state = self._states.get(node_id)
        if state is None or state.stage is not DialStage.CONNECTED:
            return
        state.disconnected_at = now
        state.reason, state.detail, state.address = reason, detail, address
        if state.gap_s or now - state.connected_at >= self._limits.gap_s:
            state.delay_s = 0.0
        due_at = max(now + state.delay_s, state.started_at + state.gap_s)
        if not state.gap_s:
            self._back_off(state)
        self._enqueue(node_id, due_at)

    def _back_off(self, state: DialState) -> None:
        state.delay_s = self._limits.backoff.next_delay(state.delay_s, self._random)

    def _pull_forward(self, node_id: NodeID, state: DialState, now: float) -> None:
        gap_ends_at = state.started_at + state.gap_s
        if state.stage is DialStage.NO_ADDRESS:
            # The node keeps its place in the queue: nodes that were tracked later are not dialed
            # before it.
            self._enqueue(node_id, max(state.due_at, gap_ends_at), state.ticket)
        elif max(now, gap_ends_at) < state.due_at:
            self._enqueue(node_id, max(now, gap_ends_at))

    def _enqueue(self, node_id: NodeID, due_at: float, ticket: int | None = None) -> None:
        state = self._states[node_id]
        state.ticket = next(self._tickets) if ticket is None else ticket
        state.stage, state.due_at = DialStage.WAITING, due_at
        heappush(self._queue, (due_at, state.ticket, node_id))

    def _drop_stale(self) -> None:
        while self._queue:
            _, ticket, node_id = self._queue[0]
            state = self._states.get(node_id)
            if state is not None and state.stage is DialStage.WAITING and state.ticket == ticket:
                return
            heappop(self._queue)

    def _refill(self, now: float) -> None:
        gained = max(0.0, now - self._refilled_at) * self._limits.dials_per_s
        self._tokens = min(float(self._limits.burst), self._tokens + gained)
        self._refilled_at = now


def unreachable_while_dialing(state: DialState, now: float) -> Unreachable | None:
    """Return why a node cannot be reached, between a failed dial and the next one."""
    if state.stage is not DialStage.WAITING or not state.failures or state.due_at < now:
        return None
    reason = UnreachableReason.NOT_CONNECTED
    if state.reason == ConnectionFailure.WRONG_IDENTITY:
        reason = UnreachableReason.WRONG_IDENTITY
    return Unreachable(reason, state.due_at)


class _TrackedSubnet(Struct, frozen=True):
    node_ids: frozenset[NodeID]
    since: float
    is_reported: bool = False


class TrackedNodes:
    """The nodes of all tracked subnets and the manual peers.

    own: node ID of the daemon, which is never dialed.
    manual: nodes of the configuration.
    """

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

    def track(
        self, subnet_id: SubnetID, node_ids: Iterable[NodeID], now: float
    ) -> tuple[list[NodeID], list[NodeID]]:
        """Replace the nodes of a subnet.

        Returns (newly tracked nodes in the given order, no longer tracked nodes).
        """
        before = self._subnets.get(subnet_id) or _TrackedSubnet(frozenset(), now)
        after = dict.fromkeys(node_id for node_id in node_ids if node_id not in self._excluded)
        self._subnets[subnet_id] = replace(before, node_ids=frozenset(after))
        added = [node_id for node_id in after if node_id not in before.node_ids]
        dropped = [node_id for node_id in before.node_ids if node_id not in after]
        # Only nodes that no other subnet tracks are new, or are dropped.
        new = [node_id for node_id in added if self._add_reference(node_id)]
        unused = [node_id for node_id in dropped if self._remove_reference(node_id)]
        return new, unused

    def untrack(self, subnet_id: SubnetID) -> list[NodeID]:
        """Remove a subnet. Returns the nodes that no subnet tracks any more."""
        subnet = self._subnets.pop(subnet_id, None)
        if subnet is None:
            return []
        return [node_id for node_id in subnet.node_ids if self._remove_reference(node_id)]

    def pop_tracked_since_before(self, time_s: float) -> list[NodeID]:
        """Return the nodes of subnets that are tracked since `time_s` or before.

        The nodes of a subnet are returned once.
        """
        node_ids: list[NodeID] = []
        for subnet_id, subnet in self._subnets.items():
            if not subnet.is_reported and subnet.since <= time_s:
                self._subnets[subnet_id] = replace(subnet, is_reported=True)
                node_ids += subnet.node_ids
        return node_ids

    def _add_reference(self, node_id: NodeID) -> bool:
        self._reference_counts[node_id] += 1
        return self._reference_counts[node_id] == 1

    def _remove_reference(self, node_id: NodeID) -> bool:
        self._reference_counts[node_id] -= 1
        if self._reference_counts[node_id]:
            return False
        del self._reference_counts[node_id]
        return True
