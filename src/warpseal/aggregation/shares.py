"""Shares by message and public key: candidates that serve every round of their message, now and later.

A share is decoded once, without a subgroup check. Only one that was verified alone counts as more than a candidate.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Protocol

from warpseal.aggregation.budget import ByteBudget, Lookups
from warpseal.bls import Share, decode_share
from warpseal.warp.ids import MessageID

# Measured: the decoded point, 96 raw bytes, the objects around them and the slot in the table; rounded up.
SHARE_COST_BYTES: Final = 832
_MESSAGE_COST_BYTES: Final = 512


@dataclass(slots=True, eq=False)
class Candidate:
    """One share: 96 compressed bytes and the point behind them. proven: it was verified alone."""

    raw: bytes
    share: Share
    proven: bool = False


class Listener(Protocol):
    """A round that is open: it is told of what others learn about the shares of its message."""

    def share_came(self, public_key: bytes, candidate: Candidate) -> None:
        """A share is there that was not."""

    def share_went(self, public_key: bytes, candidate: Candidate) -> None:
        """A share was found bad."""


@dataclass(slots=True, eq=False)
class _Message:
    candidates: dict[bytes, Candidate] = field(default_factory=dict)


class ShareCache:
    """At most `max_messages` messages, within the budget's bytes; the least recently used message goes first."""

    def __init__(self, max_messages: int, budget: ByteBudget) -> None:
        self.lookups: Final = Lookups()
        self._max_messages = max_messages
        self._budget = budget
        self._messages: OrderedDict[MessageID, _Message] = OrderedDict()
        self._listeners: dict[MessageID, list[Listener]] = {}
        budget.attach(self._evict_oldest)

    def __len__(self) -> int:
        return len(self._messages)

    def listen(self, message_id: MessageID, listener: Listener) -> dict[bytes, Candidate]:
        """Tell `listener` of this message's shares from now on; return those at hand, by public key."""
        self._listeners.setdefault(message_id, []).append(listener)
        message = self._messages.get(message_id)
        if message is None:
            return {}
        self._messages.move_to_end(message_id)
        return dict(message.candidates)

    def ignore(self, message_id: MessageID, listener: Listener) -> None:
        """Tell `listener` nothing any more."""
        listeners = self._listeners[message_id]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[message_id]

    def count_lookups(self, hits: int, misses: int) -> None:
        """Note how many of a set's validators had a share at hand."""
        self.lookups.hits += hits
        self.lookups.misses += misses

    def offer(self, message_id: MessageID, public_key: bytes, raw: bytes, by: Listener | None = None) -> Candidate:
        """Take an answer's 96 bytes; return the candidate that now stands for the key.

        That is the one at hand where there is one: a validator has only one signature of a message, so if two
        differ, the first is judged first. Every listener but `by` is told of a new one. Raises bls.MalformedShare.
        """
        message = self._messages.get(message_id)
        if message is not None:
            known = message.candidates.get(public_key)
            if known is not None:
                return known
        candidate = Candidate(raw, decode_share(raw))
        self._store(message_id, public_key, candidate)
        for listener in self._listeners.get(message_id, ()):
            if listener is not by:
                listener.share_came(public_key, candidate)
        return candidate

    def find(self, message_id: MessageID, public_key: bytes) -> Candidate | None:
        """Return the candidate at hand for a key."""
        message = self._messages.get(message_id)
        return None if message is None else message.candidates.get(public_key)

    def forget(self, message_id: MessageID, public_key: bytes, candidate: Candidate) -> None:
        """Drop a share that nobody could clear of suspicion."""
        message = self._messages.get(message_id)
        if message is not None and message.candidates.get(public_key) is candidate:
            del message.candidates[public_key]
            self._budget.take(-SHARE_COST_BYTES)

    def reject(self, message_id: MessageID, public_key: bytes, candidate: Candidate) -> None:
        """Drop a share that was found bad; every round of the message is told."""
        self.forget(message_id, public_key, candidate)
        for listener in tuple(self._listeners.get(message_id, ())):
            listener.share_went(public_key, candidate)

    def _store(self, message_id: MessageID, public_key: bytes, candidate: Candidate) -> None:
        message = self._messages.get(message_id)
        cost = SHARE_COST_BYTES
        if message is None:
            message = self._messages[message_id] = _Message()
            cost += _MESSAGE_COST_BYTES
        message.candidates[public_key] = candidate
        self._budget.take(cost)
        while len(self._messages) > self._max_messages:
            self._evict_oldest()

    def _evict_oldest(self) -> bool:
        if not self._messages:
            return False
        _, message = self._messages.popitem(last=False)
        self._budget.take(-_MESSAGE_COST_BYTES - SHARE_COST_BYTES * len(message.candidates))
        return True
