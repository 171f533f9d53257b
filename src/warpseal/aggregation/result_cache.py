"""Signed results by message and validator set: they serve later requests without decoding anything. Pure.

Equal sets at different heights share them, because the key is the digest of the canonical set.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.share_cache import CacheLookups, SharedByteLimit
from warpseal.warp.ids import MessageID

_ENTRY_COST_BYTES: Final = 1_024
_RESULT_COST_BYTES: Final = 384
# Of one message and set: for different targets, the lightest that meets a request serves it.
_MAX_RESULTS: Final = 4
_MAX_BELOW_BUFFER: Final = 4


@dataclass(frozen=True, slots=True)
class SignedResult:
    """A signed message (its bytes) that was verified as it stands. signers: their number; weight: theirs."""

    signed_message: bytes
    weight: int
    signers: int

    @property
    def cost_bytes(self) -> int:
        """Memory that it uses, estimated."""
        return _RESULT_COST_BYTES + len(self.signed_message)


@dataclass(slots=True, eq=False)
class _Entry:
    """results: ascending by weight. below_buffer: by quorum and buffer, with the time until which it serves them."""

    results: list[SignedResult] = field(default_factory=list)
    below_buffer: OrderedDict[tuple[int, int], tuple[float, SignedResult]] = field(default_factory=OrderedDict)
    cost_bytes: int = _ENTRY_COST_BYTES

    def insert(self, result: SignedResult) -> None:
        """Insert by weight; of too many, the heaviest and the most recent ones stay."""
        self.results = [other for other in self.results if other.weight != result.weight]
        if len(self.results) >= _MAX_RESULTS:
            del self.results[0]
        self.results.append(result)
        self.results.sort(key=lambda other: other.weight)


class ResultCache:
    """Results within the shared limit, and within half of it; the least recently used are evicted first."""

    def __init__(self, limit: SharedByteLimit, limit_bytes: int, below_buffer_s: float) -> None:
        self.lookups: Final = CacheLookups()
        self.used_bytes = 0
        self._limit = limit
        self._limit_bytes = limit_bytes // 2
        self._below_buffer_s = below_buffer_s
        self._entries: OrderedDict[tuple[MessageID, bytes], _Entry] = OrderedDict()
        limit.attach(self._evict_oldest)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, message_id: MessageID, set_digest: bytes, goal: QuorumGoal, now: float) -> SignedResult | None:
        """Return the lightest result that meets the goal's target.

        A result that missed its buffer serves the same quorum and buffer for a while.
        """
        result = self._find((message_id, set_digest), goal, now)
        if result is None:
            self.lookups.misses += 1
        else:
            self.lookups.hits += 1
        return result

    def put(self, message_id: MessageID, set_digest: bytes, result: SignedResult, goal: QuorumGoal, now: float) -> None:
        """Add a result that was made for `goal`."""
        key = (message_id, set_digest)
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        before = entry.cost_bytes if entry.results else 0
        entry.insert(result)
        if result.weight < goal.target_weight:
            entry.below_buffer[goal.quorum, goal.buffer] = (now + self._below_buffer_s, result)
            while len(entry.below_buffer) > _MAX_BELOW_BUFFER:
                entry.below_buffer.popitem(last=False)
        held = {id(other): other for other in (*entry.results, *(old for _, old in entry.below_buffer.values()))}
        entry.cost_bytes = _ENTRY_COST_BYTES + sum(other.cost_bytes for other in held.values())
        self._use(entry.cost_bytes - before)
        while self.used_bytes > self._limit_bytes and self._evict_oldest():
            pass

    def _find(self, key: tuple[MessageID, bytes], goal: QuorumGoal, now: float) -> SignedResult | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        for result in entry.results:
            if result.weight >= goal.target_weight:
                return result
        until, below_buffer = entry.below_buffer.get((goal.quorum, goal.buffer), (now, None))
        return below_buffer if now < until else None

    def _use(self, count: int) -> None:
        self.used_bytes += count
        self._limit.add(count)

    def _evict_oldest(self) -> bool:
        if not self._entries:
            return False
        _, entry = self._entries.popitem(last=False)
        self._use(-entry.cost_bytes)
        return True
