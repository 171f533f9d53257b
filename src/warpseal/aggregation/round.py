"""One shared fan-out as pure state: what happens goes in; whom to ask, when enough, and who is lost comes out.

A message, a validator set and a justification make a round; its callers' goals come and go. Integers only; times
are those of the event loop's clock. The rules: docs/aggregation.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from warpseal.aggregation.asking import Ask, Asking
from warpseal.aggregation.goals import Goal, Standing
from warpseal.aggregation.refusals import Mind, RefusalRules
from warpseal.aggregation.roll import Away, Fate, Roll, Word
from warpseal.aggregation.settings import AggregationSettings
from warpseal.errors import Verdict
from warpseal.warp.ids import NodeID
from warpseal.warp.validator_set import CanonicalValidatorSet, required_weight

# An answer takes a moment to be summed and verified, so the buffer is not awaited up to the very deadline.
_BUFFER_MARGIN_S: Final = 0.05
_EMPTY_ANSWER: Final = Word(Mind.MAY_CHANGE, "empty_answer")
_MALFORMED_ANSWER: Final = Word(Mind.SPENT, "malformed_answer")
_BAD_SIGNATURE: Final = Word(Mind.SPENT, "bad_signature")


class Round:
    """Constant work per answer. `stirred` tells that something happened that may ask for action at once."""

    def __init__(
        self,
        members: CanonicalValidatorSet,
        rules: RefusalRules,
        settings: AggregationSettings,
        random: Random,
        now: float,
    ) -> None:
        self.roll: Final = Roll(members)
        self.rules: Final = rules
        self.asking: Final = Asking(self.roll, settings, random, now)
        self.stirred = True
        self._settings = settings
        self._first_wave = required_weight(self.roll.total, settings.first_wave_percent)
        self._goals: dict[Goal, None] = {}
        self._reluctant_nodes: frozenset[NodeID] = frozenset()
        self._givers: list[NodeID | None] = [None] * len(members.validators)

    # Callers.

    def join(self, goal: Goal) -> None:
        """Take a caller's goal into account."""
        self._goals[goal] = None
        self.stirred = True

    def leave(self, goal: Goal) -> None:
        """Forget a caller's goal."""
        del self._goals[goal]

    # Events.

    def connected(self, node_id: NodeID) -> None:
        """Note that a node is connected."""
        index = self.roll.members.index_of_node(node_id)
        if index is not None:
            self.roll.set_away(node_id, index, None)
            self.asking.connect(node_id, index)
            self.stirred = True

    def disconnected(self, node_id: NodeID) -> None:
        """Note that a node is not connected any more."""
        index = self.roll.members.index_of_node(node_id)
        if index is not None and self.asking.is_connected(node_id):
            self.asking.disconnect(node_id, index)
            self.stirred = True

    def reach(self, node_id: NodeID, away: Away | None) -> None:
        """Note whether a node that is not connected is out of reach; None: its connection is under way."""
        index = self.roll.members.index_of_node(node_id)
        if index is not None and self.roll.away.get(node_id) != away:
            self.roll.set_away(node_id, index, away)
            self.stirred = True

    def share(self, index: int, giver: NodeID | None, *, doubtful: bool = False) -> None:
        """Note a validator's share. giver: who answered with it in this round; None: it was at hand."""
        roll = self.roll
        if roll.fates[index] is Fate.SIGNED or roll.fates[index] is Fate.DOUBTED:
            self._givers[index] = self._givers[index] or giver
            return
        if not roll.count[Fate.SIGNED]:
            self.stirred = True
        self._givers[index] = giver
        roll.move(index, Fate.DOUBTED if doubtful else Fate.SIGNED)
        self.asking.recount(index)

    def refused(self, node_id: NodeID, code: int, text: str) -> None:
        """Note an error code (any int32) and its text."""
        refusal = self.rules.refusal(code)
        self._said(node_id, Word(refusal.mind, refusal.reason, code, text))

    def empty(self, node_id: NodeID) -> None:
        """Note an answer that says nothing."""
        self._said(node_id, _EMPTY_ANSWER)

    def malformed(self, node_id: NodeID) -> None:
        """Note an answer that can be no share."""
        self._said(node_id, _MALFORMED_ANSWER)

    def doubt(self, indices: Iterable[int]) -> None:
        """Let shares enter no sum until they are trusted again."""
        for index in indices:
            if self.roll.fates[index] is Fate.SIGNED:
                self.roll.move(index, Fate.DOUBTED)

    def trust(self, indices: Iterable[int]) -> None:
        """Take doubt from shares."""
        for index in indices:
            if self.roll.fates[index] is Fate.DOUBTED:
                self.roll.move(index, Fate.SIGNED)
        self.stirred = True

    def bad(self, index: int) -> None:
        """Note that a validator's share was found bad: it is lost only if a node of it said so in this round."""
        if self.roll.fates[index] is not Fate.SIGNED and self.roll.fates[index] is not Fate.DOUBTED:
            return
        giver = self._givers[index]
        self.roll.move(index, Fate.OPEN)
        if giver is not None:
            self.roll.words[giver] = _BAD_SIGNATURE
        self.roll.settle(index)
        self.asking.ask_anew(index)
        self.stirred = True

    def set_reluctant(self, nodes: frozenset[NodeID]) -> None:
        """Note which nodes are reluctant now."""
        if nodes == self._reluctant_nodes:
            return
        self._reluctant_nodes = nodes
        self.roll.set_reluctant(nodes)
        self.asking.reorder()
        self.stirred = True

    # Questions.

    def due(self, now: float) -> list[Ask]:
        """Return whom to ask now."""
        self.stirred = False
        target = max((goal.target for goal in self._goals if not goal.stored_only), default=0)
        cover = max(self._first_wave, target)
        return self.asking.due(now, cover, target - self.roll.signed)

    def next_at(self) -> float:
        """Return when something will be due though nothing happens; inf: never."""
        moments = [self.asking.next_at()]
        for goal in self._goals:
            moments.append(goal.deadline if goal.met_at is None else self._buffer_end(goal))
        return min(moments)

    def standing(self, goal: Goal, now: float) -> Standing:
        """Return how a goal stands."""
        if self.roll.signed >= goal.required:
            goal.met_at = now if goal.met_at is None else goal.met_at
            if goal.stored_only:
                return Standing.READY
            waits = now < self._buffer_end(goal) and self._more_may_come(goal)
            return Standing.WAITING if waits else Standing.READY
        goal.met_at = None
        if self._possible(goal) < goal.required or (goal.stored_only and self._at_hand < goal.required):
            return Standing.LOST
        return Standing.LATE if now >= goal.deadline else Standing.WAITING

    def verdict(self, goal: Goal) -> Verdict:
        """Return whether waiting could help a goal: not when weight lost for good makes it unreachable."""
        beyond_hope = self.roll.total - self.roll.weight[Fate.GONE] < goal.required
        return Verdict.NEVER if beyond_hope else Verdict.WAIT

    def wake_weight(self) -> int:
        """Return the least usable weight at which a goal may stand differently."""
        marks = [goal.required if goal.met_at is None else goal.target for goal in self._goals]
        return min(marks, default=0)

    def signers(self, goal: Goal) -> tuple[int, ...]:
        """Return the signers of a goal that is ready, in the order of preference."""
        return self.roll.shortest_prefix(goal.target)

    def malformed_answers(self) -> list[NodeID]:
        """Return the nodes whose answer could be no share."""
        return [node_id for node_id, word in self.roll.words.items() if word is _MALFORMED_ANSWER]

    def want_of_connections(self, goal: Goal) -> list[NodeID]:
        """Return the nodes that are not connected, if it is for want of their weight that a goal fails."""
        roll = self.roll
        absent = [
            index for index, fate in enumerate(roll.fates) if fate is Fate.OPEN and not self.asking.is_linked(index)
        ]
        without = roll.total - roll.weight[Fate.GONE] - roll.weight[Fate.LOST]
        without -= sum(roll.weights[index] for index in absent)
        if without >= goal.required or self.verdict(goal) is Verdict.NEVER:
            return []
        return [node for index in absent for node in roll.members.validators[index].node_ids]

    def _said(self, node_id: NodeID, word: Word) -> None:
        index = self.roll.members.index_of_node(node_id)
        if index is not None and self.roll.say(node_id, index, word):
            self.asking.recount(index)
            self.stirred = True

    def _possible(self, goal: Goal) -> int:
        """Return the weight that has signed or may still do so before the goal's deadline."""
        roll = self.roll
        return roll.total - roll.weight[Fate.GONE] - roll.weight[Fate.LOST] - roll.unreachable(goal.deadline)

    @property
    def _at_hand(self) -> int:
        """Weight whose shares are there, those included that are doubted."""
        return self.roll.signed + self.roll.weight[Fate.DOUBTED]

    def _buffer_end(self, goal: Goal) -> float:
        assert goal.met_at is not None
        return min(goal.met_at + self._settings.buffer_wait_s, goal.deadline - _BUFFER_MARGIN_S)

    def _more_may_come(self, goal: Goal) -> bool:
        """Tell whether the buffer, or a quorum without reluctant validators, is worth waiting for."""
        if self.roll.signed < goal.target and self._possible(goal) >= goal.target:
            return True
        reluctant = self.roll.reluctant
        if not reluctant:
            return False
        willing = self.roll.signed - self.roll.weight_of(reluctant, Fate.SIGNED)
        open_weight = self.roll.weight[Fate.OPEN] - self.roll.weight_of(reluctant, Fate.OPEN)
        doubted = self.roll.weight[Fate.DOUBTED] - self.roll.weight_of(reluctant, Fate.DOUBTED)
        coming = open_weight + doubted - self.roll.unreachable(goal.deadline)
        return willing < goal.required <= willing + coming
