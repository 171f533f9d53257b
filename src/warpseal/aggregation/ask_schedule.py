"""Which validators a round asks, when, and when again.

Pure; times come from the event loop's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.aggregation.members import PENDING, SUSPECT, MemberRecord, MemberTable, NodeRecord
from warpseal.aggregation.settings import AggregationSettings
from warpseal.warp.ids import NodeID

# Nodes that are asked together are asked again in slices of this size, each with its own jitter:
# that spreads a burst.
_SLICE: Final = 128


class Ask(Struct, frozen=True):
    """Send one request, under one new request ID, to these nodes.

    is_reask: they were asked before.
    """

    node_ids: list[NodeID]
    is_reask: bool


class _Wave(Struct, frozen=True, order=True):
    """Nodes that were asked together and are due again together.

    times_asked: the number for each of them.
    """

    due_at: float
    number: int
    nodes: list[NodeRecord]
    times_asked: int


class AskSchedule(Struct, eq=False):
    """Selects members in the order of the table and keeps the time of every request.

    A member is selected once: its connected nodes are asked then, the others when they connect.
    """

    _table: MemberTable
    _settings: AggregationSettings
    _random: Random
    _extra_weight: int = 0
    _cursor: int = 0
    _unasked: list[NodeRecord] = []
    _waves: list[_Wave] = []
    _delayed_waves: list[_Wave] = []
    _last_wave: int = 0
    _next_step_at: float = inf
    _next_probe_at: float = -inf
    _probed_at: dict[NodeRecord, float] = {}
    _probes: int = 0

    @property
    def is_probing(self) -> bool:
        """Whether nodes are held back until a first share has come."""
        return bool(self._delayed_waves)

    def begin(self, now: float) -> None:
        """Start the schedule: validators may be asked from now on."""
        self._next_step_at = now + self._settings.next_wave_s

    def add_connected(self, node: NodeRecord) -> None:
        """Ask a node that has just connected, if its member is selected and pending."""
        if node.member.is_selected and _may_be_asked(node):
            self._unasked.append(node)

    def ask_again(self, member: MemberRecord) -> None:
        """Ask a member that lost its share, except its nodes that were asked in this round."""
        if member.is_selected:
            self._unasked += [
                node
                for node in self._table.nodes_of(member)
                if not node.wave and _may_be_asked(node)
            ]

    def restart(self) -> None:
        """Walk the table's order from its start again; selected members remain selected."""
        self._cursor = 0

    def due_asks(self, now: float, cover_weight: int, missing_weight: int) -> list[Ask]:
        """Return the requests that are due.

        cover_weight: weight that must be selected and not lost.
        missing_weight: of the most demanding caller; the next members, with about this weight, are
            asked after each second.
        """
        if now >= self._next_step_at:
            self._next_step_at = now + self._settings.next_wave_s
            self._extra_weight = max(0, self._covered_weight() - cover_weight) + max(
                1, missing_weight
            )
        selected = self._select(cover_weight + self._extra_weight)
        unasked, self._unasked = self._unasked, []
        nodes = [*(node for node in dict.fromkeys(unasked) if _may_be_asked(node)), *selected]
        first_asks = [self._ask(nodes, 0, now)] if nodes else []
        return [*first_asks, *self._reasks(now), *self._probe(now)]

    def next_at(self) -> float:
        """Return when `due_asks` will return something though nothing happens; inf: never."""
        next_at = self._waves[0].due_at if self._waves else inf
        if self._delayed_waves:
            next_at = min(next_at, self._next_probe_at)
        if self._cursor < len(self._table.order):
            next_at = min(next_at, self._next_step_at)
        return next_at

    def _covered_weight(self) -> int:
        """Return the weight of selected members that have signed, or are pending and connected."""
        members = [
            member
            for member in self._table.members
            if member.is_selected and member.status <= SUSPECT
        ]
        return sum(
            [
                member.weight
                for member in members
                if member.connections or member.status is not PENDING
            ]
        )

    def _select(self, cover_weight: int) -> list[NodeRecord]:
        """Select members until this weight is covered; return the nodes of theirs that can be asked
        now.
        """
        table, order = self._table, self._table.order
        selected: list[MemberRecord] = []
        if not self._cursor:
            large = table.total_weight * self._settings.always_ask_percent
            selected = [
                member
                for member in order
                if member.weight * 100 >= large and not member.is_selected
            ]
            for member in selected:
                member.is_selected = True
        missing_weight = cover_weight - self._covered_weight()
        while missing_weight > 0 and self._cursor < len(order):
            member = order[self._cursor]
            self._cursor += 1
            if not member.is_selected:
                member.is_selected = True
                selected.append(member)
                if member.status <= SUSPECT and (
                    member.connections or member.status is not PENDING
                ):
                    missing_weight -= member.weight
        nodes = table.nodes
        candidates = [nodes[node_id] for member in selected for node_id in member.node_ids]
        return [node for node in candidates if _may_be_asked(node)]

    def _reasks(self, now: float) -> Iterator[Ask]:
        """Yield the waves that are due again; until a first share has come they are held back for
        the probes.

        When it comes, all that was held back is due, except nodes that were probed a moment ago.
        """
        while self._waves and self._waves[0].due_at <= now:
            self._delayed_waves.append(heappop(self._waves))
        if not self._table.signed_weight:
            return
        due: dict[int, list[NodeRecord]] = {}
        pause_s = self._settings.reask_s[0]
        for wave in self._delayed_waves:
            probed = [
                node for node in wave.nodes if self._probed_at.get(node, -inf) > now - pause_s
            ]
            if probed:
                heappush(self._waves, replace(wave, due_at=now + pause_s, nodes=probed))
            nodes = [
                node for node in wave.nodes if node.wave == wave.number and _may_be_asked(node)
            ]
            due.setdefault(wave.times_asked, []).extend(
                node for node in nodes if node not in probed
            )
        self._delayed_waves.clear()
        self._probed_at.clear()
        for times_asked, nodes in due.items():
            if nodes:
                yield self._ask(nodes, times_asked, now)

    def _probe(self, now: float) -> Iterator[Ask]:
        """Yield a request to a few members of the waves that are held back, picked at random."""
        if not self._delayed_waves or now < self._next_probe_at:
            return
        # Only nodes whose pause is over: a node that has just connected was asked a moment ago.
        wave_numbers = {wave.number for wave in self._delayed_waves}
        due = [member for member in self._table.members if self._nodes_in(member, wave_numbers)]
        chosen = self._random.sample(due, min(self._settings.probes, len(due)))
        nodes = [node for member in chosen for node in self._nodes_in(member, wave_numbers)]
        self._probed_at.update(dict.fromkeys(nodes, now))
        self._probes += 1
        self._next_probe_at = now + self._pause(self._probes)
        if nodes:
            yield Ask([node.node_id for node in nodes], is_reask=True)

    def _ask(self, nodes: list[NodeRecord], times_asked: int, now: float) -> Ask:
        for start in range(0, len(nodes), _SLICE):
            self._last_wave += 1
            wave = _Wave(
                now + self._pause(times_asked),
                self._last_wave,
                nodes[start : start + _SLICE],
                times_asked + 1,
            )
            heappush(self._waves, wave)
            for node in wave.nodes:
                node.wave = wave.number
        return Ask([node.node_id for node in nodes], is_reask=times_asked > 0)

    def _pause(self, times_asked: int) -> float:
        pauses = self._settings.reask_s
        jitter = self._settings.reask_jitter * (2 * self._random.random() - 1)
        return pauses[min(times_asked, len(pauses) - 1)] * (1 + jitter)

    def _nodes_in(self, member: MemberRecord, waves: set[int]) -> list[NodeRecord]:
        return [
            node
            for node in self._table.nodes_of(member)
            if node.wave in waves and _may_be_asked(node)
        ]


def _may_be_asked(node: NodeRecord) -> bool:
    return (
        node.is_connected
        and node.member.status is PENDING
        and (node.last_reply is None or node.can_respond)
    )
