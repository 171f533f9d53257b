"""Signed results by message and validator set: they serve later requests undecoded. Pure.

Equal sets at different heights share them, because the key is the digest of the canonical set.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from cachetools import LRUCache
from msgspec import Struct, field

from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.share_cache import CacheLookups, SharedByteLimit
from warpseal.warp.ids import MessageID

_ENTRY_COST_BYTES: Final = 1_024
_RESULT_COST_BYTES: Final = 384
# Results of one message and set, made for different targets: the lightest result that meets a
# request serves it.
_MAX_RESULTS: Final = 4
_MAX_BELOW_BUFFER: Final = 4


class SignedResult(Struct, frozen=True):
    """A signed message that was verified as it stands in its bytes.

    weight: weight of the signers in the set.
    signers: number of signers.
    """

    signed_message: bytes
    weight: int
    signers: int

    @property
    def cost_bytes(self) -> int:
        """The memory of the result, estimated."""
        return _RESULT_COST_BYTES + len(self.signed_message)


class _Entry(Struct, eq=False):
    """The results of one message and set.

    results: results by rising weight.
    below_buffer: results by quorum and buffer, with the time until which they serve these.
    """

    results: list[SignedResult] = field(default_factory=list)
    below_buffer: dict[tuple[int, int], tuple[float, SignedResult]] = field(default_factory=dict)
    cost_bytes: int = 0


class ResultCache:
    """Results within half of the shared limit; the least recently used are evicted first.

    served_signatures: number of signatures in the results that were returned.
    """

    def __init__(self, limit: SharedByteLimit, limit_bytes: int, below_buffer_s: float) -> None:
        self.lookups: Final = CacheLookups()
        self.served_signatures = 0
        self._limit = limit
        self._below_buffer_s = below_buffer_s
        self._entries: LRUCache[tuple[MessageID, bytes], _Entry] = LRUCache(
            limit_bytes // 2, attrgetter("cost_bytes")
        )
        limit.attach(self._evict_oldest)

    @property
    def used_bytes(self) -> int:
        """The memory of all results, estimated."""
        return int(self._entries.currsize)

    def find(
        self, message_id: MessageID, set_digest: bytes, goal: QuorumGoal, now: float
    ) -> SignedResult | None:
        """Return the lightest result that meets the goal's target.

        A result that missed its buffer serves the same quorum and buffer for a while.
        """
        entry = self._entries.get((message_id, set_digest))
        result = None if entry is None else _find_result(entry, goal, now)
        if result is None:
            self.lookups.misses += 1
        else:
            self.lookups.hits += 1
            self.served_signatures += result.signers
        return result

    def put(
        self,
        message_id: MessageID,
        set_digest: bytes,
        result: SignedResult,
        goal: QuorumGoal,
        now: float,
    ) -> None:
        """Add a result that was made for `goal`."""
        key, used_bytes = (message_id, set_digest), self.used_bytes
        entry = self._entries.pop(key, None) or _Entry()
        others = [other for other in entry.results if other.weight != result.weight]
        # The new result stays, and the heaviest of the others.
        heaviest = others[1 - _MAX_RESULTS :]
        entry.results = sorted([*heaviest, result], key=attrgetter("weight"))
        if result.weight < goal.target_weight:
            entry.below_buffer[goal.quorum, goal.buffer] = (now + self._below_buffer_s, result)
            while len(entry.below_buffer) > _MAX_BELOW_BUFFER:
                del entry.below_buffer[next(iter(entry.below_buffer))]
        results = set(entry.results)
        results.update(old for _, old in entry.below_buffer.values())
        entry.cost_bytes = _ENTRY_COST_BYTES + sum(other.cost_bytes for other in results)
        if entry.cost_bytes <= self._entries.maxsize:
            self._entries[key] = entry
        self._limit.add(self.used_bytes - used_bytes)

    def _evict_oldest(self) -> bool:
        if not self._entries:
            return False
        _, entry = self._entries.popitem()
        self._limit.add(-entry.cost_bytes)
        return True


def _find_result(entry: _Entry, goal: QuorumGoal, now: float) -> SignedResult | None:
    for result in entry.results:
        if result.weight >= goal.target_weight:
            return result
    below_buffer = entry.below_buffer.get((goal.quorum, goal.buffer))
    if below_buffer is None:
        return None
    until, result = below_buffer
    return result if now < until else None
