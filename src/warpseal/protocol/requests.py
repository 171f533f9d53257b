"""Requests of one connection: written within limits, queued, and matched with responses.

Source of truth: docs/protocol.md (limits). Pure: `now` is any monotonic clock in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from warpseal.warp.ids import NodeID

_RATE_WINDOW_S: Final = 1.0
# A full queue is purged of expired and cancelled requests at most this often, because a purge reads
# all of it.
_PURGE_INTERVAL_S: Final = 0.1
# A peer is silent if it has answered nothing between this many checks, a second or more apart.
# Checks are counted, not seconds: between two of them the event loop has read whatever came,
# however slow this machine is.
_SILENT_CHECKS: Final = 4
_SILENCE_CHECK_S: Final = 1.0


class RequestLimits(Struct, frozen=True):
    """Limits per peer.

    slot_timeout_s: the time after which an unanswered request no longer occupies a slot.
    """

    outstanding: int = 16
    sent_per_s: int = 500
    queued: int = 1_000
    slot_timeout_s: float = 3.0


class PeerRequest(Struct, eq=False):
    """One request, shared by all the peers to which its bytes are sent.

    request_id: number that is unique among the open requests of a connection; peers see it.
    deadline: time on the clock of `now`; later responses do not count.
    is_reask: the peers were asked before; first asks overtake re-asks in the queue.
    on_response: called for each response; None once the request is closed.
    """

    chain_id: bytes
    request_id: int
    frame: bytes
    deadline: float
    is_reask: bool
    on_response: ResponseHandler | None
    requested_at: float

    def is_open(self, now: float) -> bool:
        """Return whether a response would count."""
        return self.on_response is not None and self.deadline > now

    def extend(self, deadline: float) -> None:
        """Accept responses until `deadline` if that is later than the current deadline."""
        self.deadline = max(self.deadline, deadline)

    def close(self) -> None:
        """Accept no more responses and stop writing.

        Slots of peers stay occupied until they respond or time out.
        """
        self.on_response = None
        self.frame = b""


class PeerResponse(Struct, frozen=True, eq=False):
    """The response of one peer: app bytes, or an application error.

    body: app bytes; None for an error.
    error_code: code of an error; None for app bytes.
    """

    node_id: NodeID
    body: bytes | None
    error_code: int | None
    error_message: str
    request: PeerRequest

    def __repr__(self) -> str:
        response = (self.body, self.error_code, self.error_message)
        return f"PeerResponse({self.request.request_id}, {self.node_id.hex()}, {response})"


ResponseHandler = Callable[[PeerResponse], None]


class RequestTable:
    """The requests of one connection.

    A request is registered before its bytes are returned, so no response can come too early. It
    stays in flight until its response or its deadline; its slot is free again `slot_timeout_s`
    after writing.
    """

    __slots__ = (
        "_asks",
        "_in_flight",
        "_limits",
        "_purged_at",
        "_reasks",
        "_send_times",
        "_silence_checked_at",
        "_silent_checks",
        "_slots",
        "_timed_out",
    )

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._in_flight: dict[int, PeerRequest] = {}
        # Write time by request ID, in the order of writing.
        self._slots: dict[int, float] = {}
        # Write times of the last second. These lists are short, and an empty deque takes ten times
        # their memory, for each of a thousand connections.
        self._send_times: list[float] = []
        self._asks: list[PeerRequest] = []
        self._reasks: list[PeerRequest] = []
        self._purged_at = -math.inf
        self._silent_checks = 0
        self._silence_checked_at = -math.inf
        self._timed_out = 0

    @property
    def queued(self) -> int:
        """The number of queued requests."""
        return len(self._asks) + len(self._reasks)

    @property
    def outstanding(self) -> int:
        """The number of occupied slots."""
        return len(self._slots)

    @property
    def in_flight(self) -> int:
        """The number of written requests to which a response may still come."""
        return len(self._in_flight)

    @property
    def oldest_sent_at(self) -> float | None:
        """When the oldest request that occupies a slot was written."""
        return next(iter(self._slots.values()), None)

    @property
    def is_congested(self) -> bool:
        """Whether as many requests are queued as may be outstanding; False for a silent peer."""
        return self.queued >= self._limits.outstanding and self._silent_checks < _SILENT_CHECKS

    def pop_timeouts(self) -> int:
        """Return how many slots timed out since the last call."""
        timed_out, self._timed_out = self._timed_out, 0
        return timed_out

    def submit(self, request: PeerRequest, now: float) -> bytes | None:
        """Return the bytes to write now, empty if the request is queued.

        Returns None if the queue is full.

        If the queue is full, a first ask replaces the youngest queued re-ask.
        """
        if self._asks or self._reasks or not self._may_write(now):
            return self.release(now) if self._enqueue(request, now) else None
        return self._register(request, now)

    def release(self, now: float) -> bytes:
        """Return the bytes of all queued requests that may be written now.

        First asks come first, then the oldest requests.
        """
        frames = []
        while (self._asks or self._reasks) and self._may_write(now):
            request = (self._asks or self._reasks).pop(0)
            if request.on_response is not None and request.deadline > now:
                frames.append(self._register(request, now))
        return b"".join(frames)

    def match_response(self, chain_id: bytes, request_id: int, now: float) -> PeerRequest | None:
        """Return the request of a response and free its slot; None if the response is unexpected.

        A response is unexpected if there is no such request, if it is the second one, or if it
        comes after the deadline. The request may have been cancelled.
        """
        request = self._in_flight.get(request_id)
        if request is None or request.chain_id != chain_id:
            return None
        del self._in_flight[request_id]
        self._slots.pop(request_id, None)
        self._silent_checks = 0
        return request if request.deadline > now else None

    def release_at(self, now: float) -> float | None:
        """Return when `release` returns bytes if no response comes; None without a queue."""
        if not self.queued:
            return None
        at = now
        if len(self._send_times) >= self._limits.sent_per_s:
            at = max(at, self._send_times[0] + _RATE_WINDOW_S)
        if len(self._slots) >= self._limits.outstanding:
            at = max(at, next(iter(self._slots.values())) + self._limits.slot_timeout_s)
        return at

    def forget_expired(self, now: float) -> None:
        """Drop late requests and free timed-out slots; call it about once a second."""
        if not self._in_flight:
            self._silent_checks = 0
        elif now >= self._silence_checked_at + _SILENCE_CHECK_S:
            self._silence_checked_at = now
            self._silent_checks += 1
        if self._in_flight:
            requests = self._in_flight.items()
            for request_id in [key for key, request in requests if request.deadline <= now]:
                del self._in_flight[request_id]
        self._free_slots(now)

    def _register(self, request: PeerRequest, now: float) -> bytes:
        self._in_flight[request.request_id] = request
        self._slots[request.request_id] = now
        self._send_times.append(now)
        return request.frame

    def _may_write(self, now: float) -> bool:
        times = self._send_times
        while times and times[0] <= now - _RATE_WINDOW_S:
            times.pop(0)
        if len(times) >= self._limits.sent_per_s:
            return False
        if len(self._slots) >= self._limits.outstanding:
            self._free_slots(now)
        return len(self._slots) < self._limits.outstanding

    def _free_slots(self, now: float) -> None:
        oldest = now - self._limits.slot_timeout_s
        for request_id in [key for key, written_at in self._slots.items() if written_at <= oldest]:
            del self._slots[request_id]
            self._timed_out += 1

    def _enqueue(self, request: PeerRequest, now: float) -> bool:
        if self.queued >= self._limits.queued and now >= self._purged_at + _PURGE_INTERVAL_S:
            self._purged_at = now
            self._asks = [ask for ask in self._asks if ask.is_open(now)]
            self._reasks = [reask for reask in self._reasks if reask.is_open(now)]
        if self.queued >= self._limits.queued:
            if request.is_reask or not self._reasks:
                return False
            self._reasks.pop()
        queue = self._reasks if request.is_reask else self._asks
        queue.append(request)
        return True
