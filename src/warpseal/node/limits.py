"""How many calls of one origin may go to one upstream node: at once, and in a second; oldest first.

`CallQueue` is pure (`now` comes in); `UpstreamLimit` is its asyncio shell. Calls of the daemon's own pass by
both without waiting and without being counted, so that callers can never hold them up. A node has one limit for
callers and another for the follower of blocks, so that neither waits for the other.
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
    """Who caused a call: a caller of the daemon, the daemon itself (polls, refreshes), or its follower of blocks."""

    CALLER = auto()
    DAEMON = auto()
    FOLLOWER = auto()


class QueueFull(Exception):
    """More callers wait for this node than the queue may hold."""


class CallQueue:
    """Tickets in order of arrival; a ticket is any hashable object of the caller's, each used once.

    at_once: calls under way; per_s: starts within any one second.
    """

    def __init__(self, at_once: int, per_s: int, max_waiting: int = MAX_WAITING) -> None:
        self._at_once = at_once
        self._max_waiting = max_waiting
        self._starts: deque[float] = deque(maxlen=per_s)
        self._waiting: dict[object, None] = {}
        self._running = 0

    @property
    def waiting(self) -> int:
        """How many tickets wait."""
        return len(self._waiting)

    def join(self, ticket: object) -> None:
        """Put a ticket at the end. Raises QueueFull."""
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull
        self._waiting[ticket] = None

    def leave(self, ticket: object) -> None:
        """Drop a ticket that waits no longer."""
        self._waiting.pop(ticket, None)

    def finish(self) -> None:
        """Note that a started call is over."""
        self._running -= 1

    def start_at_once(self, now: float) -> bool:
        """Start a call that never waited, where one may go at `now` and nobody is before it."""
        if self._waiting or self._running >= self._at_once or self._start_allowed_at() > now:
            return False
        self._running += 1
        self._starts.append(now)
        return True

    def start_ready(self, now: float) -> list[object]:
        """Start and return every ticket that may go at `now`, oldest first."""
        ready = []
        while self._waiting and self._running < self._at_once and self._start_allowed_at() <= now:
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            self._running += 1
            self._starts.append(now)
            ready.append(ticket)
        return ready

    def next_start_at(self) -> float | None:
        """Return when to look again, if time alone will let a waiting ticket go."""
        if not self._waiting or self._running >= self._at_once:
            return None
        return self._start_allowed_at()

    def _start_allowed_at(self) -> float:
        if len(self._starts) < (self._starts.maxlen or 1):
            return float("-inf")
        return self._starts[0] + _WINDOW_S


class UpstreamLimit:
    """Holds calls back until they may go to the node. Used from one event loop."""

    def __init__(self, at_once: int, per_s: int, now: Callable[[], float] | None = None) -> None:
        self._queue = CallQueue(at_once, per_s)
        self._now = now
        self._timer: asyncio.TimerHandle | None = None

    def slot(self, origin: CallOrigin) -> AbstractAsyncContextManager[None]:
        """Hold one call's place while the block runs; who is cancelled leaves no trace. Raises QueueFull."""
        return _FREE if origin is CallOrigin.DAEMON else _Slot(self)

    async def enter(self) -> None:
        """Wait for a place, which `leave` gives back. Raises QueueFull."""
        if not self._queue.start_at_once(self._time()):
            await self._wait_for_turn()

    def leave(self) -> None:
        """Give a place back."""
        self._queue.finish()
        if self._queue.waiting:
            self._start_ready()

    def _time(self) -> float:
        return self._now() if self._now is not None else asyncio.get_running_loop().time()

    async def _wait_for_turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.join(turn)
        self._start_ready()
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up(turn)
            raise

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self._queue.finish()
        else:
            self._queue.leave(turn)
        self._start_ready()

    def _start_ready(self) -> None:
        for ticket in self._queue.start_ready(self._time()):
            assert isinstance(ticket, asyncio.Future)
            if ticket.done():
                # Its waiter was cancelled in this very tick and will not come to finish the call.
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
    """A place of one call. No generator: there are thousands a second of them."""

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
_MAX_UNTOLD_PAUSE_S: Final = 60.0
# No date is longer.
_MAX_TEXT: Final = 64


def parse_retry_after(text: str | None, unix_now_s: float) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, at most an hour; None where it says nothing.

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
    """One node's pause; without a Retry-After it doubles each time, until a call after it works."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._untold_s = 0.0

    def remaining_s(self, now: float) -> float:
        """Return how much longer the node is to be left alone; 0 when it is not."""
        return max(0.0, self._until - now)

    def record_request(self, now: float, wait_s: float | None) -> None:
        """Note that the node asks to wait; several answers may say so at once. wait_s: None where it did not say."""
        if wait_s is None:
            if self.remaining_s(now) > 0:
                return
            self._untold_s = min(_MAX_UNTOLD_PAUSE_S, self._untold_s * 2 or _FIRST_PAUSE_S)
            wait_s = self._untold_s
        self._until = max(self._until, now + wait_s)

    def record_success(self, now: float) -> None:
        """Note an answer; one that comes within the pause ends nothing."""
        if self.remaining_s(now) <= 0:
            self._untold_s = 0.0
