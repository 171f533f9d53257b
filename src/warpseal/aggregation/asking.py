"""Whom a round asks, when, and when again. Pure; times are those of the event loop's clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final

from warpseal.aggregation.roll import Fate, Roll
from warpseal.aggregation.settings import AggregationSettings
from warpseal.warp.ids import NodeID

# Askings that fall due together differ by their jitter in slices of this size, so that a burst is spread.
_SLICE: Final = 128
_AT_ONCE: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class Ask:
    """Nodes to be sent one request under one new id. again: they were asked before."""

    node_ids: list[NodeID]
    again: bool


@dataclass(frozen=True, slots=True, order=True)
class _Group:
    """Nodes that were asked together. asked: how often each of them was."""

    due_at: float
    number: int
    nodes: list[NodeID]
    asked: int


class Asking:
    """Selects validators in the roll's order and keeps the time of every request of theirs.

    A validator is selected once; its connected nodes are asked then, others as soon as they connect. Selected
    weight that may still sign, or has, is kept at the level that `due` is told.
    """

    def __init__(self, roll: Roll, settings: AggregationSettings, random: Random, now: float) -> None:
        self._roll = roll
        self._settings = settings
        self._random = random
        self._selected = bytearray(len(roll.weights))
        self._counted = [False] * len(roll.weights)
        self._covered = 0
        self._extra = 0
        self._cursor = 0
        self._large_picked = False
        self._links = [0] * len(roll.weights)
        self._connected: set[NodeID] = set()
        self._fresh: list[NodeID] = []
        self._groups: list[_Group] = []
        self._held: list[_Group] = []
        self._numbers = 0
        self._group_of: dict[NodeID, int] = {}
        self._next_wave_at = now + settings.next_wave_s
        self._next_probe_at = _AT_ONCE
        self._probed: dict[NodeID, float] = {}
        self._probes = 0
        self.connected_weight = 0

    # Connections.

    def connect(self, node_id: NodeID, index: int) -> None:
        """Note that a node is connected; it is asked when its validator is selected and still open."""
        if node_id in self._connected:
            return
        self._connected.add(node_id)
        self._links[index] += 1
        if self._links[index] == 1:
            self.connected_weight += self._roll.weights[index]
        if self._selected[index]:
            self._ask_first(index, (node_id,))
            self.recount(index)

    def disconnect(self, node_id: NodeID, index: int) -> None:
        """Note that a node is not connected any more: what it was asked is forgotten."""
        if node_id not in self._connected:
            return
        self._connected.discard(node_id)
        self._group_of.pop(node_id, None)
        self._links[index] -= 1
        if not self._links[index]:
            self.connected_weight -= self._roll.weights[index]
        self.recount(index)

    def is_connected(self, node_id: NodeID) -> bool:
        """Tell whether a node is connected."""
        return node_id in self._connected

    def is_linked(self, index: int) -> bool:
        """Tell whether any node of a validator is connected."""
        return self._links[index] > 0

    def was_asked(self, node_id: NodeID) -> bool:
        """Tell whether a connected node was asked."""
        return node_id in self._group_of

    def reorder(self) -> None:
        """Walk the roll's order anew; who is selected remains so."""
        self._cursor = 0

    def ask_anew(self, index: int) -> None:
        """Ask a validator whose cached share was bad, unless it was asked in this round already."""
        nodes = self._roll.members.validators[index].node_ids
        if self._selected[index]:
            self._ask_first(index, tuple(node for node in nodes if node not in self._group_of))
        self.recount(index)

    def recount(self, index: int) -> None:
        """Adapt the covered weight to what has become of a validator."""
        if not self._selected[index]:
            return
        fate = self._roll.fates[index]
        counts = self._links[index] > 0 if fate is Fate.OPEN else fate is Fate.SIGNED or fate is Fate.DOUBTED
        if counts != self._counted[index]:
            self._counted[index] = counts
            self._covered += self._roll.weights[index] if counts else -self._roll.weights[index]

    # Asking.

    def due(self, now: float, cover: int, missing: int) -> list[Ask]:
        """Return whom to ask now.

        cover: weight that must be selected and not lost. missing: what the most demanding caller lacks; the
        next validators, with about this weight, are asked whenever a second has passed.
        """
        if now >= self._next_wave_at:
            self._next_wave_at = now + self._settings.next_wave_s
            self._extra = max(0, self._covered - cover) + max(1, missing)
        selected = self._select(cover + self._extra)
        return [*self._first(selected, now), *self._again(now), *self._probe(now)]

    def next_at(self) -> float:
        """Return when `due` will have something to give though nothing has happened; inf: never."""
        moments = [float("inf")]
        if self._groups:
            moments.append(self._groups[0].due_at)
        if self._held:
            moments.append(self._next_probe_at)
        if self._cursor < len(self._roll.order):
            moments.append(self._next_wave_at)
        return min(moments)

    def _select(self, cover: int) -> list[NodeID]:
        """Select until so much weight is covered; return the connected nodes of who was selected now."""
        order, roll = self._roll.order, self._roll
        nodes: list[NodeID] = []
        if not self._large_picked:
            self._large_picked = True
            large = roll.total * self._settings.always_ask_percent
            for index in order:
                if roll.weights[index] * 100 >= large:
                    self._pick(index, nodes)
        while self._covered < cover and self._cursor < len(order):
            self._pick(order[self._cursor], nodes)
            self._cursor += 1
        return nodes

    def _pick(self, index: int, nodes: list[NodeID]) -> None:
        if self._selected[index]:
            return
        self._selected[index] = 1
        self.recount(index)
        if self._roll.fates[index] is Fate.OPEN:
            for node in self._roll.members.validators[index].node_ids:
                if node in self._connected and self._roll.may_answer(node):
                    nodes.append(node)

    def _ask_first(self, index: int, nodes: tuple[NodeID, ...]) -> None:
        if self._roll.fates[index] is Fate.OPEN:
            self._fresh += [node for node in nodes if node in self._connected and self._roll.may_answer(node)]

    def _first(self, selected: list[NodeID], now: float) -> Iterator[Ask]:
        fresh = (node for node in dict.fromkeys(self._fresh) if self._may_be_asked(node))
        nodes = [*fresh, *selected]
        self._fresh.clear()
        if nodes:
            yield self._ask(nodes, 0, now)

    def _again(self, now: float) -> Iterator[Ask]:
        """Yield those who are due again; while nobody has signed they are held back for the probes."""
        is_open = self._roll.count[Fate.SIGNED] > 0
        if is_open and self._held:
            self._release(now)
        due: dict[int, list[NodeID]] = {}
        while self._groups and self._groups[0].due_at <= now:
            group = heappop(self._groups)
            if is_open:
                due.setdefault(group.asked, []).extend(self._remaining(group))
            else:
                self._held.append(group)
        for asked, nodes in due.items():
            if nodes:
                yield self._ask(nodes, asked, now)

    def _release(self, now: float) -> None:
        """The first share is there: whoever was held back is due, except those who were just probed."""
        soon = now - self._settings.reask_s[0]
        for group in self._held:
            probed = [node for node in group.nodes if self._probed.get(node, _AT_ONCE) > soon]
            others = [node for node in group.nodes if self._probed.get(node, _AT_ONCE) <= soon]
            heappush(self._groups, _Group(now, group.number, others, group.asked))
            if probed:
                later = now + self._settings.reask_s[0]
                heappush(self._groups, _Group(later, group.number, probed, group.asked))
        self._held.clear()
        self._probed.clear()

    def _probe(self, now: float) -> Iterator[Ask]:
        if not self._held or now < self._next_probe_at:
            return
        nodes_of: dict[int, list[NodeID]] = {}
        for node in self._group_of:
            if self._may_be_asked(node):
                nodes_of.setdefault(self._index(node), []).append(node)
        chosen = self._random.sample(sorted(nodes_of), min(self._settings.probes, len(nodes_of)))
        nodes = [node for index in chosen for node in nodes_of[index]]
        self._probed.update(dict.fromkeys(nodes, now))
        self._probes += 1
        self._next_probe_at = now + self._pause(self._probes)
        if nodes:
            yield Ask(nodes, again=True)

    def _ask(self, nodes: list[NodeID], asked: int, now: float) -> Ask:
        for start in range(0, len(nodes), _SLICE):
            self._numbers += 1
            part = nodes[start : start + _SLICE]
            heappush(self._groups, _Group(now + self._pause(asked), self._numbers, part, asked + 1))
            self._group_of.update(dict.fromkeys(part, self._numbers))
        return Ask(nodes, again=asked > 0)

    def _pause(self, asked: int) -> float:
        pauses = self._settings.reask_s
        jitter = self._settings.reask_jitter * (2 * self._random.random() - 1)
        return pauses[min(asked, len(pauses) - 1)] * (1 + jitter)

    def _remaining(self, group: _Group) -> list[NodeID]:
        return [node for node in group.nodes if self._group_of.get(node) == group.number and self._may_be_asked(node)]

    def _may_be_asked(self, node: NodeID) -> bool:
        return (
            self._roll.fates[self._index(node)] is Fate.OPEN and node in self._connected and self._roll.may_answer(node)
        )

    def _index(self, node: NodeID) -> int:
        index = self._roll.members.index_of_node(node)
        assert index is not None
        return index
