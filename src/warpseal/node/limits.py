"""Limits of the calls to one upstream node: concurrency, calls per second, and the pauses that the node asks for.

`CallQueue` and `RetryAfter` are pure; `UpstreamLimit` is the asyncio shell of the queue, oldest call first. Calls of
the daemon itself neither wait nor count, so that callers can never delay them. A node has one limit for callers and
another for the follower of blocks, so that neither waits for the other. Source of truth: RFC 9110, section 10.2.3
(Retry-After), RFC 6585 (429).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Final

MAX_WAITING = 1_000
_WINDOW_S = 1.0


class CallOrigin(Enum):
    """The origin of a call: a caller of the daemon, the daemon itself (polls, refreshes), or its follower of blocks."""

    CALLER = auto()
    DAEMON = auto()
    FOLLOWER = auto()


class QueueFull(Exception):
    """The queue of calls to this node is full."""


class CallQueue:
    """Tickets in order of arrival; a ticket is any hashable object, used once.

    max_concurrency: calls in flight; per_s: starts within any one second.
    """

    def __init__(self, max_concurrency: int, per_s: int, max_waiting: int = MAX_WAITING) -> None:
        self._max_concurrency = max_concurrency
        self._max_waiting = max_waiting
        self._starts: deque[float] = deque(maxlen=per_s)
        self._waiting: dict[object, None] = {}
        self._running = 0

    @property
    def waiting(self) -> int:
        """The number of waiting tickets."""
        return len(self._waiting)

    def join(self, ticket: object) -> None:
        """Put a ticket at the end. Raises QueueFull."""
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull
        self._waiting[ticket] = None

    def leave(self, ticket: object) -> None:
        """Remove a ticket that waits no longer."""
        self._waiting.pop(ticket, None)

    def finish(self) -> None:
        """Note that a started call has ended."""
        self._running -= 1

    def try_start(self, now: float) -> bool:
        """Start a call without a ticket if the limits allow it and no ticket waits. Return whether it started."""
        if self._waiting or self._running >= self._max_concurrency or self._start_allowed_at() > now:
            return False
        self._running += 1
        self._starts.append(now)
        return True

    def start_ready(self, now: float) -> list[object]:
        """Start and return every ticket that the limits allow at `now`, oldest first."""
        ready = []
        while self._waiting and self._running < self._max_concurrency and self._start_allowed_at() <= now:
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            self._running += 1
            self._starts.append(now)
            ready.append(ticket)
        return ready

    def next_start_at(self) -> float | None:
        """Return when a waiting ticket can start, if only time is needed for it."""
        if not self._waiting or self._running >= self._max_concurrency:
            return None
        return self._start_allowed_at()

    def _start_allowed_at(self) -> float:
        if len(self._starts) < (self._starts.maxlen or 1):
            return float("-inf")
        return self._starts[0] + _WINDOW_S


class UpstreamLimit:
    """Delays calls until the limits of the node allow them. Used from one event loop."""

    def __init__(self, max_concurrency: int, per_s: int, now: Callable[[], float] | None = None) -> None:
        self._queue = CallQueue(max_concurrency, per_s)
        self._now = now
        self._timer: asyncio.TimerHandle | None = None

    def slot(self, origin: CallOrigin) -> AbstractAsyncContextManager[None]:
        """Hold the slot of one call while the block runs. A cancelled waiter frees its place. Raises QueueFull."""
        return _FREE if origin is CallOrigin.DAEMON else _Slot(self)

    async def enter(self) -> None:
        """Wait for a slot, which `leave` frees. Raises QueueFull."""
        if not self._queue.try_start(self._time()):
            await self._wait_for_slot()

    def leave(self) -> None:
        """Free a slot."""
        self._queue.finish()
        if self._queue.waiting:
            self._start_ready()

    def _time(self) -> float:
        return self._now() if self._now is not None else asyncio.get_running_loop().time()

    async def _wait_for_slot(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.join(turn)
        self._start_ready()
        try:
            await turn
        except asyncio.CancelledError:
            self._cancel(turn)
            raise

    def _cancel(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self._queue.finish()
        else:
            self._queue.leave(turn)
        self._start_ready()

    def _start_ready(self) -> None:
        for ticket in self._queue.start_ready(self._time()):
            assert isinstance(ticket, asyncio.Future)
            if ticket.done():
                # Its waiter was cancelled in the same tick and will not finish the call.
                self._queue.finish()
            else:
                ticket.set_result(None)
        self._wake_later()

    def _wake_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._queue.next_start_at()
        if at is not None:
            wait_s = max(0.001, at - self._time())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._start_ready)


class _Slot:
    """The slot of one call. No generator, for speed: there are thousands a second."""

    __slots__ = ("_limit",)

    def __init__(self, limit: UpstreamLimit) -> None:
        self._limit = limit

    async def __aenter__(self) -> None:
        await self._limit.enter()

    async def __aexit__(self, *_: object) -> None:
        self._limit.leave()


_FREE: Final = nullcontext()


MAX_PAUSE_S: Final = 3_600.0
_FIRST_PAUSE_S: Final = 2.0
_MAX_DEFAULT_PAUSE_S: Final = 60.0
# No date is longer.
_MAX_TEXT: Final = 64


def parse_retry_after(text: str | None, unix_now_s: float) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, at most an hour; None if it says nothing.

    text: seconds, or an HTTP date, which is compared with `unix_now_s`.
    """
    if text is None or len(text) > _MAX_TEXT:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(MAX_PAUSE_S, float(text))
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(MAX_PAUSE_S, max(0.0, moment.timestamp() - unix_now_s))


class RetryAfter:
    """The pause that one node asks for. Without a Retry-After it doubles each time, until a call after it succeeds."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._default_s = 0.0

    def remaining_s(self, now: float) -> float:
        """Return the seconds until the pause ends; 0 if there is none."""
        return max(0.0, self._until - now)

    def record_request(self, now: float, wait_s: float | None) -> None:
        """Note that the node asks to wait; concurrent answers may say so. wait_s: None if it did not say how long."""
        if wait_s is None:
            if self.remaining_s(now) > 0:
                return
            self._default_s = min(_MAX_DEFAULT_PAUSE_S, self._default_s * 2 or _FIRST_PAUSE_S)
            wait_s = self._default_s
        self._until = max(self._until, now + wait_s)

    def record_success(self, now: float) -> None:
        """Note an answer. An answer within the pause does not end it."""
        if self.remaining_s(now) <= 0:
            self._default_s = 0.0
