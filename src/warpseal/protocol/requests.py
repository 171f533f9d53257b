"""Requests of one connection: what may be written now, what waits, and whose an answer is.

Source of truth: docs/protocol.md (limits). Pure: `now` is any monotonic clock in seconds.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

_RATE_WINDOW_S: Final = 1.0
# A full queue is swept of the expired and the left at most this often: a sweep looks at all of it.
_SWEEP_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much one peer is asked. slot_timeout_s: a slot without an answer is used again after this long."""

    outstanding: int = 16
    sent_per_s: int = 500
    queued: int = 1_000
    slot_timeout_s: float = 3.0


class PeerRequest:
    """One question, shared by all the peers that are asked it: they write the same bytes.

    request_id: unique among the live requests of a connection. deadline: on the clock of `now`; later answers are
    noise. is_reask: a re-ask, which lets first asks go before it. context: opaque here, returned with the response.
    """

    __slots__ = ("chain_id", "context", "deadline", "frame", "is_reask", "request_id")

    def __init__(
        self, chain_id: bytes, request_id: int, frame: bytes, deadline: float, *, is_reask: bool, context: Any
    ) -> None:
        self.chain_id = chain_id
        self.request_id = request_id
        self.frame = frame
        self.deadline = deadline
        self.is_reask = is_reask
        self.context = context

    def leave(self) -> None:
        """The asker is gone: nothing more is written of it anywhere; slots stay taken until answered or timed out."""
        self.context = None
        self.frame = b""

    @property
    def was_left(self) -> bool:
        """Whether the asker is gone."""
        return self.context is None


class RequestTable:
    """The requests of one connection.

    A request is registered before its bytes are handed out, so no answer comes too early. It stays known until its
    answer or its deadline, while its slot is free again `slot_timeout_s` after writing.
    """

    __slots__ = ("_asks", "_known", "_limits", "_reasks", "_sent", "_slots", "_swept_at", "_timed_out")

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._known: dict[int, PeerRequest] = {}
        # Request id to when it was written; insertion order is the order of writing.
        self._slots: dict[int, float] = {}
        # When each frame of the last second was written.
        self._sent: deque[float] = deque()
        self._asks: deque[PeerRequest] = deque()
        self._reasks: deque[PeerRequest] = deque()
        self._swept_at = -math.inf
        self._timed_out = 0

    @property
    def waiting(self) -> int:
        """How many requests are queued."""
        return len(self._asks) + len(self._reasks)

    @property
    def outstanding(self) -> int:
        """How many slots are taken."""
        return len(self._slots)

    @property
    def known(self) -> int:
        """How many written requests an answer may still belong to."""
        return len(self._known)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest request that takes up a slot was written."""
        return next(iter(self._slots.values()), None)

    def take_timed_out(self) -> int:
        """Return how many slots were freed for want of an answer since the last call."""
        timed_out, self._timed_out = self._timed_out, 0
        return timed_out

    def submit(self, request: PeerRequest, now: float) -> bytes | None:
        """Take a request: return the bytes to write now, empty while it waits, or None when the queue is full.

        A first ask takes the place of the youngest queued re-ask when the queue is full.
        """
        if self._asks or self._reasks or not self._may_write(now):
            return self.release(now) if self._enqueue(request, now) else None
        return self._register(request, now)

    def release(self, now: float) -> bytes:
        """Return the bytes of all waiting requests that may be written now: first asks first, then oldest first."""
        frames = []
        while (self._asks or self._reasks) and self._may_write(now):
            request = self._asks.popleft() if self._asks else self._reasks.popleft()
            if request.context is not None and request.deadline > now:
                frames.append(self._register(request, now))
        return b"".join(frames)

    def answered(self, chain_id: bytes, request_id: int, now: float) -> PeerRequest | None:
        """Return the request that an answer belongs to and free its slot; None when it is noise.

        Noise is an answer to nothing we asked, a second answer, or one behind its deadline. The asker may have
        left meanwhile.
        """
        request = self._known.get(request_id)
        if request is None or request.chain_id != chain_id:
            return None
        del self._known[request_id]
        self._slots.pop(request_id, None)
        return request if request.deadline > now else None

    def release_at(self, now: float) -> float | None:
        """Return when `release` is worth a call without an answer coming first; None when nothing waits."""
        if not self.waiting:
            return None
        at = now
        if len(self._sent) >= self._limits.sent_per_s:
            at = max(at, self._sent[0] + _RATE_WINDOW_S)
        if len(self._slots) >= self._limits.outstanding:
            at = max(at, next(iter(self._slots.values())) + self._limits.slot_timeout_s)
        return at

    def forget_expired(self, now: float) -> None:
        """Drop what no answer can come for any more. Cheap while little is known; call it about once a second."""
        if self._known:
            for request_id in [key for key, request in self._known.items() if request.deadline <= now]:
                del self._known[request_id]
        self._free_slots(now)

    def _register(self, request: PeerRequest, now: float) -> bytes:
        self._known[request.request_id] = request
        self._slots[request.request_id] = now
        self._sent.append(now)
        return request.frame

    def _may_write(self, now: float) -> bool:
        sent = self._sent
        while sent and sent[0] <= now - _RATE_WINDOW_S:
            sent.popleft()
        if len(sent) >= self._limits.sent_per_s:
            return False
        if len(self._slots) >= self._limits.outstanding:
            self._free_slots(now)
        return len(self._slots) < self._limits.outstanding

    def _free_slots(self, now: float) -> None:
        oldest = now - self._limits.slot_timeout_s
        for request_id in [key for key, written in self._slots.items() if written <= oldest]:
            del self._slots[request_id]
            self._timed_out += 1

    def _enqueue(self, request: PeerRequest, now: float) -> bool:
        if self.waiting >= self._limits.queued and now >= self._swept_at + _SWEEP_INTERVAL_S:
            self._sweep(now)
        if self.waiting >= self._limits.queued:
            if request.is_reask or not self._reasks:
                return False
            self._reasks.pop()
        (self._reasks if request.is_reask else self._asks).append(request)
        return True

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        self._asks = deque(r for r in self._asks if r.context is not None and r.deadline > now)
        self._reasks = deque(r for r in self._reasks if r.context is not None and r.deadline > now)
