"""Finished answers by message and validator set: they serve later requests without decoding anything.

Equal sets at different heights share them, because the key is the digest of the canonical set.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from warpseal.aggregation.budget import ByteBudget, Lookups
from warpseal.aggregation.goals import Goal
from warpseal.warp.ids import MessageID

_ENTRY_COST_BYTES: Final = 1_024
_ANSWER_COST_BYTES: Final = 384
# Of one message and set: for different targets, the lightest that meets a request serves it.
_MAX_ANSWERS: Final = 4
_MAX_MISSED: Final = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """A signed message (its bytes) that was verified as it stands: signers is their number, weight theirs."""

    signed_message: bytes
    weight: int
    signers: int

    @property
    def cost_bytes(self) -> int:
        """Memory that it holds, estimated."""
        return _ANSWER_COST_BYTES + len(self.signed_message)


@dataclass(slots=True, eq=False)
class _Entry:
    answers: list[Answer] = field(default_factory=list)
    missed: OrderedDict[tuple[int, int], tuple[float, Answer]] = field(default_factory=OrderedDict)
    cost_bytes: int = _ENTRY_COST_BYTES


class AnswerCache:
    """Answers within the budget's bytes, and within half of them; the least recently used go first."""

    def __init__(self, budget: ByteBudget, limit_bytes: int, below_buffer_ttl_s: float) -> None:
        self.lookups: Final = Lookups()
        self._budget = budget
        self._limit_bytes = limit_bytes // 2
        self._missed_buffer_s = below_buffer_ttl_s
        self._held_bytes = 0
        self._entries: OrderedDict[tuple[MessageID, bytes], _Entry] = OrderedDict()
        budget.attach(self._evict_oldest)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """Memory that the answers hold, estimated."""
        return self._held_bytes

    def find(self, message_id: MessageID, set_digest: bytes, goal: Goal, now: float) -> Answer | None:
        """Return the lightest answer that meets the goal's target.

        An answer that lately missed its buffer serves the same quorum and buffer, too.
        """
        answer = self._find((message_id, set_digest), goal, now)
        if answer is None:
            self.lookups.misses += 1
        else:
            self.lookups.hits += 1
        return answer

    def put(self, message_id: MessageID, set_digest: bytes, answer: Answer, goal: Goal, now: float) -> None:
        """Keep an answer to `goal`."""
        key = (message_id, set_digest)
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        before = entry.cost_bytes if entry.answers else 0
        _insert(entry.answers, answer)
        if answer.weight < goal.target:
            entry.missed[goal.quorum, goal.buffer] = (now + self._missed_buffer_s, answer)
            while len(entry.missed) > _MAX_MISSED:
                entry.missed.popitem(last=False)
        held = {id(one): one for one in (*entry.answers, *(one for _, one in entry.missed.values()))}
        entry.cost_bytes = _ENTRY_COST_BYTES + sum(one.cost_bytes for one in held.values())
        self._take(entry.cost_bytes - before)

    def _find(self, key: tuple[MessageID, bytes], goal: Goal, now: float) -> Answer | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        for answer in entry.answers:
            if answer.weight >= goal.target:
                return answer
        until, missed = entry.missed.get((goal.quorum, goal.buffer), (now, None))
        return missed if now < until else None

    def _take(self, count: int) -> None:
        self._held_bytes += count
        self._budget.take(count)
        while self._held_bytes > self._limit_bytes and self._evict_oldest():
            pass

    def _evict_oldest(self) -> bool:
        if not self._entries:
            return False
        _, entry = self._entries.popitem(last=False)
        self._held_bytes -= entry.cost_bytes
        self._budget.take(-entry.cost_bytes)
        return True


def _insert(answers: list[Answer], answer: Answer) -> None:
    """Insert in ascending order of weight; of too many, the heaviest and the most recent ones stay."""
    answers[:] = [one for one in answers if one.weight != answer.weight]
    if len(answers) >= _MAX_ANSWERS:
        del answers[0]
    answers.append(answer)
    answers.sort(key=lambda one: one.weight)
