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
    """One request, under one new request ID, to these nodes.

    is_reask: the nodes were asked before.
    """

    node_ids: list[NodeID]
    is_reask: bool


class _Wave(Struct, frozen=True, order=True):
    """Nodes that were asked together and are due again together.

    times_asked: number of requests that each of the nodes got.
    """

    due_at: float
    number: int
    nodes: list[NodeRecord]
    times_asked: int


class AskSchedule:
    """Selects members in the order of the table and keeps the time of every request.

    A member is selected once: its connected nodes are asked then, the others when they connect.
    """

    def __init__(self, table: MemberTable, settings: AggregationSettings, random: Random) -> None:
        self._table = table
        self._settings = settings
        self._random = random
        # Selection: members of the table's order before the cursor are selected or were passed.
        self._cursor = 0
        self._extra_weight = 0
        self._next_step_at = inf
        self._unasked: list[NodeRecord] = []
        # Requests that were sent, as a heap by the time at which they are due again.
        self._waves: list[_Wave] = []
        self._last_wave = 0
        # Waves that are due, but held back until a first share has come.
        self._delayed_waves: list[_Wave] = []
        self._next_probe_at = -inf
        self._probed_at: dict[NodeRecord, float] = {}
        self._probe_count = 0

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
        missing_weight: weight that the most demanding caller lacks; the next members, with about
            this weight, are asked after each second.
        """
        if now >= self._next_step_at:
            self._next_step_at = now + self._settings.next_wave_s
            covered_weight = self._covered_weight()
            self._extra_weight = max(0, covered_weight - cover_weight) + max(1, missing_weight)
        selected = self._select(cover_weight + self._extra_weight)
        unasked, self._unasked = self._unasked, []
        # A node may have been noted twice, or have refused since.
        nodes = [node for node in dict.fromkeys(unasked) if _may_be_asked(node)]
        nodes += selected
        asks = [self._ask(nodes, 0, now)] if nodes else []
        # Re-asks come before probes: a first share ends the need for probes.
        asks += self._reasks(now)
        asks += self._probe(now)
        return asks

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
        weight = 0
        for member in self._table.members:
            # This runs over all members at each tick, so it is `_is_covered` without a call.
            if not member.is_selected or member.status > SUSPECT:
                continue
            if member.connections or member.status is not PENDING:
                weight += member.weight
        return weight

    def _select(self, cover_weight: int) -> list[NodeRecord]:
        """Select members until this weight is covered; return their nodes that can be asked now."""
        selected = [] if self._cursor else self._select_large()
        missing_weight = cover_weight - self._covered_weight()
        order = self._table.order
        while missing_weight > 0 and self._cursor < len(order):
            member = order[self._cursor]
            self._cursor += 1
            if member.is_selected:
                continue
            member.is_selected = True
            selected.append(member)
            # A member that is not connected is selected as well, so that it is asked when it
            # connects; another member covers its weight until then.
            if _is_covered(member):
                missing_weight -= member.weight
        nodes = self._table.nodes
        candidates = [nodes[node_id] for member in selected for node_id in member.node_ids]
        return [node for node in candidates if _may_be_asked(node)]

    def _select_large(self) -> list[MemberRecord]:
        """Select the members that are asked at once for their weight alone."""
        large = self._table.total_weight * self._settings.always_ask_percent
        selected = [
            member
            for member in self._table.order
            if member.weight * 100 >= large and not member.is_selected
        ]
        for member in selected:
            member.is_selected = True
        return selected

    def _reasks(self, now: float) -> Iterator[Ask]:
        """Yield the waves that are due again; until a first share has come they are held back.

        When it comes, all held back waves are due, except nodes that were probed a moment ago.
        """
        while self._waves and self._waves[0].due_at <= now:
            self._delayed_waves.append(heappop(self._waves))
        if not self._table.signed_weight:
            return
        due_nodes: dict[int, list[NodeRecord]] = {}
        pause_s = self._settings.reask_s[0]
        for wave in self._delayed_waves:
            probed_at = self._probed_at
            probed = [node for node in wave.nodes if probed_at.get(node, -inf) > now - pause_s]
            if probed:
                heappush(self._waves, replace(wave, due_at=now + pause_s, nodes=probed))
            # A node with another number has disconnected since.
            due = [node for node in wave.nodes if node.wave == wave.number and node not in probed]
            due_nodes.setdefault(wave.times_asked, []).extend(filter(_may_be_asked, due))
        self._delayed_waves.clear()
        self._probed_at.clear()
        # Waves that were asked equally often become one request.
        for times_asked, nodes in due_nodes.items():
            if nodes:
                yield self._ask(nodes, times_asked, now)

    def _probe(self, now: float) -> Iterator[Ask]:
        """Yield a request to a few members of the held back waves, picked at random."""
        if not self._delayed_waves or now < self._next_probe_at:
            return
        # Only nodes whose pause is over: a node that has just connected was asked a moment ago.
        wave_numbers = {wave.number for wave in self._delayed_waves}
        due = [member for member in self._table.members if self._nodes_in(member, wave_numbers)]
        members = self._random.sample(due, min(self._settings.probes, len(due)))
        nodes = [node for member in members for node in self._nodes_in(member, wave_numbers)]
        self._probed_at.update(dict.fromkeys(nodes, now))
        self._probe_count += 1
        self._next_probe_at = now + self._pause(self._probe_count)
        if nodes:
            yield Ask([node.node_id for node in nodes], is_reask=True)

    def _ask(self, nodes: list[NodeRecord], times_asked: int, now: float) -> Ask:
        """Return one request to nodes, and schedule the next one in slices with their own times."""
        for start in range(0, len(nodes), _SLICE):
            self._last_wave += 1
            wave_nodes = nodes[start : start + _SLICE]
            due_at = now + self._pause(times_asked)
            heappush(self._waves, _Wave(due_at, self._last_wave, wave_nodes, times_asked + 1))
            for node in wave_nodes:
                node.wave = self._last_wave
        return Ask([node.node_id for node in nodes], is_reask=times_asked > 0)

    def _pause(self, times_asked: int) -> float:
        """Return the seconds before the next request, with jitter; the last pause repeats."""
        pauses = self._settings.reask_s
        jitter = self._settings.reask_jitter * (2 * self._random.random() - 1)
        return pauses[min(times_asked, len(pauses) - 1)] * (1 + jitter)

    def _nodes_in(self, member: MemberRecord, waves: set[int]) -> list[NodeRecord]:
        return [
            node
            for node in self._table.nodes_of(member)
            if node.wave in waves and _may_be_asked(node)
        ]


def _is_covered(member: MemberRecord) -> bool:
    """Return whether a member has signed, or may still: it is pending and connected."""
    if member.status is PENDING:
        return member.connections > 0
    return member.status <= SUSPECT


def _may_be_asked(node: NodeRecord) -> bool:
    if not node.is_connected or node.member.status is not PENDING:
        return False
    return node.last_reply is None or node.can_respond
