"""The connections of one round to the validators of its subnet, and its requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from msgspec.structs import replace

from warpseal.aggregation.ask_schedule import Ask
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.interfaces import ActivitySource, PeerClient, SentRequest, SubnetTracking
from warpseal.aggregation.resolve import ResolvedRequest
from warpseal.aggregation.round import AggregationRound
from warpseal.aggregation.shortfall import explain
from warpseal.protocol.messages import encode_signature_request
from warpseal.protocol.requests import PeerResponse
from warpseal.warp.ids import NodeID
from warpseal.warp.quorum_shortfall import QuorumShortfall

# Interval at which the nodes that are not connected and the inactive validators are looked up
# again.
_REFRESH_S: Final = 0.25


class PeerRequests:
    """Reports connections and inactive validators to the round, and sends its requests.

    wake: called when `refresh` has something to report.
    next_refresh_at: time at which `refresh` reports again.
    """

    def __init__(
        self,
        request: ResolvedRequest,
        round_: AggregationRound,
        peers: PeerClient,
        tracker: SubnetTracking,
        activity: ActivitySource,
        wake: Callable[[], None],
    ) -> None:
        self.next_refresh_at = inf
        self._request = request
        self._round = round_
        self._peers = peers
        self._tracker = tracker
        self._activity = activity
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._app_bytes = encode_signature_request(request.message.raw, request.justification)
        self._sent: list[SentRequest] = []
        self._activity_final_at = inf

    @property
    def has_sent(self) -> bool:
        """Whether a validator was asked in this round."""
        return bool(self._sent)

    @contextmanager
    def open(self, tasks: asyncio.TaskGroup) -> Iterator[None]:
        """Track the subnet inside the block, report its connections and inactive validators."""
        subnet_id = self._request.subnet_id
        with (
            self._tracker.track(subnet_id, self._request.validators),
            self._activity.watch(subnet_id),
        ):
            unsubscribe = self._peers.subscribe(self._on_connection_change)
            loading = None
            if self._activity.is_ready(subnet_id):
                self._activity_final_at = self._loop.time()
            else:
                loading = tasks.create_task(self._load_inactive())
            try:
                is_connected = self._peers.is_connected
                self._round.connected(
                    [node_id for node_id in self._round.table.nodes if is_connected(node_id)]
                )
                self.next_refresh_at = 0.0
                self.refresh()
                yield
            finally:
                if loading is not None:
                    loading.cancel()
                unsubscribe()
                for request in self._sent:
                    request.close()

    def refresh(self) -> None:
        """Report inactive validators and disconnected nodes again, if it is time."""
        now = self._loop.time()
        if now < self.next_refresh_at:
            return
        self.next_refresh_at = now + _REFRESH_S
        subnet_id = self._request.subnet_id
        self._round.set_inactive(
            self._activity.inactive(subnet_id),
            self._activity_final_at,
            self._activity.underfunded(subnet_id),
            self._activity.current(subnet_id),
        )
        for node in self._round.table.nodes.values():
            if not node.is_connected:
                self._refresh_node(node.node_id)

    def ask(self, ask: Ask, on_response: Callable[[PeerResponse], None]) -> None:
        """Send one request to the nodes of `ask`."""
        request = self._peers.ask(
            ask.node_ids,
            self._request.message.source_chain_id,
            self._app_bytes,
            deadline=max(self._round.goals.deadlines),
            is_reask=ask.is_reask,
            on_response=on_response,
        )
        self._sent.append(request)

    def extend(self, deadline: float) -> None:
        """Accept responses until `deadline`, if that is later than before."""
        for request in self._sent:
            request.extend(deadline)

    def explain(self, goal: QuorumGoal, height: int) -> QuorumShortfall:
        """Return why a goal fails; dial the nodes soon that it lacks.

        height: P-Chain height of the caller's request.
        """
        shortfall = explain(
            self._round,
            goal,
            height,
            self._request.subnet_id,
            self._peers.running_s(),
            self._peers.missing_connection,
        )
        blockers = self._round.goals.disconnected_blockers(goal)
        next_dial_at = self._peers.redial_soon(blockers) if blockers else None
        if next_dial_at is None:
            return shortfall
        return replace(shortfall, retry_after_s=max(0.0, next_dial_at - self._loop.time()))

    async def _load_inactive(self) -> None:
        await self._activity.ready(self._request.subnet_id)
        self._activity_final_at = self._loop.time()
        self.next_refresh_at = 0.0
        self._wake()

    def _on_connection_change(self, node_id: NodeID, is_connected: bool) -> None:
        """Report a connection, a lost one, or a failed dial."""
        if is_connected:
            self._round.connected((node_id,))
        elif node_id in self._round.table.nodes:
            self._round.disconnected(node_id)
            self._refresh_node(node_id)

    def _refresh_node(self, node_id: NodeID) -> None:
        reason = self._peers.unreachable(node_id, self._request.subnet_id)
        self._round.unreachable(node_id, reason)
