"""The members of one set as a round sees them: who signed, who is lost and why, in running sums of weight.

Pure. A validator is its canonical index; what nodes say is kept per node, because any node of a key suffices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from warpseal.aggregation.refusals import Mind
from warpseal.warp.ids import NodeID
from warpseal.warp.validator_set import CanonicalValidatorSet

NEVER_BACK: Final = float("inf")


class Fate(IntEnum):
    """What has become of a validator's share. DOUBTED: it is there, but must not enter a sum unproven."""

    OPEN = 0
    SIGNED = 1
    DOUBTED = 2
    LOST = 3
    GONE = 4


@dataclass(frozen=True, slots=True)
class Word:
    """The last thing a node said that was no usable share. code: of its refusal."""

    mind: Mind
    reason: str
    code: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Away:
    """A node that is not connected, and when that may change at the earliest; NEVER_BACK: not by itself."""

    reason: str
    back_at: float


class Roll:
    """Fates by canonical index, with weight and number by fate. Weight without a key is gone from the start.

    order: indices as signers are preferred: not reluctant first, then heavier, then lower index.
    LOST is lost for now, GONE for good; weight that is merely out of reach is OPEN, see `unreachable`.
    """

    def __init__(self, members: CanonicalValidatorSet) -> None:
        self.members: Final = members
        self.total: Final = members.total_weight
        self.weights: Final = [validator.weight for validator in members.validators]
        self.fates = [Fate.OPEN] * len(self.weights)
        keyed = sum(self.weights)
        self.weight = [keyed, 0, 0, 0, self.total - keyed]
        self.count = [len(self.weights), 0, 0, 0, 0]
        self.words: dict[NodeID, Word] = {}
        self.away: dict[NodeID, Away] = {}
        self.reluctant: frozenset[int] = frozenset()
        self.order = self._ordered()
        self._absent: dict[int, float] = {}

    @property
    def signed(self) -> int:
        """Weight whose shares may enter a sum."""
        return self.weight[Fate.SIGNED]

    def move(self, index: int, fate: Fate) -> None:
        """Give a validator another fate."""
        before = self.fates[index]
        if before is fate:
            return
        weight = self.weights[index]
        self.weight[before] -= weight
        self.weight[fate] += weight
        self.count[before] -= 1
        self.count[fate] += 1
        self.fates[index] = fate
        if self._absent:
            self._absent.pop(index, None)

    def say(self, node_id: NodeID, index: int, word: Word) -> bool:
        """Note what a node said instead of a share; return whether its validator's weight is lost by it.

        A node that has refused finally, or whose share was bad, cannot take that back with mere words.
        """
        before = self.words.get(node_id)
        if before is None or before.mind <= word.mind:
            self.words[node_id] = word
        fate = self.fates[index]
        if fate is not Fate.OPEN and fate is not Fate.LOST:
            return False
        return self.settle(index)

    def settle(self, index: int) -> bool:
        """Derive the fate of a validator that has no share from its nodes; return whether it is lost by it."""
        before = self.fates[index]
        minds = [self._mind(node_id) for node_id in self.members.validators[index].node_ids]
        if min(minds) is Mind.FINAL:
            self.move(index, Fate.GONE)
        else:
            self.move(index, Fate.LOST if min(minds) >= Mind.SPENT else Fate.OPEN)
        self._note_absence(index)
        return before is Fate.OPEN and self.fates[index] is not Fate.OPEN

    def may_answer(self, node_id: NodeID) -> bool:
        """Tell whether a node has not yet said its last word."""
        return self._mind(node_id) is Mind.MAY_CHANGE

    def set_away(self, node_id: NodeID, index: int, away: Away | None) -> None:
        """Note that a node cannot be reached, or (None) that it is connected or about to be."""
        if away is None:
            if self.away.pop(node_id, None) is None:
                return
        else:
            self.away[node_id] = away
        self._note_absence(index)

    def unreachable(self, deadline: float) -> int:
        """Return open weight none of whose nodes can be connected before `deadline`."""
        if not self._absent:
            return 0
        return sum(self.weights[index] for index, back_at in self._absent.items() if back_at >= deadline)

    def unreachable_nodes(self, deadline: float) -> list[NodeID]:
        """Return the nodes behind `unreachable`."""
        indices = (index for index, back_at in self._absent.items() if back_at >= deadline)
        return [node for index in indices for node in self.members.validators[index].node_ids]

    def set_reluctant(self, nodes: Collection[NodeID]) -> None:
        """Order validators all of whose nodes are reluctant behind the others."""
        found = (self.members.index_of_node(node_id) for node_id in nodes)
        candidates = {index for index in found if index is not None}
        self.reluctant = frozenset(
            index for index in candidates if all(node in nodes for node in self.members.validators[index].node_ids)
        )
        self.order = self._ordered()

    def shortest_prefix(self, target: int) -> tuple[int, ...]:
        """Return the first signed validators in `order` that reach `target`, or all of them."""
        chosen: list[int] = []
        reached = 0
        for index in self.order:
            if reached >= target:
                break
            if self.fates[index] is Fate.SIGNED:
                chosen.append(index)
                reached += self.weights[index]
        return tuple(chosen)

    def weight_of(self, indices: Iterable[int], fate: Fate) -> int:
        """Return the weight of those among `indices` that have this fate."""
        return sum(self.weights[index] for index in indices if self.fates[index] is fate)

    def _ordered(self) -> list[int]:
        heaviest_first = sorted(range(len(self.weights)), key=self.weights.__getitem__, reverse=True)
        if not self.reluctant:
            return heaviest_first
        return sorted(heaviest_first, key=self.reluctant.__contains__)

    def _mind(self, node_id: NodeID) -> Mind:
        word = self.words.get(node_id)
        return Mind.MAY_CHANGE if word is None else word.mind

    def _note_absence(self, index: int) -> None:
        """Keep the moment at which an open validator may be reached, where none of its nodes is now."""
        self._absent.pop(index, None)
        if self.fates[index] is not Fate.OPEN or not self.away:
            return
        nodes = [node for node in self.members.validators[index].node_ids if self.may_answer(node)]
        aways = [self.away.get(node) for node in nodes]
        back_ats = [away.back_at for away in aways if away is not None]
        if len(back_ats) == len(nodes):
            self._absent[index] = min(back_ats)
