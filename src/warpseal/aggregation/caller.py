"""The callers of a round, with the times at which their request came to its next stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Final

from msgspec import Struct, field

from warpseal.aggregation.ask_schedule import Ask
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import NodeRecord
from warpseal.aggregation.resolve import ResolvedRequest
from warpseal.aggregation.result_cache import SignedResult
from warpseal.errors import WarpsealError
from warpseal.warp.ids import NodeID
from warpseal.warp.quorum_shortfall import QuorumShortfall


class AskRecord(Struct, frozen=True, eq=False):
    """One request to several nodes, for the spans of a trace.

    nodes: records of all nodes of the round, which change as replies come.
    """

    ask: Ask
    nodes: Mapping[NodeID, NodeRecord]
    asked_at: float = field(default_factory=perf_counter)

    def describe(self) -> dict[str, object]:
        """Return the attributes of its span."""
        nodes = [self.nodes[node_id] for node_id in self.ask.node_ids]
        members = {node.member for node in nodes}
        replies = sum(
            node.last_reply is not None or node.member.sender == node.node_id for node in nodes
        )
        return {
            "validators": len(members),
            "weight": sum(member.weight for member in members),
            "replies": replies,
            "is_reask": self.ask.is_reask,
        }


class Caller:
    """A caller that waits for a round, and what the round reports to it.

    The height of its request is its own, and is part of the explanation of a failure. All times
    come from `clock`, which measures more finely than the clock of the event loop.

    is_ahead: the daemon signs the message before a caller asks for it.
    stages: seconds by stage.
    loaded_at: time at which the archive has responded.
    connected_at: time at which the required weight was connected.
    ready_at: time at which the result was being made.
    asks: requests of the round, if one of its callers is traced.
    """

    __slots__ = (
        "asks",
        "clock",
        "connected_at",
        "entered_at",
        "goal",
        "is_ahead",
        "loaded_at",
        "outcome",
        "ready_at",
        "request",
        "shortfall",
        "stages",
    )

    def __init__(
        self,
        request: ResolvedRequest,
        goal: QuorumGoal,
        clock: Callable[[], float],
        *,
        is_ahead: bool = False,
    ) -> None:
        self.request: Final = request
        self.goal: Final = goal
        self.clock: Final = clock
        self.is_ahead: Final = is_ahead
        self.outcome: asyncio.Future[SignedResult]
        self.stages: dict[str, float] = {}
        self.shortfall: QuorumShortfall | None = None
        self.entered_at = 0.0
        self.loaded_at: float | None = None
        self.connected_at: float | None = None
        self.ready_at: float | None = None
        self.asks: Sequence[AskRecord] = ()

    def update_stages(self) -> None:
        """Record the time at which the goal has come to its next stage."""
        if self.connected_at is None and self.goal.was_connected:
            self.connected_at = self.clock()
        if self.ready_at is None and self.goal.was_ready:
            self.ready_at = self.clock()

    def settle(self, outcome: SignedResult | WarpsealError) -> None:
        """Set the outcome and the stages up to now, unless the caller has left."""
        if self.outcome.done():
            return
        now = self.clock()
        connected_at = now if self.connected_at is None else self.connected_at
        ready_at = now if self.ready_at is None else self.ready_at
        # Shares in memory may complete a quorum before its validators are connected.
        collect_s = max(0.0, ready_at - connected_at)
        self.stages["connect"] = connected_at - self.entered_at
        self.stages["collect"] = collect_s
        self.stages["verify"] = now - ready_at
        if isinstance(outcome, SignedResult):
            self.outcome.set_result(outcome)
        else:
            self.outcome.set_exception(outcome)
